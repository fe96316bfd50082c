"""CUDA kernels that dequantise blocks: they compile, and their text computes on the host what ONNX
says, bit for bit.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.backend.cuda import cuda_host
from tests.backend.cuda.cuda_requests import compile_kernels, kernels_of, request
from tests.gpu.cases import blocks
from tests.support.cuda.case import Case, poisoned

_CASES = [c for c in blocks.blocks(np.random.default_rng(1)) if all(c.operands["x"].shape)]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("c", [pytest.param(c, id=c.name) for c in _CASES[::9]])
def test_bits_are_those_of_onnx(c: Case, tmp_path: Path) -> None:
    r = request(c.family, c.dtype, c.ints, operands=(*c.operands, *c.outputs))
    (kernel,) = kernels_of(r)
    compile_kernels([kernel], r.arch)
    places = {k: cuda_host.aligned(v) for k, v in c.operands.items()}
    y = cuda_host.aligned(poisoned(c.outputs["y"].count, c.outputs["y"].dtype))
    cuda_host.run(kernel, {**places, "y": y}, tmp_path)
    assert c.outputs["y"].error(y) == 0
