"""The priority policy and the prices it orders by."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper

from tests.host.pipeline_models import RULES, parse, small_cnn
from tracea_onnx.codegen import backend as backends
from tracea_onnx.compiler import partition_compiler, plan_writer
from tracea_onnx.errors import UsageError
from tracea_onnx.ir.contracts import Match, Spec
from tracea_onnx.ir.graph import Graph
from tracea_onnx.ir.refusals import Refusal, Why, reason
from tracea_onnx.ir.saving import Saving
from tracea_onnx.match import find
from tracea_onnx.pricing import cost_model
from tracea_onnx.pricing.rates import Rates
from tracea_onnx.runtime import device_caps
from tracea_onnx.support import discovery

Priced = list[tuple[Match, Saving, int]]


def schedule(graph: Graph, priced: Priced) -> tuple[list[tuple[Match, Saving]], list[Refusal]]:
    chosen, refused = discovery.module("scheduler", "priority").schedule(graph, priced)
    return list(chosen), list(refused)


def chain(
    graph: Graph, names: str, us: float, rule: str = "r", priority: int = 0
) -> tuple[Match, Saving, int]:
    nodes = tuple(p for name in names.split() if (p := graph.producer(name)) is not None)
    return (
        Match(rule, nodes[0], nodes, (), tuple(graph.escapes(nodes)), Spec("pointwise", ())),
        Saving(us, reason=None if us > 0 else reason(Why.NOT_FINITE)),
        priority,
    )


DIAMOND = (
    "g (float[3] x) => (float[3] e) { a = Neg (x) b = Exp (a) c = Abs (a) d = Add (b, c) e "
    "= Relu (d) }"
)


def test_the_larger_saving_wins_and_the_loser_is_told_why() -> None:
    g = Graph(parse(DIAMOND))
    chosen, refused = schedule(g, [chain(g, "b d", 1.0, "small"), chain(g, "d e", 2.0, "large")])
    assert [m.rule for m, _ in chosen] == ["large"]
    assert [(r.rule, r.anchor) for r in refused] == [("small", "b")] and "large" in refused[
        0
    ].reason


def test_ties_fall_by_priority_then_length_then_position() -> None:
    g = Graph(parse(DIAMOND))
    assert (
        schedule(g, [chain(g, "b d", 1.0, "x"), chain(g, "d e", 1.0, "y", 1)])[0][0][0].rule == "y"
    )
    assert (
        schedule(g, [chain(g, "b d", 1.0, "x"), chain(g, "c d e", 1.0, "y")])[0][0][0].rule == "y"
    )
    assert schedule(g, [chain(g, "c d", 1.0, "y"), chain(g, "b d", 1.0, "x")])[0][0][0].rule == "x"


def test_what_saves_nothing_is_refused_with_its_reason() -> None:
    g = Graph(parse(DIAMOND))
    chosen, refused = schedule(g, [chain(g, "d e", 0.0)])
    assert not chosen and refused[0].because.why is Why.NOT_FINITE and not refused[0].near


def test_two_convex_chains_that_wait_for_each_other_are_not_both_taken() -> None:
    g = Graph(
        parse(
            "g (float[3] x, float[3] y) => (float[3] b, float[3] d) { "
            "a = Neg (x) c = Exp (y) b = Add (c, c) d = Mul (a, a) }"
        )
    )
    both = [chain(g, "a b", 2.0, "first"), chain(g, "c d", 1.0, "second")]
    assert all(g.is_convex(m.nodes) for m, _, _ in both)
    chosen, refused = schedule(g, both)
    assert [m.rule for m, _ in chosen] == ["first"] and "cycle" in refused[0].reason


def _acyclic_when_contracted(graph: Graph, groups: list[Match]) -> bool:
    owner = {n.index: ("g", k) for k, m in enumerate(groups) for n in m.nodes}
    edges: dict[object, set[object]] = {}
    for n in graph.nodes:
        for o in n.outputs:
            for c in graph.consumers(o):
                a, b = owner.get(n.index, n.index), owner.get(c.index, c.index)
                if a != b:
                    edges.setdefault(a, set()).add(b)
    state: dict[object, int] = {}

    def visit(v: object) -> bool:
        if state.get(v) == 1:
            return False
        if state.get(v) == 2:
            return True
        state[v] = 1
        ok = all(visit(w) for w in edges.get(v, ()))
        state[v] = 2
        return ok

    return all(visit(v) for v in list(edges))


@st.composite
def problems(draw: st.DrawFn) -> tuple[ModelProto, list[tuple[list[int], float]]]:
    """A random graph of Adds, and random sets of its nodes with savings."""
    count = draw(st.integers(2, 12))
    names = ["x"]
    nodes = []
    for k in range(count):
        pick = st.sampled_from(names[-4:])
        nodes.append(helper.make_node("Add", [draw(pick), draw(pick)], [f"v{k}"]))
        names.append(f"v{k}")
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [info("x", TensorProto.FLOAT, [3])], [info(names[-1], TensorProto.FLOAT, [3])]
    )
    sets = draw(
        st.lists(
            st.tuples(
                st.lists(st.integers(0, count - 1), min_size=1, max_size=4, unique=True),
                st.sampled_from([0.0, 1.0, 2.0, 3.0]),
            ),
            max_size=8,
        )
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), sets


@settings(max_examples=300)
@given(problems())
def test_schedules_are_disjoint_acyclic_maximal_and_deterministic(
    problem: tuple[ModelProto, list[tuple[list[int], float]]],
) -> None:
    model, sets = problem
    graph = Graph(model)
    priced = [
        chain(graph, " ".join(f"v{k}" for k in sorted(nodes)), us, f"r{i}")
        for i, (nodes, us) in enumerate(sets)
    ]
    priced = [p for p in priced if graph.is_convex(p[0].nodes)]
    chosen, refused = schedule(graph, priced)
    taken = [n.index for m, _ in chosen for n in m.nodes]
    assert len(taken) == len(set(taken)) and len(chosen) + len(refused) == len(priced)
    groups = [m for m, _ in chosen]
    assert _acyclic_when_contracted(graph, groups)
    for m, s, _ in priced:  # nothing that saves time and still fits was left out
        if s.us > 0 and m not in groups and not {n.index for n in m.nodes} & set(taken):
            assert not _acyclic_when_contracted(graph, [*groups, m])
    again = schedule(graph, list(reversed(priced)))
    assert [m.rule for m, _ in again[0]] == [m.rule for m, _ in chosen]


# --- prices ---------------------------------------------------------------------------------------
GPU, HOST = discovery.module("kernels", "cuda.rates"), backends.usual_target("cpu").rates


def priced_by(model: ModelProto, rates: Rates = HOST) -> dict[str, Saving]:
    graph = Graph(model)
    return {
        m.anchor.outputs[0]: cost_model.price(graph, m, rates)
        for m in find.find(graph, rules=RULES)[0]
    }


def test_a_price_is_the_rooflines_difference() -> None:
    m = parse(
        "g (float[64, 1000] x, float[64, 1000] y) => (float[64, 1000] z) { "
        "a = Add (x, y) z = Relu (a) }"
    )
    n = 64 * 1000 * 4
    saving = priced_by(_typed(m))["a"]
    # Add moves 3 tensors and Relu 2; fused, 3 tensors cross the border.
    assert saving.us == pytest.approx(HOST.launch + 2 * n / (HOST.gbytes * 1e3), rel=1e-3)


def _typed(m: ModelProto) -> ModelProto:
    from tracea_onnx.canonicalize.canonical_form import canonicalise

    return canonicalise(m)


def test_a_larger_tensor_saves_more_and_every_backend_has_rates() -> None:
    text = "g (float[{n}] x, float[{n}] y) => (float[{n}] z) {{ a = Add (x, y) z = Relu (a) }}"
    small, large = (priced_by(_typed(parse(text.format(n=n))))["a"] for n in (10, 100000))
    assert 0 < small.us < large.us
    for name in backends.names():
        rates = backends.usual_target(name).rates
        assert all(s.us > 0 for s in priced_by(_typed(small_cnn()), rates).values())
    with pytest.raises(UsageError, match="no backend 'abacus'"):
        backends.get("abacus")


def test_prices_follow_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session's fusions are priced by its own GPU's memory and arithmetic, not by an H200's."""
    h200, l4 = GPU.rates(device_caps.usual(90)), GPU.rates(device_caps.usual(89))
    assert h200 == backends.usual_target("cuda").rates
    assert (h200.gflops, h200.gbytes) == (GPU.H200.gflops, GPU.H200.gbytes)
    assert (
        l4.gbytes == pytest.approx(h200.gbytes * 300 / 4800)
        and h200.gflops / 20 < l4.gflops < h200.gflops / 8
    )
    half = GPU.rates(replace(device_caps.usual(90), sms=66))
    assert half.gflops == h200.gflops / 2 and half.gbytes == h200.gbytes
    seen, priced = set(), cost_model.price

    def recorded(graph: Graph, match: Match, by: Rates) -> Saving:
        seen.add(by)
        return priced(graph, match, by)

    monkeypatch.setattr(partition_compiler, "price", recorded)
    graph = Graph(_typed(small_cnn()))
    monkeypatch.setattr(plan_writer.BackendPlan, "_compile", lambda self: None)
    partition_compiler.compile_graph(
        graph, plan_writer.writer_of({"backend": "cuda", "arch": "89"})
    )
    assert seen == {l4}


@pytest.mark.parametrize(
    ("arch", "name", "sms", "mhz", "tflops"),
    [
        (75, "T4", 40, 1590, 65), (80, "A100", 108, 1410, 312), (86, "A10", 72, 1695, 125),
        (86, "A40", 84, 1740, 149.7), (86, "A10G", 80, 1710, 70),
        (86, "GeForce RTX 3090", 82, 1695, 71), (87, "Orin", 16, 1300, 170 / 4),
        (89, "L4", 58, 2040, 121), (89, "GeForce RTX 4090", 128, 2520, 165.2),
        (90, "H100 SXM", 132, 1830, 989), (120, "GeForce RTX 5090", 170, 2407, 209.5),
        (120, "RTX PRO 6000 Blackwell", 188, 2617, 503.8),
    ],
)  # fmt: skip
def test_peaks_of_gpus_are_those_that_nvidia_documents(
    arch: int, name: str, sms: int, mhz: int, tflops: float
) -> None:
    """Dense fp16 with sums in fp32."""
    h200, made = (
        device_caps.usual(90),
        replace(device_caps.usual(arch), name=f"NVIDIA {name}", sms=sms, clock=mhz * 1000),
    )
    ratio = GPU.rates(made).gflops / GPU.rates(h200).gflops
    assert ratio * h200.sms * h200.clock * 4096 * 1e3 == pytest.approx(tflops * 1e12, rel=0.02)


def test_a_node_alone_saves_nothing() -> None:
    g = Graph(parse("g (float[3] x) => (float[3] y) { y = Relu (x) }"))
    lone = Match("r", g.nodes[0], (g.nodes[0],), ("x",), ("y",), Spec("pointwise", ("x0",)))
    saving = cost_model.price(g, lone, HOST)
    assert saving.us <= 0 and saving.reason == reason(Why.SINGLE_NODE, op="Relu")


def test_a_view_does_not_make_unknown_sizes_cost_more() -> None:
    """The batch of a value counts as 1 on its first axis and as more elsewhere; what the chain
    reads stays what its nodes read.
    """
    text = (
        "g (float[1, n, m, k] x) => (float[n, m, k] y) { "
        "s = Squeeze (x, ax) a = Relu (s) y = Sigmoid (a) }"
    )
    g = Graph(_typed(parse(text, ax=[0])))
    chain_of = Match(
        "r", g.nodes[1], tuple(g.nodes), ("x",), ("y",), Spec("pointwise", ("x0",), {})
    )
    assert cost_model.price(g, chain_of, HOST).us > HOST.launch / 2
