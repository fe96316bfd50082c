"""CUDA TopK: every kernel compiles; their text, run on the host, gives what a stable sort gives;
which rows are cut into parts.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.backend.cuda import cuda_host
from tests.backend.cuda.cuda_requests import compile_kernels, request
from tracea_onnx.codegen.kernel_request import NoKernel, Request
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike, evaluate, symbol
from tracea_onnx.support import discovery

cuda = discovery.module("kernels", "cuda")
topk = discovery.module("kernels", "cuda.reduce.topk")


def _request(
    outer: DimLike,
    n: DimLike,
    inner: DimLike,
    k: int,
    dtype: DType = DType.F32,
    *,
    largest: int = 1,
    arch: int = 90,
    operands: tuple[str, ...] = ("x", "y", "at"),
) -> Request:
    ints: dict[str, DimLike] = {
        "outer": outer,
        "n": n,
        "inner": inner,
        "k": k,
        "largest": largest,
        "dtype": int(dtype),
    }
    return request(
        "topk", DType.F32 if dtype == DType.I32 else dtype, ints, operands=operands, arch=arch
    )


def cases() -> Iterator[tuple[str, Request]]:
    b = symbol("b")
    sizes: tuple[tuple[DimLike, int], ...] = (
        (64, 6),
        (8400, 300),
        (50000, 100),
        (symbol("n"), 5),
        (3, 3),
    )
    for (dtype, arch), (n, k) in itertools.product(
        ((DType.F32, 80), (DType.F16, 90), (DType.BF16, 89), (DType.I32, 90)), sizes
    ):
        yield (
            f"{dtype.name} {k} of {n}",
            _request(
                b,
                n,
                3,
                k,
                dtype,
                largest=k % 2,
                arch=arch,
                operands=("x", "y", "at") if arch > 80 else ("x", "at"),
            ),
        )


@pytest.mark.sampled(4)
@pytest.mark.parametrize("r", [pytest.param(r, id=n) for n, r in cases()])
def test_compiles(r: Request) -> None:
    compile_kernels(cuda.emit(r), r.arch)


def _run(r: Request, x: Any, tmp_path: Path) -> tuple[Any, Any, list[bool]]:
    k = int(evaluate(r.ints["k"], {}))
    y, at = (
        np.full((x.shape[0], k, x.shape[2]), 99, x.dtype),
        np.full((x.shape[0], k, x.shape[2]), -1, np.int64),
    )
    kernels = cuda.emit(r)
    places = {"x": x, "y": y, "at": at}
    places |= {
        f"scratch{j}": np.full(evaluate(size, {}), 0xAB, np.uint8)
        for kernel in kernels
        for j, size in enumerate(kernel.scratch)
    }
    return (
        y,
        at,
        [cuda_host.run(kernel, places, tmp_path / str(j)) for j, kernel in enumerate(kernels)],
    )


def _check(r: Request, x: Any, tmp_path: Path) -> None:
    y, at, faults = _run(r, x, tmp_path)
    order = np.where(np.isnan(x), np.inf, x) if x.dtype.kind == "f" else x.astype(np.int64)
    want = np.argsort(-order if r.ints["largest"] else order, 1, kind="stable")[:, : y.shape[1]]
    np.testing.assert_array_equal(at, want)
    np.testing.assert_array_equal(y, np.take_along_axis(x, want, 1))
    assert not any(faults)


SHAPES = (
    (5, 64, 1, 6), (2, 7, 3, 7), (1, 33, 1, 1), (1, 700, 2, 40), (1, 1301, 1, 3),
    (1, 2053, 1, 70), (3, 523, 1, 9), (2, 300, 1, 300), (1, 520, 1, 519),
)  # fmt: skip


@pytest.mark.sampled(8)
@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", ["random", "half", "ties", "alike", "whole"])
def test_as_a_stable_sort(
    kind: str, shape: tuple[int, int, int, int], largest: int, tmp_path: Path
) -> None:
    outer, n, inner, k = shape
    rng = np.random.default_rng(n)
    x = np.asarray(rng.standard_normal((outer, n, inner)), np.float32)
    if kind == "ties":
        x = np.asarray(rng.choice([-0.0, 0.0, 1.0, -1.0, np.inf, -np.inf], x.shape), np.float32)
    elif kind == "alike":
        x[...] = 0.25
    elif kind == "whole":
        x = rng.integers(-(2**31), 2**31, x.shape).astype(np.int32)
    elif kind == "half":
        x = x.astype(np.float16)
    dtype = {"whole": DType.I32, "half": DType.F16}.get(kind, DType.F32)
    _check(_request(outer, n, inner, k, dtype, largest=largest), x, tmp_path)


def test_nan_is_above_all(tmp_path: Path) -> None:
    x = np.asarray([[3, np.nan, np.inf, -1, -np.nan]], np.float32)[..., None]
    _, at, _ = _run(_request(1, 5, 1, 5), x, tmp_path / "a")
    assert at.ravel().tolist() == [1, 4, 2, 0, 3]
    _, at, _ = _run(_request(1, 5, 1, 5, largest=0), x, tmp_path / "b")
    assert at.ravel().tolist() == [3, 0, 2, 1, 4]


@pytest.mark.parametrize("shape", [(2, 500, 1, 20), (1, 451, 2, 33)], ids=str)
def test_long_rows_in_parts(
    shape: tuple[int, int, int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outer, n, inner, k = shape
    monkeypatch.setattr(topk, "_LONG", 100)
    monkeypatch.setattr(topk, "_PART", 150)  # the last part of 451 has one element
    assert len(cuda.emit(_request(outer, n, inner, k))) == 2
    for j, levels in enumerate((4, 1000)):
        x = np.asarray(np.random.default_rng(j).integers(0, levels, (outer, n, inner)), np.float32)
        _check(_request(outer, n, inner, k, largest=j), x, tmp_path / str(j))


def test_a_row_that_is_too_short_is_a_fault(tmp_path: Path) -> None:
    for n in (40, 2000):  # by a warp's kernel, by a block's
        r = _request(1, n, 1, 30 if n < 50 else 300)
        (kernel,) = cuda.emit(r)
        short = Request(**{**vars(r), "ints": {**r.ints, "n": 3}})
        places: dict[str, Any] = {
            "x": np.zeros(64, np.float32),
            "y": np.zeros(512, np.float32),
            "at": np.zeros(512, np.int64),
        }
        assert cuda_host.run(
            type(kernel)(**{**vars(kernel), "args": cuda.emit(short)[0].args}),
            places,
            tmp_path / str(n),
        )


def test_which_kernels() -> None:
    def of(n: DimLike, k: int) -> list[tuple[str, int]]:
        return [
            (re.findall(r"  (top_\w+)<[^<]*;", kernel.source)[-1], kernel.block)
            for kernel in cuda.emit(_request(3, n, 1, k))
        ]

    assert (
        of(128, 8) == [("top_warps", 128)]
        and of(100, 40) == [("top_rows", 64)]
        and of(1000, 50) == [("top_rows", 256)]
    )
    assert (
        of(8400, 300) == [("top_rows", 1024)]
        and of(symbol("n"), 2) == [("top_rows", 1024)]
        and of(1031, 1031) == [("top_rows", 256)]
    )
    assert of(672000, 300) == [("top_parts", 1024), ("top_rows", 1024)]
    assert len(cuda.emit(_request(300, 30000, 1, 10))) == 1  # rows enough for all multiprocessors
    with pytest.raises(NoKernel, match="the 9000 first of a row"):
        cuda.emit(_request(3, 10000, 1, 9000))
