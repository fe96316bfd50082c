"""Per rule a hundred random graphs that it fuses, and more than a hundred near misses of them: nothing fused means anything but what its nodes compute."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tests.exports.matrix import wrong
from tests.host.near_miss import BASES
from tests.host.near_miss_mutations import mutate
from tests.host.rules_oracle import run_all
from tracea_onnx import match as matching
from tracea_onnx import registry, rewrite
from tracea_onnx.core import Match
from tracea_onnx.graph import Graph

COUNT = 100
SIZES = {"batch": 2}


class Undecided(Exception):
    """Rounding moves a graph's results so much that comparing them says nothing."""


def feeds(m: ModelProto, seed: int) -> dict[str, Any]:
    """Random inputs; an initializer that is an input is overridden, and a boolean mask shows the first key of each row."""
    rng, stored = np.random.default_rng(seed), {t.name: numpy_helper.to_array(t) for t in m.graph.initializer}
    out: dict[str, Any] = {}
    for i in m.graph.input:
        t = i.type.tensor_type
        shape = [d.dim_value if d.HasField("dim_value") else SIZES[d.dim_param] for d in t.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(t.elem_type)
        if i.name in stored:
            out[i.name] = stored[i.name] * np.asarray(2, dtype) if dtype.kind == "f" else stored[i.name]
        elif t.elem_type == TensorProto.BOOL:
            out[i.name] = rng.random(shape) < 0.6
            if shape:
                out[i.name][..., 0] = True
        else:
            out[i.name] = (rng.standard_normal(shape) * 3).astype(dtype)
    return out


def run(m: ModelProto, given: Mapping[str, Any]) -> list[Any]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    results: list[Any] = ort.InferenceSession(m.SerializeToString(), options, providers=["CPUExecutionProvider"]).run(None, dict(given))
    return results


def whole(m: ModelProto, match: Match) -> bool:
    """Whether the match covers the graph but for what only feeds it (a Concat, a pool, the Identity that names the result)."""
    return len(match.nodes) >= max(1, len(m.graph.node) - 2)


def moderate(values: Mapping[str, Any], names: Iterable[str]) -> bool:
    """Whether all numbers are below a million (and finite)."""
    return all((np.abs(values[n].astype(np.float64)) < 1e6).all() for n in names if n and values[n].dtype.kind == "f")


def overflows(m: ModelProto, values: Mapping[str, Any]) -> bool:
    """Whether a node makes huge numbers, infinities or NaN of moderate ones, as a division by what a cancellation left does: float64 need not agree."""
    return any(moderate(values, n.input) and not moderate(values, n.output) for n in m.graph.node if n.op_type != "If")


def blur(m: ModelProto, given: Mapping[str, Any], values: Mapping[str, Any], x: Match) -> float:
    """How far the results of `x` move, in parts of the largest, when the inputs move by some units of the last place: rounding does as much."""
    rng = np.random.default_rng(0)
    moved = {k: v * (1 + 1e-6 * rng.standard_normal(v.shape)).astype(v.dtype) if v.dtype.kind == "f" else v for k, v in given.items()}
    other = run_all(m, moved)
    return max(float(np.nanmax(np.abs(other[o] - values[o]), initial=0.0) / (np.nanmax(np.abs(values[o]), initial=0.0) + 1e-6)) for o in x.outputs)


def judged(m: ModelProto, found: Sequence[Match], seed: int) -> dict[str, Any]:
    """The inputs on which every match was held against its nodes, to a few roundings; inputs that decide nothing are passed over."""
    for attempt in range(4):
        given = feeds(m, seed + 10**6 * attempt)
        values = run_all(m, given)
        if overflows(m, values):
            continue
        faults = [(x, fault) for x in found if (fault := wrong(x, values, tolerance=2e-5))]
        spread = [blur(m, given, values, x) for x, _ in faults]
        if max(spread, default=0.0) > 1e-3:
            continue
        for (x, _), moved in zip(faults, spread, strict=True):
            fault = wrong(x, values, tolerance=max(2e-5, 20 * moved))
            assert not fault, f"{x.rule}: {fault}"
        return given
    raise Undecided


def checked(m: ModelProto, seed: int) -> list[Match]:
    """Every match in the graph, each held against what ONNX Runtime computes, alone and rewritten."""
    graph = Graph(m)
    found, _ = matching.find(graph)
    if not found:
        return found
    given = judged(m, found, seed)
    rules = {r.name: r for r in registry.rules()}
    chosen, used = [], set[int]()
    for x in sorted(found, key=lambda x: -len(x.nodes)):
        if used.isdisjoint(id(n) for n in x.nodes):
            chosen.append((x, rules[x.rule].op))
            used |= {id(n) for n in x.nodes}
            break
    rewritten = ModelProto()
    rewritten.CopyFrom(m)
    graph = Graph(rewritten)
    again = next(x for x in matching.find(graph)[0] if x.rule == chosen[0][0].rule and x.anchor.index == chosen[0][0].anchor.index)
    rewrite.apply(rewritten, graph, [(again, chosen[0][1])])
    for a, b in zip(run(m, given), run(rewritten, given), strict=True):
        assert np.array_equal(a, b, equal_nan=True), chosen[0][0].rule
    return found


@pytest.mark.parametrize("rule", BASES)
def test_random_graphs_fuse(rule: str) -> None:
    undecided = 0
    for seed in range(COUNT + 10):
        m = BASES[rule](Random(f"{rule} {seed}"))
        try:
            found = checked(m, seed)
        except Undecided:
            undecided += 1
            continue
        assert any(x.rule == rule and whole(m, x) for x in found), f"seed {seed}: {[n.op_type for n in m.graph.node]}"
    assert undecided <= 10


@pytest.mark.parametrize("rule", BASES)
def test_near_misses_are_left_alone_or_understood(rule: str) -> None:
    refused = 0
    for seed in range(40 * COUNT):
        if refused == COUNT:
            return
        r = Random(f"{rule} {seed} miss")
        m = mutate(r, BASES[rule](r))
        if m is None:
            continue
        try:
            run(m, feeds(m, seed))
        except Exception:
            continue  # not a graph ONNX Runtime takes
        try:
            found = checked(m, seed)
        except Undecided:
            continue
        refused += not any(x.rule == rule and whole(m, x) for x in found)
    raise AssertionError(f"only {refused} near misses of {rule}")
