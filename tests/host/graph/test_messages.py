"""`ir/messages.py` reads of a compile request what onnx reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tracea_onnx.errors import ModelError
from tracea_onnx.ir.element_types import numpy_type, tensor_values
from tracea_onnx.ir.graph import Graph, constant_node_value
from tracea_onnx.ir.messages import AttributeKind, Message, in_onnx, request
from tracea_onnx.support import discovery

CLASSES = {c.__name__.removeprefix("_"): c for c in Message.__subclasses__()}
#: Those of onnx that are named otherwise there.
NESTED = {"TensorType": onnx.TypeProto.Tensor, "Dimension": onnx.TensorShapeProto.Dimension}


@pytest.mark.parametrize("name", CLASSES)
def test_fields_are_onnxs(name: str) -> None:
    there: Any = NESTED.get(name) or getattr(onnx, f"{name}Proto")
    own = there.DESCRIPTOR.fields_by_name
    for f in CLASSES[name].fields.values():
        theirs = own[f.name]
        assert f.number == theirs.number
        assert f.repeated == theirs.is_repeated
        kind = theirs.type
        wires = {theirs.TYPE_FLOAT: 5, theirs.TYPE_STRING: 2, theirs.TYPE_BYTES: 2}
        assert f.wire == wires.get(kind, 2 if kind == theirs.TYPE_MESSAGE else 0)


def test_kinds_of_attributes_are_onnxs() -> None:
    assert {k.name: int(k) for k in AttributeKind} == dict(
        onnx.AttributeProto.AttributeType.items()
    )


def same(own: Any, theirs: Any) -> None:
    """Every field that ours has, at any depth."""
    if isinstance(own, Message):
        for name in own.fields:
            same(getattr(own, name), getattr(theirs, name))
    elif isinstance(own, (list, tuple)):
        assert len(own) == len(theirs)
        for a, b in zip(own, theirs, strict=True):
            same(a, b)
    else:
        assert own == theirs and type(own) is type(theirs)


def model() -> ModelProto:
    """One of everything that a request may have."""
    body = helper.make_graph([], "body", [], [helper.make_tensor_value_info("o", 1, [2])])
    attributes: Any = {
        "f": 1.5, "i": -3, "s": "text", "floats": [0.1, -2.5], "ints": [1, -(1 << 63), 1 << 40],
        "strings": ["a", "ü"], "g": body, "t": numpy_helper.from_array(np.arange(4.0)),
    }  # fmt: skip
    nodes = [helper.make_node("Op", ["x", "", "w"], ["y"], "n", "doc", "local", **attributes)]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", None, 3])],
        [helper.make_tensor_value_info("y", TensorProto.INT64, None)],
        [numpy_helper.from_array(np.ones((2, 200), np.float32), "w")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 300)])
    made.metadata_props.add(key="backend", value="cpu")
    made.functions.append(
        helper.make_function("local", "F", ["a"], ["b"], nodes, [helper.make_opsetid("", 14)])
    )
    return made


@pytest.mark.parametrize("name", ["", "mobilenet_v3", "demo"])
def test_a_model_is_read_as_onnx_reads_it(name: str) -> None:
    theirs = discovery.module("models", name).build() if name else model()
    own: Any = request(theirs.SerializeToString())
    same(own, theirs)
    for a, b in zip(Graph(own).nodes, Graph(theirs).nodes, strict=True):
        assert (a.op, a.inputs, a.outputs, a.attrs.keys()) == (
            b.op, b.inputs, b.outputs, b.attrs.keys()
        )  # fmt: skip
    assert in_onnx(own.graph.node[0]) == theirs.graph.node[0]


def test_packed_numbers_repeated_messages_and_bytes_that_are_no_text() -> None:
    for dims in (b"\x0a\x03\x01\xac\x02", b"\x08\x01\x08\xac\x02"):  # of a tensor
        assert CLASSES["Tensor"](dims).dims == [1, 300]
    halves = b"\x3a\x03\x12\x01g" + b"\x3a\x07\x0a\x05\x22\x03Add"  # a graph in two parts
    own: Any = request(halves)
    same(own, ModelProto.FromString(halves))
    assert (own.graph.name, own.graph.node[0].op_type) == ("g", "Add")
    same(CLASSES["Node"](b"\x1a\x02\xff\xfe"), onnx.NodeProto.FromString(b"\x1a\x02\xff\xfe"))
    kinds = b"\xa0\x01\x63"  # of an attribute: a number that is no kind
    same(CLASSES["Attribute"](kinds), onnx.AttributeProto.FromString(kinds))


@pytest.mark.parametrize(
    "data", [b"\x3a", b"\x3a\x05ab", b"\x08" + b"\xff" * 10, b"\x0b", b"\x0d\x01"]
)
def test_what_is_no_message_is_one_line(data: bytes) -> None:
    with pytest.raises(ModelError, match="a compile request is damaged"):
        request(data)


def test_element_types_are_onnxs() -> None:
    for number in TensorProto.DataType.values():
        if number != TensorProto.UNDEFINED:
            assert numpy_type(number) == np.dtype(helper.tensor_dtype_to_np_dtype(number))
    with pytest.raises(KeyError):
        numpy_type(999)


@pytest.mark.parametrize("kind", [np.float32, np.int64, np.bool_, np.float16])
def test_tensors_in_a_request(kind: type) -> None:
    values: Any = np.array([[0, 1, 1], [1, 0, 1]], kind)
    raw = numpy_helper.from_array(values, "t")
    listed = helper.make_tensor("t", raw.data_type, [2, 3], values.ravel().tolist())
    for t in (raw, listed):
        read = tensor_values(CLASSES["Tensor"](t.SerializeToString()))
        np.testing.assert_array_equal(read, values)
        assert read.dtype == values.dtype
    node = helper.make_node("Constant", [], ["y"], value=raw)
    own: Any = CLASSES["Node"](node.SerializeToString())
    np.testing.assert_array_equal(constant_node_value(own), values)
