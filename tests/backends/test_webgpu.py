"""The WebGPU backend: code for the zoo on every machine; where there is an adapter (lavapipe is
one), sessions whose every node runs on it, compared with float64.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from tests.session.test_models import feeds, small
from tests.support import double
from tracea_onnx import provider
from tracea_onnx.canonicalize.canonical_form import canonicalise
from tracea_onnx.codegen import backend as backends
from tracea_onnx.codegen.kernel_request import NoKernel, Request
from tracea_onnx.compiler import compile_requests
from tracea_onnx.doctor import smallest
from tracea_onnx.explain.coverage import coverage
from tracea_onnx.ir.abi import DType
from tracea_onnx.plan.builder import read_pack, write_pack

WEBGPU: Any = backends.get("webgpu")


@pytest.fixture(scope="module")
def adapter() -> str:
    """One that is here."""
    probe = WEBGPU.probe()
    if not probe.devices:
        pytest.skip(probe.why)
    return str(probe.devices[0])


def session(model: onnx.ModelProto, folder: Path, **options: str) -> ort.InferenceSession:
    """One that runs every node on the provider."""
    given = {"backend": "webgpu", "claim": "all", "cache_dir": str(folder), **options}
    made = provider.create_session(model.SerializeToString(), given)
    ran = made.get_provider_graph_assignment_info()
    assert {a.ep_name for a in ran} == {provider.PROVIDER_NAME}
    return made


@pytest.mark.parametrize("name", ["gpt2", "resnet50", "yolo_nano"])
def test_code_for_all_of_a_model(name: str) -> None:
    found = coverage(canonicalise(small(name)), "webgpu")
    assert found.partitions and not found.leaving


def test_refusals_are_sentences() -> None:
    def asked(family: str, operands: str, **ints: int) -> Request:
        known: Any = None
        return Request(family, DType.F32, ints, {}, None, frozenset(operands.split()), known)

    with pytest.raises(NoKernel, match="the WebGPU backend has no kernel for topk"):
        WEBGPU.emit(asked("topk", "x y at"))
    with pytest.raises(NoKernel, match="heads of 4096 and 4096 elements are too large"):
        WEBGPU.emit(asked("attention", "q k v y", H=1, KVH=1, D=4096, DV=4096))


@pytest.mark.parametrize("name", ["minilm", "resnet50"])
def test_a_model_runs_whole(name: str, adapter: str, tmp_path: Path) -> None:
    model = small(name)
    made = session(model, tmp_path)
    for batch, seq in ((2, 7), (1, 5)):
        x = feeds(model, batch, seq, 1)
        for got, want in zip(made.run(None, x), double.run(model, x), strict=True):
            assert got.shape == want.shape
            np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-5 * float(np.abs(want).max()))


MLP = """<ir_version: 8, opset_import: ["" : 20]> mlp (float[rows, 37] x) => (float[rows, 5] y) {
  a = MatMul (x, w0) b = Add (a, b0) c = Gelu (b) d = MatMul (c, w1) e = Add (d, b1)
  y = Softmax (e) }"""


def mlp() -> onnx.ModelProto:
    model = onnx.parser.parse_model(MLP)
    rng = np.random.default_rng(3)
    for name, shape in (("w0", (37, 67)), ("b0", (67,)), ("w1", (67, 5)), ("b1", (5,))):
        value = (rng.standard_normal(shape) / 6).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    return model


def test_rows_of_any_number(adapter: str, tmp_path: Path) -> None:
    """One, a tile less one, one and one more, and none."""
    model, rng = mlp(), np.random.default_rng(0)
    made = session(model, tmp_path)
    for rows in (1, 15, 16, 17, 63, 64, 65, 0, 131):
        x = {"x": rng.standard_normal((rows, 37), np.float32)}
        (got,), (want,) = made.run(None, x), double.run(model, x)
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("n", [1, 31, 257])
def test_long_and_short_rows(n: int, adapter: str, tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 18]> g (float[b, {n}, 3] x) => (s, t, m, l, h) {{ '
        "r = Transpose <perm = [0, 2, 1]> (x) s = Softmax (r) t = LogSoftmax <axis = 1> (x) "
        "m = ReduceMean <keepdims = 0> (r, last) l = ReduceL2 (x, middle) h = ReduceMax (r, last) }"
    )
    for name, axis in (("last", -1), ("middle", 1)):
        value = np.array([axis], np.int64)
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    x = {"x": np.random.default_rng(n).standard_normal((5, n, 3), np.float32) * 4}
    got = session(onnx.shape_inference.infer_shapes(model), tmp_path).run(None, x)
    for a, b in zip(got, double.run(model, x), strict=True):
        np.testing.assert_allclose(a, b, rtol=5e-6, atol=1e-6)


@pytest.mark.parametrize("family", smallest.CASES)
def test_each_family_is_right_or_left(family: str, adapter: str, tmp_path: Path) -> None:
    found = smallest.attempt(family, "webgpu", str(tmp_path))
    assert found.ok and found.difference < 2e-6, found.fault
    known = sys.modules[type(WEBGPU).__module__].families()
    assert bool(found.left) == (family not in {*known, "conv2d_wino", "fft"})


def test_a_bad_index_ends_the_run(adapter: str, tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[4, 3] x, int64[n] i) => (float[n, 3] y) '
        "{ y = Gather (x, i) }"
    )
    made = session(model, tmp_path)
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    (got,) = made.run(None, {"x": x, "i": np.array([3, -4, 0])})
    assert got.tolist() == x[[3, 0, 0]].tolist()
    for bad in (4, -5, 1 << 32):
        with pytest.raises(Exception, match="met an index out of range of its tensor"):
            made.run(None, {"x": x, "i": np.array([0, bad])})
    (got,) = made.run(None, {"x": x, "i": np.array([1])})
    assert got.tolist() == x[[1]].tolist(), "the next run is its own"


def test_by_a_list_of_providers_and_io_binding(adapter: str, tmp_path: Path) -> None:
    provider.select({"backend": "webgpu"})
    options = {"backend": "webgpu", "claim": "all", "cache_dir": str(tmp_path)}
    made = ort.InferenceSession(
        mlp().SerializeToString(), providers=[(provider.PROVIDER_NAME, options)]
    )
    provider.assert_provider_selected(made)
    x = np.random.default_rng(0).standard_normal((3, 37), np.float32)
    y = np.zeros((3, 5), np.float32)
    binding = made.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_output("y", "cpu", 0, np.float32, y.shape, y.ctypes.data)
    made.run_with_iobinding(binding)
    np.testing.assert_allclose(y, double.run(mlp(), {"x": x})[0], rtol=1e-5, atol=1e-6)


def test_adapters_that_are_not_here(adapter: str, tmp_path: Path) -> None:
    assert session(mlp(), tmp_path, webgpu_adapter=adapter[:6])
    with pytest.raises(Exception, match="no adapter whose name has 'abacus' for WebGPU"):
        session(mlp(), tmp_path, webgpu_adapter="abacus")
    if sys.platform != "darwin":
        with pytest.raises(Exception, match="there is no Metal adapter for WebGPU"):
            session(mlp(), tmp_path, backend="metal")


def test_a_launch_that_no_adapter_makes_is_one_line(adapter: str, tmp_path: Path) -> None:
    """A Plan is compared with the adapter's limits before anything runs."""
    with compile_requests.recording() as packs:
        session(mlp(), tmp_path)
    header, blobs = read_pack(packs[-1])
    (entry,) = header["entries"]
    plan = entry["plan"]
    plan["exprs"].append(["const", 1 << 40])
    plan["run"][0]["grid"][0] = len(plan["exprs"]) - 1
    path = tmp_path / "changed.pack"
    path.write_bytes(write_pack([(entry["nodes"], plan, blobs)], "test"))
    made = session(mlp(), tmp_path, kernel_pack=str(path))
    with pytest.raises(Exception, match=r"has 1099511627776 workgroups, adapter '.*' launches \d+"):
        made.run(None, {"x": np.zeros((3, 37), np.float32)})


LOADS = """import sys
from tracea_onnx import provider
model, path = sys.argv[1:]
try:
    provider.create_session(model, {"backend": "webgpu", "wgpu_library": path})
except Exception as e:
    print(str(e).splitlines()[-1])
"""


@pytest.mark.parametrize(
    ("library", "line"),
    [
        ("/nowhere/wgpu.so", "wgpu-native cannot be loaded from '/nowhere/wgpu.so'"),
        (provider.library_path(), "is not wgpu-native: it has no wgpuGetVersion"),
    ],
)
def test_a_library_that_is_none_is_one_line(library: str, line: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(mlp(), path)
    ended = subprocess.run(
        [sys.executable, "-c", LOADS, str(path), library],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert line in ended.stdout
