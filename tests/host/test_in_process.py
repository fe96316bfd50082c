"""Tensors at an address in memory: the provider's requests have them, and nothing from outside
may.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, ModelProto, TensorProto, helper, numpy_helper

from tests.host.pipeline_models import normal, parse
from tracea_onnx.cli.main import main
from tracea_onnx.errors import ModelError
from tracea_onnx.ir.graph import Graph, request_array
from tracea_onnx.model_io import model_file
from tracea_onnx.pipeline import optimizer
from tracea_onnx.support.process_memory import LOCATION as MEMORY_LOCATION

ORT_MEMORY = "*/_ORT_MEM_ADDR_/*"
_SECRET = (ctypes.c_float * 4)(1, 2, 3, 4)


def in_memory(t: TensorProto, location: str = MEMORY_LOCATION) -> None:
    """The tensor of four floats, at an address."""
    del t.dims[:]
    t.ClearField("raw_data")
    t.dims.append(4)
    t.data_type, t.data_location = TensorProto.FLOAT, TensorProto.EXTERNAL
    for key, value in (
        ("location", location),
        ("offset", str(ctypes.addressof(_SECRET))),
        ("length", "16"),
    ):
        t.external_data.add(key=key, value=value)


def plain() -> ModelProto:
    return parse(
        "g (float[4] x) => (float[4] y) { c = Constant <value = float[4] {0.0, 0.0, 0.0, 0.0}> "
        "() z = Add (x, w) y = Add (z, c) }",
        w=normal(4),
    )


def initializer(m: ModelProto) -> Any:
    return m.graph.initializer[0]


def constant(m: ModelProto) -> Any:
    return m.graph.node[0].attribute[0].t


def untyped(m: ModelProto) -> Any:
    m.graph.node[0].attribute[0].type = AttributeProto.UNDEFINED
    return constant(m)


def mistyped(m: ModelProto) -> Any:
    """An attribute that says it is a graph and holds a tensor."""
    return m.graph.node[1].attribute.add(name="extra", type=AttributeProto.GRAPH).t


def sparse(m: ModelProto) -> Any:
    s = m.graph.sparse_initializer.add(dims=[4])
    s.indices.CopyFrom(numpy_helper.from_array(np.arange(4), "s_at"))
    s.values.name = "s"
    return s.values


def sparse_attribute(m: ModelProto) -> Any:
    s = m.graph.node[1].attribute.add(name="extra", type=AttributeProto.SPARSE_TENSOR).sparse_tensor
    s.dims.append(4)
    s.indices.CopyFrom(numpy_helper.from_array(np.arange(4), "s_at"))
    return s.values


def body(m: ModelProto) -> Any:
    inner = helper.make_graph(
        [helper.make_node("Identity", ["v"], ["out"])],
        "body",
        [],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, [4])],
    )
    m.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
    m.graph.node.add().CopyFrom(
        helper.make_node("If", ["yes"], ["unused"], then_branch=inner, else_branch=inner)
    )
    t = m.graph.node[-1].attribute[0].g.initializer.add()
    t.name = "v"
    return t


def function(m: ModelProto) -> Any:
    m.opset_import.add(domain="local", version=1)
    f = m.functions.add(name="F", domain="local", input=["a"], output=["b"])
    f.opset_import.add(domain="", version=17)
    f.node.add().CopyFrom(
        helper.make_node(
            "Constant", [], ["k"], value=numpy_helper.from_array(np.zeros(4, np.float32))
        )
    )
    f.node.add().CopyFrom(helper.make_node("Add", ["a", "k"], ["b"]))
    return f.node[0].attribute[0].t


def function_default(m: ModelProto) -> Any:
    f = m.functions.add(name="F", domain="local", input=["a"], output=["b"])
    return f.attribute_proto.add(name="k", type=AttributeProto.TENSOR).t


def training(m: ModelProto) -> Any:
    return m.training_info.add().algorithm.initializer.add(name="t")


PLACES = [
    initializer,
    constant,
    untyped,
    mistyped,
    sparse,
    sparse_attribute,
    body,
    function,
    function_default,
    training,
]


@pytest.mark.parametrize("location", [MEMORY_LOCATION, "tracea:other", ORT_MEMORY])
@pytest.mark.parametrize("place", PLACES, ids=lambda p: p.__name__)
def test_no_model_from_outside_says_an_address(
    tmp_path: Path, place: Callable[[ModelProto], Any], location: str
) -> None:
    m = plain()
    in_memory(place(m), location)
    path = tmp_path / "m.onnx"
    path.write_bytes(m.SerializeToString())
    for given in (path, m):
        with pytest.raises(ModelError, match="address in memory") as e:
            model_file.load(given)
        assert "\n" not in str(e.value) and location in str(e.value)
        with pytest.raises(ModelError, match="address in memory"):
            optimizer.optimize(given, backend="cpu")


def test_a_second_location_hides_nothing(tmp_path: Path) -> None:
    m = plain()
    in_memory(initializer(m))
    initializer(m).external_data.add(key="location", value="w.bin")
    (tmp_path / "w.bin").write_bytes(bytes(1 << 12))
    (tmp_path / "m.onnx").write_bytes(m.SerializeToString())
    with pytest.raises(ModelError, match="address in memory"):
        model_file.load(tmp_path / "m.onnx")


@pytest.mark.parametrize("command", ["optimize", "explain", "inspect", "inline", "verify", "tune"])
def test_every_command_says_so_in_one_line(
    tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bad, good = tmp_path / "bad.onnx", tmp_path / "good.onnx"
    m = plain()
    onnx.save(m, str(good))
    in_memory(initializer(m))
    bad.write_bytes(m.SerializeToString())
    rest = {
        "optimize": ["-o", str(tmp_path / "o.onnx")],
        "inline": ["-o", str(tmp_path / "o.onnx")],
        "verify": [str(good)],
    }.get(command, [])
    assert main([command, str(bad), *rest]) == 3
    said = [line for line in capsys.readouterr().err.splitlines() if line]
    assert len(said) == 1 and "address in memory" in said[0]
    assert not list(tmp_path.glob("o.onnx*"))
    if command == "verify":
        assert main(["verify", str(good), str(bad)]) == 3


def test_only_the_view_of_a_request_reads_memory() -> None:
    m = plain()
    in_memory(initializer(m))
    with pytest.raises(FileNotFoundError):
        Graph(m).const("w")
    found = Graph(m, in_process=True).const("w")
    assert (
        found is not None
        and found.tolist() == [1, 2, 3, 4]
        and found.ctypes.data == ctypes.addressof(_SECRET)
    )


@pytest.mark.parametrize(
    ("key", "value"), [("length", "12"), ("length", ""), ("location", "w.bin")]
)
def test_a_request_that_contradicts_itself_is_refused(key: str, value: str) -> None:
    t = TensorProto(name="w")
    in_memory(t)
    next(e for e in t.external_data if e.key == key).value = value
    with pytest.raises(ModelError, match="16 bytes"):
        request_array(t)


def test_elements_that_share_bytes_are_read_whole(tmp_path: Path) -> None:
    packed = (ctypes.c_ubyte * 2)(0x21, 0x03)
    t = TensorProto(
        name="w", dims=[3], data_type=TensorProto.UINT4, data_location=TensorProto.EXTERNAL
    )
    for key, value in (
        ("location", MEMORY_LOCATION),
        ("offset", str(ctypes.addressof(packed))),
        ("length", "2"),
    ):
        t.external_data.add(key=key, value=value)
    assert request_array(t).astype(int).tolist() == [1, 2, 3]


def test_tensors_of_attributes_are_read_from_the_models_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    m = plain()
    t = constant(m)
    t.ClearField("float_data")
    in_memory(t, "c.bin")
    next(e for e in t.external_data if e.key == "offset").value = "0"
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "m.onnx").write_bytes(m.SerializeToString())
    (tmp_path / "model" / "c.bin").write_bytes(bytes(_SECRET))
    (tmp_path / "c.bin").write_bytes(bytes(16))
    monkeypatch.chdir(tmp_path)
    found = Graph(model_file.load(tmp_path / "model" / "m.onnx").model).const("c")
    assert found is not None and found.tolist() == [1, 2, 3, 4]
