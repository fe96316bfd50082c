"""Convolutions of few input channels (`small_c_mma.cuh`)."""

from __future__ import annotations

from dataclasses import dataclass

from tracea_onnx.codegen.kernel_request import Argument, Kernel, Pointer, Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import multiple_of

from ..common import epilogue
from ..common.launch import declared
from ..common.prelude import prelude
from ..common.templates import template
from ..gemm import select

_STATIC = ("IC", "KH", "KW", "SH", "SW", "DH", "DW")


@dataclass(frozen=True)
class FewTile:
    """Channels a pixel of the patch has, runs of 16 output pixels of one warp, output channels of
    one block; runs side by side.
    """

    cp: int
    rows: int
    columns: int
    runs: int = 1

    def steps(self, r: Request) -> int:
        """Steps of 16 along k."""
        return -(-int(r.ints["KH"]) * -(-int(r.ints["KW"]) // (8 // self.cp)) // 2)

    def wgmma(self, r: Request) -> bool:
        return r.arch == 90 and self.steps(r) <= 26  # one row's pixels fit into registers

    def smem(self, r: Request) -> int:
        kh, kw, sh, sw, dh, dw = (int(r.ints[n]) for n in _STATIC[1:])
        taps = 8 // self.cp
        units = -(-kw // taps)
        patch_w = ((16 * self.runs - 1) * sw + (units * taps - 1) * dw + 2) // 2 * 2
        patch = (
            -(
                -(
                    ((4 * self.rows // self.runs - 1) * sh + (kh - 1) * dh + 1)
                    * patch_w
                    * self.cp
                    * 2
                )
                // 16
            )
            * 16
        )
        return self.columns * (self.steps(r) * 32 + 16) + 2 * patch


def _resident(r: Request, tile: FewTile) -> int:
    """Blocks of a multiprocessor that registers must allow: wgmma holds a row's pixels."""
    return 2 if not tile.wgmma(r) else 6 if tile.steps(r) <= 8 else 4


def choose(r: Request) -> FewTile | None:
    """The tile of a convolution without groups; None where the kernel does not apply."""
    i = r.ints
    if (
        r.dtype not in (DType.F16, DType.BF16)
        or "x" in r.unaligned
        or any(not isinstance(i[n], int) for n in (*_STATIC, "OC"))
    ):
        return None
    ic, kh, kw, _, sw, _, dw = (int(i[n]) for n in _STATIC)
    align = min(multiple_of(i[n]) for n in ("x_cs", "x_rs", "x_ns"))
    cp = 4 if ic <= 4 and sw % 2 == 0 and dw == 1 and align >= 4 else 8
    if ic > 8 or align < cp or kh * kw > 64:
        return None
    oc = int(i["OC"])
    columns = 64 if oc > 32 else 32 if oc > 16 else 16
    pixels = select.known(select.pixels(r), 1 << 20)
    rows = 2 if pixels * -(-oc // columns) >= 128 * r.sms else 1
    runs = next(
        n for n in (8, 4, 2, 1) if 4 * rows // n >= min(select.known(i["OH"], 4 * rows), 4 * rows)
    )
    tile = FewTile(cp, rows, columns, runs)
    return tile if tile.smem(r) <= 96 * 1024 else None


def convolution(r: Request, tile: FewTile) -> Kernel:
    i = r.ints
    params: list[tuple[str, str, Argument]] = [
        ("const T*", "x", Pointer("x")),
        ("const T*", "w", Pointer("w")),
        ("T*", "y", Pointer("y")),
    ]
    params += select.int_params(r, ("N", "IH", "IW", "OH", "OW", "OC", "PT", "PL"))
    params += select.long_params(
        r, ("x_cs", "x_rs", "x_ns", "y_cs", "y_rs", "y_ns", "r_cs", "r_rs", "r_ns")
    )
    epi = epilogue.epilogue(r, tuple(i.get(n, 0) for n in ("r_cs", "r_rs", "r_ns")), width=2)
    parameters = [*params, *epi.parameters]
    text = "\n".join([
        prelude(r.dtype), "#define IS_F32 0", f'#define MMA_TYPE "{select.MMA_TYPE[r.dtype]}"', f"#define WGMMA {int(tile.wgmma(r))}",
        f"#define RESIDENT {_resident(r, tile)}",
        f"constexpr int {', '.join(f'{n} = {i[n]}' for n in _STATIC)}, CP = {tile.cp}, MT = {tile.rows}, RUNS = {tile.runs}, BN = {tile.columns};",
        f"#define Y_VECTOR {int(epilogue.vector(r, 'y', (i['y_cs'], i['y_rs'], i['y_ns'])))}",
        f"constexpr bool EARLY = {int('w' in r.constant)}, WHOLE_CHUNKS = {int(int(i['OC']) % 8 == 0)};",
        f"#define PARAMETERS {declared(r, parameters)}", f"#define EPILOGUE_ARGUMENTS {epi.arguments}",
        epi.source, multiply(tile.columns, select.MMA_TYPE[r.dtype]) if tile.wgmma(r) else "", template("common/epilogue_store"), template("conv/small_c_mma"),
    ])  # fmt: skip
    tiles = D.product(
        [i["N"], D.ceildiv(i["OH"], 4 * tile.rows // tile.runs), D.ceildiv(i["OW"], 16 * tile.runs)]
    )
    columns = -(-int(i["OC"]) // tile.columns)
    resident = min(r.caps.smem_sm // (tile.smem(r) + 1024), max(_resident(r, tile), 4))
    grid = D.minimum(tiles, max(1, resident * r.sms // columns))
    return Kernel(
        text,
        "conv_few",
        (grid, columns, 1),
        128,
        tuple(v for _, _, v in parameters),
        tile.smem(r),
        pdl=r.arch >= 90,
    )


def multiply(n: int, mma: str) -> str:
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
