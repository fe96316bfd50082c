"""Groups of a random graph: contracting all of them at once leaves no cycle, and nothing that could
join its producer stays alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from itertools import pairwise
from random import Random
from typing import Any

import networkx as nx
import numpy as np
import pytest
from onnx import helper, numpy_helper, parser, shape_inference

from tests.host.pipeline_models import parse
from tests.host.rules.rules_oracle import node
from tracea_onnx.codegen import backend as backends
from tracea_onnx.compiler import host_flags, partition_compiler, partitioning, plan_writer
from tracea_onnx.compiler.lower.context import Lowering
from tracea_onnx.compiler.lower.op import Op, of_node
from tracea_onnx.compiler.lower.value import Unsupported
from tracea_onnx.ir.graph import Graph
from tracea_onnx.plan.builder import PlanBuilder
from tracea_onnx.shapes import onnx_inference


def random_graph(r: Random) -> Graph:
    names, nodes = ["x"], []
    for k in range(r.randrange(1, 40)):
        nodes.append(
            node(
                "Sum",
                " ".join(r.choice(names[-12:]) for _ in range(r.choice((1, 1, 2, 3)))),
                f"v{k}",
            )
        )
        names.append(f"v{k}")
    value = helper.make_tensor_value_info("x", 1, [2])
    outputs = [helper.make_tensor_value_info(names[-1], 1, [2])]
    return Graph(helper.make_model(helper.make_graph(nodes, "g", [value], outputs)))


@pytest.mark.parametrize("seed", range(200))
def test_contracted_groups_have_no_cycle(seed: int) -> None:
    r = Random(seed)
    graph = random_graph(r)
    ops = partitioning.topological([of_node(n, graph, False) for n in graph.nodes], graph)
    supported = [r.random() < 0.7 for _ in ops]
    groups = partitioning.groups(ops, supported, graph)
    assert sorted(k for g in groups for k in g) == [k for k, ok in enumerate(supported) if ok]
    vertex = {k: ("group", g) for g, members in enumerate(groups) for k in members}
    maker = {o: k for k, op in enumerate(ops) for o in op.outputs}
    quotient = nx.DiGraph()
    for k, op in enumerate(ops):
        for p in {maker[i] for i in op.inputs if i in maker}:
            a, b = vertex.get(p, ("op", p)), vertex.get(k, ("op", k))
            if a != b:
                quotient.add_edge(a, b)
    assert nx.is_directed_acyclic_graph(quotient)


def test_one_group_when_everything_is_supported() -> None:
    graph = random_graph(Random(3))
    ops = partitioning.topological([of_node(n, graph, False) for n in graph.nodes], graph)
    assert len(partitioning.groups(ops, [True] * len(ops), graph)) == 1


class _Fails(PlanBuilder):
    """Products of an odd number of columns have no kernel, which only shows when Plans are made."""

    def _append(
        self,
        family: str,
        refs: Mapping[str, Any],
        ints: Mapping[str, Any],
        *rest: Any,
        **named: Any,
    ) -> None:
        if family == "gemm" and ints["N"] % 2:
            raise Unsupported("an odd number of columns")
        super()._append(family, refs, ints, *rest, **named)


def test_what_fails_late_costs_its_group_alone_another_lowering() -> None:
    """Ten products with an unknown operator between each two: five fail, and no other one is
    lowered twice for it.
    """
    nodes, weights, widths = [], [], range(16, 27)
    for k, (rows, columns) in enumerate(pairwise(widths)):
        nodes += [
            helper.make_node("MatMul", [f"x{k}", f"w{k}"], [f"p{k}"]),
            helper.make_node("Unheard", [f"p{k}"], [f"x{k + 1}"], domain="elsewhere"),
        ]
        weights.append(numpy_helper.from_array(np.ones((rows, columns), np.float32), f"w{k}"))
    value = {f"{n}{k + (n == 'p')}": [4, w] for n in "xp" for k, w in enumerate(widths)}
    value |= {f"p{k}": [4, w] for k, w in enumerate(widths[1:])}
    infos = {name: helper.make_tensor_value_info(name, 1, shape) for name, shape in value.items()}
    graph = helper.make_graph(
        nodes,
        "g",
        [infos["x0"]],
        [infos[f"x{len(weights)}"]],
        weights,
        value_info=list(infos.values()),
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("elsewhere", 1)]
    )
    made = []

    def plan(name: str, probe: bool) -> PlanBuilder:
        if not probe:
            made.append(name)
        return PlanBuilder(name, "cpu") if probe else _Fails(name, "cpu")

    found = partition_compiler.compile_graph(
        Graph(model), plan_writer.Writer(plan_writer.writer_of({}).target, plan), everything=True
    )
    assert [p["name"] for _, p, _ in found.entries] == [f"partition{k}" for k in range(5)]
    assert sorted(n.op for n, why in found.refused if "odd" in why) == ["MatMul"] * 5
    assert len(made) == len(weights) + 1  # before any of them fails, all are tried together


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
def test_floats_that_hold_sizes_are_read_by_expressions(backend: str) -> None:
    """As the scale of an attention is computed from the size of its heads."""
    m = parse("""g (float[n, m] x) => (float[n, m] y) {
      s = Shape (x) t = Slice (s, last, far) f = Cast <to = 1> (t) r = Sqrt (f) y = Div (x, r)
    }""", last=np.array([-1]), far=np.array([(1 << 63) - 1]))  # fmt: skip
    onnx_inference.infer(m, onnx_inference.user_types(m))
    with warnings.catch_warnings():
        warnings.simplefilter("error", partition_compiler.Fault)
        made = partition_compiler.compile_graph(
            Graph(m), plan_writer.writer_of({"backend": backend}), everything=True
        )
    assert len(made.entries) == 1 and not made.refused


def test_a_number_that_is_two_operands_is_one_of_the_launch() -> None:
    m = parse("g (float x) => (uint8 y, float s, uint8 z) { y, s, z = DynamicQuantizeLinear (x) }")
    with warnings.catch_warnings():
        warnings.simplefilter("error", partition_compiler.Fault)
        made = partition_compiler.compile_graph(
            Graph(m), plan_writer.writer_of({"backend": "cuda"}), everything=True
        )
    assert len(made.entries) == 1 and not made.refused


@pytest.mark.parametrize(
    ("graph", "why"),
    [
        ("float[0, 1, 9, 96] q, float[0, 1, 3, 96] k) => (y) { y = Attention (q, k, k) }", []),
        (
            "float[1, 2, 5, 5] q, float[4, 2, 0, 0] k) => (y) { y = Conv (q, k) }",
            ["do not fit 2 spatial dims"],
        ),
    ],
)
def test_no_kernel_is_asked_for_what_has_no_elements(graph: str, why: list[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", partition_compiler.Fault)
        made = partition_compiler.compile_graph(
            Graph(parse(f"g ({graph}", opset=23)),
            plan_writer.writer_of({"backend": "cuda"}),
            everything=True,
        )
    assert not made.entries and len(made.refused) == len(why)
    assert all(end in reason for end, (_, reason) in zip(why, made.refused, strict=True))


def test_bits_of_floats_behind_a_product_stay_outside() -> None:
    """No valid model has them; what ONNX Runtime says of it is not ours to say."""
    m = parse("""g (float[4, 8] x) => (float[4, 8] y) {
      p = MatMul (x, w) t = Tanh (p) b = BitwiseAnd (t, h) y = Mul (p, b)
    }""", opset=18, w=np.eye(8, dtype=np.float32), h=np.array(0.5, np.float32))  # fmt: skip
    onnx_inference.infer(m, onnx_inference.user_types(m))
    with warnings.catch_warnings():
        warnings.simplefilter("error", partition_compiler.Fault)
        made = partition_compiler.compile_graph(
            Graph(m), plan_writer.writer_of({}), everything=True
        )
    assert "BitwiseAnd" in [n.op for n, _ in made.refused]


@pytest.mark.parametrize("join", ["Add (p, x)", "Concat <axis = 1> (p, x)"])
def test_a_graph_that_is_lowered_at_once_has_the_plan_of_one_that_was_probed(
    join: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a Concat asks for dims of values before they are made."""
    w = np.random.default_rng(0).standard_normal((16, 16, 3, 3), np.float32)
    m = parse(
        f"""g (float[n, 16, 8, 8] x) => (float[n, c, 8, 8] y) {{
      p = Conv <pads = [1, 1, 1, 1]> (x, w) q = {join} y = Relu (q)
    }}""",
        w=w,
    )
    onnx_inference.infer(m, onnx_inference.user_types(m))
    probed: list[str] = []
    lower = partition_compiler._lower

    def noted(ctx: Lowering, op: Op) -> None:
        probed.append(op.kind)
        lower(ctx, op)

    monkeypatch.setattr(partition_compiler, "_lower", noted)
    whole = partition_compiler.compile_graph(Graph(m))
    assert bool(probed) == join.startswith("Concat")
    monkeypatch.setattr(partition_compiler, "_whole", lambda *_: None)
    parts = partition_compiler.compile_graph(Graph(m))
    assert [e[1:] for e in whole.entries] == [e[1:] for e in parts.entries] != []
    assert whole.refused == parts.refused == []


@pytest.mark.parametrize(("length", "held"), [(1 << 10, True), (1 << 31, False)])
def test_a_session_holds_no_constant_of_any_size(length: int, held: bool) -> None:
    """Places along an axis are computed when a model is loaded only if they are few."""
    b = PlanBuilder("p", "cpu")
    ints = {"count": length, "start": 0, "delta": 1, "dtype": 7}
    b.launch("range", {}, {"y": b.arena(8 * length)}, ints)
    assert (len(b.to_json()["init"]), b.launches) == ((1, 0) if held else (0, 1))


def test_flags_of_a_loop_stay_on_the_host() -> None:
    """A Loop's condition, computed of its counter, is no part of a device's partition; a flag that
    numbers of the body decide is.
    """
    text = """
        <ir_version: 9, opset_import: ["" : 17]>
        step (int64 i, bool c, float[2, 8] h) => (bool d, bool e, float[2, 8] next, int64 j)
        <int64 last = {9}, float[8, 8] w = {WEIGHTS}, float limit = {3.0}>
        {
          early = Less (i, last)
          d = And (early, c)
          m = MatMul (h, w)
          next = Tanh (m)
          s = ReduceSum <keepdims = 0> (next)
          e = Less (s, limit)
          j = Add (i, last)
        }"""
    model = parser.parse_model(text.replace("WEIGHTS", ", ".join(["0.5"] * 64)))
    graph = Graph(shape_inference.infer_shapes(model))
    for backend, body, left in (
        ("cuda", True, {"early", "d"}), ("cuda", False, set()), ("cpu", True, set()),
    ):  # fmt: skip
        writer = plan_writer.writer(backends.get(backend))
        found = partition_compiler.compile_graph(graph, writer, everything=True, body=body)
        taken = {o for nodes, _, _ in found.entries for n in nodes for o in n.outputs}
        said = {o: why for n, why in found.refused for o in n.outputs}
        assert {"next", "e", "j"} <= taken, (backend, body)
        assert {o for o, why in said.items() if why == host_flags.WHY} == left
        assert ("d" in taken) == (not left)


@pytest.mark.parametrize(
    ("text", "body", "taken"),
    [
        # it reads what a partition makes, and what the host makes
        (
            """g (float[4, 8] x, float[8, 8] w) => (float[k] y) {
            m = MatMul (x, w)  i = NonZero (m)  t = Transpose (i)  y = GatherND (m, t) }""",
            False,
            {"MatMul", "Transpose", "GatherND"},
        ),
        # nothing of it lies on the device
        ("g (float[4, 8] x) => (int64[k, 2] t) { i = NonZero (x)  t = Transpose (i) }", False, ()),
        # floats around a body lie on the device, numbers on the host
        ("g () => (float[4, 8] y) { y = Squeeze (outer) }", True, {"Squeeze"}),
        ("g () => (int64[8] y) { y = Squeeze (numbers) }", True, ()),
    ],
)
def test_light_nodes_run_on_a_device_where_their_values_lie(
    text: str, body: bool, taken: Collection[str]
) -> None:
    model = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]> {text}')
    for name, dtype, shape in (("outer", 1, [1, 4, 8]), ("numbers", 7, [1, 8])):
        model.graph.value_info.append(helper.make_tensor_value_info(name, dtype, shape))
    graph = Graph(shape_inference.infer_shapes(model))
    for backend in ("cpu", "cuda"):
        writer = plan_writer.writer(backends.get(backend))
        found = partition_compiler.compile_graph(graph, writer, body=body)
        kinds = {n.op for nodes, _, _ in found.entries for n in nodes}
        if backend == "cuda":
            assert kinds == set(taken)
        elif body:
            assert not kinds
