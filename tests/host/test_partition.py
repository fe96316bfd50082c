"""Groups of a random graph: contracting all of them at once leaves no cycle, and nothing that could join its producer stays alone."""

from __future__ import annotations

from random import Random

import networkx as nx
import pytest
from onnx import helper

from tests.host.rules_oracle import node
from tracea_onnx import partition
from tracea_onnx.graph import Graph
from tracea_onnx.lower.op import of_node


def random_graph(r: Random) -> Graph:
    names, nodes = ["x"], []
    for k in range(r.randrange(1, 40)):
        nodes.append(node("Sum", " ".join(r.choice(names[-12:]) for _ in range(r.choice((1, 1, 2, 3)))), f"v{k}"))
        names.append(f"v{k}")
    value = helper.make_tensor_value_info("x", 1, [2])
    outputs = [helper.make_tensor_value_info(names[-1], 1, [2])]
    return Graph(helper.make_model(helper.make_graph(nodes, "g", [value], outputs)))


@pytest.mark.parametrize("seed", range(200))
def test_contracted_groups_have_no_cycle(seed: int) -> None:
    r = Random(seed)
    graph = random_graph(r)
    ops = partition.topological([of_node(n, graph, False) for n in graph.nodes], graph)
    supported = [r.random() < 0.7 for _ in ops]
    groups = partition.groups(ops, supported, graph)
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
    ops = partition.topological([of_node(n, graph, False) for n in graph.nodes], graph)
    assert len(partition.groups(ops, [True] * len(ops), graph)) == 1
