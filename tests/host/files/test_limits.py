"""Small files that stand for enormous models end in one line, or are optimized in bounded time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import FunctionProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

import tracea_onnx
from tracea_onnx.cli import main
from tracea_onnx.errors import ModelError, VerificationError
from tracea_onnx.ir.graph import Graph
from tracea_onnx.model_io import function_calls, model_file
from tracea_onnx.shapes.onnx_inference import infer, user_types
from tracea_onnx.shapes.symbolic import shapes

#: Beyond what memory holds when it is doubled as often.
_DOUBLINGS = 60
_X = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])
_Y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])
_ZERO = numpy_helper.from_array(np.array(0), "zero")


def _model(
    nodes: Sequence[NodeProto],
    constants: Sequence[TensorProto] = (),
    bodies: Sequence[FunctionProto] = (),
) -> ModelProto:
    domains = sorted({b.domain for b in bodies} - {""})
    opsets = [helper.make_opsetid("", 17), *(helper.make_opsetid(d, 1) for d in domains)]
    model = helper.make_model(
        helper.make_graph(list(nodes), "g", [_X], [_Y], list(constants)),
        opset_imports=opsets,
        ir_version=10,
    )
    model.functions.extend(bodies)
    return model


def _doubled(first: str, last: str) -> list[NodeProto]:
    names = [first, *(f"{first}_{k}" for k in range(1, _DOUBLINGS)), last]
    return [helper.make_node("Concat", [a, a], [b], axis=0) for a, b in pairwise(names)]


def _scaled_by(value: str) -> list[NodeProto]:
    """y = x * value[0]"""
    return [
        helper.make_node("Gather", [value, "zero"], ["one"], axis=0),
        helper.make_node("Cast", ["one"], ["factor"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["x", "factor"], ["y"]),
    ]


def _functions(domain: str, count: int, calls: int) -> list[FunctionProto]:
    """f0 calls f1 `calls` times, f1 calls f2, ..."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)]
    out = []
    for k in range(count):
        values = ["x", *(f"v{c}" for c in range(1, calls)), "y"]
        out.append(
            helper.make_function(
                domain, f"f{k}", ["x"], ["y"],
                [helper.make_node(f"f{k + 1}", [a], [b], domain=domain) for a,
                    b in pairwise(values)], opsets,
            )
        )  # fmt: skip
    return [
        *out,
        helper.make_function(
            domain, f"f{count}", ["x"], ["y"], [helper.make_node("Relu", ["x"], ["y"])], opsets
        ),
    ]


def _call(domain: str) -> list[NodeProto]:
    return [helper.make_node("f0", ["x"], ["y"], domain=domain)]


def _cycle() -> list[FunctionProto]:
    first, second = _functions("mine", 1, 1)
    second.node[0].op_type, second.node[0].domain = "f0", "mine"
    return [first, second]


def _branch() -> NodeProto:
    """If whose branch doubles a list from around it."""
    taken = helper.make_graph([*_doubled("sizes", "long"), *_scaled_by("long")], "taken", [], [_Y])
    other = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["z"])],
        "other",
        [],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, [2, 3])],
    )
    return helper.make_node("If", ["condition"], ["y"], then_branch=taken, else_branch=other)


_SIZES = helper.make_node("Shape", ["x"], ["sizes"])
_TWICE = helper.make_function(
    "mine",
    "Twice",
    ["a"],
    ["b"],
    [helper.make_node("Concat", ["a", "a"], ["b"], axis=0)],
    [helper.make_opsetid("", 17)],
)
_RELU = helper.make_node("Relu", ["x"], ["y"])
_INDICES = numpy_helper.from_array(np.zeros((1, 1), np.int64), "i0")
_ENORMOUS = {
    "a list of sizes": (_model([_SIZES, *_doubled("sizes", "long"), *_scaled_by("long")], [_ZERO]),
        "is a list of"),
    "a list nobody reads": (_model([_SIZES, *_doubled("sizes", "long"), _RELU]), "is a list of"),
    "a constant list": (_model([*_doubled("c", "long"), *_scaled_by("long")],
            [numpy_helper.from_array(np.array([2, 3]), "c"), _ZERO]), "is a list of"),
    "a list in a branch": (
        _model([_SIZES, _branch()], [numpy_helper.from_array(np.array(True), "condition"), _ZERO]),
        "is a list of"
    ),
    "a list through a function": (
        _model([_SIZES, *(helper.make_node("Twice", [f"s{k}" if k else "sizes"], [f"s{k + 1}"],
                        domain="mine") for k in range(_DOUBLINGS)), _RELU], (), [_TWICE]),
        "is a list of",
    ),
    "functions": (_model(_call("mine"), (), _functions("mine", _DOUBLINGS, 2)),
        r"stand for 2\^60 nodes"),
    "our functions": (_model(_call("ai.tracea"), (), _functions("ai.tracea", _DOUBLINGS, 2)),
        r"stand for 2\^60 nodes"),
    "deep functions": (_model(_call("mine"), (), _functions("mine", 3000, 1)),
        "call themselves, or each other more than"),
    "a cycle of functions": (_model(_call("mine"), (), _cycle()),
        "call themselves, or each other more than"),
    "axes by Gather": (
        _model([*(helper.make_node("Gather", [f"i{k}"] * 2, [f"i{k + 1}"], axis=0)
                    for k in range(30)), _RELU], [_INDICES]), "axes"
    ),
    "axes by Unsqueeze": (
        _model(
            [*(helper.make_node("Unsqueeze", [f"v{k}" if k else "x", "axes"], [f"v{k + 1}"])
                    for k in range(1000)), _RELU],
            [numpy_helper.from_array(np.arange(500), "axes")],
        ),
        "axes",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", _ENORMOUS)
def test_a_model_that_stands_for_an_enormous_one_is_refused(case: str) -> None:
    model, line = _ENORMOUS[case]
    with pytest.raises(ModelError, match=line):
        model_file.load(model)


def test_functions_within_the_limits_are_taken() -> None:
    model = _model(_call("mine"), (), _functions("mine", 10, 2))
    notes: list[str] = []
    model = model_file.load(model).model
    function_calls.expand(model, notes)
    assert [n.op_type for n in model.graph.node] == ["Relu"] * 1024 and not notes


def _inferred(model: ModelProto) -> dict[str, Any]:
    infer(model, user_types(model))
    return {v.name: v.type.tensor_type for v in model.graph.value_info}


@pytest.mark.parametrize(
    "values", [np.arange(600), np.ones(600, np.float32), np.ones(4, np.float32)]
)
def test_constants_that_double_are_optimized(
    values: np.ndarray[tuple[int], np.dtype[np.float32]],
) -> None:
    """onnx's data propagation, which follows vectors of known length, would not end; what runs is
    the user's.
    """
    model = _model(
        [*_doubled("c", "long"), *_scaled_by("long")], [numpy_helper.from_array(values, "c"), _ZERO]
    )
    assert _inferred(model_file.load(model).model)["factor"].elem_type == TensorProto.FLOAT


def test_a_vector_input_of_any_length_is_inferred() -> None:
    model = _model([*_scaled_by("v")], [_ZERO])
    model.graph.input.append(helper.make_tensor_value_info("v", TensorProto.INT64, [1 << 40]))
    assert not _inferred(model)["one"].shape.dim


def test_a_slice_with_a_wide_step_is_inferred() -> None:
    bounds = [
        numpy_helper.from_array(np.array([n]), name)
        for name, n in (("start", 0), ("end", 2), ("axis", 0), ("step", 1 << 32))
    ]
    nodes = [
        _SIZES,
        helper.make_node("Slice", ["sizes", "start", "end", "axis", "step"], ["some"]),
        *_scaled_by("some"),
    ]
    assert _inferred(_model(nodes, [*bounds, _ZERO]))["factor"].elem_type == TensorProto.FLOAT


@pytest.mark.parametrize("op", ["Mul", "Pow"])
@pytest.mark.parametrize("start", ["a constant", "a size"])
def test_numbers_squared_over_and_over_are_not_followed(op: str, start: str) -> None:
    """As Python's integers they would fill the memory."""
    squares = [helper.make_node(op, [f"s{k}"] * 2, [f"s{k + 1}"]) for k in range(_DOUBLINGS)]
    scaled = [helper.make_node("Mul", ["three", "sizes"], ["s0"])]
    first = [_SIZES, *scaled] if start == "a size" else []
    model = _model(
        [*first, *squares, *_scaled_by(f"s{_DOUBLINGS}")],
        [numpy_helper.from_array(np.array([3]), "three" if first else "s0"), _ZERO],
    )
    if first:
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
        del model.graph.output[0].type.tensor_type.shape.dim[:]
    assert [
        n.op_type
        for n in tracea_onnx.optimize(model, verify=False).model.graph.node
        if n.op_type in ("Relu", "Cast")
    ] in ([], ["Cast"])


def test_a_constant_of_an_enormous_shape_is_not_made() -> None:
    nodes = [helper.make_node("ConstantOfShape", ["length"], ["long"]), *_scaled_by("long")]
    model = _model(nodes, [numpy_helper.from_array(np.array([1 << 40]), "length"), _ZERO])
    assert "ConstantOfShape" in [
        n.op_type for n in tracea_onnx.optimize(model, verify=False).model.graph.node
    ]


def _endless() -> ModelProto:
    text = """<ir_version: 8, opset_import: ["" : 17]>
        g (float[2, 3] x) => (float[2, 3] y)
        <int64 trips = {1152921504606846976}, bool yes = {1}> {
        y = Loop (trips, yes, x) <body = b (int64 k, bool go, float[2, 3] a) => (bool more,
            float[2, 3] c) { c = Sin (a) more = Identity (go) }>
    }"""
    model: ModelProto = onnx.parser.parse_model(text)
    return model


def test_a_model_that_runs_for_ever_is_not_verified_for_ever(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(VerificationError, match=r"runs longer than 0\.2 s; give smaller inputs"):
        tracea_onnx.optimize(_endless(), time_limit=0.2)
    onnx.save(_endless(), tmp_path / "m.onnx")
    assert main.main(["optimize", str(tmp_path / "m.onnx"), "--time-limit", "0.2"]) == 4
    assert "--time-limit" in capfd.readouterr().err and not (tmp_path / "m.tracea.onnx").exists()


def test_calls_of_functions_are_put_back_in_linear_time() -> None:
    """Each of 3,000 calls took a pass over all nodes: half a minute in all."""
    count = 3000
    inner = [helper.make_node("Relu", ["x"], ["t"]), helper.make_node("Softmax", ["t"], ["y"])]
    body = helper.make_function("mine", "Block", ["x"], ["y"], inner, [helper.make_opsetid("", 17)])
    names = ["x", *(f"v{k}" for k in range(1, count)), "y"]
    model = _model(
        [helper.make_node("Block", [a], [b], domain="mine") for a, b in pairwise(names)], (), [body]
    )
    expansions = function_calls.expand(model, [])
    assert len(expansions) == count and len(model.graph.node) == 2 * count
    assert (
        function_calls.restore(model, expansions) == []
        and [n.op_type for n in model.graph.node] == ["Block"] * count
    )


@pytest.mark.parametrize("called", [False, True])
@pytest.mark.parametrize(
    ("op", "outputs", "name", "number"),
    [
        *(("LayerNormalization", 1, "axis", n) for n in (1 << 31, 1 << 40, -(1 << 31) - 1)),
        *(("GatherND", 1, "batch_dims", n) for n in (-1, -1000, -(1 << 63), 64)),
        *(("Split", 2, "num_outputs", n) for n in (-1, 1, 1 << 22, 1 << 62)),
    ],
)
def test_a_number_that_inference_dies_of_is_refused(
    op: str, outputs: int, name: str, number: int, called: bool
) -> None:
    """onnx narrows it, looks at elements that there are not, or makes a list of as many. So it does
    where a function takes the number from its call.
    """
    names = [f"y{k}" for k in range(outputs - 1)] + ["y"]
    node = helper.make_node(op, ["x"] if op == "Split" else ["x", "x"], names)
    if not called:
        node.attribute.append(helper.make_attribute(name, number))
        model = _model([node])
    else:
        node.attribute.append(
            onnx.AttributeProto(name=name, type=onnx.AttributeProto.INT, ref_attr_name="n")
        )
        body = helper.make_function(
            "mine", "F", ["x"], names, [node], [helper.make_opsetid("", 18)], ["n"]
        )
        model = _model([helper.make_node("F", ["x"], names, domain="mine", n=number)], (), [body])
    model.opset_import[0].version = 18
    with pytest.raises(ModelError, match=f"has {name} {number}, which is not from"):
        model_file.load(model)


@pytest.mark.parametrize("equation", ["{}", ".", "1", "a{", "b|->b", "......", "a->b->c", "\n"])
def test_an_equation_in_which_inference_does_not_end_is_refused(equation: str) -> None:
    """onnx looks for the next letter of a term for ever, where there is none."""
    model = _model([helper.make_node("Einsum", ["x"], ["y"], equation=equation)])
    with pytest.raises(ModelError, match="', which is none"):
        model_file.load(model)


@pytest.mark.parametrize(
    "equation", ["", "ij->ji", " i j , j ... -> i ... ", "...ij,...jk", "ii", ",->"]
)
def test_an_equation_is_no_reason(equation: str) -> None:
    nodes = [
        helper.make_node("Einsum", ["x"] * (1 + equation.count(",")), ["y"], equation=equation)
    ]
    assert model_file.load(_model(nodes)).model.graph.node


def test_numbers_that_inference_takes_are_no_reason() -> None:
    split = helper.make_node("Split", ["x"], ["y"], num_outputs=1)
    gathered = helper.make_node("GatherND", ["x", "i"], ["g"], batch_dims=1)
    model = _model([split, gathered], [numpy_helper.from_array(np.zeros((2, 1), np.int64), "i")])
    model.opset_import[0].version = 18
    assert len(model_file.load(model).model.graph.node) == 2


def test_an_expanded_number_is_no_list_of_sizes() -> None:
    """Its 2^40 elements would be looked at one by one."""
    sizes = numpy_helper.from_array(np.array([1 << 40]), "sizes")
    graph = Graph(
        _model(
            [
                helper.make_node("Expand", ["zero", "sizes"], ["many"]),
                helper.make_node("Identity", ["x"], ["y"]),
            ],
            [_ZERO, sizes],
        )
    )
    assert shapes(graph).content("many") is None
