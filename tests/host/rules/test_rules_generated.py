"""Per rule a hundred random graphs that it fuses, and more than a hundred near misses of them:
nothing fused means anything but what its nodes compute.

TRACEA_GENERATED=2000 in the environment makes a long search of it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tests.exports.matrix import wrong
from tests.host.rules.near_miss import BASES
from tests.host.rules.near_miss_mutations import MUTATIONS, mutate
from tests.host.rules.rules_oracle import plain_session, run_all
from tracea_onnx.canonicalize import canonical_form
from tracea_onnx.ir.contracts import DOMAIN, Match
from tracea_onnx.ir.graph import Graph
from tracea_onnx.ir.saving import Saving
from tracea_onnx.match import find as matching
from tracea_onnx.match import rule_set
from tracea_onnx.rewrite import fused_calls
from tracea_onnx.support import discovery

COUNT = int(os.environ.get("TRACEA_GENERATED", "100"))
SIZES = {"batch": 2}
#: Nodes that are no part of the chain: what feeds it, names its result, or was put beside it.
BESIDE = {"n_fed", "n_res", "n_named", "n_extra", "n_branch"}
#: Every rule that has inner values must have left chains alone for these reasons.
ALWAYS = ("exposed", "second_reader", "captured")


class Invalid(Exception):
    """ONNX Runtime does not take the graph."""


class Undecided(Exception):
    """Rounding moves a graph's results so much that comparing them says nothing."""


def feeds(m: ModelProto, seed: int) -> dict[str, Any]:
    """Random inputs; an initializer that is an input is overridden, and a boolean mask mostly shows
    the first key of each row.
    """
    rng, stored = (
        np.random.default_rng(seed),
        {t.name: numpy_helper.to_array(t) for t in m.graph.initializer},
    )
    out: dict[str, Any] = {}
    for i in m.graph.input:
        t = i.type.tensor_type
        shape = [
            d.dim_value if d.HasField("dim_value") else SIZES[d.dim_param] for d in t.shape.dim
        ]
        dtype = helper.tensor_dtype_to_np_dtype(t.elem_type)
        if i.name in stored:
            out[i.name] = (
                stored[i.name] * np.asarray(0.9, dtype) + np.asarray(0.5, dtype)
                if dtype.kind == "f"
                else stored[i.name]
            )
        elif t.elem_type == TensorProto.BOOL:
            out[i.name] = np.asarray(rng.random(shape) < 0.6)
            if shape and seed % 3:
                out[i.name][..., 0] = True
        elif dtype.kind == "f":
            out[i.name] = np.asarray(rng.standard_normal(shape) * 3, dtype)
        else:
            out[i.name] = rng.integers(0, 4, shape).astype(dtype)
    return out


def moderate(values: Mapping[str, Any], names: Iterable[str]) -> bool:
    """Whether all numbers are below a million (and finite)."""
    return all(
        (np.abs(values[n].astype(np.float64)) < 1e6).all()
        for n in names
        if n and values[n].dtype.kind == "f"
    )


def overflows(m: ModelProto, values: Mapping[str, Any]) -> bool:
    """Whether float64 need not agree: a node makes huge numbers, infinities or NaN of moderate
    ones, divides by what a cancellation may have left, compares what is nearly equal, or adds to
    something so large that it swallows the rest (masks do on purpose, below zero).
    """
    if any(
        v.dtype.kind == "f" and (v.astype(np.float64) > 1e6).any()
        for v in map(np.asarray, values.values())
    ):
        return True
    for n in m.graph.node:
        if n.op_type in ("Div", "Reciprocal") and (np.abs(values[n.input[-1]]) < 1e-3).any():
            return True
        if (
            n.op_type in ("Greater", "LessOrEqual", "Equal")
            and (np.abs(values[n.input[0]] - values[n.input[1]]) < 1e-4).any()
        ):
            return True
    return any(
        moderate(values, n.input) and not moderate(values, n.output)
        for n in m.graph.node
        if n.op_type != "If"
    )


def share(got: Any, want: Any) -> float:
    """The largest difference, in parts of the largest value."""
    if want.dtype.kind != "f" or not want.size:
        return float(not np.array_equal(got, want))
    with np.errstate(invalid="ignore"):
        gap = np.where(got == want, 0.0, np.abs(got.astype(np.float64) - want))
    finite = np.abs(want[np.isfinite(want)]).max(initial=0.0)
    return (
        float(np.nanmax(gap, initial=0.0) / (finite + 1e-6))
        if np.array_equal(np.isnan(got), np.isnan(want))
        else float("inf")
    )


def blur(
    m: ModelProto, given: Mapping[str, Any], values: Mapping[str, Any], names: Iterable[str]
) -> float:
    """How far values move when the inputs move by some units of the last place: rounding on the way
    does as much.
    """
    rng = np.random.default_rng(0)
    moved = {
        k: np.asarray(v * (1 + 1e-6 * rng.standard_normal(v.shape)), v.dtype)
        if v.dtype.kind == "f"
        else v
        for k, v in given.items()
    }
    other = run_all(m, moved)
    return max(share(other[o], values[o]) for o in names)


def judged(
    m: ModelProto, work: ModelProto, found: Sequence[Match], seed: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Inputs and the values of `work`, a form of `m`, on which both agree and every match was held
    against its nodes, to a few roundings.
    """
    for attempt in range(4):
        given = feeds(m, seed + 10**6 * attempt)
        try:
            first = run_all(m, given)
        except Exception as e:
            raise Invalid from e
        outputs = [o.name for o in m.graph.output]
        if overflows(m, first) or any(
            first[o].dtype.kind == "f" and first[o].size and np.abs(first[o]).max() < 1e-3
            for o in outputs
        ):
            continue
        values = first if work is m else run_all(work, given)
        faults = [(x, fault) for x in found if (fault := wrong(x, values, tolerance=2e-5))]
        drift = max(share(values[o], first[o]) for o in outputs)
        if faults or drift > 2e-5:
            # jumps where it rounds the other way
            rounds = any(
                n.op_type == "Cast" and n.attribute[0].i == TensorProto.FLOAT16
                for n in work.graph.node
            )
            spread = (
                0.0
                if rounds
                else blur(
                    work, given, values, [*outputs, *(o for x, _ in faults for o in x.outputs)]
                )
            )
            if spread > 1e-3:
                continue
            assert drift < max(1e-4, 20 * spread), "the canonical form computes something else"
            for x, _ in faults:
                fault = wrong(x, values, tolerance=max(1e-4, 20 * spread))
                assert not fault, f"{x.rule}: {fault}"
        return given, values
    raise Undecided


def fused(m: ModelProto, graph: Graph, found: Sequence[Match]) -> ModelProto:
    """The model of `graph`, rewritten in place with as many matches as fit together, the longest
    first.
    """
    ops = {r.name: r.op for r in rule_set.rules()}
    chosen, _ = discovery.module("scheduler", "priority").schedule(
        graph, [(x, Saving(float(len(x.nodes))), 0) for x in found]
    )
    fused_calls.apply(m, graph, [(x, ops[x.rule]) for x, _ in chosen])
    return m


def takes(rule: str, m: ModelProto, seed: int) -> bool:
    """Whether the rule takes the whole chain.

    Every match of any rule is checked on the way, and that the graph, rewritten, still computes
    every output under its name. Every other graph is canonical first, as `optimize` has it.
    """
    work, made = m, ModelProto()
    if seed % 2:
        work = ModelProto()
        work.CopyFrom(m)
        canonical_form.canonicalise(work, keep_initializer_inputs=True)
    made.CopyFrom(work)
    graph = Graph(made)
    found, _ = matching.find(graph)
    given, values = judged(m, work, found, seed)
    chain = {n.name for n in work.graph.node} - BESIDE
    whole = any(x.rule == rule and chain <= {n.name for n in x.nodes} for x in found)
    if found:
        names = [o.name for o in m.graph.output]
        results = plain_session(fused(made, graph, found)).run(None, given)
        assert [o.name for o in made.graph.output] == names and any(
            n.domain == DOMAIN for n in made.graph.node
        )
        for name, got in zip(names, results, strict=True):
            assert np.array_equal(got, values[name], equal_nan=True), f"'{name}' is not what it was"
    return whole


@pytest.mark.sampled(4)
@pytest.mark.parametrize("rule", BASES)
def test_random_graphs_fuse(rule: str) -> None:
    count = 0
    for seed in range(2 * COUNT):
        m = BASES[rule](Random(f"{rule} {seed}"))
        try:
            assert takes(rule, m, seed), f"seed {seed}: {[n.op_type for n in m.graph.node]}"
        except Undecided:
            continue
        count += 1
        if count == COUNT:
            return
    raise AssertionError(f"only {count} graphs say anything")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("rule", BASES)
def test_near_misses_are_left_alone_or_understood(rule: str) -> None:
    """Mutations in turn; one after which the rule still takes the whole chain was understood, and
    does not count.
    """
    left = Counter[str]()
    for seed in range(40 * COUNT):
        r, mutation = Random(f"{rule} {seed} miss"), MUTATIONS[seed // 2 % len(MUTATIONS)]
        m = mutate(r, BASES[rule](r), mutation)
        try:
            if m is not None and not takes(rule, m, seed):
                left[mutation.__name__] += 1
        except (Invalid, Undecided):
            continue
        if left.total() >= COUNT and all(left[name] for name in ALWAYS):
            return
    raise AssertionError(f"only {dict(left)} near misses of {rule}")


def test_every_rule_has_a_generator() -> None:
    assert set(BASES) == {r.name for r in rule_set.rules()}
