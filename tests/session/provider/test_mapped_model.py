"""Sessions that map weights from the model's file run as others do, and need the file no longer.
Pages of weights that lie in a file are given back when they were packed.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.host.pipeline_models import normal
from tracea_onnx import provider
from tracea_onnx.compiler import partition_compiler
from tracea_onnx.ir.graph import Graph
from tracea_onnx.model_io import mapped_model
from tracea_onnx.runtime import cpu_harness

N = 48
MAPS = tuple(map(int, ort.__version__.split(".")[:3])) >= provider.PROVIDERS_LIST_ORT
pytestmark = pytest.mark.skipif(
    os.name != "posix" or not MAPS, reason="sessions map no weights here"
)


@pytest.fixture(autouse=True)
def _small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped_model, "_FILE", 1)
    monkeypatch.setattr(mapped_model, "_TENSOR", 64)


@pytest.fixture
def sources(monkeypatch: pytest.MonkeyPatch) -> list[type]:
    """What each session of ONNX Runtime is made from."""
    made: list[type] = []
    plain = ort.InferenceSession.__init__

    def init(self: ort.InferenceSession, source: object, *args: object, **more: object) -> None:
        made.append(type(source))
        plain(self, source, *args, **more)

    monkeypatch.setattr(ort.InferenceSession, "__init__", init)
    return made


def save(
    path: Path, nodes: Sequence[onnx.NodeProto], outputs: Sequence[str] = "y", words: str = ""
) -> Path:
    """A model of these nodes over x [n, N] and weights v, w and d [N, N], which lie where `words`
    leaves room for them.
    """
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [value("x", TensorProto.FLOAT, ["n", N])],
        [value(o, TensorProto.DOUBLE if o == "s" else TensorProto.FLOAT, None) for o in outputs],
        [
            numpy_helper.from_array(normal(N, N, seed=k).astype(kind), n)
            for k, (n, kind) in enumerate({"v": "f4", "w": "f4", "d": "f8"}.items())
        ],
    )  # fmt: skip
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9, producer_name=words
    )
    onnx.save(model, str(path))
    return path


PRODUCT = helper.make_node("MatMul", ["x", "w"], ["y"])
X = {"x": normal(5, N, seed=2)}


@pytest.mark.parametrize("words", range(8))
def test_weights_wherever_they_lie(tmp_path: Path, sources: list[type], words: int) -> None:
    nodes = [PRODUCT, helper.make_node("Add", ["y", "y"], ["z"])]
    path = save(tmp_path / "m.onnx", nodes, "z", "." * words)
    session = provider.create_session(path)
    assert sources == [bytes] and provider.assigned_nodes(session) == ["MatMul", "Add"]
    expected = provider.create_session(path.read_bytes()).run(None, X)[0]
    assert session._model_path == str(path) and session._model_bytes is None
    os.truncate(path, 0)  # as who exports the model again does
    assert np.array_equal(session.run(None, X)[0], expected)


def test_nodes_of_onnx_runtime_have_weights_of_their_own(
    tmp_path: Path, sources: list[type]
) -> None:
    wide = helper.make_node("Cast", ["x"], ["wide"], to=TensorProto.DOUBLE)
    left = helper.make_node("Cos", ["wide"], ["c"])
    reads = helper.make_node("MatMul", ["c", "d"], ["s"])
    path = save(tmp_path / "m.onnx", [PRODUCT, wide, left, reads], "ys")
    session = provider.create_session(path)
    assert sources == [bytes, str]
    assert "Cos" not in provider.assigned_nodes(session)
    expected = provider.create_session(path.read_bytes()).run(None, X)
    assert provider.create_session(path) and sources == [bytes, str, bytes, str]  # as it is known
    os.truncate(path, 0)
    for made, wanted in zip(session.run(None, X), expected, strict=True):
        assert np.array_equal(made, wanted)


def test_a_file_that_changes_meanwhile_is_read_again(
    tmp_path: Path, sources: list[type], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(tmp_path / "m.onnx", [PRODUCT])
    other = save(tmp_path / "other.onnx", [helper.make_node("MatMul", ["x", "v"], ["y"])])
    expected = provider.create_session(other).run(None, X)[0]
    init = ort.InferenceSession.__init__

    def replacing(self: ort.InferenceSession, *args: object, **more: object) -> None:
        if other.exists():
            other.replace(path)
        init(self, *args, **more)

    monkeypatch.setattr(ort.InferenceSession, "__init__", replacing)
    sources.clear()
    session = provider.create_session(path)
    assert sources == [bytes, str]
    assert np.array_equal(session.run(None, X)[0], expected)


def test_what_is_not_mapped(tmp_path: Path, sources: list[type]) -> None:
    """A weight that is an output, weights in other files, options that name or write a file."""
    session = provider.create_session(save(tmp_path / "a.onnx", [PRODUCT], "yw"))
    assert np.array_equal(session.run(["w"], X)[0], normal(N, N, seed=1))
    path = save(tmp_path / "b.onnx", [PRODUCT])
    onnx.save(
        onnx.load(path), str(path), save_as_external_data=True, location="b", size_threshold=0
    )
    provider.create_session(path)
    path, options = save(tmp_path / "c.onnx", [PRODUCT]), ort.SessionOptions()
    options.add_session_config_entry("ep.context_enable", "1")
    options.add_session_config_entry("ep.context_file_path", str(tmp_path / "d.onnx"))
    provider.create_session(path, None, options)
    options = ort.SessionOptions()
    options.add_session_config_entry(provider._FOLDER, "elsewhere")
    provider.create_session(path, None, options)
    with pytest.raises(Exception, match="onnx"):
        provider.create_session(tmp_path / "none.onnx")
    assert sources[1:] == [str] * 4


def test_a_linked_model(tmp_path: Path, sources: list[type]) -> None:
    """As the cache of Hugging Face has it."""
    (tmp_path / "blobs").mkdir()
    link = tmp_path / "m.onnx"
    link.symlink_to(save(tmp_path / "blobs/0", [PRODUCT]))
    options = ort.SessionOptions()
    for _ in range(2):  # the options know the folder by then
        made = provider.create_session(link, None, options).run(None, X)[0]
        np.testing.assert_allclose(made, X["x"] @ normal(N, N, seed=1), rtol=1e-4, atol=1e-4)
    assert sources == [bytes, bytes]


def _present(data: np.ndarray[Any, Any]) -> int:
    """How many whole pages of the memory are the process's."""
    page, at = mmap.PAGESIZE, data.ctypes.data
    first, end = -(-at // page), (at + data.nbytes) // page
    with Path("/proc/self/pagemap").open("rb") as f:
        f.seek(8 * first)
        return int((np.frombuffer(f.read(8 * (end - first)), np.uint64) >> np.uint64(63)).sum())


@pytest.mark.skipif(sys.platform != "linux", reason="pages are given back on Linux alone")
@pytest.mark.parametrize("written", [False, True])
def test_pages_of_weights_are_given_back(tmp_path: Path, written: bool) -> None:
    """Those of a private mapping that hold something else than the file are not."""
    n = 160
    weight = normal(n, n)
    (tmp_path / "w").write_bytes(weight.tobytes())
    with (tmp_path / "w").open("rb") as f:
        mapped = mmap.mmap(f.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
    mine = np.frombuffer(mapped, np.float32).reshape(n, n)
    if written:
        mine[n // 2] = weight[n // 2] = 1
    assert np.array_equal(mine, weight) and _present(mine) == weight.nbytes // mmap.PAGESIZE
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [PRODUCT], "g", [value("x", TensorProto.FLOAT, ["n", n])],
        [value("y", TensorProto.FLOAT, ["n", n])], [numpy_helper.from_array(weight, "w")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    [(_, plan, blobs)] = partition_compiler.compile_graph(Graph(model), everything=True).entries
    with cpu_harness.LoadedPlan(plan, blobs, {"w": mine}) as loaded:
        assert bool(_present(mine)) == written and np.array_equal(mine, weight)
        x = normal(5, n)
        np.testing.assert_allclose(loaded.run([x])[0], x @ weight, rtol=1e-4, atol=1e-4)
