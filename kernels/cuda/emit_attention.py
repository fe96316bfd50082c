"""CUDA kernels for attention: mma.sync for 16-bit operands on every architecture, plain f32 otherwise."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tracea_onnx import dims as D
from tracea_onnx.cuda import HOPPER_SHARED, Argument, Float32, Int32, Int64, Kernel, Pointer, Request, TensorMap, Unfit, multiple_of
from tracea_onnx.cuda_source import known, overlapped, parameters, static, template
from tracea_onnx.cuda_text import prelude
from tracea_onnx.dims import DimLike, evaluate
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


def entry(block: int, maps: str = "", blocks: int = 1) -> str:
    """The kernel `attention`, which gathers its parameters and calls `attend`. maps: names of tensor-map parameters, in front of the others."""
    sizes, strides = ", ".join(f"int {s}_" for s in _SIZES), ", ".join(f"i64 {s}" for s in _STRIDES)
    given = "".join(f"const __grid_constant__ TensorMap map_{m}, " for m in maps)
    return f"""
extern "C" __global__ void __launch_bounds__({block}, {blocks}) attention({given}const T* q, const T* k, const T* v, const void* mask, T* y, {sizes},
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
_MOST_STAGES = 6


def able(request: Request, p: Problem) -> bool:
    """Whether tensor copies can read the operands and 16-byte stores can write the result."""
    pitches = [parameters(request)[s] for s in _STRIDES[:12]]
    fits = max(p.head, p.head_v) <= _HOPPER_HEAD and p.head % 8 == p.head_v % 8 == 0
    return request.arch == 90 and fits and not request.unaligned & set("qkvy") and all(multiple_of(s) % 8 == 0 for s in pitches)


@dataclass(frozen=True)
class HopperTile:
    """groups: consumer warpgroups of 64 query rows; keys: of a tile; blocks: resident on a multiprocessor; plan: what runs beside what
    (attention_tiles.cuh); stages: tiles of keys and values in flight; slots: tiles of queries in flight."""

    groups: int
    keys: int
    blocks: int
    plan: str
    stages: int
    slots: int
    smem: int

    def __str__(self) -> str:
        return f"{self.groups}x{self.keys}{f'*{self.blocks}' if self.blocks > 1 else ''}{'' if self.plan == 'FREE' else f' {self.plan.lower()}'}"

    @property
    def rows(self) -> int:
        """Query rows of a block."""
        return _rows(self.groups, self.plan)

    def constants(self) -> str:
        launched = 65536 // (128 * (self.groups + 1) * self.blocks) // 8 * 8  # registers of a thread before they are given from the producer to the others
        left = 40 if launched > 128 else 32
        registers = min(240, (launched * (self.groups + 1) - left) // self.groups // 8 * 8)
        return (
            f"constexpr int GROUPS = {self.groups}, BN = {self.keys}, STAGES = {self.stages}, SLOTS = {self.slots};\n"
            f"constexpr int REGISTERS = {registers}, REGISTERS_LEFT = {left};\n"
            f"enum Plan {{ FREE, OVERLAP, TURNS, ALONE, SPLIT }};\nconstexpr Plan PLAN = {self.plan};\n"
        )


def _rows(groups: int, plan: str) -> int:
    return 64 * (1 if plan == "SPLIT" else groups)


def hopper_tile(p: Problem, groups: int, keys: int, blocks: int = 1, plan: str = "FREE") -> HopperTile | None:
    """With as many stages as shared memory holds, or None when it has no room for two."""
    panels, panels_v = -(-p.head // 64), -(-p.head_v // 64)
    slot, stage = _rows(groups, plan) * 128 * max(panels, panels_v), keys * 128 * (panels + panels_v) + (4 * (keys + 4) if p.mask else 0)
    other = 2048 + ((groups - 1) * 512 * (-(-p.head_v // 16) * 8 + 4) if plan == "SPLIT" else 0)  # alignment and barriers; results to be gathered
    room = (HOPPER_SHARED + 1024) // blocks - 1024 - other  # without what the device keeps of each block's
    for slots in (2, 1):
        stages = min(_MOST_STAGES, (room - slots * slot) // stage)
        if stages >= 2:
            return HopperTile(groups, keys, blocks, plan, stages, slots, slots * slot + stages * stage + other)
    return None


@dataclass(frozen=True)
class Form:
    """Tiles of `groups` warpgroups, `blocks` of them on a multiprocessor, with 64 to `widest` keys (at most `masked` where rows have masks of their own, which
    need registers), `usual` where T is not known. Of a busy multiprocessor 64 rows take `work` clocks: for themselves, for each of their tiles of keys and for
    16 of its keys. delay: the same clocks on the way through one warpgroup, which the others of a multiprocessor hide; without `work`,
    the form is for multiprocessors that have a single tile."""

    groups: int
    blocks: int
    plan: str
    usual: int
    widest: int
    masked: int
    work: tuple[int, int, int] | None
    delay: tuple[int, int, int]


#: For heads of up to 64 elements, and for longer ones, whose warpgroups need more registers.
_SHORT = (
    Form(4, 1, "FREE", 96, 96, 64, (900, 160, 85), (4000, 64, 96)), Form(1, 4, "FREE", 64, 64, 0, (900, 200, 85), (4000, 64, 96)),
    Form(1, 3, "FREE", 64, 80, 80, (900, 200, 85), (4000, 64, 96)), Form(1, 2, "FREE", 128, 128, 128, (900, 110, 120), (4000, 64, 96)),
    Form(1, 1, "ALONE", 128, 208, 128, None, (4000, 64, 60)), Form(2, 1, "SPLIT", 128, 128, 128, None, (4500, 64, 60)),
)  # fmt: skip
_LONG = (
    Form(2, 1, "OVERLAP", 128, 128, 128, (900, 180, 145), (4000, 100, 176)), Form(1, 1, "OVERLAP", 128, 128, 128, (900, 180, 145), (4000, 100, 176)),
    Form(2, 1, "TURNS", 128, 128, 128, (640, 220, 145), (4000, 100, 176)), Form(1, 2, "FREE", 64, 64, 64, (900, 180, 145), (3800, 100, 176)),
    Form(1, 1, "ALONE", 128, 128, 128, None, (3800, 64, 130)),
)  # fmt: skip
#: Clocks more of 64 causal rows in a block that has other rows, too, which see more or fewer keys.
_UNEVEN = 250
#: The price of a form whose delay nothing hides, where a multiprocessor has more than one of its tiles.
_NEVER = 1 << 40


def _clocks(of: tuple[int, int, int], keys: DimLike, width: int) -> DimLike:
    """Of 64 rows with so many keys in tiles of `width`."""
    return D.add(of[0], D.mul(D.ceildiv(keys, width), of[1] + width // 16 * of[2]))


def _delay(form: Form, keys: DimLike, width: int) -> DimLike:
    return _clocks(form.delay, D.ceildiv(keys, form.groups) if form.plan == "SPLIT" else keys, width)


def _cost(request: Request, p: Problem, form: Form, width: int) -> DimLike:
    """Clocks of the multiprocessor with the most tiles: rounds of as many as it has room for, the last of what is left."""
    keys, rows = parameters(request)["T"], _rows(form.groups, form.plan)
    count, delay = D.ceildiv(_blocks(request, rows), request.sms), _delay(form, keys, width)
    if form.work is None:
        return D.select(D.less(1, count), _NEVER, delay)
    work = _clocks(form.work, D.ceildiv(D.add(keys, width), 2) if p.causal else keys, width)
    if p.causal and rows > 64:
        work = D.add(work, _UNEVEN)

    def together(tiles: DimLike) -> DimLike:
        return D.maximum(D.mul(tiles, D.mul(work, rows // 64)), delay)

    rest = D.mod(count, form.blocks)
    return D.add(D.mul(D.floordiv(count, form.blocks), together(form.blocks)), D.select(rest, together(rest), 0))


def _fitted(request: Request, p: Problem, form: Form) -> HopperTile | None:
    """The tile of a form with the keys that cost least."""
    i = parameters(request)
    t, widest = known(i["T"]), form.masked if p.mask and known(i["m_q"]) != 0 else form.widest
    widths = range(64, widest + 1, 16) if t is not None else (min(form.usual, widest),) if widest else ()
    made = [m for m in (hopper_tile(p, form.groups, n, form.blocks, form.plan) for n in widths) if m is not None]

    def price(tile: HopperTile) -> int:
        return evaluate(_clocks(form.work, t or 0, tile.keys) if form.work else _delay(form, t or 0, tile.keys), {})

    return min(made, key=price, default=None)


def tiles(request: Request, p: Problem) -> list[tuple[HopperTile, DimLike]]:
    """The tiles worth having, and for each whether it is the one for the sizes of a run: the cheapest."""
    forms = _SHORT if max(p.head, p.head_v) <= 64 else _LONG
    fitted = ((form, _fitted(request, p, form)) for form in forms)
    found = [(tile, _cost(request, p, form, tile.keys)) for form, tile in fitted if tile is not None]
    chosen: list[tuple[HopperTile, DimLike]] = []
    for n, (tile, cost) in enumerate(found):
        better = [D.less(cost, c) if k < n else D.sub(1, D.less(c, cost)) for k, (_, c) in enumerate(found) if k != n]
        chosen.append((tile, D.product(better)))
    return [(tile, use) for tile, use in chosen if use != 0]


def _blocks(request: Request, rows: int) -> DimLike:
    """Tiles of the output."""
    i = parameters(request)
    return D.product([i["B"], i["H"], D.ceildiv(i["S"], rows)])


def hopper(request: Request, p: Problem) -> list[Kernel]:
    return [_hopper(request, p, tile, use) for tile, use in tiles(request, p)]


def _raw(request: Request, p: Problem) -> bool:
    """Whether scores can stay unscaled up to their exponentials: what masks add, divided by the scale, must leave room for the scores' digits."""
    fill = request.floats.get("fill", 0.0)
    small = p.mask == 0 or (request.dtype == DType.F16 if p.mask == 1 else fill == -math.inf or abs(fill) <= 65504)
    return small and 1e-3 < request.floats["scale"] < 0.69


def _hopper(request: Request, p: Problem, tile: HopperTile, use: DimLike) -> Kernel:
    i = parameters(request)
    block = 128 * (tile.groups + 1)
    flags = {"RAW": _raw(request, p), "MASK_ROWS": known(i["m_q"]) != 0}
    templates = ("attention", "attention_tiles", "attention_masks", "attention_hopper")
    source = "".join([
        prelude(request.dtype), p.constants(request.dtype), "".join(f"constexpr bool {k} = {str(v).lower()};\n" for k, v in flags.items()), tile.constants(),
        template("base", "hopper"), _products(request.dtype, tile.keys, -(-p.head_v // 16) * 16), template(*templates),
        entry(block, "qkvy", tile.blocks),
    ])  # fmt: skip
    stored = 16 if tile.plan in ("ALONE", "SPLIT") else tile.rows  # at once: a warp's rows or the block's
    maps = (
        _heads(request, "q", p.head, i["S"], i["H"], tile.rows), _heads(request, "k", p.head, i["T"], i["KVH"], tile.keys),
        _heads(request, "v", p.head_v, i["T"], i["KVH"], tile.keys), _heads(request, "y", p.head_v, i["S"], i["H"], stored),
    )  # fmt: skip
    grid = (D.mul(D.minimum(_blocks(request, tile.rows), request.sms * tile.blocks), use), 1, 1)
    return Kernel(source, "attention", grid, block, (*maps, *arguments(request)), smem=tile.smem, pdl=overlapped(request))


def _heads(request: Request, operand: str, size: int, rows: DimLike, heads: DimLike, box: int) -> TensorMap:
    """[batch, head, row, element] of an operand, copied by `box` rows of 64 elements."""
    strides = tuple(D.mul(parameters(request)[f"{operand}_{a}"], 2) for a in "shb")
    return TensorMap(Pointer(operand), request.dtype, (size, rows, heads, parameters(request)["B"]), strides, (64, box, 1, 1))


def _products(dtype: DType, keys: int, width: int) -> str:
    """`start_scores(s, a, b)`, `add_scores`: s[64 x keys] = a b^T, += a b^T from shared memory; `multiply_values(out, p, b)`: out[64 x width] += p b,
    p in registers."""
    kind = "f16" if dtype == DType.F16 else "bf16"

    def outputs(count: int) -> tuple[str, str]:
        return ", ".join(f"%{k}" for k in range(count)), ", ".join(f'"+f"(d[{k}])' for k in range(count))

    n = keys // 2
    registers, out = outputs(n)
    scores = "".join(
        f'DEV void {name}(float (&d)[{n}], u64 a, u64 b) {{ asm volatile("{{.reg .pred p; setp.ne.b32 p, {add}, 0; '
        f'wgmma.mma_async.sync.aligned.m64n{keys}k16.f32.{kind}.{kind} {{{registers}}}, %{n}, %{n + 1}, p, 1, 1, 0, 0;}}" '
        f': {out if add else out.replace("+f", "=f")} : "l"(a), "l"(b)); }}\n'
        for add, name in enumerate(("start_scores", "add_scores"))
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
