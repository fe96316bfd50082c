"""CUDA softmax, norms, rotary embedding, reductions, argmax and running sums: every kernel compiles
without a GPU; the emitters choose what they should.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import pytest

from tests.backend.cuda.cuda_requests import compile_kernels, request, running
from tracea_onnx.codegen.kernel_request import Kernel, NoKernel, Request
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike, evaluate, symbol
from tracea_onnx.support import discovery

cuda = discovery.module("kernels", "cuda")
_tilings = discovery.module("kernels", "cuda.reduce.columns")
#: Every type, and every architecture, once.
PAIRS = ((DType.F32, 80), (DType.BF16, 89), (DType.F16, 90))
_LARGE: dict[str, DimLike] = {
    "N": symbol("n"), "C": 32, "G": 8, "H": symbol("h"), "W": 256, "act": 5,
    **{f"{s}_{p}": v for s in "xy" for p, v in (("cs", 32), ("rs", 8192))},
}  # fmt: skip
_SOFTMAX: tuple[tuple[DimLike, DimLike, int], ...] = (
    (1, 1, 0), (768, 1, 1), (50257, 1, 0), (17, 5, 1), (64, 1, 0), (127, 1, 1), (5000, 7, 0),
    (700, 33, 1), (symbol("n"), 1, 0), (9, symbol("i"), 0),
)  # fmt: skip
_REDUCE: tuple[tuple[int, DimLike, DimLike], ...] = (
    (0, 700, 1), (1, 5000, 1), (9, 5000, 1), (2, 40, 9), (9, 40, 9), (6, 99999, 1), (7, 99999, 3),
    (0, symbol("n"), 1), (3, 7, symbol("i")),
    (1, 300, 133), (1, 9001, 133),
)  # fmt: skip
_SCANS: tuple[tuple[DimLike, DimLike, int], ...] = (
    (17, 1, 0),
    (900, 1, 1),
    (99999, 1, 2),
    (700, 40, 3),
    (symbol("n"), 1, 0),
    (9, symbol("i"), 1),
    (7, 70, 2),
)
_ROPE = {
    "B": 2,
    "S": 5,
    "H": 3,
    "D": 64,
    "rot": 32,
    "x_b": 960,
    "x_s": 192,
    "x_h": 64,
    "y_b": 960,
    "y_s": 192,
    "y_h": 64,
    "c_s": 16,
}


def _norm(dtype: DType, n: int, arch: int, *, rms: int = 0, rows: DimLike = 7) -> Request:
    operands = ("x", "gamma", "y") if rms else ("x", "res", "xbias", "gamma", "beta", "y", "skip")
    return request(
        "layernorm",
        dtype,
        {"rows": rows, "N": n, "rms": rms, "gamma_add": rms},
        {"eps": 1e-5},
        operands=operands,
        arch=arch,
    )


def _sum(dtype: DType, n: int, arch: int) -> Request:
    """Looked-up rows, rows broadcast over the outer axis, and two tensors side by side."""
    ints: dict[str, DimLike] = {
        "outer": symbol("b"), "inner": 9, "N": n, "x0_o": 9, "x0_i": 1, "x0_ld": n, "x0_n": 100,
        "x0_hi": 9, "i0_dtype": int(DType.I64), "x1_i": n, "x1_hi": 9,
        "x2_hi": 2, "x2_i": n, "x3_o": 7 * n, "x3_i": n, "x3_lo": 2, "x3_hi": 9,
    }  # fmt: skip
    return request(
        "layernorm_sum",
        dtype,
        ints,
        {"eps": 1e-5},
        operands=("x0", "i0", "x1", "x2", "x3", "gamma", "y", "skip"),
        arch=arch,
    )


def cases() -> Iterator[tuple[str, Request]]:
    for d, arch in PAIRS:
        for n, inner, log in _SOFTMAX:
            yield (
                f"softmax {n}x{inner}",
                request(
                    "softmax",
                    d,
                    {"outer": 3, "n": n, "inner": inner, "log": log},
                    operands="xy",
                    arch=arch,
                ),
            )
        for n, rms in ((33, 1), (96, 0), (768, 0), (1031, 1), (40000, 0)):
            yield f"layernorm {n}", _norm(d, n, arch, rms=rms)
        for n in (17, 72, 768, 1031, 40000):
            yield f"layernorm_sum {n}", _sum(d, n, arch)
        for interleaved, full in ((0, 1), (1, 0)):
            ints = _ROPE | {"interleaved": interleaved, "full": full}
            yield (
                f"rope {interleaved}{full}",
                request("rope", d, ints, operands=("x", "cos", "sin", "y"), arch=arch),
            )
        for kind, n, inner in _REDUCE:
            sizes: dict[str, DimLike] = {
                "kind": kind,
                "outer": 3,
                "n": n,
                "inner": inner,
                "dtype": int(d),
            }
            yield (
                f"reduce {kind} {n}x{inner}",
                request("reduce", d, sizes, operands="xy", arch=arch),
            )
        for n, last in ((17, 0), (5000, 1), (99999, 0)):
            ints = {"outer": 3, "n": n, "inner": 2, "min": 0, "last": last, "dtype": int(d)}
            yield f"argmax {n}", request("argmax", d, ints, operands="xy", arch=arch)
        for n, inner, flags in _SCANS:
            scan: dict[str, DimLike] = {
                "outer": 3,
                "n": n,
                "inner": inner,
                "exclusive": flags & 1,
                "reverse": flags >> 1,
                "dtype": int(d),
            }
            yield f"cumsum {n}x{inner}", request("cumsum", d, scan, operands="xy", arch=arch)
        floats = {"eps": 1e-5, "p0": 0.0, "p1": 0.0}
        plain = {"B": 2, "C": 40, "G": 4, "inner": 63, "act": 5}
        yield (
            "groupnorm_nhwc in clusters",
            request(
                "groupnorm_nhwc", d, _LARGE, floats, operands=("x", "gamma", "beta", "y"), arch=arch
            ),
        )
        yield (
            "groupnorm in clusters",
            request(
                "groupnorm",
                d,
                {"B": 1, "C": 8, "G": 8, "inner": 99999},
                floats,
                operands=("x", "y"),
                arch=arch,
            ),
        )
        yield (
            "groupnorm",
            request("groupnorm", d, plain, floats, operands=("x", "gamma", "beta", "y"), arch=arch),
        )
        pitches = {f"{s}_{p}": v for s in "xy" for p, v in (("cs", 40), ("rs", 400), ("ns", 4000))}
        image = {"N": 2, "C": 40, "G": 4, "H": 10, "W": 10, "act": 0, **pitches}
        yield (
            "groupnorm_nhwc",
            request("groupnorm_nhwc", d, image, floats, operands=("x", "y"), arch=arch),
        )
    for t in (DType.I64, DType.I32):
        ints = {"kind": 4, "outer": 3, "n": 7, "inner": 2, "dtype": int(t)}
        yield f"reduce {t.name}", request("reduce", DType.F32, ints, operands="xy", arch=80)
        yield (
            f"cumsum {t.name}",
            request(
                "cumsum",
                DType.F32,
                {"outer": 1, "n": 99999, "inner": 1, "dtype": int(t)},
                operands="xy",
                arch=80,
            ),
        )
    yield (
        "argmax I64",
        request(
            "argmax",
            DType.F32,
            {"outer": 3, "n": 7, "inner": 2, "min": 1, "last": 0, "dtype": int(DType.I64)},
            operands="xy",
            arch=80,
        ),
    )


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    "r", [pytest.param(r, id=f"{n} {r.dtype.name} sm_{r.arch}") for n, r in cases()]
)
def test_compiles(r: Request) -> None:
    compile_kernels(cuda.emit(r), r.arch)


@pytest.mark.parametrize(
    ("n", "threads"),
    [(801, 32), (1031, 128), (3072, 192), (4096, 256), (30000, 960), (100000, 1024)],
)
def test_long_rows_get_more_threads(n: int, threads: int) -> None:
    (k,) = cuda.emit(_norm(DType.F16, n, 90, rows=1000))
    rows = k.block // threads
    assert k.block in (threads, 128) and k.grid[0] == -(-1000 // rows)


def test_short_rows_get_some_lanes() -> None:
    norm = discovery.module("kernels", "cuda.norm.layernorm")

    def found(
        n: int,
        rows: DimLike,
        dtype: DType = DType.F16,
        tensors: int = 2,
        unaligned: tuple[str, ...] = (),
    ) -> list[tuple[int, int, int, int, bool]]:
        r = request(
            "layernorm",
            dtype,
            {"rows": rows, "N": n},
            {"eps": 1e-5},
            operands=("x", "y"),
            unaligned=unaligned,
        )
        inputs, outputs = (("x", "res"), ("y", "skip")) if tensors == 4 else (("x",), ("y",))
        shapes = []
        for b in norm._short(r, rows, inputs, outputs):
            staged = "norm_staged" in b.call
            v, k, lanes, *_ = [1] * staged + [
                int(n) for n in re.findall(r"\d+", b.call[b.call.index("<") :])
            ]
            shapes.append((v, k, lanes, b.block, staged))
        return shapes

    # many rows: fewer lanes
    assert found(96, 1000) == [(8, 1, 16, 128, False)] and found(96, 25088) == [
        (8, 3, 4, 256, False)
    ]
    assert found(96, 25088, tensors=4) == [(8, 1, 16, 256, False)] and found(
        96, 25088, DType.F32
    ) == [(4, 6, 4, 256, False)]
    assert found(5, 100003) == [(1, 3, 2, 256, False)] and found(7, 100003, tensors=4) == [
        (1, 2, 4, 256, False)
    ]
    assert found(33, 131072) == [(1, 5, 8, 256, False)] and found(33, 131072, tensors=4) == [
        (1, 5, 8, 256, True)
    ]
    assert found(32, 1000, unaligned=("y",)) == [(1, 8, 4, 128, False)]
    assert (
        found(768, 1000) == [(8, 3, 32, 128, False)]
        and found(511, 1000) == [(1, 16, 32, 128, False)]
        and found(513, 1000) == []
    )
    kernels = cuda.emit(
        request(
            "layernorm",
            DType.F16,
            {"rows": symbol("rows"), "N": 33},
            {"eps": 1e-5},
            operands=("x", "res", "y", "skip"),
        )
    )
    for rows, grids in (
        (0, [0, 0, 0]),
        (8448, [528, 0, 0]),
        (8449, [0, 265, 0]),
        (32768, [0, 1024, 0]),
        (32769, [0, 0, 521]),
    ):
        assert [evaluate(k.grid[0], {"rows": rows}) for k in kernels] == grids


def test_a_few_long_rows_get_a_block_each() -> None:
    kernels = cuda.emit(_norm(DType.F16, 1024, 90, rows=symbol("rows")))
    assert [("norm_rows<8, 1, 128," in k.source, k.block) for k in kernels] == [
        (False, 128),
        (False, 256),
        (True, 128),
    ]
    for rows, grids in (
        (0, [0, 0, 0]),
        (1, [0, 0, 1]),
        (264, [0, 0, 264]),
        (265, [67, 0, 0]),
        (2113, [0, 265, 0]),
    ):
        assert [evaluate(k.grid[0], {"rows": rows}) for k in kernels] == grids


def test_clusters_share_large_groups_where_there_are_few() -> None:
    kernels = cuda.emit(request("groupnorm_nhwc", DType.F16, _LARGE, {"eps": 1e-5}, operands="xy"))
    assert [k.cluster for k in kernels] == [1, 8]
    for n, h, grids in (
        (1, 256, [0, 64]),
        (1, 16, [8, 0]),
        (3, 256, [24, 0]),
        (0, 256, [0, 0]),
        (1, 0, [0, 0]),
    ):
        assert [evaluate(k.grid[0], {"n": n, "h": h}) for k in kernels] == grids


@pytest.mark.parametrize(
    ("groups", "inner", "cluster"),
    [
        (64, 40960, 1),
        (64, 81920, 2),
        (7, 28702, 1),
        (2, 539706, 16),
        (30, 539706, 4),
        (200, 539706, 1),
    ],
)
def test_no_more_clusters_than_run_at_once(groups: int, inner: int, cluster: int) -> None:
    (k,) = cuda.emit(
        request(
            "groupnorm",
            DType.F16,
            {"B": 1, "C": groups, "G": groups, "inner": inner},
            {"eps": 1e-5},
            operands="xy",
        )
    )
    assert k.cluster == cluster


def _axis(
    family: str,
    outer: DimLike,
    n: DimLike,
    inner: DimLike,
    dtype: DType = DType.F16,
    unaligned: Sequence[str] = (),
) -> list[Kernel]:
    ints: dict[str, DimLike] = {"outer": outer, "n": n, "inner": inner} | (
        {} if family == "softmax" else {"dtype": int(dtype)}
    )
    return list(cuda.emit(request(family, dtype, ints, operands="xy", unaligned=unaligned)))


@pytest.mark.parametrize("family", ["reduce", "argmax"])
def test_blocks_share_few_long_rows(family: str) -> None:
    assert [
        len(_axis(family, *s)) for s in ((1, 1000003, 1), (7, 100003, 1), (1, 300007, 131))
    ] == [2, 2, 2]
    assert [
        len(_axis(family, *s))
        for s in ((5000, 3001, 1), (1, 8191, 1), (500, 127, 64), (100003, 5, 1), (70, 8, 8))
    ] == [1] * 5
    first, joining = _axis(family, 1, 1000003, 1)
    assert (first.grid[0], joining.grid[0], joining.symbol) == (
        81,
        1,
        f"{family}_parts",
    ) and first.scratch == joining.scratch


@pytest.mark.parametrize(
    ("outer", "n", "inner", "cluster"),
    [(1, 1021, 256, 8), (7, 509, 33, 4), (31, 127, 37, 1), (500, 1021, 31, 1)],
)
def test_clusters_reduce_few_columns_of_middle_length(
    outer: int, n: int, inner: int, cluster: int
) -> None:
    for family in ("reduce", "argmax"):
        (k,) = _axis(family, outer, n, inner, unaligned=("x",))
        assert "reduce_columns<" in k.source and k.cluster == cluster
    kernels = _axis("reduce", 1, symbol("n"), 1031)
    for length, grids in (
        (511, [0, 0, 231, 33]),
        (512, [0, 264, 0, 0]),
        (4096, [0, 264, 0, 0]),
        (4097, [0, 0, 528, 33]),
    ):
        assert [evaluate(k.grid[0], {"n": length}) for k in kernels] == grids


def test_a_row_of_any_length_has_one_kernel() -> None:
    kernels = _axis("reduce", symbol("rows"), symbol("n"), 1)
    for rows, n, grids in (
        (1000, 48, [500, 0, 0, 0]),
        (1000, 49, [0, 250, 0, 0]),
        (3, 2049, [0, 0, 3, 0]),
        (3, 99999, [0, 0, 24, 1]),
        (0, 99999, [0] * 4),
    ):
        assert [evaluate(k.grid[0], {"rows": rows, "n": n}) for k in kernels] == grids
    kernels = _axis("softmax", symbol("rows"), symbol("n"), 1)
    short = (
        (1000, 32, 32),
        (1000, 47, 500),
        (1000, 48, 125),
        (1000, 49, 125),
        (1000, 129, 250),
        (1000, 136, 250),
    )
    for rows, n, grid in (
        *short,
        (50, 3000, 50),
        (50, 5001, 50),
        (17, 99999, 17),
        (16, 99999, 128),
        (17, 80000, 17),
    ):
        (k,) = running(kernels, rows=rows, n=n)
        assert evaluate(k.grid[0], {"rows": rows, "n": n}) == grid
        # no edges of rows of whole vectors
        assert ("false>(x, y, outer, n)" in k.source) == (n % 8 == 0)
    assert not running(kernels, rows=0, n=99999)


@pytest.mark.parametrize(
    ("outer", "n", "inner", "cluster"),
    [
        (3, 200003, 1, 16),
        (13, 50021, 1, 4),
        (50, 50021, 1, 2),
        (132, 50021, 1, 1),
        (17, 1009, 31, 4),
        (500, 1009, 31, 1),
        (1, 100003, 7, 16),
        (3, 2000, 1, 1),
    ],
)
def test_clusters_share_few_long_columns(outer: int, n: int, inner: int, cluster: int) -> None:
    (k,) = _axis("softmax", outer, n, inner)
    assert k.cluster == cluster


def test_few_rows_of_a_warp_get_more() -> None:
    (few,) = _axis("softmax", 1021, 1031, 1)
    (many,) = _axis("softmax", 24576, 1031, 1)
    assert "softmax_rows<8, 1, 128," in few.source and "softmax_rows<8, 4, 32," in many.source
    (wide,) = _axis("softmax", 769, 1021, 1, DType.F32)
    assert "softmax_rows<4, 1, 256," in wide.source
    (some,) = _axis("softmax", 4000, 1000, 1, DType.F32)
    assert "softmax_rows<4, 2, 128," in some.source
    kernels = _axis("softmax", symbol("rows"), 1031, 1)
    for rows, blocks in ((1056, 1056), (24576, 24576 // 4)):
        assert [evaluate(k.grid[0], {"rows": rows}) for k in running(kernels, rows=rows)] == [
            blocks
        ]


def test_short_odd_rows_of_softmax_are_read_by_elements() -> None:
    shapes = (
        (4001, 21, 1, 3, 8),
        (100003, 5, 1, 5, 1),
        (100003, 33, 1, 5, 8),
        (1536, 197, 8, 1, 32),
        (10712, 119, 8, 1, 16),
        (20000, 197, 8, 2, 16),
    )
    for outer, n, v, per, lanes in shapes:
        (k,) = _axis("softmax", outer, n, 1)
        assert f"softmax_rows<{v}, {per}, {lanes}," in k.source
    (k,) = _axis("softmax", 1536, 197, 1, DType.F32)
    assert "softmax_rows<1, 7, 32," in k.source


def test_running_sums_of_long_rows_know_the_parts_before() -> None:
    for outer, n, inner, blocks in ((1, 1000003, 1, 493), (20, 100003, 1, 520), (2, 50021, 6, 390)):
        parts, scan = _axis("cumsum", outer, n, inner)
        assert (parts.symbol, scan.symbol, parts.grid, scan.grid[0], parts.scratch) == (
            "cumsum_parts",
            "cumsum",
            scan.grid,
            blocks,
            scan.scratch,
        )
    assert [
        len(_axis("cumsum", *s))
        for s in ((8, 509, 1), (1021, 1031, 1), (100003, 7, 1), (500, 1009, 31))
    ] == [1] * 4
    for outer, n, inner, kernel, grid in (
        (28, 4, 204, "scan_flat<1, 8, 64,", 90), (1104, 2, 289, "scan_flat<1, 8, 256,", 1247),
        (1000, 30, 280, "scan_flat<4, 8, 64,", 1094),
        (90, 120, 33, "scan_columns<8, 32, 256,", 93),
        (9, 20, 45, "scan_columns<8, 32, 128,", 13),
    ):  # fmt: skip
        (k,) = _axis("cumsum", outer, n, inner)
        assert kernel in k.source and k.grid[0] == grid
    for outer, n, threads in ((1, 4096, 1024), (1, 1024, 512), (7, 1000, 256)):
        (k,) = _axis("cumsum", outer, n, 1, DType.F32)
        assert (k.grid[0], k.block) == (outer, threads)
    kernels = _axis("cumsum", symbol("rows"), symbol("n"), 1)
    for rows, n, grids in (
        (1000, 48, [500, 0, 0, 0, 0]),
        (1000, 49, [0, 250, 0, 0, 0]),
        (3, 2049, [0, 0, 3, 0, 0]),
        (3, 99999, [0, 0, 0, 150, 150]),
        (3, 200000, [0, 0, 0, 297, 297]),
        (20, 99999, [0, 0, 0, 520, 520]),
        (0, 99999, [0] * 5),
    ):
        assert [evaluate(k.grid[0], {"rows": rows, "n": n}) for k in kernels] == grids


@pytest.mark.parametrize(
    ("family", "outer", "n", "inner", "kernel", "grid"),
    [
        ("reduce", 12, 1, 20011, "reduce_flat<Policy, 1, 4,", 470),
        ("reduce", 1, 3, 2000, "reduce_flat<Policy, 4, 2,", 2),
        ("argmax", 500, 16, 600, "reduce_flat<Policy, 4, 1,", 586),
        ("argmax", 5, 16, 600, "reduce_columns<", 24),
        ("reduce", 4067, 5, 591, "reduce_flat<Policy, 1, 2, 256>", 4695),
        ("softmax", 8698, 3, 343, "softmax_flat<1, 3,", 23308),
        ("softmax", 200, 17, 1031, "softmax_columns<", 6600),
    ],
)  # fmt: skip
def test_a_thread_has_a_column_where_they_are_short_or_many(
    family: str, outer: int, n: int, inner: int, kernel: str, grid: int
) -> None:
    (k,) = _axis(family, outer, n, inner)
    assert kernel in k.source and k.grid[0] == grid


@pytest.mark.parametrize(
    ("outer", "n", "inner", "kernels", "cluster"),
    [(5, 2016, 272, 1, 8), (50, 200, 500, 1, 1), (1, 300007, 131, 2, 1), (7206, 112, 32, 1, 1)],
)
def test_columns_are_read_as_whole_vectors(
    outer: int, n: int, inner: int, kernels: int, cluster: int
) -> None:
    found = _axis("reduce", outer, n, inner)
    assert (
        f"{cluster}, {'true' if inner % 8 == 0 else 'false'}>(x, y" in found[0].source
        and len(found) == kernels
        and found[0].cluster == cluster
    )
    (k, *_) = _axis("reduce", outer, n, inner, unaligned=("x",))
    assert "reduce_columns<" in k.source or "reduce_staged<" in k.source


@pytest.mark.parametrize(("size", "held"), [(2, 4), (4, 4), (2, 8), (8, 16)])
def test_a_block_has_its_threads_its_shared_memory_and_rows_that_lie_alike(
    size: int, held: int
) -> None:
    for outer, n, inner in (
        (300, 700, 71),
        (2, 700, 999),
        (1, 700, 131),
        (9000, 20, 9),
        (7206, 112, 32),
        (3, 100003, 8),
        (1, 17, 4096),
    ):
        s, v = _tilings.tiling(outer, n, inner, size, held, 132, 16), 16 // size
        assert (
            s.threads <= 1024
            and v * held * ((s.lanes | 1) * s.down * s.teams + 32 + 32 // v + s.lanes) <= 48 << 10
        )
        assert (
            s.down * inner * size % 16 == 0
            and s.wide % v == 0
            and s.wide * s.tiles >= inner
            and s.lanes * v >= s.wide + (v if inner % v else 0)
        )
        assert s.parts == 1 or s.teams == 1


def test_few_columns_go_through_shared_memory_where_every_multiprocessor_has_some() -> None:
    for family in ("reduce", "softmax"):
        (many,) = _axis(family, 132, 320, 11, unaligned=("x",))
        (few,) = _axis(family, 131, 320, 11, unaligned=("x",))
        assert "_staged<" in many.source and "_columns<" in few.source
        kernels = _axis(family, symbol("outer"), 320, 11, unaligned=("x",))
        assert not running(kernels, outer=0)
        for outer, call in ((131, "_columns<"), (132, "_staged<")):
            (k,) = running(kernels, outer=outer)
            assert call in k.source
    (long,) = _axis("softmax", 200, 1025, 3)
    assert "softmax_columns<" in long.source


def test_rows_of_columns_that_are_not_counted_are_read_as_vectors_where_there_are_many() -> None:
    for dtype, n, inner, least in (
        (DType.F16, 197, 768, 176),
        (DType.F32, 300, 300, 88),
        (DType.F16, 88, 9, 1407),
    ):
        kernels = _axis("reduce", symbol("outer"), n, inner, dtype)
        assert not running(kernels, outer=0)
        for outer in (1, least - 1, least, 7000):
            runs = running(kernels, outer=outer)
            assert runs and all(
                "  reduce_unaligned_columns<" in k.source or "reduce_parts" in k.symbol
                for k in runs
            )


def test_a_block_brings_few_columns_that_it_would_read_twice() -> None:
    shapes = (
        (2806, 851, 9, "softmax_staged<30720, 32, 27,"), (1000, 1000, 6, "softmax_columns<2,"),
        (2806, 1601, 6, "softmax_staged<38912, 32, 0,"),
        (132, 1601, 6, "softmax_columns<"), (2806, 4097, 2, "softmax_columns<"),
        (300, 900, 16, "softmax_columns<"),
    )  # fmt: skip
    for outer, n, inner, kernel in shapes:
        (k,) = _axis("softmax", outer, n, inner, DType.F32)
        assert kernel in k.source and k.grid[0] == outer


def test_absent_operands_are_no_parameters() -> None:
    (k,) = cuda.emit(_norm(DType.F16, 768, 90, rms=1))
    assert [a.operand for a in k.args if hasattr(a, "operand")] == ["x", "gamma", "y"]


def test_empty_launches_have_empty_grids() -> None:
    rows = symbol("rows")
    kernels = cuda.emit(
        request("softmax", DType.F16, {"outer": rows, "n": 128, "inner": 1}, operands="xy")
    )
    (k,) = running(kernels, rows=9)
    assert not running(kernels, rows=0) and evaluate(k.grid[0], {"rows": 9}) == 2
    kernels = _axis("argmax", 3, symbol("n"), 1)
    assert [[evaluate(k.grid[0], {"n": n}) for k in kernels] for n in (0, 4)] == [
        [0, 0, 0, 0],
        [3, 0, 0, 0],
    ]


def test_launches_overlap_on_hopper_only() -> None:
    for arch, overlaps in ((80, False), (90, True)):
        (k,) = cuda.emit(_norm(DType.F16, 768, arch))
        assert k.pdl == overlaps and "pdl_launch_dependents();" in k.source


def test_integer_means_have_no_kernel() -> None:
    with pytest.raises(NoKernel, match="Mean"):
        cuda.emit(
            request(
                "reduce",
                DType.F32,
                {"kind": 1, "outer": 1, "n": 2, "inner": 1, "dtype": int(DType.I64)},
            )
        )
