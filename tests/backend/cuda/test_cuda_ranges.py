"""A symbolic batch has the kernels that the same batch has as a number; what is said of a range of
sizes holds within all of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.backend.cuda.cuda_requests import request, running
from tracea_onnx.codegen import size_ranges
from tracea_onnx.codegen.kernel_request import Int32, Int64, Kernel
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import Dim, DimLike, symbol
from tracea_onnx.plan.kernel_families import FAMILIES
from tracea_onnx.support import discovery

cuda = discovery.module("kernels", "cuda")
N, H, W = symbol("n"), symbol("h"), symbol("w")
SIZES = (1, 2, 3, 4, 7, 8, 16, 64, 131, 132, 1000, 4096)


def _copy(shape: list[DimLike], xs: list[DimLike], ys: list[DimLike]) -> dict[str, DimLike]:
    ints: dict[str, DimLike] = {"elem": 4}
    for name, values, fill in (("n", shape, 1), ("x", xs, 0), ("y", ys, 0)):
        ints |= {f"{name}{k}": v for k, v in enumerate([*[fill] * (6 - len(values)), *values])}
    return ints


def _image(c: int, h: int, w: int) -> dict[str, DimLike]:
    return {"N": N, "C": c, "x_cs": c, "x_rs": c * w, "x_ns": c * w * h}


_WINDOW: dict[str, DimLike] = {
    "KH": 5,
    "KW": 5,
    "SH": 1,
    "SW": 1,
    "DH": 1,
    "DW": 1,
    "PT": 2,
    "PL": 2,
}
_DEPTHWISE: dict[str, DimLike] = {
    **_WINDOW, "N": N, "IC": 72, "OC": 72, "G": 72, "IH": 28, "IW": 28, "OH": 28, "OW": 28,
    **{f"{s}_{p}": 72 * k for s in "xyr" for p, k in (("cs", 1), ("rs", 28), ("ns", 784))},
    "act": 0, "res_mode": 0,
}  # fmt: skip
CASES: Mapping[str, tuple[str, DType, dict[str, DimLike], str]] = {
    "transposed": ("copy", DType.F32, _copy([N, 40, 30], [1200, 1, 40], [1200, 30, 1]), "xy"),
    "batch last": ("copy", DType.F32, _copy([40, 30, N], [30, 1, 1200], [D.mul(N, 30), N, 1]),
        "xy"),
    "slices": ("copy", DType.F32, _copy([N, 61], [70, 1], [61, 1]), "xy"),
    "columns summed": ("reduce", DType.BF16,
        {"kind": 5, "outer": N, "n": 32, "inner": 97, "dtype": int(DType.BF16)}, "xy"),
    "rows summed": ("reduce", DType.F16,
        {"kind": 0, "outer": N, "n": 70001, "inner": 1, "dtype": int(DType.F16)}, "xy"),
    "softmax": ("softmax", DType.F16, {"outer": N, "n": 50021, "inner": 1}, "xy"),
    "largest of long rows": ("topk", DType.F16,
        {"outer": N, "n": 31848, "inner": 1, "k": 800, "largest": 1, "dtype": int(DType.F16)},
        "xy"),
    "depthwise": ("conv2d_dw", DType.F16, _DEPTHWISE, "xwy"),
    "pooling": ("pool2d", DType.F16,
        {**_WINDOW, **_image(32, 11, 11), "PB": 2, "PR": 2, "IH": 11, "IW": 11, "OH": 11, "OW": 11,
                                      "y_cs": 32, "y_rs": 352, "y_ns": 3872, "mode": 0}, "xy"),
}  # fmt: skip


def _with(ints: Mapping[str, DimLike], n: int) -> dict[str, DimLike]:
    return {k: D.evaluate(v, {"n": n}) for k, v in ints.items()}


def _names(kernels: list[Kernel]) -> list[str]:
    return [k.symbol for k in kernels]


@pytest.mark.parametrize("case", CASES)
def test_a_batch_known_at_run_time_has_the_kernels_of_a_fixed_one(case: str) -> None:
    family, dtype, ints, operands = CASES[case]
    any_size = cuda.emit(request(family, dtype, ints, operands=operands))
    assert not running(any_size, n=0)
    for n in SIZES:
        fixed = running(cuda.emit(request(family, dtype, _with(ints, n), operands=operands)))
        assert _names(running(any_size, n=n)) == _names(fixed), n


def test_scratch_memory_is_enough_for_every_size() -> None:
    family, dtype, ints, operands = CASES["largest of long rows"]
    (room,) = next(
        k.scratch for k in cuda.emit(request(family, dtype, ints, operands=operands)) if k.scratch
    )
    for n in SIZES:
        for needed in next(
            (
                k.scratch
                for k in cuda.emit(request(family, dtype, _with(ints, n), operands=operands))
                if k.scratch
            ),
            (),
        ):
            assert D.evaluate(room, {"n": n}) == needed
    assert D.evaluate(room, {"n": 1000}) == 0 < D.evaluate(room, {"n": 8})


def test_no_size_is_left_out_or_served_twice() -> None:
    def emit(r: Any) -> list[Kernel]:
        size = size_ranges.size_hint(r.ints["outer"], 0)
        few = size_ranges.known(D.less(D.mul(r.ints["outer"], 7), 1000))
        return [Kernel(f"{size.bit_length() // 3} {few}", "k", (r.ints["outer"], 1, 1), 32, ())]

    kernels = size_ranges.ranged(
        request("softmax", DType.F16, {"outer": N, "n": 5, "inner": 1}, operands="xy"), emit
    )
    # a batch of 1 has its own, with numbers for grid and arguments
    assert 10 > len(kernels) >= len({k.source for k in kernels}) > 3
    for n in (*range(1, 2000), 1 << 17, (1 << 18) - 1, 1 << 18, 1 << 30):
        (k,) = running(kernels, n=n)
        assert k.source.endswith(str(int(7 * n < 1000))) and D.evaluate(k.grid[0], {"n": n}) == n
    assert not running(kernels, n=0)


def test_no_range_outlives_its_request() -> None:
    """Also where a range is divided while a kernel is emitted for a part of it: what chose the tile
    is left in the middle.
    """

    def emit(r: Any) -> list[Kernel]:
        found = []
        for tile, use in discovery.module("kernels", "cuda.gemm.select").choose(
            r.ints["outer"], lambda rows: {rows.bit_length() // 4: 1.0}
        ):
            few = size_ranges.known(D.less(r.ints["outer"], 100))
            found.append(Kernel(f"{tile} {few}", "k", (D.mul(r.ints["outer"], use), 1, 1), 32, ()))
        return found

    kernels = size_ranges.ranged(
        request("softmax", DType.F16, {"outer": N, "n": 5, "inner": 1}, operands="xy"), emit
    )
    assert size_ranges.known(N) is None and size_ranges.size_hint(N, 77) == 77
    for n in (1, 7, 8, 99, 100, 127, 4096, 1 << 20):
        (k,) = running(kernels, n=n)
        assert k.source.endswith(str(int(n < 100)))


def test_what_reads_nothing_is_emitted_for_no_rows_too() -> None:
    """A mean of no rows has a result."""
    kernels = cuda.emit(
        request(
            "reduce",
            DType.F32,
            {"kind": 0, "outer": 3, "n": N, "inner": 1, "dtype": int(DType.F32)},
            operands="xy",
        )
    )
    assert running(kernels, n=0) and running(kernels, n=1) and running(kernels, n=100_000)


@st.composite
def _dims(draw: st.DrawFn) -> DimLike:
    e: DimLike = N
    for _ in range(draw(st.integers(1, 5))):
        other: DimLike = draw(st.one_of(st.integers(0, 9), st.just(N)))
        positive = draw(st.integers(1, 9))
        e = draw(st.sampled_from((
            lambda e, o, p: D.add(e, o), lambda e, o, p: D.sub(e, o), lambda e, o, p: D.sub(o, e),
            lambda e, o, p: D.mul(e, o), lambda e, o, p: D.floordiv(e, p),
            lambda e, o, p: D.mod(e, p), lambda e, o, p: D.less(e, o), lambda e, o, p: D.less(p, e),
            lambda e, o, p: D.equal(e, o), lambda e, o, p: D.maximum(e, o),
            lambda e, o, p: D.minimum(e, p), lambda e, o, p: D.select(D.less(e, p), o, e), lambda e,
            o, p: D.floordiv(p, D.maximum(e, 1)),
        )))(e, other, positive)  # fmt: skip
    return e


@given(_dims(), st.integers(0, 12), st.integers(0, 12))
def test_values_lie_within_their_bounds(e: DimLike, low: int, length: int) -> None:
    with size_ranges.within(size_ranges.Range("n", low, low + length)):
        least, most = size_ranges.between(e) if isinstance(e, Dim) else (e, e)
        values = [D.evaluate(e, {"n": n}) for n in range(low, low + length + 1)]
        assert least <= min(values) and max(values) <= most
        if length == 0 and isinstance(e, Dim):
            assert size_ranges.known(e) == values[0]


@pytest.mark.parametrize("dtype", [DType.F32, DType.F16])
def test_a_step_of_decoding_is_known_by_its_one_row(dtype: DType) -> None:
    """Rows and keys known at run time: one row has the kernels that one row has anyway, several
    have those of any number.
    """

    def emitted(rows: DimLike, keys: DimLike, kv: int) -> list[Kernel]:
        ints: dict[str, DimLike] = {
            "B": symbol("b"),
            "H": 8,
            "KVH": kv,
            "S": rows,
            "T": keys,
            "D": 64,
            "DV": 64,
            "causal": 0,
        }
        ints |= {
            f"{o}_{a}": v
            for o, n, h in (("q", rows, 8), ("k", keys, kv), ("v", keys, kv), ("y", rows, 8))
            for a, v in (("b", n * h * 64), ("s", h * 64), ("h", 64))
        }
        return list(
            cuda.emit(
                request("attention", dtype, ints, {"scale": 0.125, "fill": -1e30}, operands="qkvy")
            )
        )

    for kv in (8, 2):
        any_rows, one = (emitted(rows, symbol("t"), kv) for rows in (N, 1))
        for t in (1, 77, 4000):
            names = [
                [(k.source, k.block, k.cluster) for k in running(kernels, n=1, t=t, b=3)]
                for kernels in (any_rows, one)
            ]
            assert names[0] == names[1] != []
            assert running(any_rows, n=5, t=t, b=3)
        assert running(emitted(N, N, kv), n=1, b=2)


def _sides(c: int, kernel: int, stride: int, group: int) -> dict[str, DimLike]:
    h, w, pad = H, W, kernel // 2
    oh, ow = (D.add(D.floordiv(D.add(side, 2 * pad - kernel), stride), 1) for side in (h, w))
    window: dict[str, DimLike] = {
        "KH": kernel,
        "KW": kernel,
        "SH": stride,
        "SW": stride,
        "DH": 1,
        "DW": 1,
        "PT": pad,
        "PL": pad,
    }
    pitches = {
        f"{o}_{p}": v
        for o, n in (("x", (h, w)), ("y", (oh, ow)))
        for p, v in (("cs", c), ("rs", D.mul(n[1], c)), ("ns", D.product([*n, c])))
    }
    sizes: dict[str, DimLike] = {
        "N": N,
        "C": c,
        "IC": c,
        "OC": c,
        "G": group,
        "IH": h,
        "IW": w,
        "OH": oh,
        "OW": ow,
    }
    return {**window, **pitches, **sizes, "act": 0, "res_mode": 0, "PB": pad, "PR": pad, "mode": 0}


def _planes(c: int, kernel: int) -> dict[str, DimLike]:
    i = _sides(c, kernel, 2, 1)
    h, w, line = i["IH"], i["IW"], D.mul(i["OW"], 32)
    planes: dict[str, DimLike] = {
        "x_cs": 1,
        "x_rs": w,
        "x_c": D.mul(h, w),
        "x_ns": D.product([h, w, c]),
    }
    return {**i, **planes, "OC": 32, "y_cs": 32, "y_rs": line, "y_ns": D.mul(i["OH"], line)}


_STRIDES = {f"{o}_{k}": 0 for o in "aby" for k in (0, 1)}
SEVERAL: Mapping[str, tuple[str, DType, dict[str, DimLike], str]] = {
    "depthwise": ("conv2d_dw", DType.F16, _sides(72, 5, 1, 72), "xwy"),
    "depthwise by 2": ("conv2d_dw", DType.F32, _sides(40, 3, 2, 40), "xwy"),
    "pooling": ("pool2d", DType.F16, _sides(64, 3, 2, 1), "xy"),
    "planes": ("conv2d", DType.F32, _planes(3, 7), "xwy"),
    "planes of halves": ("conv2d", DType.F16, _planes(3, 3), "xwy"),
    "convolution by 2": ("conv2d", DType.F16, _sides(64, 3, 2, 1), "xwy"),
    "scores": ("matmul", DType.F16,
        {**_STRIDES, "B0": 1, "B1": N, "M": H, "N": W, "K": 64, "a_1": D.mul(H, 64), "a_m": 64,
            "a_k": 1,
                                     "b_1": D.mul(W, 64), "b_n": 64, "b_k": 1, "y_1": D.mul(H, W),
                                     "ldy": W}, "aby"),
    "weighed values": ("matmul", DType.BF16,
        {**_STRIDES, "B0": 1, "B1": N, "M": H, "N": 64, "K": W, "a_1": D.mul(H, W), "a_m": W,
            "a_k": 1,
                                              "b_1": D.mul(W, 64), "b_n": 1, "b_k": 64,
                                              "y_1": D.mul(H, 64), "ldy": 64}, "aby"),
    "softmax": ("softmax", DType.F16, {"outer": D.mul(N, H), "n": W, "inner": 1}, "xy"),
    "groups": ("groupnorm", DType.F16, {"B": N, "C": 96, "G": 8, "inner": D.mul(H, W), "act": 0},
        "xy"),
}  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", SEVERAL)
def test_several_symbols_leave_no_size_out(case: str) -> None:
    """Nor is one served twice, and what a block has of it is never nothing."""
    family, dtype, ints, operands = SEVERAL[case]
    kernels = cuda.emit(
        request(
            family,
            dtype,
            {k: v for k, v in ints.items() if k in FAMILIES[family].ints},
            operands=operands,
        )
    )
    for n in (1, 3, 40, 300):
        for h, w in ((7, 9), (16, 16), (33, 64), (64, 40), (224, 225), (640, 640), (5, 1000)):
            sizes = {"n": n, "h": h, "w": w}
            live = running(kernels, **sizes)
            names = [k.symbol for k in live]
            assert names in ([names[0]], ["gemm_multistage", "gemm_splitk_reduce"]), sizes
            for k in live:
                assert (
                    all(D.evaluate(g, sizes) >= 1 for g in k.grid)
                    and D.evaluate(k.grid[0], sizes) % k.cluster == 0
                )
                (lines,) = (
                    [D.evaluate(a.value, sizes) for a in k.args if isinstance(a, Int32)][-1:]
                    if k.symbol == "conv_depthwise_strips"
                    else [1]
                )
                assert lines >= 1
    assert not running(kernels, n=0, h=16, w=16)


def test_rows_of_whole_vectors_have_kernels_of_their_own() -> None:
    family, dtype, ints, operands = SEVERAL["scores"]
    kernels = cuda.emit(request(family, dtype, ints, operands=operands))
    for w in (64, 100, 104, 77):
        sizes = {"n": 12, "h": 96, "w": w}
        fixed = cuda.emit(
            request(
                family, dtype, {k: D.evaluate(v, sizes) for k, v in ints.items()}, operands=operands
            )
        )
        (k,) = running(kernels, **sizes)
        whole = "Y_VECTOR = 1" in k.source or "Y_VECTOR 1" in k.source
        assert whole == (w % 8 == 0) and fixed
        assert w in [D.evaluate(a.value, sizes) for a in k.args if isinstance(a, (Int32, Int64))]
