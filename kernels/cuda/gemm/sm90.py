"""Problems and tensor maps of the GEMM kernels of Hopper (`sm90_mainloop.cuh`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, NamedTuple

from tracea_onnx.codegen.kernel_request import Kernel, Pointer, Request, TensorMap
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike, multiple_of
from tracea_onnx.support.data_classes import dataclass

from ..common import epilogue as _epilogue
from ..common import folded_norm
from ..common.epilogue import Epilogue, Parameter
from ..common.instantiate import instantiate, ints, longs, wgmma
from ..conv import grouped as _grouped
from ..cost.fitted import fitted

#: Growth of L2 time for rows of 128 bytes that cross a line of 128 bytes, and for those that begin
#: inside a sector of 32 bytes.
_CROSSED, _CUT = fitted("gemm.sm90", "crossed cut")
_Maps = Callable[[tuple[int, int], tuple[int, int]], tuple[TensorMap, TensorMap]]


class Sizes(NamedTuple):
    """Inputs of the cost models of the Hopper kernels: `problem_count` GEMMs of m x n results over
    `steps` stages of 64 k (groups of a convolution, phases of a transposed one), on `sms` SMs.

    residual: the epilogue reads one; expensive: it needs many instructions for a result
    (`epilogue.expensive`); statistics: it computes statistics of rows, so that tiles need a
    multiple of 64 columns. result_bytes: of a result, and of an element of the residual; integers:
    of 8 bits, so that a stage has 128 k, and wgmma fewer widths (`mma_columns`). pixel: least
    clocks to copy 64 channels of one pixel and of one filter; mma_scale: of a stage's clocks of
    arithmetic (`grouped.mma_scale`); crossed: `crossed` of A.
    """

    m: int
    n: int
    steps: int
    sms: int
    residual: bool = False
    expensive: bool = False
    statistics: bool = False
    problem_count: int = 1
    pixel: tuple[float, float] = (0.0, 0.0)
    mma_scale: float = 1.0
    crossed: float = 1.0
    result_bytes: int = 2
    integers: bool = False

    @property
    def weight_bytes(self) -> int:
        """Bytes of B."""
        return self.n * self.problem_count * self.steps * 128

    @property
    def memory_bytes(self) -> int:
        """Bytes of B, the result and the residual."""
        results = self.m * self.n * self.problem_count * (1 + self.residual)
        return self.weight_bytes + results * self.result_bytes


@dataclass(frozen=True)
class Problem:
    """y[rows, columns] = epilogue(A[rows, k] B[columns, k]^T). source: SOURCE of
    `sm90_mainloop.cuh`. maps: tensor maps of A and B from (rows of a tile, CTAs that multicast
    parts of it) of each; parameters: of the kernel, beyond M, N and the pitches; pitches: of y
    along every axis; full: of the residual. mn_major: whether A, B are contiguous along their rows;
    depth: k of matrices; groups: whether columns belong to groups of a convolution; grid_yz: CTAs
    along grid axes y and z; swapped: rows of the problem are columns of y (swap-AB); transposed: a
    transposed convolution. stage_mmas: of a stage, where there are no groups.
    """

    request: Request
    source: int
    rows: DimLike
    columns: DimLike
    ldy: DimLike
    ldr: DimLike
    maps: _Maps
    parameters: Sequence[Parameter]
    pitches: tuple[DimLike, ...]
    full: tuple[DimLike, ...]
    mn_major: tuple[bool, bool] = (False, False)
    depth: DimLike = 0
    groups: bool = False
    grid_yz: tuple[DimLike, DimLike] = (1, 1)
    swapped: bool = False
    transposed: bool = False
    stage_mmas: int = 4
    constants: Mapping[str, bool | int] = field(default_factory=dict)

    def column_tiles(self, width: int) -> DimLike:
        """Tiles along columns; a tile has columns of groups that are merged, no others."""
        return (
            _grouped.tiles(self.request, width) if self.groups else D.ceildiv(self.columns, width)
        )

    @property
    def y_vector(self) -> bool:
        """Whether rows of y are aligned to 16 bytes."""
        return _epilogue.vector(self.request, "y", self.pitches)

    def epilogue(self, width: int, staged: bool, **ways: bool) -> Epilogue:
        """The epilogue, `width` columns at a time, with folded norms of rows."""
        r = self.request
        e = _epilogue.epilogue(
            r, self.full, width=width, staged=staged, touched=True, scaled=self.source == 2, **ways
        )
        norms = folded_norm.source(r, self.columns, r.ints.get("K", 0))
        return replace(e, source=folded_norm.template(r) + e.source + norms)


def mma_columns(least: int, integers: bool) -> int:
    """The fewest columns, at least so many (a multiple of 8), that a wgmma can have."""
    return -(-least // 16) * 16 if integers and least > 32 else least


def able(r: Request, pitches: Sequence[DimLike], operands: Sequence[str]) -> bool:
    """Whether tensor maps reach every operand: on Hopper, 16-bit types with addresses and pitches
    aligned to 16 bytes.
    """
    return (
        r.arch == 90
        and r.dtype in (DType.F16, DType.BF16)
        and not set(operands) & r.unaligned
        and all(multiple_of(p) * 2 >= 16 for p in pitches)
    )


def crossed(pitch: DimLike) -> float:
    """Time to copy rows with a pitch of `pitch` 16-bit elements, relative to a pitch that is a
    multiple of 128 bytes.
    """
    apart = 2 * multiple_of(pitch)
    return 1.0 if apart >= 128 else 1.0 + _CROSSED if apart >= 32 else 1.0 + _CUT


def last_stage_mmas(k: DimLike) -> int:
    """MMAs (of 16 k) of the last stage (of 64 k): 1 to 4."""
    return -(-(k % 64) // 16) if isinstance(k, int) and k % 64 else 4


def matrix(
    r: Request, operand: str, rows: DimLike, columns: DimLike, pitch: DimLike, box: tuple[int, int]
) -> TensorMap:
    """Row-major [rows, columns]; box = (rows, columns) of one copy."""
    return TensorMap(
        Pointer(operand), r.dtype, (columns, rows), (D.mul(pitch, 2),), (box[1], box[0])
    )


def matrices(
    r: Request, m: DimLike, n: int, k: int, ldx: DimLike, ldw: int, ldy: DimLike, ldr: DimLike
) -> Problem:
    """y[m, n] = epilogue(x[m, :] . w[n, :])."""

    def maps(a: tuple[int, int], b: tuple[int, int]) -> tuple[TensorMap, TensorMap]:
        left = matrix(r, "x", m, k, ldx, (a[0] // a[1], 64))
        return left, matrix(r, "w", n, k, ldw, (b[0] // b[1], 64))

    return Problem(r, 0, m, n, ldy, ldr, maps, ints({"K": k}), (ldy,), (ldr,), depth=k)


def batch(
    r: Request, i: Mapping[str, DimLike], mn_major: tuple[bool, bool], swapped: bool = False
) -> Problem:
    """`matmul` of operands that tensor maps reach, with strides `i`. mn_major: whether a, b are
    contiguous along their rows; swapped: b is the problem's A.
    """
    m, n, k, b0, b1 = (r.ints[name] for name in ("M", "N", "K", "B0", "B1"))
    sides = [("a", "m", m, mn_major[0]), ("b", "n", n, mn_major[1])]
    sides = sides[::-1] if swapped else sides
    (*_, rows, first), (*_, columns, second) = sides
    moves = {
        f"{name}_moves_{axis}": D.less(0, i[f"{operand}_{axis}"])
        for name, (operand, *_) in zip("ab", sides, strict=True)
        for axis in (0, 1)
    }

    def maps(a: tuple[int, int], b: tuple[int, int]) -> tuple[TensorMap, TensorMap]:
        left, right = (
            TensorMap(
                Pointer(operand),
                r.dtype,
                (*((count, k) if major else (k, count)), b1, b0),
                tuple(
                    D.maximum(D.mul(i[f"{operand}_{axis}"], 2), 16)
                    for axis in ("k" if major else row, 1, 0)
                ),
                (64, (64 if major else own) // parts, 1, 1),
            )
            for (operand, row, count, major), (own, parts) in zip(sides, (a, b), strict=True)
        )
        return left, right

    parameters = [*ints({"K": k}), *longs({s: i[s] for s in ("y_0", "y_1")}), *ints(moves)]
    pitches = (i["ldy"], *(r.ints.get(s, 0) for s in ("y_0", "y_1")))
    return Problem(
        r, 2, rows, columns, i["ldy"], i["ldr"], maps, parameters, pitches, (i["ldr"],),
        (first, second), k, grid_yz=(b1, b0), swapped=swapped,
    )  # fmt: skip


def corners(r: Request) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """Lower and upper corner (W, H) of the im2col box of a convolution; None if they are symbolic
    or exceed the limits of a tensor map.
    """
    i = r.ints
    upper = [
        _upper(i[f"I{a}"], i[f"O{a}"], i[f"S{a}"], i[p]) for a, p in (("W", "PL"), ("H", "PT"))
    ]
    steps = [i["SW"], i["SH"], (i["KW"] - 1) * i["DW"], (i["KH"] - 1) * i["DH"], i["PL"], i["PT"]]
    if any(not isinstance(v, int) for v in (*upper, *steps)):
        return None
    low = (-int(steps[4]), -int(steps[5]))
    high = (int(upper[0]), int(upper[1]))
    if (
        not all(-128 <= v <= 127 for v in (*low, *high))
        or max(int(s) for s in steps[:2]) > 8
        or max(int(s) for s in steps[2:4]) > 255
    ):
        return None
    return low, high


def _upper(size: DimLike, count: DimLike, stride: DimLike, before: DimLike) -> DimLike:
    """Begin of the last window relative to the last pixel. Where the number of windows is the
    largest that fits a symbolic size: an upper bound of it.
    """
    last = D.sub(count, 1)
    if isinstance(last, D.Dim) and last.op == "floordiv" and last.args[1] == stride:
        return D.sub(D.sub(last.args[0], size) + 1, before)
    return D.sub(D.sub(D.mul(last, stride) + 1, size), before)


def pixels(
    r: Request, box: tuple[tuple[int, int], tuple[int, int]], rows: int, stride: tuple[int, int]
) -> TensorMap:
    """Tensor map for im2col TMA: a copy has 64 channels of `rows` pixels, which lie within the
    corners `box`, `stride` (w, h) apart.
    """
    i = r.ints
    return TensorMap(
        Pointer("x"),
        r.dtype,
        (int(i["IC"]), i["IW"], i["IH"], i["N"]),
        tuple(D.mul(i[f"x_{p}"], 2) for p in ("cs", "rs", "ns")),
        (),
        128,
        (*box, 64, rows),
        (1, *stride, 1),
    )


def windows(r: Request, rows: DimLike) -> Problem:
    """A convolution of `rows` contiguous output pixels; `corners` must not be None."""
    i, box, merged = r.ints, corners(r), _grouped.of(r)
    assert box is not None
    oc, taps, ldr = int(i["OC"]), int(i["KH"]) * int(i["KW"]), i.get("r_cs", 0)
    pitch = 2 * merged.pitch

    def maps(a: tuple[int, int], b: tuple[int, int]) -> tuple[TensorMap, TensorMap]:
        image = pixels(r, box, a[0] // a[1], (int(i["SW"]), int(i["SH"])))
        filters = Pointer("w", _grouped.filters(r))
        strides, one = (pitch, taps * pitch), (64, 1, b[0] // b[1])
        return image, TensorMap(filters, r.dtype, (merged.pitch, taps, oc), strides, one)

    names = ("OH", "OW", "KH", "KW", "SH", "SW", "DH", "DW", "PT", "PL")
    parameters = ints({"chunks": merged.chunks, **{n: i[n] for n in names}})
    parameters += _grouped.parameters(r)
    r = replace(r, ints={**i, **{f"o{k}_ld": ldr for k in range(4)}})
    return Problem(
        r, 1, rows, oc, i["y_cs"], ldr, maps, parameters, (i["y_cs"],), (ldr,), groups=True
    )


def kernel(
    problem: Problem, header: str, parameters: Sequence[Parameter], epilogue: Epilogue, width: int,
    grid: tuple[DimLike, DimLike, DimLike], threads: int, tile: Any, residual: bool,
    macros: Mapping[str, bool | int | str], constants: Mapping[str, bool | int],
) -> Kernel:  # fmt: skip
    """The kernel `gemm_<name>` of the header `gemm/<name>`. width: columns of a wgmma."""
    r, columns = problem.request, problem.rows if problem.swapped else problem.columns
    common = {"SOURCE": problem.source, "RESIDUAL": residual, "Y_VECTOR": problem.y_vector}
    return instantiate(
        r,
        header.replace("/", "_"),
        header,
        parameters,
        grid,
        threads,
        epilogue=epilogue,
        macros={**common, **wgmma(r.dtype, width), **macros},
        constants={
            "EARLY": "w" in r.constant,
            "WHOLE_CHUNKS": multiple_of(columns) >= 8,
            "STAGES": tile.stages,
            **problem.constants,
            **constants,
        },
        text=_grouped.constants(r if problem.groups else None, problem.stage_mmas) + "\n",
        smem=tile.smem,
        cluster=tile.cluster_size,
    )
