"""The name of a fused op's function holds a hash of its description and its body; files in which
the three differ are refused, but for `inline`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import ModelProto, NodeProto

from tests.host.pipeline_models import CONV_RELU, RULES, copy, normal, run, same_bits, small_cnn
from tracea_onnx.cli import main
from tracea_onnx.errors import ModelError
from tracea_onnx.ir import fused_op_names
from tracea_onnx.ir.contracts import DOMAIN, Match, Rule, Spec
from tracea_onnx.ir.graph import Graph, Node
from tracea_onnx.model_io import model_file
from tracea_onnx.pipeline import optimizer


@pytest.fixture(scope="module")
def optimized() -> ModelProto:
    return optimizer.optimize(small_cnn(), rules=RULES, backend="cpu").model


def _calls(model: ModelProto) -> list[NodeProto]:
    return [n for n in model.graph.node if n.domain == DOMAIN]


def other_spec(model: ModelProto) -> None:
    (spec,) = _calls(model)[0].attribute
    spec.s = json.dumps({**json.loads(spec.s), "attrs": {"strides": [2, 2]}}).encode()


def other_body(model: ModelProto) -> None:
    next(n for f in model.functions for n in f.node if n.op_type == "Relu").op_type = "Sigmoid"


def no_spec(model: ModelProto) -> None:
    del _calls(model)[0].attribute[:]


def two_specs(model: ModelProto) -> None:
    _calls(model)[0].attribute.extend(list(_calls(model)[0].attribute))


def earlier_name(model: ModelProto) -> None:
    call = _calls(model)[0]
    f = next(f for f in model.functions if f.name == call.op_type)
    f.name = call.op_type = call.op_type[:-4]


def other_function(model: ModelProto) -> None:
    a, b = _calls(model)
    a.op_type = b.op_type


def within_a_function(model: ModelProto) -> None:
    """The call moves into a function of the user's, with another spec."""
    other_spec(model)
    call = _calls(model)[0]
    inner = NodeProto()
    inner.CopyFrom(call)
    opsets = [*model.opset_import, onnx.helper.make_opsetid("mine", 1)]
    model.functions.append(
        onnx.helper.make_function(
            "mine", "Block", list(call.input), list(call.output), [inner], opsets
        )
    )
    call.domain, call.op_type = "mine", "Block"
    del call.attribute[:]
    model.opset_import.append(onnx.helper.make_opsetid("mine", 1))


CHANGES: dict[Callable[[ModelProto], None], str] = {
    other_spec: "was changed after optimize wrote it; run tracea-onnx inline",
    other_body: "was changed after optimize wrote it; run tracea-onnx inline",
    no_spec: "has no description that can be read",
    two_specs: "has no description that can be read",
    earlier_name: "was not written by this version of tracea-onnx; "
    "run optimize on the original model again",
    other_function: "was changed after optimize wrote it",
    within_a_function: "was changed after optimize wrote it",
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_whose_specs_bodies_and_names_differ_is_refused(
    change: Callable[[ModelProto], None], optimized: ModelProto
) -> None:
    model = copy(optimized)
    model_file.load(model)
    change(model)
    with pytest.raises(ModelError, match=re.escape(CHANGES[change])) as e:
        model_file.load(model)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(
    "command",
    ["optimize {}", "explain {}", "inspect {}", "verify {} {}", "verify GOOD {}", "tune {}"],
)
def test_every_command_says_so_in_one_line(
    command: str, optimized: ModelProto, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    good, bad = tmp_path / "good.onnx", tmp_path / "bad.onnx"
    model_file.save(model_file.Source(copy(optimized)), good)
    changed = copy(optimized)
    other_spec(changed)
    model_file.save(model_file.Source(changed), bad)
    assert main.main(command.replace("GOOD", str(good)).format(bad, bad).split()) == 3
    err = capfd.readouterr().err
    assert "has a description or a body that was changed" in err and err.count("\n") == 1


@pytest.mark.parametrize("change", [other_spec, no_spec, two_specs, earlier_name])
def test_inline_goes_by_the_bodies(
    change: Callable[[ModelProto], None], optimized: ModelProto, tmp_path: Path
) -> None:
    changed = copy(optimized)
    change(changed)
    model_file.save(model_file.Source(changed), tmp_path / "m.onnx")
    assert main.main(["inline", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "plain.onnx")]) == 0
    plain = model_file.load(tmp_path / "plain.onnx").model
    feeds = {"image": normal(2, 3, 8, 8)}
    assert not plain.functions and same_bits(run(small_cnn(), feeds), run(plain, feeds))


def test_notes_do_not_count(optimized: ModelProto) -> None:
    model = copy(optimized)
    for f in model.functions:
        f.doc_string = "a chain"
        for n in f.node:
            n.name, n.doc_string = "part", "of a chain"
    for n in model.graph.node:
        n.name += "!"
    model_file.load(model)


def test_one_body_with_two_specs_is_two_functions() -> None:
    """What a spec says may depend on more than the body: on the shapes of its operands."""

    def match(graph: Graph, node: Node) -> Match:
        found = CONV_RELU.match(graph, node)
        return Match(
            found.rule,
            found.anchor,
            found.nodes,
            found.inputs,
            found.outputs,
            Spec("conv", found.spec.roles, {"note": node.name}),
        )

    text = (
        '<ir_version: 8, opset_import: ["" : 17]> g (float[1, 3, 8, 8] x) => (float[1, 3, 8, '
        "8] y) {"
    )
    text += (
        " [one] a = Conv <pads = [1, 1, 1, 1]> (x, w, b)  c = Relu (a)  [two] d = Conv <pads "
        "= [1, 1, 1, 1]> (c, w, b)  y = Relu (d) }"
    )
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(v, n) for n, v in (("w", normal(3, 3, 3, 3)), ("b", normal(3)))
    )
    rule = Rule("conv_relu", "Conv", CONV_RELU.anchors, match)
    made = optimizer.optimize(model, rules=[rule], backend="cpu", verify=False).model
    assert len(made.functions) == len({n.op_type for n in made.graph.node}) == 2
    model_file.load(made)


def test_a_name_that_is_taken_gets_a_mark() -> None:
    """The mark has no part in the hash, and whoever shows the name knows it."""
    name = next(
        n.op_type
        for n in optimizer.optimize(small_cnn(), rules=RULES, backend="cpu").model.graph.node
        if n.domain == DOMAIN
    )
    model = small_cnn()
    model.functions.append(
        onnx.helper.make_function(
            DOMAIN,
            name,
            ["a"],
            ["b"],
            [onnx.helper.make_node("Neg", ["a"], ["b"])],
            [onnx.helper.make_opsetid("", 17)],
        )
    )
    made = optimizer.optimize(model, rules=RULES, backend="cpu").model
    assert name + "_" in {n.op_type for n in made.graph.node}
    model_file.load(made)
    assert fused_op_names.op_of(name) == fused_op_names.op_of(name + "_") == name.rsplit("_", 1)[0]
    for n in (name, name + "_"):
        assert (
            fused_op_names.readable(f"{DOMAIN}.{n} reads it, {DOMAIN}.{n}")
            == f"the fused {fused_op_names.op_of(n)} reads it, the fused {fused_op_names.op_of(n)}"
        )
    assert fused_op_names.op_of("Relu_6") == "Relu_6"
