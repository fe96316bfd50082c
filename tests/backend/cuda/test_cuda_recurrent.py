"""CUDA kernels of LSTM, GRU and RNN: every one compiles; their text, run on the host, gives what
float64 gives.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.backend.cuda import cuda_host
from tests.backend.cuda.cuda_requests import compile_kernels, request
from tests.support.recurrent import Layer
from tracea_onnx.codegen.kernel_request import Request
from tracea_onnx.ir.abi import ACTIVATIONS, DType
from tracea_onnx.ir.dims import symbol
from tracea_onnx.support import discovery

cuda = discovery.module("kernels", "cuda")
VARIANTS = [("LSTM", 0), ("GRU", 0), ("GRU", 1), ("RNN", 0)]
_OPERANDS = ("x", "r", "bias", "h", "y", "y_h", "state")


def _request(layer: Layer, dtype: DType = DType.F32, arch: int = 90) -> Request:
    return request("recurrent", dtype, layer.ints(), operands=_OPERANDS, arch=arch)


def cases() -> Iterator[tuple[str, Request]]:
    types = ((DType.F32, 80), (DType.F16, 90), (DType.BF16, 89), (DType.F32, 90), (DType.F16, 80))
    for (kind, before), (dtype, arch) in itertools.product(VARIANTS, types):
        layer = Layer(kind, (3, 2, 2, 40), before=before)
        sizes = {"T": symbol("t"), "B": symbol("b"), "x_t": symbol("b") * layer.ints()["x_b"]}
        packing = {"D": 2, "H": 40, "K": 40, "G": layer.gates, "first": layer.gates}
        yield (
            f"pack {kind} {dtype.name}",
            request("pack_recurrent", dtype, packing, operands=("r", "packed"), arch=arch),
        )
        yield f"{kind} {before} {dtype.name} {arch}", _request(layer, dtype, arch)
        other = ACTIVATIONS.index("hard_sigmoid")
        yield (
            f"{kind} {before} {dtype.name} {arch} symbolic",
            request(
                "recurrent",
                dtype,
                {**layer.ints(), **sizes, "H": 1000, "coupled": 1, "act_f": other, "reverse": 1},
                {"clip": 0.5, "f0": 0.2, "f1": 0.5},
                operands=(*_OPERANDS, "lens", "peephole", "c", "y_c"),
                arch=arch,
            ),
        )


@pytest.mark.sampled(6)
@pytest.mark.parametrize("r", [pytest.param(r, id=n) for n, r in cases()])
def test_compiles(r: Request) -> None:
    compile_kernels(cuda.emit(r), r.arch)


@pytest.mark.parametrize(("kind", "before"), VARIANTS)
@pytest.mark.parametrize("sizes", [(3, 1, 1, 5), (2, 3, 2, 9)], ids=str)
def test_against_float64(
    kind: str, before: int, sizes: tuple[int, int, int, int], tmp_path: Path
) -> None:
    """The blocks run one after the other: the first does the work of all."""
    layer = Layer(kind, sizes, before=before)
    steps, batch, sides, units = sizes
    packing = {"D": sides, "H": units, "K": units, "G": layer.gates, "first": layer.gates}
    (pack,) = cuda.emit(request("pack_recurrent", DType.F32, packing, operands=("r", "packed")))
    pitch = -(-units // 8) * 8
    packed = np.full((sides, units, layer.gates, pitch), np.nan, np.float32)
    packed = cuda_host.aligned(packed)
    cuda_host.run(pack, {"r": cuda_host.aligned(layer.r), "packed": packed}, tmp_path / "pack")
    np.testing.assert_array_equal(packed, layer.rows_of_units(pitch))
    places = {k: cuda_host.aligned(v) for k, v in layer.operands().items()}
    places |= {
        "r": packed,
        "y": cuda_host.aligned(np.full((steps, sides, batch, units), np.nan, np.float32)),
        "y_h": cuda_host.aligned(np.full((sides, batch, units), np.nan, np.float32)),
    }
    (kernel,) = cuda.emit(_request(layer))
    assert not cuda_host.run(kernel, places, tmp_path / "run")
    y, last = layer.want()
    np.testing.assert_allclose(places["y"], y, rtol=0, atol=1e-5)
    np.testing.assert_allclose(places["y_h"], last, rtol=0, atol=1e-5)


def test_lengths_out_of_range_are_a_fault(tmp_path: Path) -> None:
    layer = Layer("RNN", (2, 2, 1, 3))
    places = {k: cuda_host.aligned(v) for k, v in layer.operands().items()}
    places |= {
        "r": cuda_host.aligned(layer.rows_of_units(8)),
        "lens": cuda_host.aligned(np.array([1, 3], np.int32)),
        "y": cuda_host.aligned(np.zeros((2, 1, 2, 3), np.float32)),
    }
    operands = (*_OPERANDS[:-2], "lens", "state")
    (kernel,) = cuda.emit(request("recurrent", DType.F32, layer.ints(), operands=operands))
    assert cuda_host.run(kernel, places, tmp_path)


def test_units_are_split_among_blocks() -> None:
    """At least one for each warp; parts of few units where there are multiprocessors for them."""
    for units, sides, grid in ((5, 1, 1), (64, 1, 8), (64, 2, 16), (1024, 1, 128), (1024, 2, 128)):
        (kernel,) = cuda.emit(_request(Layer("RNN", (1, 1, sides, units))))
        assert kernel.grid[0] == grid
