"""Products on Hopper with few tiles (`split.cuh`): tiles, tensor maps and kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tracea_onnx import dims as D
from tracea_onnx import registry
from tracea_onnx.cuda import Argument, Int32, Int64, Kernel, Pointer, Request, TensorMap
from tracea_onnx.cuda_text import prelude
from tracea_onnx.dims import DimLike
from tracea_onnx.ops import DType

_backend = registry.module("kernels", "cuda")
_epilogue, _wgmma = _backend.part("_epilogue"), _backend.part("_wgmma")
_SHARED = 233472  # bytes of shared memory of one multiprocessor, of which every block takes 1024 more than it asks for


@dataclass(frozen=True)
class SplitTile:
    """Rows of the left operand and of the right one. swap: the weight is the left one; split: blocks that divide k; share: neighbouring tiles along
    the left operand that share copies of the right one; resident: blocks that one multiprocessor has room for."""

    rows: int
    columns: int
    swap: bool
    split: int = 1
    share: int = 1
    resident: int = 1

    @property
    def bm(self) -> int:
        return self.columns if self.swap else self.rows

    @property
    def bn(self) -> int:
        return self.rows if self.swap else self.columns

    @property
    def cluster(self) -> int:
        return self.split * self.share

    @property
    def stage(self) -> int:
        return (self.rows + self.columns) * 128

    @property
    def stages(self) -> int:
        return min(10, (_SHARED // self.resident - 1024 - 1280) // self.stage)

    @property
    def smem(self) -> int:
        pitch = self.rows + 4 if self.swap else -(-self.columns // 32) * 32 + 8
        return 1280 + max(self.stages * self.stage, self.bm * pitch * 4)

    @property
    def threads(self) -> int:
        return self.rows * 2 + 32


#: Clocks to start a kernel, from the last product to the end, for a cluster to exchange sums and per float exchanged; bytes a clock from L2.
_START, _FINISH, _EXCHANGE, _FLOAT, _L2_BYTES = 2200.0, 900.0, 700.0, 0.06, 32.0
#: Bytes a clock from memory, for the whole chip.
_MEMORY = 2300.0


def candidates(m: int, n: int, steps: int) -> Iterator[SplitTile]:
    """Tiles worth a thought for m x n with `steps` stages of k."""
    m = max(m, 1)
    least = -(-m // 256)
    widths = {(m + 8 * parts - 1) // (8 * parts) * 8 for parts in range(least, least + 5)} | {w for w in (64, 128) if w < m}
    shapes = [(rows, w, True) for rows in (64, 128) for w in sorted(widths) if 8 <= w <= 256 and not (rows == 128 and n <= 64)]
    if m > 48:
        shapes += [(rows, w, False) for rows in (64, 128) for w in (32, 64, 96, 128, 192, 256) if w < n + 32 and not (rows == 128 and m <= 64)]
    for rows, w, swap in shapes:
        for split in (1, 2, 3, 4, 6, 8):
            for share in (1, 2):
                if (split > 1 and steps < 2 * split) or split * share > 8 or w % (8 * share) or (share > 1 and rows >= (n if swap else m)):
                    continue
                for resident in (1, 2, 3):
                    t = SplitTile(rows, w, swap, split, share, resident)
                    fits = t.stages >= 3 and (t.smem + 1024) * resident <= _SHARED and (w // 2 + 64) * t.threads * resident <= 65536
                    if fits and t.smem <= 232448:
                        yield t


def slots(cluster: int, resident: int, sms: int) -> int:
    """Blocks that run at a time: those of one cluster lie within one of about eight groups of multiprocessors."""
    group = sms // 8 * resident
    return sms * resident if cluster <= 2 else max(1, group // cluster) * cluster * 8


def tile_cost(t: SplitTile, m: int, n: int, steps: int, sms: int) -> float:
    """Clocks, comparable with `_product.tile_cost`."""
    left, right = (n, m) if t.swap else (m, n)
    blocks = -(-left // (t.rows * t.share)) * -(-right // t.columns) * t.cluster
    room = slots(t.cluster, t.resident, sms)
    waves = -(-blocks // room)
    together = min(t.resident, -(-blocks // (room // t.resident)))  # blocks that one multiprocessor runs at a time
    multiply = 4 * (t.rows // 64) * max(t.columns / 2, 16 + t.columns / 4) * 1.15
    step = together * max(multiply, (t.rows + t.columns / t.share) * 128 / _L2_BYTES)
    step = max(step, 900.0 / t.stages, blocks * t.stage / t.share / waves / _MEMORY / 2)
    exchange = (_EXCHANGE + _FLOAT * t.rows * t.columns * together) if t.split > 1 else 0.0
    return _START + waves * (-(-steps // t.split) * step + _FINISH + 0.03 * t.rows * t.columns * together / t.split + exchange) + 100.0 * (t.cluster > 1)


def choose(m: int, n: int, steps: int, sms: int) -> tuple[float, SplitTile]:
    return min(((tile_cost(t, m, n, steps, sms), t) for t in candidates(m, n, steps)), key=lambda x: x[0])


def matrix_product(r: Request, tile: SplitTile, m: DimLike, n: int, k: int, ldx: DimLike, ldy: DimLike, ldr: DimLike, active: DimLike) -> Kernel:
    """y[m, n] = epilogue(x[m, :] . w[n, :])."""
    shared = tile.columns // tile.share
    x = _wgmma.matrix(r, "x", m, k, ldx, (shared if tile.swap else tile.rows, 64))
    w = _wgmma.matrix(r, "w", n, k, -(-k // 8) * 8, (tile.rows if tile.swap else shared, 64))
    return _product(r, tile, 0, x, w, m, n, ldy, ldr, [("int", "K", Int32(k))], active)


def convolution(r: Request, tile: SplitTile, rows: DimLike, active: DimLike) -> Kernel:
    """A convolution as `_wgmma.convolution` takes it."""
    shared = tile.columns // tile.share
    x, w, params = _wgmma.image_maps(r, shared if tile.swap else tile.rows, tile.rows if tile.swap else shared)
    return _product(r, tile, 1, x, w, rows, int(r.ints["OC"]), r.ints["y_cs"], r.ints.get("r_cs", 0), params, active)


def _product(
    r: Request, tile: SplitTile, source: int, x: TensorMap, w: TensorMap, m: DimLike, n: int, ldy: DimLike, ldr: DimLike,
    params: Sequence[tuple[str, str, Argument]], active: DimLike,
) -> Kernel:  # fmt: skip
    if source:
        r = replace(r, ints={**r.ints, **{f"o{k}_ld": r.ints.get("r_cs", 0) for k in range(4)}})
    epi = _epilogue.epilogue(r, (ldr,))
    map_type = "const __grid_constant__ TensorMap"
    parameters: list[tuple[str, str, Argument]] = [(map_type, "map_x", x), (map_type, "map_w", w), ("T*", "y", Pointer("y"))]
    parameters += [("int", "M", Int32(m)), ("int", "N", Int32(n)), ("i64", "ldy", Int64(ldy)), ("i64", "ldr", Int64(ldr)), *params, *epi.parameters]
    mma = "f16" if r.dtype == DType.F16 else "bf16"
    text = "\n".join([
        prelude(r.dtype), "#define IS_F32 0", f"#define SOURCE {source}",
        f"#define PARAMETERS {', '.join(f'{t} {name}' for t, name, _ in parameters)}", f"#define EPILOGUE_ARGUMENTS {epi.arguments}",
        f"constexpr int ROWS = {tile.rows}, COLUMNS = {tile.columns}, SPLIT = {tile.split}, SHARE = {tile.share};",
        f"constexpr int STAGES = {tile.stages}, RESIDENT = {tile.resident};",
        f"constexpr bool SWAP = {int(tile.swap)}, Y_VECTOR = {int(_epilogue.vector(r, 'y', (ldy,)))};",
        _wgmma.multiply(tile.columns, mma), epi.source, _backend.template("tma"), _backend.template("split"),
    ])  # fmt: skip
    share_m, share_n = (1, tile.share) if tile.swap else (tile.share, 1)
    tiles = D.mul(D.ceildiv(m, tile.bm * share_m), -(-n // (tile.bn * share_n)))
    grid = D.mul(D.mul(tiles, tile.cluster), active)
    return Kernel(text, "product_split", (grid, 1, 1), tile.threads, tuple(v for _, _, v in parameters), tile.smem, tile.cluster, True)
