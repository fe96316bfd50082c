"""What kernels read before the kernels before them have ended: constants alone. The assembler moves loads through the texture path (of `__restrict__` and `__ldg`)
before the wait for those kernels, whatever stands between."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.backend import test_cuda_conv, test_cuda_gemm
from tests.backend.test_cuda_narrow import Shape
from tests.backend.test_cuda_narrow import _request as windows
from tracea_onnx import registry
from tracea_onnx.cuda import Request
from tracea_onnx.ops import DType

cuda = registry.module("kernels", "cuda")
_WINDOWS = (
    Shape(1, 3, 64, 64, 32, (7, 7), (2, 2), pad=(3, 3)), Shape(2, 4, 40, 40, 8), Shape(1, 300, 24, 24, 6, (1, 1), pad=(0, 0)), Shape(2, 64, 30, 30, 64, groups=64),
    Shape(1, 32, 90, 90, 32, (21, 21), pad=(10, 10), groups=32), Shape(1, 16, 12, 12, 8, (4, 4), (2, 2), transposed=True), Shape(2, 48, 20, 20, 96),
    Shape(1, 24, 60, 60, 24, (5, 5), pad=(2, 2), groups=4),
)  # fmt: skip


def cases() -> Iterator[tuple[str, Request]]:
    yield from test_cuda_gemm.cases()
    yield from test_cuda_conv.cases()
    for d in (DType.F16, DType.F32):
        for rows, columns, terms in ((1, 10, 256), (7, 300, 80), (2000, 40, 7), (900, 330, 70), (64, 64, 200), (300, 1, 4000)):
            yield f"{rows}x{columns}x{terms} {d.name}", test_cuda_gemm.gemm(d, rows, columns, terms)
        for v in _WINDOWS:
            yield f"{v} {d.name}", windows(v, d)


@pytest.mark.parametrize("constant", [frozenset(), frozenset({"w", "bias"})], ids=["nothing constant", "constant weights"])
def test_only_constants_are_read_through_the_texture_path(constant: frozenset[str]) -> None:
    seen, alone = set(), 0
    for name, r in cases():
        for k in cuda.emit(replace(r, constant=constant)):
            seen.add(k.symbol)
            shared = re.findall(r"const \w+\* __restrict__ (\w+)", k.source)
            alone += len(shared)
            read = re.findall(r"__ldg\(\(?[^)]*?\)?\(?e\.(\w+)", k.source)
            touched = re.findall(r"touch\(e\.(\w+)", k.source)
            assert k.source.count("__ldg(") == len(read) and set(touched) <= constant, (name, k.symbol)
            assert set(shared) <= ({"w", "b", "bias"} if constant else set()), (name, k.symbol, shared)
            assert set(read) <= constant, (name, k.symbol, read)
    assert len(seen) > 12 and bool(alone) == bool(constant), seen
