"""The user's own functions: expanded exactly as they compute, fused into, and put back where
nothing in them fused.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper

from tests.host.pipeline_models import RULES, copy, normal, ops, run, same_bits
from tracea_onnx.errors import ModelError
from tracea_onnx.ir.contracts import DOMAIN
from tracea_onnx.model_io import function_calls, model_file
from tracea_onnx.pipeline import optimizer

MINE = ', "mine" : 1'


def with_functions(
    main: str, bodies: str, *, opset: int = 17, **initializers: object
) -> ModelProto:
    model: ModelProto = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : {opset}{MINE}]> {main} {bodies}'
    )
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.asarray(v), k) for k, v in initializers.items()
    )
    onnx.checker.check_model(model)
    return model


def body(text: str) -> str:
    return f'<domain: "mine", opset_import: ["" : 17{MINE}]> {text}'


def optimized(model: ModelProto) -> optimizer.OptimizeResult:
    return optimizer.optimize(model, rules=RULES, backend="cpu")


def expand(model: ModelProto) -> tuple[ModelProto, list[function_calls.Expansion], list[str]]:
    notes: list[str] = []
    out = copy(model)
    found = function_calls.expand(out, notes)
    onnx.checker.check_model(out, full_check=True)
    return out, found, notes


ACT = body(
    "Act <alpha: float = 0.5> (x) => (y) { t = LeakyRelu <alpha: float = @alpha> (x)  y = Add "
    "(t, x) }"
)


def test_attributes_take_the_calls_value_or_the_functions_default() -> None:
    m = with_functions(
        "g (float[5] x) => (float[5] y) { a = mine.Act <alpha = 0.25> (x)  y = mine.Act (a) }", ACT
    )
    r, found, _ = expand(m)
    assert ops(r) == ["LeakyRelu", "Add"] * 2 and len(found) == 2
    assert [n.attribute[0].f for n in r.graph.node if n.op_type == "LeakyRelu"] == [0.25, 0.5]
    assert same_bits(run(m, {"x": normal(5)}), run(r, {"x": normal(5)}))


def test_functions_in_functions_absent_operands_and_values_handed_through() -> None:
    m = with_functions(
        "g (float[5] x) => (float[5] y, float[5] z) { y, z = mine.Both (x, low) }",
        body(
            "Both (x, low) => (y, z) { c = mine.Low (x, low)  y, x2 = mine.Pass (c)  z = Neg (x2) }"
        )
        + body("Low (x, low, high) => (y) { y = Clip (x, low, high) }")
        # ONNX Runtime refuses such a function, ONNX's checker does not
        + body("Pass (x) => (y, x) { y = Abs (x) }"),
        low=np.float32(-0.5),
    )
    r, _, _ = expand(m)
    assert ops(r) == ["Clip", "Abs", "Identity", "Neg"] and list(r.graph.node[0].input)[:2] == [
        "x",
        "low",
    ]
    del r.functions[:]
    clipped = np.maximum(normal(5), np.float32(-0.5))
    assert same_bits([np.abs(clipped), -clipped], run(r, {"x": normal(5)}))


def test_names_inside_bodies_do_not_collide() -> None:
    """Twice the same function with a Loop, called beside values that have the names its body
    uses.
    """
    m = with_functions(
        """
        g (float[3] x, int64 n) => (float[3] y, float[3] s) { s = Neg (x)  a = mine.Power (x, n)
            t = Add (a, s)  y = mine.Power (t, n) }
        """,
        body(
            """
            Power (x, n) => (y)
            {
              c = Constant <value = bool {1}> ()
              y = Loop (n, c, x) <body = b (int64 i, bool k, float[3] s) => (bool k2, float[3] t) {
                  k2 = Identity (k)  h = Mul (s, x)  t = Sub (h, s) }>
            }
            """
        ),
    )
    r, found, _ = expand(m)
    assert len(found) == 2 and "mine" not in {n.domain for n in r.graph.node}
    feeds = {"x": normal(3), "n": np.array(3)}
    assert same_bits(run(m, feeds), run(r, feeds))


def test_what_is_inside_fuses_across_the_border_and_in_bodies() -> None:
    m = with_functions(
        """
        g (float[1, 2, 4, 4] x, bool c) => (float[1, 2, 4, 4] y)
        {
          a = mine.Layer (x, w)
          b = Relu (a)
          y = If (c) <then_branch = t () => (float[1, 2, 4, 4] u) { p = mine.Layer (b, w)
              u = Relu (p) },
                      else_branch = e () => (float[1, 2, 4, 4] v) { v = Neg (b) }>
        }
        """,
        body("Layer (x, w) => (y) { y = Conv <pads = [1, 1, 1, 1]> (x, w) }"),
        w=normal(2, 2, 3, 3),
    )
    result = optimized(m)
    assert sorted(f.rule for f in result.report.fused) == ["conv_relu", "conv_relu"]
    # nothing calls mine.Layer any more
    assert [f.domain for f in result.model.functions] == [DOMAIN]
    for c in (True, False):
        feeds = {"x": normal(1, 2, 4, 4), "c": np.array(c)}
        assert same_bits(run(m, feeds), run(result.model, feeds))
    assert any("2 calls of the model's own functions" in n for n in result.report.notes)
    assert model_file.serialize(optimized(result.model).model) == model_file.serialize(result.model)


@pytest.mark.parametrize("literal", ["", "k = Constant <value = float {2.0}> ()  "])
def test_a_function_in_which_nothing_changes_stays(literal: str) -> None:
    other = "k" if literal else "x"
    m = with_functions(
        "g (float[5] x) => (float[5] y) { a = mine.Twice (x)  b = mine.Act (a)  s = Add (b, x)  "
        "y = Relu (s) }",
        ACT + body(f"Twice (x) => (y) {{ {literal}h = Neg (x)  y = Mul (h, {other}) }}"),
    )
    result = optimized(m)
    assert [n.op_type.split("_")[0] for n in result.model.graph.node] == [
        "Twice",
        "Act",
        "Pointwise",
    ]
    assert (
        list(result.model.functions)[:2] == list(m.functions)[:2]
        and not result.model.graph.initializer
    )
    assert result.report.nodes_before == 4 and result.report.nodes_after == 3
    assert same_bits(run(m, {"x": normal(5)}), run(result.model, {"x": normal(5)}))
    assert model_file.serialize(optimized(result.model).model) == model_file.serialize(result.model)


def test_a_call_whose_inner_value_serves_another_is_not_put_back() -> None:
    """Two calls on one operand share their first node after merging; hiding it again would take it
    from the other.
    """
    m = with_functions(
        "g (float[5] x) => (float[5] y, float[5] z) { y = mine.A (x)  z = mine.B (x) }",
        body("A (x) => (y) { t = Exp (x)  y = Neg (t) }")
        + body("B (x) => (y) { t = Exp (x)  y = Abs (t) }"),
    )
    r = optimized(m).model
    assert sorted(ops(r)) == ["Abs", "Exp", "Neg"]
    assert same_bits(run(m, {"x": normal(5)}), run(r, {"x": normal(5)}))


def test_unsafe_functions_are_left_alone_and_said_so() -> None:
    m = with_functions(
        "g (float[5] x) => (float[5] y) { a = mine.Old (x)  y = mine.Fine (a) }",
        body("Fine (x) => (y) { y = Neg (x) }"),
    )
    m.functions.append(
        helper.make_function(
            "mine",
            "Old",
            ["x"],
            ["y"],
            [helper.make_node("Softmax", ["x"], ["y"], axis=0)],
            [helper.make_opsetid("", 11)],
        )
    )
    notes: list[str] = []
    function_calls.expand(m, notes)
    assert ops(m) == ["Old", "Neg"] and notes == [
        (
            "the function mine.Old was not searched: Softmax means something else in its operator "
            "set (11) than in the model's (17)"
        )
    ]


@pytest.mark.parametrize(
    ("call", "line"),
    [
        ("y = mine.Act (x, x)", "with 2 inputs; it has 1"),
        ("y, z = mine.Act (x)", "with 2 outputs; it has 1"),
    ],
)
def test_a_call_with_more_than_the_function_has_is_one_line(call: str, line: str) -> None:
    model: ModelProto = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17{MINE}]> g (float[3] x) => (float[3] y) {{ '
        f"{call} }} {ACT}"
    )
    with pytest.raises(ModelError, match=line):
        function_calls.expand(model, [])


def test_a_body_that_a_function_calls_stays() -> None:
    m = optimizer.optimize(
        with_functions(
            "g (float[2, 4] x) => (float[2, 3] y) { t = MatMul (x, w)  y = Relu (t) }",
            ACT,
            w=normal(4, 3),
        ),
        backend="cpu",
    ).model
    (call,) = m.graph.node
    fused = call.op_type
    m.functions.append(
        helper.make_function(
            "mine",
            "Layer",
            list(call.input),
            list(call.output),
            [call],
            [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)],
        )
    )
    call.CopyFrom(helper.make_node("Layer", call.input, call.output, domain="mine"))
    # another version of the domain than the function's, so that its call is not expanded
    next(o for o in m.opset_import if o.domain == DOMAIN).version = 27
    result = optimizer.optimize(m, precision="fp16", backend="cpu", verify=False)
    assert [n.op_type for n in result.model.graph.node if n.domain] == ["Layer"]
    assert [f.name for f in result.model.functions if f.domain == DOMAIN] == [fused]
