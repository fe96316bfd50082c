"""CUDA kernels of Fourier transforms: every one compiles; their text, run on the host, gives what
`numpy.fft` gives.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.backend.cuda import cuda_host
from tests.backend.cuda.cuda_requests import compile_kernels, request
from tests.support.fourier import COMPLEX, OF_REAL, TO_REAL, Fourier, all_kinds
from tracea_onnx.codegen.kernel_request import NoKernel, Request
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import symbol
from tracea_onnx.support import discovery

cuda = discovery.module("kernels", "cuda")


def _request(case: Fourier, dtype: DType = DType.F32, *, arch: int = 90) -> Request:
    operands = ("x", "tables", "y", *(["window"] if case.window else []))
    return request("fft", dtype, case.ints(), case.floats(), operands=operands, arch=arch)


#: Every radix, first and later; odd lengths; half as long and not.
CASES = (
    *all_kinds(30), *all_kinds(35, batch=(2, 3)), *all_kinds(64, batch=(2, 3), columns=True),
    *all_kinds(400), Fourier(512, bins=257, batch=(2, 7), window=True, step=128),
    Fourier(143, COMPLEX, window=True, terms=100), Fourier(26, COMPLEX, terms=5),
    Fourier(1024, TO_REAL, True), Fourier(1, COMPLEX), Fourier(2), Fourier(1331, COMPLEX),
    Fourier(128, OF_REAL, bins=65, columns=True, terms=99),
)  # fmt: skip


def cases() -> Iterator[tuple[str, Request]]:
    for k, case in enumerate(CASES):
        for dtype, arch in ((DType.F32, 80), (DType.F16, 90), (DType.BF16, 89)):
            if dtype == DType.F32 or k % 3 == 0:
                r = _request(case, dtype, arch=arch)
                yield f"{k} {case.length} {dtype.name}", r
    free = _request(Fourier(400, bins=201, window=True, step=160))
    yield "symbolic frames", Request(**{**vars(free), "ints": {**free.ints, "M": symbol("m")}})


@pytest.mark.sampled(4)
@pytest.mark.parametrize("r", [pytest.param(r, id=n) for n, r in cases()])
def test_compiles(r: Request) -> None:
    compile_kernels(cuda.emit(r), r.arch)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("case", CASES, ids=[f"{k}-{c.length}" for k, c in enumerate(CASES)])
def test_against_float64(case: Fourier, tmp_path: Path) -> None:
    given = case.draw(np.random.default_rng(case.length))
    want = case.want(given)
    y = cuda_host.aligned(np.full(want.shape, np.nan, np.float32))
    places = {k: cuda_host.aligned(v) for k, v in given.items()}
    places |= {"tables": cuda_host.aligned(case.tables()), "y": y}
    (kernel,) = cuda.emit(_request(case))
    assert not cuda_host.run(kernel, places, tmp_path)
    np.testing.assert_allclose(y, want, rtol=0, atol=case.bound(want))


def test_what_has_no_kernel() -> None:
    with pytest.raises(NoKernel, match="length 8192"):
        cuda.emit(_request(Fourier(8192, COMPLEX)))
    with pytest.raises(NoKernel, match="by other ones"):
        cuda.emit(_request(Fourier(97, COMPLEX)))
    assert len(cuda.emit(_request(Fourier(4096)))) == 1
