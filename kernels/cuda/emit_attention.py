"""CUDA kernels for attention: mma.sync for 16-bit operands on every architecture, plain f32 otherwise."""

from __future__ import annotations

from dataclasses import dataclass

from tracea_onnx import dims as D
from tracea_onnx.cuda import HOPPER_SHARED, Argument, Float32, Int32, Int64, Kernel, Pointer, Request, TensorMap, Unfit, multiple_of
from tracea_onnx.cuda_source import known, overlapped, parameters, static, template
from tracea_onnx.cuda_text import prelude
from tracea_onnx.dims import DimLike
from tracea_onnx.ops import DType

_LARGEST_HEAD = 256
_SIZES = ("B", "H", "KVH", "S", "T")
_STRIDES = (*(f"{o}_{a}" for o in "qkvy" for a in "bsh"), "m_b", "m_h", "m_q", "m_k")


@dataclass(frozen=True)
class Problem:
    """What of an attention launch is known when its kernel is made. head, head_v: sizes of a query/key and of a value row."""

    head: int
    head_v: int
    mask: int
    causal: bool
    nan_to_zero: bool

    def constants(self, dtype: DType) -> str:
        flags = {"CAUSAL": self.causal, "NAN_TO_ZERO": self.nan_to_zero, "IS_HALF": dtype == DType.F16}
        text = "".join(f"constexpr bool {k} = {str(v).lower()};\n" for k, v in flags.items())
        return f"{text}constexpr int HEAD = {self.head}, HEAD_V = {self.head_v}, MASK = {self.mask};\n"


def problem(request: Request) -> Problem:
    i = parameters(request)
    head, head_v = static(i["D"], "head size"), static(i["DV"], "head size")
    if not (0 < head <= _LARGEST_HEAD and 0 < head_v <= _LARGEST_HEAD):
        raise Unfit(f"attention heads of {head} and {head_v} elements (the CUDA kernels take 1 to {_LARGEST_HEAD})")
    mask = static(i["mask_kind"], "mask kind") if "mask" in request.operands else 0
    return Problem(head, head_v, mask, bool(i["causal"]), bool(i["nan_to_zero"]))


def arguments(request: Request) -> tuple[Argument, ...]:
    """Of `entry`, in order."""
    i = parameters(request)
    return (
        *(Pointer(o) for o in ("q", "k", "v", "mask", "y")), *(Int32(i[s]) for s in _SIZES), *(Int64(i[s]) for s in _STRIDES),
        Int32(i["past"]), Float32(request.floats["scale"]), Float32(request.floats.get("fill", 0.0)),
    )  # fmt: skip


def entry(block: int, maps: str = "") -> str:
    """The kernel `attention`, which gathers its parameters and calls `attend`. maps: names of tensor-map parameters, in front of the others."""
    sizes, strides = ", ".join(f"int {s}_" for s in _SIZES), ", ".join(f"i64 {s}" for s in _STRIDES)
    given = "".join(f"const __grid_constant__ TensorMap map_{m}, " for m in maps)
    return f"""
extern "C" __global__ void __launch_bounds__({block}, 1) attention({given}const T* q, const T* k, const T* v, const void* mask, T* y, {sizes},
    {strides}, int past, float scale, float fill) {{
  attend(Attention{{q, k, v, mask, y, {", ".join(f"{s}_" for s in _SIZES)}, {", ".join(_STRIDES)}, past, scale, fill}}{"".join(f", map_{m}" for m in maps)});
}}
"""


def _grid(request: Request, rows: int) -> tuple[DimLike, DimLike, DimLike]:
    """A block per head and `rows` query rows, linear."""
    i = parameters(request)
    return (D.product([i["B"], i["H"], D.ceildiv(i["S"], rows)]), 1, 1)


def _plain(request: Request, p: Problem) -> list[Kernel]:
    r = 4 if max(p.head, p.head_v) <= 128 else 2
    tile, d, dv = 16 * r, -(-p.head // 4) * 4, -(-p.head_v // 64) * 64
    pitch = d + 4 + (4 if d // 4 % 2 else 0)
    floats = tile * pitch + tile * max(pitch, dv + 4) + tile * (tile + 4)
    source = f"{prelude(request.dtype)}{p.constants(request.dtype)}constexpr int R = {r};\n{template('base', 'attention', 'attention_simt')}{entry(256)}"
    return [Kernel(source, "attention", _grid(request, tile), 256, arguments(request), smem=floats * 4, pdl=overlapped(request))]


def _warps(request: Request) -> int:
    """Warps (16 query rows each) of a block: fewer where that fills the device."""
    i = parameters(request)
    sizes = [known(i[k]) for k in ("B", "H", "S")]
    if any(s is None for s in sizes):
        return 4
    b, h, s = (int(x or 0) for x in sizes)
    return next((w for w in (4, 2) if b * h * -(-s // (16 * w)) >= request.sms and s > 8 * w), 1 if s <= 16 else 2)


def _mma(request: Request, p: Problem) -> list[Kernel]:
    warps, keys = _warps(request), 64 if max(p.head, p.head_v) <= 128 else 32
    pitch, pitch_v = (-(-n // 16) * 32 + 16 for n in (p.head, p.head_v))
    smem = 16 * warps * pitch + 2 * keys * (pitch + pitch_v)
    constants = f"{p.constants(request.dtype)}constexpr int WARPS = {warps}, BN = {keys};\n"
    source = f"{prelude(request.dtype)}{constants}{template('base', 'mma', 'attention', 'attention_mma')}{entry(32 * warps)}"
    return [Kernel(source, "attention", _grid(request, 16 * warps), 32 * warps, arguments(request), smem=smem, pdl=overlapped(request))]


# --- Hopper ---------------------------------------------------------------------------------------------------------------

#: The largest head of the warp-specialised kernel.
_HOPPER_HEAD = 128


def able(request: Request, p: Problem) -> bool:
    """Whether tensor copies can read the operands and 16-byte stores can write the result."""
    pitches = [parameters(request)[s] for s in _STRIDES[:12]]
    fits = max(p.head, p.head_v) <= _HOPPER_HEAD and p.head % 8 == p.head_v % 8 == 0
    return request.arch == 90 and fits and not request.unaligned & set("qkvy") and all(multiple_of(s) % 8 == 0 for s in pitches)


def _waste(size: int, tile: int) -> float:
    """Rows computed per row wanted."""
    return -(-size // tile) * tile / max(size, 1)


@dataclass(frozen=True)
class HopperTile:
    """groups: consumer warpgroups of 64 query rows; keys of a tile; stages: tiles of keys and values in flight; own_output: results have shared
    memory of their own on their way out (else they take the place of the queries, and the next queries come later)."""

    groups: int
    keys: int
    stages: int
    own_output: bool
    smem: int


def hopper_tile(p: Problem, groups: int, keys: int) -> HopperTile | None:
    """The tile with as many stages as shared memory holds, or None when it has no room for two."""
    panels, panels_v = -(-p.head // 64), -(-p.head_v // 64)
    q, o, stage = groups * 8192 * panels, groups * 8192 * panels_v, keys * 128 * (panels + panels_v)
    for own, rows in ((True, q + o), (False, max(q, o))):
        stages = min(4, (HOPPER_SHARED - 2048 - rows) // stage)
        if stages >= 2:
            return HopperTile(groups, keys, stages, own, rows + stages * stage + 2048)
    return None


#: What a tile of 1, 2 or 3 warpgroups takes, in tenths of what one takes alone: they share the keys, and hide each other's softmax. Tall causal
#: tiles compute more scores that nobody sees.
_COST, _CAUSAL_COST = {1: 10, 2: 13, 3: 17}, {1: 10, 2: 13, 3: 18}


def tiles(request: Request, p: Problem) -> list[tuple[HopperTile, DimLike]]:
    """The tiles worth having, and for each whether it is the one for the sizes of a run (at most one is): the fewest rounds over the device."""
    i = parameters(request)
    t = known(i["T"])
    # a mask needs registers that three warpgroups do not have
    most, widest = (2 if p.mask else 3, 128) if max(p.head, p.head_v) <= 64 else (2, 128 if p.causal or p.mask else 176)
    widths = sorted(range(64, widest + 1, 16), key=lambda n: (round(_waste(t or 0, n), 2) if t is not None else n != 128, -n))
    groups = range(1, most + 1)
    each = _CAUSAL_COST if p.causal else _COST
    cost = {g: D.mul(D.ceildiv(_blocks(request, g), request.sms), each[g]) for g in groups}
    found: list[tuple[HopperTile, DimLike]] = []
    for g in groups:
        better = [D.less(cost[g], cost[o]) if o > g else D.sub(1, D.less(cost[o], cost[g])) for o in groups if o != g]
        tile = next(x for x in (hopper_tile(p, g, n) for n in widths) if x is not None)
        found.append((tile, D.product(better)))
    return [(tile, use) for tile, use in found if use != 0]


def _blocks(request: Request, groups: int) -> DimLike:
    """Tiles of the output."""
    i = parameters(request)
    return D.product([i["B"], i["H"], D.ceildiv(i["S"], 64 * groups)])


def hopper(request: Request, p: Problem) -> list[Kernel]:
    return [_hopper(request, p, tile, use) for tile, use in tiles(request, p)]


def _hopper(request: Request, p: Problem, tile: HopperTile, use: DimLike) -> Kernel:
    i = parameters(request)
    groups, keys, block = tile.groups, tile.keys, 128 * (tile.groups + 1)
    flags = {"POSITIVE": request.floats["scale"] > 0, "OWN_OUTPUT": tile.own_output, "MASK_ROWS": known(i["m_q"]) != 0}
    constants = (
        f"{p.constants(request.dtype)}{''.join(f'constexpr bool {k} = {str(v).lower()};' for k, v in flags.items())}\n"
        f"constexpr int GROUPS = {groups}, BN = {keys}, STAGES = {tile.stages};\n"
    )
    source = "".join([
        prelude(request.dtype), constants, template("base", "hopper"), _products(request.dtype, keys, -(-p.head_v // 16) * 16),
        template("attention", "attention_hopper"), entry(block, "qkv"),
    ])  # fmt: skip
    maps = (
        _heads(request, "q", p.head, i["S"], i["H"], 64 * groups), _heads(request, "k", p.head, i["T"], i["KVH"], keys),
        _heads(request, "v", p.head_v, i["T"], i["KVH"], keys),
    )  # fmt: skip
    grid = (D.mul(D.minimum(_blocks(request, groups), request.sms), use), 1, 1)
    return Kernel(source, "attention", grid, block, (*maps, *arguments(request)), smem=tile.smem, pdl=overlapped(request))


def _heads(request: Request, operand: str, size: int, rows: DimLike, heads: DimLike, box: int) -> TensorMap:
    """[batch, head, row, element] of an operand, copied by `box` rows of 64 elements."""
    strides = tuple(D.mul(parameters(request)[f"{operand}_{a}"], 2) for a in "shb")
    return TensorMap(Pointer(operand), request.dtype, (size, rows, heads, parameters(request)["B"]), strides, (64, box, 1, 1))


def _products(dtype: DType, keys: int, width: int) -> str:
    """`multiply_scores(s, a, b, add)`: s[64 x keys] = a b^T from shared memory; `multiply_values(out, p, b)`: out[64 x width] += p b, p in registers."""
    kind = "f16" if dtype == DType.F16 else "bf16"

    def outputs(count: int) -> tuple[str, str]:
        return ", ".join(f"%{k}" for k in range(count)), ", ".join(f'"+f"(d[{k}])' for k in range(count))

    n = keys // 2
    registers, out = outputs(n)
    scores = (
        f'DEV void multiply_scores(float (&d)[{n}], u64 a, u64 b, int add) {{ asm volatile("{{.reg .pred p; setp.ne.b32 p, %{n + 2}, 0; '
        f'wgmma.mma_async.sync.aligned.m64n{keys}k16.f32.{kind}.{kind} {{{registers}}}, %{n}, %{n + 1}, p, 1, 1, 0, 0;}}" '
        f': {out} : "l"(a), "l"(b), "r"(add)); }}\n'
    )
    n = width // 2
    registers, out = outputs(n)
    given = ", ".join(f"%{n + k}" for k in range(4))
    values = (
        f'DEV void multiply_values(float (&d)[{n}], const u32* a, u64 b) {{ asm volatile("wgmma.mma_async.sync.aligned.m64n{width}k16.f32.{kind}.{kind} '
        f'{{{registers}}}, {{{given}}}, %{n + 4}, 1, 1, 1, 1;" : {out} : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)); }}\n'
    )
    return scores + values


def attention(request: Request) -> list[Kernel]:
    p = problem(request)
    if request.dtype == DType.F32:
        return _plain(request, p)
    return hopper(request, p) if able(request, p) else _mma(request, p)


FAMILIES = {"attention": attention}
