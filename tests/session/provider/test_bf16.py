"""Products of bfloat16 in sessions: the option `bf16`, and files of `optimize --precision bf16`. On
a machine without instructions for them, too: there these kernels compute in floats, and a test says
that they are fast.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper, parser

import tracea_onnx
from tests.session.test_models import feeds, small
from tests.support.sessions import assigned, session
from tracea_onnx.compiler.lower.passes import bf16_gemm
from tracea_onnx.support import discovery

pytestmark = pytest.mark.once
Array = npt.NDArray[Any]
MODELS = ("bert_base", "efficientnet_b0", "resnet50", "unet")


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = discovery.module("kernels", "cpu").BF16_RATES
    for isa in ("avx512amx", "avx512bf16", "avx2", "base"):
        monkeypatch.setitem(rates, isa, 100.0)
    monkeypatch.setattr(bf16_gemm, "_FEWEST", 1.0)


def drift(have: list[Array], want: list[Array]) -> float:
    """The largest root mean square difference, over that of the values."""
    return max(
        float(np.sqrt(np.mean((a - b) ** 2) / np.mean(b**2)))
        for a, b in zip(have, want, strict=True)
    )


def provided(model: onnx.ModelProto, folder: Path, **options: str) -> Any:
    more = {"cache_dir": str(folder), **options}
    return session(model, provider=True, everything=True, threads=2, options_of_provider=more)


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("name", MODELS)
def test_products_round_where_the_session_lets_them(name: str, tmp_path: Path) -> None:
    model = small(name)
    given = feeds(model, 2, 7, 0)
    want = session(model).run(None, given)
    assert drift(provided(model, tmp_path).run(None, given), want) < 1e-5
    assert 1e-5 < drift(provided(model, tmp_path, bf16="1").run(None, given), want) < 0.03


@pytest.mark.parametrize("with_instructions", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_narrow_files_run_whole(
    name: str, with_instructions: bool, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if with_instructions:
        request.getfixturevalue("fast")
    model = small(name)
    given = feeds(model, 2, 7, 0)
    narrow = tracea_onnx.optimize(model, precision="bf16", verify=False).model
    stock = session(narrow).run(None, given)
    made = provided(narrow, tmp_path, specs="trust")
    ran, nodes = assigned(made)
    assert ran == nodes
    assert drift(made.run(None, given), stock) < 0.03


def _saved(body: str, sizes: str, **constants: Array) -> onnx.ModelProto:
    model = parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 21]>\n g {sizes} {{ {body} }}'
    )
    model.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in constants.items())
    return model


def _halfs(value: ort.OrtValue) -> Array:
    """Elements of bfloat16, which numpy does not have."""
    shape = value.shape()
    at = (ctypes.c_uint16 * int(np.prod(shape))).from_address(value.data_ptr())
    made: Array = np.array(at, np.uint16).view(ml_dtypes.bfloat16).reshape(shape)
    return made


@pytest.mark.usefixtures("fast")
def test_inputs_outputs_and_weights_of_bfloat16(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    w = rng.standard_normal((40, 33)).astype(ml_dtypes.bfloat16)
    x = rng.standard_normal((5, 40)).astype(ml_dtypes.bfloat16)
    body = (
        "a = Cast<to = 1>(x) v = Cast<to = 1>(w) b = MatMul(a, v) c = Relu(b)"
        " y = Cast<to = 16>(c) z = Transpose<perm = [1, 0]>(y)"
        " f = MatMul(a, v) h = Cast<to = 16>(f) u = Flatten<axis = 0>(h)"
    )
    outputs = "bfloat16[n,33] y, bfloat16[33,n] z, bfloat16[1,m] u"
    model = _saved(body, f"(bfloat16[n,40] x) => ({outputs})", w=w)
    value = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(x.view(np.uint16), 16)
    made = provided(model, tmp_path)
    ran, nodes = assigned(made)
    assert ran == nodes
    y, z, u = map(_halfs, made.run_with_ort_values(None, {"x": value}))
    want = x.astype(np.float64) @ w.astype(np.float64)
    for have, due in ((y, np.maximum(want, 0)), (u, want.reshape(1, -1))):
        np.testing.assert_allclose(have.astype(np.float64), due, rtol=2.0**-7, atol=1e-3)
    np.testing.assert_array_equal(z, y.T)


@pytest.mark.usefixtures("fast")
def test_a_cast_that_takes_digits_takes_them(tmp_path: Path) -> None:
    """What is left of x behind its bfloat16 is not zero, though values lie as floats."""
    x = np.random.default_rng(0).standard_normal((7, 48)).astype(np.float32)
    w = np.eye(48, dtype=np.float32)
    body = "h = Cast<to = 16>(x) g = Cast<to = 1>(h) l = Sub(x, g) p = MatMul(g, w) y = Add(p, l)"
    model = _saved(
        body + " z = Mul(l, l)", "(float[n,48] x) => (float[n,48] y, float[n,48] z)", w=w
    )
    high = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    y, z = provided(model, tmp_path, bf16="1").run(None, {"x": x})
    np.testing.assert_array_equal(y, high + (x - high))
    np.testing.assert_array_equal(z, (x - high) ** 2)
