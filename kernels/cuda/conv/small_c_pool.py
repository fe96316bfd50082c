"""Convolutions of few input channels over images in any order of axes, and such convolutions with
the max pooling that follows (`small_c_pool.cuh`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from tracea_onnx.codegen.kernel_request import Argument, Int32, Int64, Kernel, Pointer, Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import ACTIVATIONS, DType
from tracea_onnx.ir.dims import DimLike, multiple_of

from ..common import epilogue as _epilogue
from ..common.launch import declared, shared
from ..common.prelude import prelude
from ..common.templates import template
from ..gemm import select

_RELU = ACTIVATIONS.index("relu")
_STATIC = ("IC", "KH", "KW", "SH", "SW")
#: Most steps along k whose pixels fit into registers, most rows of results that a warp computes,
#: and height and width of results that are not known.
_STEPS, _LONGEST, _USUAL = 20, 16, 112
#: Clocks: of a block before its first row; of a team's row apart from products at the least, for
#: each channel and for each piece of the image that a thread copies; of a row when little else
#: runs.
_START, _ROW, _CHANNEL, _PIECE, _LATENCY = 6000.0, 60.0, 5.0, 10.0, 1500.0
#: Bytes of shared memory of a block at most.
_SMEM = 96 * 1024


@dataclass(frozen=True)
class StemTile:
    """Warps side by side (the others of four lie below), output channels of one block, blocks of a
    multiprocessor, teams of four warps in a block.
    """

    across: int
    columns: int
    resident: int
    teams: int = 1


def planar(r: Request) -> bool:
    """Whether the channels of a pixel do not lie together."""
    return r.ints.get("x_c", 0) not in (0, 1)


def _pooled(r: Request) -> bool:
    return r.family == "conv_pool"


def _shape(r: Request) -> tuple[int, int]:
    """Pairs of taps that a row of the window has, rounded up to a power of two; steps of 16 along
    k.
    """
    ic, kh, kw = (int(r.ints[n]) for n in _STATIC[:3])
    pairs = 1 if kw <= 2 else 2 if kw <= 4 else 4
    return pairs, -(-kh * -(-ic * pairs // 4) // 2)


def _results(r: Request) -> int:
    """Columns of results of a warp."""
    return 16 if not _pooled(r) else 7 if r.ints["PKW"] == 3 else 8


def _layout(r: Request, tile: StemTile) -> dict[str, int]:
    """How the rows of the image lie in shared memory."""
    kh, kw, sh, sw = (int(r.ints[n]) for n in _STATIC[1:])
    pairs, _ = _shape(r)
    wide = _results(r) * (2 if _pooled(r) else 1)
    copy, ahead = _pieces(r, tile.across * wide * sw)
    shift = int(sw % 2 == 0 and ahead % 2 == 1 and kw < 2 * pairs)
    aligned = sw % 2 == 0 and (ahead - shift) % 2 == 0
    words = ((tile.across - 1) * wide * sw + 15 * sw + ahead - shift + 2 * pairs + 1) // 2 + (
        not aligned
    )
    words = -(-words * 4 // max(copy, 4)) * max(copy, 4) // 4
    # words that a warp reads lie in different banks
    pitch = words + (8 * pairs - words) % 32 if pairs < 4 else words
    early = 2 if copy else 1
    return {
        "COPY": copy, "AHEAD": ahead, "SHIFT": shift, "PAIRS": pairs, "WORDS": words, "PITCH": pitch, "SLOTS": max(-(-kh // sh) + early - 1, early + 1),
    }  # fmt: skip


def _pieces(r: Request, step: int) -> tuple[int, int]:
    """Bytes of a row that one copy takes, 0 where pixels come one by one; columns that lie before
    the first pixel of a strip, which begin such a piece.

    step: columns from a strip to the next."""
    i = r.ints
    first = i["PL"] + (D.mul(i["PPL"], i["SW"]) if _pooled(r) else 0)
    if not planar(r) or i["x_cs"] != 1 or not isinstance(first, int) or "x" in r.unaligned:
        return 0, 0
    whole = min(multiple_of(v) for v in (i["IW"], i["x_rs"], i["x_ns"], i["x_c"], step))
    for size in (8, 4, 2):
        if whole % size == 0:
            return 2 * size, -first % size
    return 0, 0


def _smem(r: Request, tile: StemTile) -> int:
    ic, _, _, sh, _ = (int(r.ints[n]) for n in _STATIC)
    at = _layout(r, tile)
    rows = at["SLOTS"] * 4 // tile.across * sh * ic
    return tile.columns * (_shape(r)[1] * 32 + 16) + tile.teams * rows * at["PITCH"] * 4


def applies(r: Request) -> bool:
    """Whether the kernel computes this convolution without groups."""
    i = r.ints
    if (
        r.dtype not in (DType.F16, DType.BF16)
        or any(not isinstance(i[n], int) for n in (*_STATIC, "DH", "DW", "OC"))
        or i["DH"] != 1
        or i["DW"] != 1
    ):
        return False
    return int(i["IC"]) <= 8 and int(i["KW"]) <= 8 and _shape(r)[1] <= _STEPS and bool(_tiles(r))


def _tiles(r: Request) -> list[StemTile]:
    """What may be chosen: of one or two teams, as many blocks as the registers and the shared
    memory of a multiprocessor hold.
    """
    oc = int(r.ints["OC"])
    columns = 64 if oc > 32 else 32 if oc > 16 else 16
    epilogue = (
        columns // 2
        + 8 * _pooled(r)
        + (16 if r.program is not None else 8 if _epilogue.residual(r) else 0)
    )
    total = shared(r)
    out = []
    for across in (4, 2, 1):
        for teams in (1, 2) if r.arch == 90 else (1,):
            tile = StemTile(across, columns, 1, teams)
            smem, held = _smem(r, tile), 0 if _layout(r, tile)["COPY"] else _copied(r, tile)
            registers = -(-(21 + columns // 2 + 3 * _shape(r)[1] + max(epilogue, held)) // 8) * 8
            if smem <= _SMEM:
                out.append(
                    replace(
                        tile,
                        resident=max(
                            1, min(65536 // (128 * teams * registers), total // (smem + 1024))
                        ),
                    )
                )
    return out


def _copied(r: Request, tile: StemTile) -> int:
    """Pieces of the image, or single numbers of it, that a thread copies for every row."""
    at, ic = _layout(r, tile), int(r.ints["IC"])
    words = 4 // tile.across * int(r.ints["SH"]) * at["WORDS"]
    return -(-(words * ic * 4 // at["COPY"]) // 128) if at["COPY"] else 2 * ic * -(-words // 128)


def _price(r: Request, tile: StemTile, images: int) -> float:
    """Clocks for so many images."""
    i = r.ints
    height, width = (
        int(select.known(i[n], _USUAL)) for n in (("PH", "PW") if _pooled(r) else ("OH", "OW"))
    )
    beside = images * -(-width // (tile.across * _results(r))) * -(-int(i["OC"]) // tile.columns)
    lines = int(_lines(r, tile, height, beside))
    blocks = beside * -(-height // (lines * tile.teams * 4 // tile.across))
    rows = 2 * lines + int(i["PKH"]) - 2 if _pooled(r) else lines
    product, rest = (
        _shape(r)[1] * tile.columns / 2,
        _ROW + _CHANNEL * tile.columns + _PIECE * _copied(r, tile),
    )
    # blocks side by side fall into step, the teams of one do not
    one = max(product, rest) if tile.teams > 1 else product + rest
    row = max(_LATENCY, min(tile.resident, -(-blocks // r.sms)) * tile.teams * one)
    return -(-blocks // (tile.resident * r.sms)) * (_START + rows * row)


def choose(r: Request) -> Iterator[tuple[StemTile, DimLike]]:
    """(tile, condition) of each kernel of a convolution to which this one applies."""
    size = [r.ints[n] for n in (("PH", "PW") if _pooled(r) else ("OH", "OW"))]
    image = max(1, int(D.product([select.known(d, _USUAL) for d in size])))
    tiles = _tiles(r)

    def price(pixels: int) -> dict[StemTile, float]:
        return {t: _price(r, t, -(-pixels // image)) for t in tiles}

    yield from select.choose(D.product([r.ints["N"], *size]), price)


def _lines(r: Request, tile: StemTile, height: DimLike, across: DimLike) -> DimLike:
    """Rows of results of a warp: so many that all blocks run at once, where that is not too many.
    across: blocks beside each other, all images included.
    """
    down = tile.teams * 4 // tile.across
    bands = D.maximum(
        D.ceildiv(height, down * _LONGEST), D.floordiv(tile.resident * r.sms, D.maximum(1, across))
    )
    return D.maximum(1, D.ceildiv(D.ceildiv(height, down), D.maximum(1, bands)))


def convolution(r: Request) -> list[Kernel]:
    """The kernels of a convolution to which this one applies, one for each range of sizes."""
    return [kernel(r, tile, active) for tile, active in choose(r)]


def kernel(r: Request, tile: StemTile, active: DimLike = 1) -> Kernel:
    """active: 0 empties the grid."""
    i = r.ints
    pooled = _pooled(r)
    height, width = (i["PH"], i["PW"]) if pooled else (i["OH"], i["OW"])
    down, blocks_y = tile.teams * 4 // tile.across, -(-int(i["OC"]) // tile.columns)
    strips = D.ceildiv(width, tile.across * _results(r))
    lines = _lines(r, tile, height, D.product([i["N"], strips, blocks_y]))
    params: list[tuple[str, str, Argument]] = [
        ("const T*", "x", Pointer("x")),
        ("const T*", "w", Pointer("w")),
        ("T*", "y", Pointer("y")),
    ]
    params += select.int_params(
        r, ("IH", "IW", "OH", "OW", "OC", "PT", "PL", *(("PPT", "PPL") if pooled else ()))
    )
    params += [("int", n, Int32(v)) for n, v in (("H", height), ("W", width), ("lines", lines))]
    # between channels, 0 where they are neighbours; symbolic where the size of an image in planes
    # is
    step = i.get("x_c", 0)
    channel = [("i64", "x_c", Int64(1 if isinstance(step, int) and step == 0 else step))]
    params += [
        *channel,
        *select.long_params(
            r,
            (
                "x_cs",
                "x_rs",
                "x_ns",
                "y_cs",
                "y_rs",
                "y_ns",
                *(() if pooled else ("r_cs", "r_rs", "r_ns")),
            ),
        ),
    ]
    relu = pooled and r.program is None and i.get("act", 0) == _RELU
    epi = _epilogue.epilogue(
        replace(r, ints={**i, "act": 0}) if relu else r,
        tuple(i.get(n, 0) for n in ("r_cs", "r_rs", "r_ns")),
        width=2,
    )
    parameters = [*params, *epi.parameters]
    window: Mapping[str, DimLike] = (
        {n: i[n] for n in ("PKH", "PKW")}
        if pooled
        else dict.fromkeys(("PKH", "PKW", "PPT", "PPL"), 0)
    )
    constants = {
        **{n: i[n] for n in _STATIC},
        **window,
        "BN": tile.columns,
        "ACROSS": tile.across,
        "TEAMS": tile.teams,
        **_layout(r, tile),
    }
    copy = constants.pop("COPY")
    wgmma = r.arch == 90
    text = "\n".join([
        prelude(r.dtype), "#define IS_F32 0", f'#define MMA_TYPE "{select.MMA_TYPE[r.dtype]}"', f"#define WGMMA {int(wgmma)}", f"#define POOL {int(pooled)}",
        f"#define RESIDENT {tile.resident}", f"#define COPY {copy}", f"constexpr int {', '.join(f'{n} = {v}' for n, v in constants.items())};",
        f"#define Y_VECTOR {int(_epilogue.vector(r, 'y', (i['y_cs'], i['y_rs'], i['y_ns'])))}",
        f"constexpr bool EARLY = {int('w' in r.constant)}, WHOLE_CHUNKS = {int(int(i['OC']) % 8 == 0)};",
        f"constexpr bool RELU = {int(relu)};",
        f"#define PARAMETERS {declared(r, parameters)}", f"#define EPILOGUE_ARGUMENTS {epi.arguments}",
        epi.source, _multiply(tile.columns, select.MMA_TYPE[r.dtype]) if wgmma else "",
        *(template(n) for n in (*(("common/hopper",) if wgmma else ()), "common/half2_max", "common/epilogue_store", "conv/small_c_pool")),
    ])  # fmt: skip
    grid = D.product([i["N"], strips, D.ceildiv(height, D.mul(lines, down)), active])
    return Kernel(
        text,
        "conv_stem",
        (grid, blocks_y, 1),
        128 * tile.teams,
        tuple(v for _, _, v in parameters),
        _smem(r, tile),
        pdl=r.arch >= 90,
    )


def _multiply(n: int, mma: str) -> str:
    """`multiply(sum, a, b, add)`: sum[64 x n] = a b^T, plus sum where `add`; `a` in registers, the
    four of a warp's 16 rows.
    """
    count = n // 2
    registers = ", ".join(f"%{k}" for k in range(count))
    left = ", ".join(f"%{count + k}" for k in range(4))
    outputs = ", ".join(f'"+f"(d[{k // 4}][{k % 4}])' for k in range(count))
    return (
        f'DEV void multiply(float (&d)[{n // 8}][4], const u32 (&a)[4], u64 b, int add) {{\n  asm volatile("{{.reg .pred p; setp.ne.b32 p, %{count + 5}, 0; '
        f'wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{mma}.{mma} {{{registers}}}, {{{left}}}, %{count + 4}, p, 1, 1, 0;}}"\n'
        f'    : {outputs} : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));\n}}\n'
    )
