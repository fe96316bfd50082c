"""Matching: rules by name, refusals recorded, broken rules named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.host.pipeline_models import ADD_RELU, RULES, parse, small_cnn
from tracea_onnx.errors import TraceaError, UsageError
from tracea_onnx.ir.contracts import Match, Rule, Spec
from tracea_onnx.ir.graph import Graph, Node
from tracea_onnx.match import find


def test_matches_and_refusals_come_in_node_order() -> None:
    matches, refusals = find.find(Graph(small_cnn()), rules=RULES)
    assert [(m.rule, m.anchor.outputs[0], len(m.nodes)) for m in matches] == [
        ("conv_relu", "a", 2),
        ("add_relu", "s", 2),
    ]
    assert [(r.rule, r.anchor, r.near) for r in refusals] == [("conv_relu", "c", True)]


def test_rules_are_chosen_by_name() -> None:
    graph = Graph(small_cnn())
    assert {m.rule for m in find.find(graph, only=["add_relu"], rules=RULES)[0]} == {"add_relu"}
    assert {m.rule for m in find.find(graph, skip=["add_relu"], rules=RULES)[0]} == {"conv_relu"}
    with pytest.raises(UsageError, match="no rule called 'typo'; choose from add_relu, conv_relu"):
        find.find(graph, skip=["typo"], rules=RULES)


@pytest.mark.parametrize("rules", [RULES, None])
def test_a_tensor_that_is_damaged_refuses_the_chains_that_read_it(rules: list[Rule] | None) -> None:
    model = parse("g (float[4] x) => (float[4] y) { r = Relu (x)  y = Mul (r, c) }")
    model.graph.initializer.add(name="c", data_type=1, raw_data=b"123")

    def reads(graph: Graph, node: Node) -> Match:
        graph.const("c")
        raise AssertionError

    broken = [replace(ADD_RELU, anchors=frozenset({"Mul"}), match=reads)]
    _, refusals = find.find(Graph(model), rules=broken if rules else None)
    assert {r.reason for r in refusals if "damaged" in r.reason} == {
        "tensor 'c' is damaged: its data does not fit its type and shape"
    }


def test_a_rule_that_raises_is_named_with_its_node() -> None:
    def broken(graph: Graph, node: Node) -> Match:
        raise KeyError("axis")

    with pytest.raises(TraceaError, match=r"rule 'add_relu' failed on node 's'.*--skip add_relu"):
        find.find(Graph(small_cnn()), rules=[replace(ADD_RELU, match=broken)])


def _claims(nodes: str, inputs: str, outputs: str, roles: str) -> Rule:
    """A rule that claims the nodes making these values, right or wrong."""

    def claim(graph: Graph, node: Node) -> Match:
        found = tuple(p for name in nodes.split() if (p := graph.producer(name)) is not None)
        return Match(
            "wrong",
            node,
            found,
            tuple(inputs.split()),
            tuple(outputs.split()),
            Spec("pointwise", tuple(roles.split())),
        )

    return Rule("wrong", "Wrong", frozenset({"Neg"}), claim)


@pytest.mark.parametrize(
    ("claim", "says"),
    [
        (("b", "a", "b", "x0"), "its anchor is not among its nodes"),
        (("a a", "x", "a", "x0"), "lists a node twice"),
        (("a b", "x", "b c", "x0"), "not made inside"),
        (("a b", "x", "b", "x0"), r"\['a'\] are needed outside"),
        (("a b", "x x", "a b", "x0"), "2 inputs but 1 roles"),
        (("a b", "a", "a b", "x0"), "made inside the chain"),
        (("a b", "x", "", "x0"), "outputs"),
    ],
)
def test_a_match_that_breaks_the_contract_is_caught(
    claim: tuple[str, str, str, str], says: str
) -> None:
    m = parse(
        "g (float[3] x) => (float[3] c, float[3] d) { "
        "a = Neg (x) b = Exp (a) c = Abs (a) d = Relu (b) }"
    )
    with pytest.raises(TraceaError, match=says):
        find.find(Graph(m), rules=[_claims(*claim)])


def test_a_chain_with_a_path_around_it_is_refused() -> None:
    m = parse("g (float[3] x) => (float[3] c) { a = Neg (x) b = Exp (a) c = Add (a, b) }")
    matches, refusals = find.find(Graph(m), rules=[_claims("a c", "x b", "a c", "x0 x1")])
    assert not matches and "cycle" in refusals[0].reason
