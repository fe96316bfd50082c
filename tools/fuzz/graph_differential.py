"""Random graphs (`tools.fuzz.graph_draws`) through `optimize` and the provider, against ONNX
Runtime with its optimisations off.

    python -m tools.fuzz.graph_differential [--count 500] [--seed 0] [--jobs N] [--keep FOLDER]
    python -m tools.fuzz.graph_differential --replay 123 ...   # with fewer nodes, where it is wrong

Legs: the optimized model on stock ONNX Runtime; the original, and the optimized model, on the
provider, which takes what pays or all that it can. Two of the four runs of the provider are drawn
for each graph. Bounds come from the data type and the sums of the graph, and from how far ONNX
Runtime's own results move when its inputs change by one rounding (`verify`). What is beyond them is
judged by a float64 evaluation: it is rounding where the result is as near to that as ONNX
Runtime's, or as an evaluation whose every value errs by one rounding (a Cos of a long sum is off by
the units in the last place of the sum). A tenth of the graphs is explained, too: each node that no
rule takes, and each that leaves the provider, has a reason. Graphs that ONNX Runtime does not take,
and those that `optimize` refuses in one sentence, count as nothing. Exit status 1
when one is wrong, fails, or is not explained.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # of each job

import numpy as np
import onnx
import onnx.inliner
from onnx import ModelProto, TensorProto, helper

from tests.support.isolate import Lost, run_each
from tools.fuzz.graph_draws import draw
from tracea_onnx.errors import VerificationError

#: Bytes of address space of a worker.
_MEMORY = 6 << 30
#: Of values of the order of one: Sigmoid below -18 (0 on ONNX Runtime), a norm of equal values (eps
#: makes 300 of an error of 1).
_NOISE = 2e-5
#: Elements that a reduction may add up.
_SUMMED = 1 << 13
LEGS = ("optimized", "provider", "provider all", "both", "both all")


@dataclass(frozen=True)
class Outcome:
    """status: right, rounding (right by float64), wrong, refused (by ONNX Runtime), error or
    unexplained; leg: where; ours, nodes: how many nodes the provider ran, and of how many; chains:
    fused ops of the optimized model.
    """

    status: str
    leg: str = ""
    text: str = ""
    ours: int = 0
    nodes: int = 0
    ops: tuple[str, ...] = ()
    chains: int = 0


def _session(model: ModelProto, leg: str) -> Any:
    from tests.support.sessions import session

    return (
        session(model)
        if leg == "optimized"
        else session(model, provider=True, everything=leg.endswith("all"))
    )


def _optimized(model: ModelProto) -> ModelProto:
    import tracea_onnx

    return tracea_onnx.optimize(model, verify=False).model


def _other(fed: dict[str, Any]) -> dict[str, Any]:
    return {k: np.roll(v, 3) if v.dtype.kind == "f" else v for k, v in fed.items()}


def wrong(reference: Any, made: Any, fed: dict[str, Any]) -> str:
    """What is wrong with the results of a session, or ""; runs others in between, so that nothing
    right is left in memory.
    """
    from tracea_onnx.verify import verification

    first = made.run(reference.names, fed)
    with np.errstate(all="ignore"):
        made.run(reference.names, _other(fed))
    again = made.run(reference.names, fed)
    for name, a, b in zip(reference.names, first, again, strict=True):
        if isinstance(a, np.ndarray) and not np.array_equal(a, b, equal_nan=a.dtype.kind == "f"):
            at = np.argwhere(a != b)
            return (
                f"'{name}' changes from run to run at {len(at)} of {a.size} places, from "
                f"{at[:2].tolist()} on: {a[a != b][:2]} became {b[a != b][:2]}"
            )
    found = verification.compared(reference, again)
    bad = [
        o
        for o in found
        if not o.ok and not _unsteady(reference.expected[reference.names.index(o.name)])
    ]
    if not bad:
        return ""
    text = "; ".join(f"'{o.name}' {o.max_rel:.1e} apart {o.note}" for o in bad)
    beyond = _beyond(reference, [reference.names.index(o.name) for o in bad], again, fed)
    return f"{text}; {beyond}" if beyond else _ROUNDING + text


#: What a text of `wrong` begins with that says of no more than rounding.
_ROUNDING = "rounding: "
#: How many times an error that rounding explains ours may be (as `verify` takes eight times what
#: the original moves by), and how many times what is between both ONNX Runtime's may be: the
#: evaluation is far from both beyond it.
_AS_NEAR, _FAR = 8.0, 2.0
#: Integers that numbers are quantised to, and the share of them that may be the next one.
_STEPS, _MOVED = (np.int8, np.uint8, np.int16, np.uint16), 0.05
#: How many samples say how far rounding moves a result.
_SAMPLES = 4


def _beyond(reference: Any, which: Sequence[int], got: Sequence[Any], fed: dict[str, Any]) -> str:
    """Why rounding does not explain these results, or "": each is near to a float64 evaluation, as
    ONNX Runtime's is.

    Near is what ONNX Runtime's own error is, or what the evaluation moves by when each of its
    values errs by a rounding of float32 (a Cos of 1e4 by the unit in the last place of 1e4), both
    as root mean squares and at the farthest element. An evaluation that is far from both results
    says nothing.
    """
    from tests.support import double

    model = _asked(reference, which)
    try:
        with np.errstate(all="ignore"):
            exact, *moved = (
                [np.asarray(v, np.float64) for v in double.run(model, fed, rng)]
                for rng in (None, *(np.random.default_rng(k) for k in range(_SAMPLES)))
            )
    except Exception as e:  # an operator that the evaluator lacks: the difference stands
        return f"no float64 evaluation: {type(e).__name__}: {' '.join(str(e).split())[:100]}"
    for at, k in enumerate(which):
        a, b, c = exact[at], np.asarray(reference.expected[k]), np.asarray(got[k])
        if not a.shape == b.shape == c.shape:
            return "float64 has no such values"
        if b.dtype in _STEPS:  # rounding before it moves a number to the next integer
            steps = np.abs(a - c)
            if steps.max(initial=0) > 1 or np.mean(steps > 0) > _MOVED:
                return "more than a step of what is quantised"
            continue
        # gates of ONNX Runtime's recurrent layers make numbers of a NaN
        finite = np.isfinite(a) & np.isfinite(b)
        if b.dtype != np.float32 or not np.array_equal(np.isfinite(a), np.isfinite(c)):
            return "float64 has no such values"
        moved_to = [m[at][finite] for m in moved if m[at].shape == a.shape]
        a, b, c = a[finite], b[finite], c[finite]
        for norm, of in (("rms", _rms), ("max", _max)):
            theirs, ours, between = of(b - a), of(c - a), of(b.astype(np.float64) - c)
            spread = max((of(m - a) for m in moved_to), default=0.0)
            said = f"{norm} error {ours:.1e}, ONNX Runtime's {theirs:.1e}, of rounding {spread:.1e}"
            if theirs > max(_FAR * between, _AS_NEAR * spread):
                return f"the float64 evaluation is far from both: {said}"
            if ours > _AS_NEAR * max(theirs, spread):
                return said
    return ""


def _rms(v: Any) -> float:
    return float(np.sqrt(np.mean(v * v))) if v.size else 0.0


def _max(v: Any) -> float:
    return float(np.abs(v).max(initial=0.0))


def _asked(reference: Any, which: Sequence[int]) -> ModelProto:
    """The model with these outputs alone, and the nodes that make them."""
    model = ModelProto()
    model.CopyFrom(reference.source.model)
    by_name = {o.name: o for o in model.graph.output}
    outputs = [
        by_name.get(n, onnx.ValueInfoProto(name=n)) for n in (reference.names[k] for k in which)
    ]
    del model.graph.output[:]
    model.graph.output.extend(outputs)
    needed = {o.name for o in outputs}
    for at in reversed(range(len(model.graph.node))):
        node = model.graph.node[at]
        if needed & set(node.output):
            needed |= _read(node)
        else:
            del model.graph.node[at]
    return onnx.inliner.inline_local_functions(model)  # the evaluator has our operators at the top


def _read(node: onnx.NodeProto) -> set[str]:
    """The names that a node reads, those of its bodies too."""
    bodies = [g for a in node.attribute for g in (a.g, *a.graphs)]
    return (
        set(node.input)
        | {name for g in bodies for inner in g.node for name in _read(inner)}
        | {o.name for g in bodies for o in g.output}
    )


def _unsteady(value: Any) -> bool:
    """Values that are no numbers, or so large that nothing can be said of them."""
    return (
        isinstance(value, np.ndarray)
        and value.dtype.kind == "f"
        and bool(not np.isfinite(value).all() or np.abs(value).max(initial=0) > 1e8)
    )


def _measured(model: ModelProto, fed: dict[str, Any]) -> Any:
    from tracea_onnx.model_io import model_file
    from tracea_onnx.verify import verification

    found = verification.measure(model_file.Source(model), values=fed)
    # The length of a sum over values that are no weights is known only here: up to so many
    # elements.
    found.bounds = replace(
        found.bounds,
        atol=_NOISE,
        reduction=max(found.bounds.reduction, _SUMMED * len(model.graph.node)),
    )
    return found


def _unexplained(model: ModelProto) -> str:
    from tracea_onnx.explain import explanation

    account = explanation.explain(model, backend="cpu", provider=True)
    silent = [
        e.anchor
        for e in account.anchors
        if not e.fused_by and not all(r.reason for r in e.refusals)
    ]
    if silent:
        return f"no rule says why not at {silent[0]}"
    left = account.coverage.to_json() if account.coverage is not None else {}
    bad = [n for n in left.get("leaving", []) if not n.get("reason")]
    return f"nothing says why {bad[0]} leaves the provider" if bad else ""


def _by_itself(model: ModelProto, reference: Any, fed: dict[str, Any]) -> tuple[str, str]:
    """How ONNX Runtime's own optimisations of the original end: their status, and what is wrong.
    They lose zero points, for one, and join quantising operators whose steps differ.
    """
    from tests.support.sessions import session

    try:
        fault = wrong(reference, session(model), fed)
    except Exception as e:
        return "error", f"{type(e).__name__}: {' '.join(str(e).split())[:200]}"
    return ("wrong" if fault and not fault.startswith(_ROUNDING) else "right"), fault


def alone(seed: int) -> str:
    """Ends where ONNX Runtime alone does not end the process at the graph: what it said, or ""."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    model, fed = draw(seed)
    try:
        _by_itself(model, _measured(model, fed), fed)
    except Exception as e:
        return str(e)
    return ""


def run(seed: int, legs: Sequence[str] = ()) -> Outcome:
    from tests.support.sessions import assigned

    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    random = Random(f"legs {seed}")
    model, fed = draw(seed)
    ops = tuple(sorted({n.op_type for n in model.graph.node}))
    try:
        reference = _measured(model, fed)
    except Exception as e:  # any refusal: nothing to compare with
        return Outcome("refused", "", " ".join(str(e).split())[:200], ops=ops)
    chosen = legs or ["optimized", *random.sample(LEGS[1:], 2)]
    ours = nodes = 0
    chains, rounding = 0, ""
    better: ModelProto | None = None
    for leg in chosen:
        try:
            if leg[0] in "ob" and better is None:
                better = _optimized(model)
                chains = sum(f.domain == "ai.tracea" for f in better.functions)
            made = _session(better if leg[0] in "ob" and better is not None else model, leg)
            if leg != "optimized":
                ours, nodes = assigned(made)
            fault = wrong(reference, made, fed)
        except VerificationError as e:  # in one sentence; nothing is written
            return Outcome("refused", leg, str(e), ops=ops)
        except Exception as e:  # the report names every kind of failure
            status, text = _by_itself(model, reference, fed)
            if status == "error":
                return Outcome("stock", leg, text, ops=ops)
            return Outcome(
                "error",
                leg,
                f"{type(e).__name__}: {' '.join(str(e).split())[:400]}",
                ours,
                nodes,
                ops,
                chains,
            )
        if fault and not fault.startswith(_ROUNDING):
            status, text = _by_itself(model, reference, fed)
            if status != "right":
                return Outcome("stock", leg, text, ops=ops)
            return Outcome("wrong", leg, fault, ours, nodes, ops, chains)
        rounding = rounding or (fault and f"{leg}: {fault}")
    if random.random() < 0.1:
        try:
            fault = _unexplained(model)
        except Exception as e:
            return Outcome(
                "error",
                "explain",
                f"{type(e).__name__}: {' '.join(str(e).split())[:400]}",
                ours,
                nodes,
                ops,
                chains,
            )
        if fault:
            return Outcome("unexplained", "explain", fault, ours, nodes, ops, chains)
    return Outcome("rounding" if rounding else "right", "", rounding, ours, nodes, ops, chains)


# --- smaller


def _fails(model: ModelProto, fed: dict[str, Any], leg: str, status: str) -> bool:
    try:
        reference = _measured(model, fed)
    except Exception:
        return False
    try:
        found = wrong(reference, _session(_optimized(model) if leg[0] in "ob" else model, leg), fed)
        fails = bool(found) and not found.startswith(_ROUNDING) and status == "wrong"
    except Exception:
        fails = status == "error"
    # a smaller graph that ONNX Runtime alone does not take either shows nothing
    return fails and _by_itself(model, reference, fed)[0] == "right"


def minimise(
    model: ModelProto, fed: dict[str, Any], leg: str, status: str
) -> tuple[ModelProto, dict[str, Any]]:
    """The graph without nodes that can go: what they made is fed instead, or not asked for."""
    from tests.support.sessions import session

    at = len(model.graph.node) - 1
    while at >= 0:
        for fewer in _without(model, fed, min(at, len(model.graph.node) - 1), session):
            if _fails(*fewer, leg, status):
                model, fed = fewer
                break
        at = min(at, len(model.graph.node)) - 1
    return model, fed


def _without(
    model: ModelProto, fed: dict[str, Any], at: int, session: Any
) -> list[tuple[ModelProto, dict[str, Any]]]:
    node = model.graph.node[at]
    kept = ModelProto()
    kept.CopyFrom(model)
    del kept.graph.node[at]
    read = {i for n in kept.graph.node for i in n.input} | {o.name for o in kept.graph.output}
    needed = [o for o in node.output if o and o in read]
    values: dict[str, Any] = {}
    inside = {i for n in kept.graph.node for i in n.input}
    outputs = [o for o in kept.graph.output if o.name not in node.output]
    del kept.graph.output[:]
    kept.graph.output.extend(outputs)
    made = {o for n in kept.graph.node for o in n.output}
    kept.graph.output.extend(
        onnx.ValueInfoProto(name=i)
        for i in dict.fromkeys(node.input)
        if i in made and i not in {o.name for o in outputs} and not needed
    )
    if needed and any(o in inside for o in needed):
        shown = ModelProto()
        shown.CopyFrom(model)
        shown.graph.output.extend(
            onnx.ValueInfoProto(name=o)
            for o in needed
            if o not in {v.name for v in model.graph.output}
        )
        try:
            values = dict(zip(needed, session(shown, optimize=False).run(needed, fed), strict=True))
        except Exception:
            return []
        for name, value in values.items():
            if name in inside:
                kept.graph.input.append(
                    helper.make_tensor_value_info(
                        name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape
                    )
                )
    if not kept.graph.output or not kept.graph.node:
        return []
    used = {i for n in kept.graph.node for i in n.input} | {
        i
        for n in kept.graph.node
        for a in n.attribute
        for g in (a.g,)
        for m in g.node
        for i in m.input
    }
    fields: tuple[Any, ...] = (kept.graph.input, kept.graph.initializer)
    for field in fields:
        left = [v for v in field if v.name in used]
        del field[:]
        field.extend(left)
    names = {i.name for i in kept.graph.input}
    return [(kept, {k: v for k, v in {**fed, **values}.items() if k in names})]


def text_of(model: ModelProto) -> str:
    """The graph, its large constants left out."""
    light = ModelProto()
    light.CopyFrom(model)
    for t in light.graph.initializer:
        if np.prod(t.dims, dtype=np.int64) > 16:
            t.CopyFrom(TensorProto(name=t.name, data_type=t.data_type, dims=t.dims))
    return str(onnx.printer.to_text(light))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0, help="of the first graph; the others follow")
    parser.add_argument(
        "--jobs",
        type=int,
        default=len(os.sched_getaffinity(0)),
        help="processes, each of one thread (default: one for each processor)",
    )
    parser.add_argument("--seconds", type=float, default=0, help="stop after so many (0: never)")
    parser.add_argument("--replay", nargs="*", type=int, default=[])
    parser.add_argument("--keep", type=Path, help="folder for smaller graphs that are wrong")
    args = parser.parse_args()
    began, count, legs, left, took = (
        time.monotonic(),
        Counter[str](),
        Counter[str](),
        Counter[str](),
        Counter[str](),
    )
    ours = nodes = chains = fused = 0
    seeds = args.replay or list(range(args.seed, args.seed + args.count))
    bad: list[tuple[int, Outcome]] = []
    for seed, result in run_each(seeds, run, jobs=args.jobs, timeout=120):
        o = Outcome("crash", "", result.reason) if isinstance(result, Lost) else result
        if isinstance(result, Lost):
            _, again = next(iter(run_each([seed], alone, timeout=120)))
            if isinstance(again, Lost):
                o = Outcome("stock", "", again.reason)
        count[o.status] += 1
        took.update(o.ops if o.status in ("right", "rounding") else ())
        ours, nodes, chains, fused = (
            ours + o.ours,
            nodes + o.nodes,
            chains + o.chains,
            fused + (o.chains > 0),
        )
        if o.status == "refused":
            left[o.text[:70]] += 1
        if o.status == "rounding":
            print(f"rounding {seed} {o.text}", flush=True)
        elif o.status == "stock":
            print(f"stock {seed} {o.leg}: {o.text}", flush=True)
        elif o.status not in ("right", "refused"):
            bad.append((seed, o))
            legs[o.leg] += 1
            print(
                f"{o.status} {seed} {o.leg}: {o.text} ({o.ours} of {o.nodes} nodes); "
                f"{' '.join(o.ops)[:200]}",
                flush=True,
            )
        if args.seconds and time.monotonic() - began > args.seconds:
            break
    for seed, o in bad if args.replay or args.keep else []:
        if o.status not in ("wrong", "error") or o.leg not in LEGS:
            continue
        _, small = next(
            iter(run_each([(seed, o)], lambda case: _small(*case, args.keep), timeout=300))
        )
        print(
            f"--- {seed} {o.leg}\n{small.reason if isinstance(small, Lost) else small}", flush=True
        )
    print(
        f"{len(took)} operators in right graphs; the provider ran {ours} of {nodes} nodes; "
        f"refused: {dict(left.most_common(5))}"
    )
    shown = ["right", "rounding", "refused", "stock", "wrong", "error", "unexplained", "crash"]
    counts = ", ".join(f"{count[status]} {status}" for status in shown)
    took_s = f"{time.monotonic() - began:.0f} s with {args.jobs} jobs, seeds from {seeds[0]}"
    by_leg = f"; by leg {dict(legs)}" if legs else ""
    print(
        f"graph_differential: {count.total()} graphs: {counts}; {chains} fused chains in {fused} "
        f"graphs; {took_s}{by_leg}"
    )
    return 1 if bad else 0


def _small(seed: int, o: Outcome, keep: Path | None) -> str:
    model, fed = draw(seed)
    model, fed = minimise(model, fed, o.leg, o.status)
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        (keep / f"{seed}.onnx").write_bytes(model.SerializeToString())
        np.savez(keep / f"{seed}.npz", **fed)
    return f"{len(model.graph.node)} nodes\n{text_of(model)[:3000]}"


if __name__ == "__main__":
    sys.exit(main())
