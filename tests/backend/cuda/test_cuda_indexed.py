"""CUDA kernels that find elements by indices or sample images: they compile, and computed by the
host's compiler they agree with ONNX Runtime.
"""

from __future__ import annotations

import ctypes
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import helper

from tests.backend.cuda.cuda_requests import compile_kernels, request
from tests.cpp import library
from tracea_onnx.codegen.kernel_request import Request
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike, symbol
from tracea_onnx.support import discovery

cuda = discovery.module("kernels", "cuda")
Array = np.ndarray[Any, Any]
FIVE: dict[str, DimLike] = {f"{letter}{k}": 2 for letter in "nsm" for k in range(5)} | {
    "n0": symbol("n"),
    "s3": symbol("s"),
}
IMAGE: dict[str, DimLike] = {"N": 2, "C": 5, "IH": 4, "IW": 6, "OH": symbol("h"), "OW": 7}
IMAGE |= {"x_cs": 8, "x_rs": 48, "x_ns": 192, "y_cs": 8, "y_rs": 56, "y_ns": symbol("n")}


def cases() -> Iterator[tuple[str, Request]]:
    indexed = {
        "gather_along": ("x", {"axis": 2}),
        "scatter_along": ("u", {"axis": 4}),
        "scatter_tuples": ("u", {"k": 3, "count": 9, "inner": 7}),
    }
    indexed["gather_tuples"] = ("x", {"k": 2, "count": 9, "inner": 7, "each": 3, "step": 100})
    for (elem, index), (family, (source, more)) in itertools.product(
        ((1, DType.I64), (2, DType.I32), (8, DType.I64)), indexed.items()
    ):
        ints: dict[str, DimLike] = {"elem": elem, "idx_dtype": int(index), **more, **FIVE}
        yield (
            f"{family} {elem} by {index.name}",
            request(family, DType.F32, ints, operands=(source, "idx", "y")),
        )
    for upper, arch in ((0, 80), (1, 90)):
        sizes: dict[str, DimLike] = {
            "elem": 4,
            "outer": symbol("n"),
            "rows": 3,
            "columns": 4,
            "diagonal": -1,
            "upper": upper,
        }
        yield (
            f"triangle {upper}",
            request("triangle", DType.F32, sizes, operands=("x", "y"), arch=arch),
        )
    for elem, index in ((1, DType.I32), (4, DType.I64)):
        ints = {"elem": elem, "idx_dtype": int(index), "outer": symbol("n"), "depth": 5, "inner": 3}
        yield (
            f"one hot {elem}",
            request("one_hot", DType.F32, ints, operands=("idx", "values", "y")),
        )
    for mode, (dtype, arch) in itertools.product(
        range(3), ((DType.F32, 80), (DType.F16, 90), (DType.BF16, 89))
    ):
        ints = {
            "mode": mode,
            "pad": mode,
            "corners": 1,
            "grid_dtype": int(DType.F32 if mode else dtype),
            **IMAGE,
        }
        yield (
            f"sample {mode} {dtype.name}",
            request("grid_sample", dtype, ints, operands=("x", "grid", "y"), arch=arch),
        )
    sizes = {
        "N": symbol("n"),
        "C": 13,
        "H": 5,
        "W": 6,
        **{k: v for k, v in IMAGE.items() if "_" in k},
    }
    for size, (dtype, arch) in itertools.product((3, 5), ((DType.F32, 80), (DType.F16, 90))):
        yield (
            f"lrn {size} {dtype.name}",
            request(
                "lrn",
                dtype,
                {"size": size, **sizes},
                {"alpha": 1e-4, "beta": 0.75, "bias": 1.0},
                operands="xy",
                arch=arch,
            ),
        )


@pytest.mark.sampled(4)
@pytest.mark.parametrize("r", [pytest.param(r, id=f"{n} sm_{r.arch}") for n, r in cases()])
def test_compiles(r: Request) -> None:
    compile_kernels(cuda.emit(r), r.arch)


_HOST = """
#include <math.h>
#define DEV static inline
typedef unsigned u32; typedef long long i64; typedef unsigned long long u64; typedef float T;
static inline int min(int a, int b) { return a < b ? a : b; }
static inline int max(int a, int b) { return a > b ? a : b; }
struct { unsigned x; } blockIdx = {0}, threadIdx = {0}, blockDim = {1}, gridDim = {1};
template <class E, int V> struct Vec { E v[V]; };
template <int V, class E> DEV Vec<E, V> load(const E* p) { Vec<E, V> r; for (int k = 0; k < V; k++)
    r.v[k] = p[k]; return r; }
template <int V, class E> DEV void store(E* p, Vec<E, V> v) { for (int k = 0; k < V; k++)
    p[k] = v.v[k]; }
DEV float to_float(float v) { return v; }
DEV void from_float(float& to, float v) { to = v; }
struct Pitch { int cs; i64 rs, ns; };
DEV bool wide_pitch(const void*, Pitch q, int v) { return ((q.cs | q.rs | q.ns) & (v - 1)) == 0; }
template <int V> DEV u32 vectors_of(int channels, int) { return (channels + V - 1) / V; }
struct UnitIndex { int n, oh, ow, c; };
template <int V> DEV UnitIndex unit_index(u64 u, u64, u32 vectors, int OH, int OW) {
  const u64 p = u / vectors;
  return {int(p / OW / OH), int(p / OW % OH), int(p % OW), int(u % vectors) * V};
}
"""


def _own(header: str) -> str:
    """The header without those that it includes."""
    text: str = discovery.module("kernels", "cuda.common.templates").text(header)
    return re.sub("#include.*\n", "", text)


def _wanted(op: str, feeds: Mapping[str, Array], out: int = 0, **attrs: Any) -> Array:
    infos = [
        helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
        for k, v in feeds.items()
    ]
    result = helper.make_tensor_value_info("y", out or infos[0].type.tensor_type.elem_type, None)
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node(op, list(feeds), ["y"], **attrs)], "g", infos, [result]
        ),
        ir_version=10,
    )
    del model.opset_import[:]
    model.opset_import.append(helper.make_opsetid("", 20))
    return np.asarray(
        ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(
            None, dict(feeds)
        )[0]
    )


def _pointers(*arrays: Array) -> list[ctypes.c_void_p]:
    return [ctypes.c_void_p(a.ctypes.data) for a in arrays]


def _longs(*values: Sequence[int]) -> Any:
    return (ctypes.c_longlong * sum(map(len, values)))(*(v for row in values for v in row))


def _five(values: Sequence[int], fill: int) -> list[int]:
    return [*([fill] * (5 - len(values))), *values]


def _strides(shape: Sequence[int]) -> list[int]:
    return [int(np.prod(shape[k + 1 :])) for k in range(len(shape))]


_CALLS = """
DEV Dims dims(const i64* d) { Dims r; for (int k = 0; k < 5; k++) r.n[k] = d[k], r.s[k] = d[5 + k],
    r.m[k] = d[10 + k]; return r; }
extern "C" void gather(const float* x, const i64* idx, float* y, const i64* d, u32* fault) {
    move_along<AXIS, false>(x, idx, y, dims(d), fault); }
extern "C" void scatter(const float* x, const i64* idx, float* y, const i64* d, u32* fault) {
    move_along<AXIS, true>(x, idx, y, dims(d), fault); }
extern "C" void tuples(const float* x, const i64* idx, float* y, int count, int inner,
    const i64* d, u32* fault) {
  scatter_tuples<2>(x, idx, y, count, inner, dims(d), fault);
}
extern "C" void from_tuples(const float* x, const i64* idx, float* y, int count, int inner,
    int each, i64 step, const i64* d, u32* fault) {
  gather_tuples<2>(x, idx, y, count, inner, each, step, dims(d), fault);
}
extern "C" void hot(const i64* idx, const float* values, float* y, i64 total, int depth, int inner)
    { one_hot(idx, values, y, total, depth, inner); }
extern "C" void keep(const float* x, float* y, i64 total, int rows, int columns, int k) {
    triangle<false>(x, y, total, rows, columns, k); }
"""


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_elements_by_indices(tmp_path: Path, axis: int) -> None:
    rng = np.random.default_rng(axis)
    host = library(
        tmp_path,
        "indexed",
        _HOST + f"constexpr int AXIS = {axis + 2};\n" + _own("movement/indexed") + _CALLS,
    )
    x = rng.standard_normal((4, 5, 6), dtype=np.float32)
    idx = np.argsort(rng.standard_normal((3, 4, 5)), axis)  # none of them twice along the axis
    idx[0, 0, 0] -= x.shape[axis]
    d, fault = (
        _longs(_five(idx.shape, 1), _five(_strides(x.shape), 0), _five(x.shape, 1)),
        np.zeros(1, np.uint32),
    )
    got = np.zeros(idx.shape, np.float32)
    host.gather(*_pointers(x, idx, got), d, *_pointers(fault))
    np.testing.assert_array_equal(got, _wanted("GatherElements", {"x": x, "idx": idx}, axis=axis))
    u, y = rng.standard_normal(idx.shape, dtype=np.float32), x.copy()
    host.scatter(*_pointers(u, idx, y), d, *_pointers(fault))
    np.testing.assert_array_equal(
        y, _wanted("ScatterElements", {"x": x, "idx": idx, "u": u}, axis=axis)
    )
    pairs = np.array([[[0, 1], [3, -1]], [[-4, 0], [2, 2]]])
    u, y = rng.standard_normal((2, 2, 6), dtype=np.float32), x.copy()
    d = _longs([1] * 5, [*_strides(x.shape)[:2], 0, 0, 0], [4, 5, 1, 1, 1])
    host.tuples(*_pointers(u, pairs, y), 4, 6, d, *_pointers(fault))
    np.testing.assert_array_equal(y, _wanted("ScatterND", {"x": x, "idx": pairs, "u": u}))
    got = np.zeros_like(u)
    host.from_tuples(*_pointers(x, pairs, got), 4, 6, 4, ctypes.c_longlong(0), d, *_pointers(fault))
    np.testing.assert_array_equal(got, _wanted("GatherND", {"x": x, "idx": pairs}))
    got, each = np.zeros((4, 3), np.float32), rng.integers(-5, 5, (4, 3, 2))
    host.from_tuples(
        *_pointers(x, each, got),
        12,
        1,
        3,
        ctypes.c_longlong(30),
        _longs([1] * 5, [6, 1, 0, 0, 0], [5, 6, 1, 1, 1]),
        *_pointers(fault),
    )
    np.testing.assert_array_equal(got, _wanted("GatherND", {"x": x, "idx": each}, batch_dims=1))
    assert not fault[0]
    for beyond in (-5, 4):
        pairs[0, 1, 0], fault[0] = beyond, 0
        host.tuples(*_pointers(u, pairs, y), 4, 6, d, *_pointers(fault))
        assert fault[0]
    labels, values, shape = (
        rng.integers(-7, 8, (3, 5)),
        np.array([0.5, 2], np.float32),
        [(6, 3, 5), (3, 6, 5), (3, 5, 6)][axis],
    )
    y = np.zeros(shape, np.float32)
    host.hot(
        *_pointers(labels, values, y),
        ctypes.c_longlong(y.size),
        6,
        int(np.prod(labels.shape[axis:])),
    )
    np.testing.assert_array_equal(
        y,
        _wanted(
            "OneHot", {"idx": labels, "depth": np.array(6), "values": values}, out=1, axis=axis
        ),
    )
    y = np.zeros_like(x)
    host.keep(*_pointers(x, y), ctypes.c_longlong(x.size), 5, 6, axis - 1)
    np.testing.assert_array_equal(y, np.tril(x, axis - 1))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("corners", [0, 1])
@pytest.mark.parametrize("pad", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_samples(tmp_path: Path, mode: str, pad: str, corners: int) -> None:
    rng = np.random.default_rng(corners)
    numbers = (
        ("nearest", "linear", "cubic").index(mode),
        ("zeros", "border", "reflection").index(pad),
    )
    call = (
        f"sample<{numbers[0]}, {numbers[1]}, {'true' if corners else 'false'}>(x, grid, y, "
        f"*g, Pitch{{cs, cs * g->IW, cs * g->IW * g->IH}},"
    )
    text = (
        'extern "C" void run(const float* x, const float* grid, float* y, const Sample* g, '
        f"int cs) {{ {call} Pitch{{cs, cs * g->OW, cs * g->OW * g->OH}}); }}"
    )
    host = library(tmp_path, "sample", _HOST + _own("image/grid_sample") + text)
    for channels, cs in ((5, 8), (3, 3)):
        x = rng.standard_normal((2, channels, 5, 7), dtype=np.float32)
        grid = rng.uniform(-3, 3, (2, 6, 9, 2)).astype(np.float32)
        lying, y = np.full((2, 5, 7, cs), np.nan, np.float32), np.zeros((2, 6, 9, cs), np.float32)
        lying[..., :channels] = x.transpose(0, 2, 3, 1)
        host.run(*_pointers(lying, grid, y, np.array([2, channels, 5, 7, 6, 9], np.int32)), cs)
        want = _wanted(
            "GridSample", {"x": x, "grid": grid}, mode=mode, padding_mode=pad, align_corners=corners
        )
        np.testing.assert_allclose(y[..., :channels].transpose(0, 3, 1, 2), want, atol=2e-5)


@pytest.mark.parametrize("size", [1, 3, 5])
def test_responses(tmp_path: Path, size: int) -> None:
    rng = np.random.default_rng(size)
    image = _own("image/pool_resize")
    call = (
        f"local_response<{size}>(x, y, 2, 13, 3, 4, 0.3f, 0.75f, 1.5f, Pitch{{16, 64, 192}}, "
        f"Pitch{{13, 52, 156}});"
    )
    host = library(
        tmp_path,
        "lrn",
        _HOST
        + image[image.index("template <int SIZE>\nDEV void local_response") :]
        + f'extern "C" void run(const float* x, float* y) {{ {call} }}',
    )
    x = rng.standard_normal((2, 13, 3, 4), dtype=np.float32)
    lying, y = np.full((2, 3, 4, 16), np.nan, np.float32), np.zeros((2, 3, 4, 13), np.float32)
    lying[..., :13] = x.transpose(0, 2, 3, 1)
    host.run(*_pointers(lying, y))
    np.testing.assert_allclose(
        y.transpose(0, 3, 1, 2),
        _wanted("LRN", {"x": x}, size=size, alpha=0.3, beta=0.75, bias=1.5),
        rtol=1e-5,
        atol=1e-6,
    )
