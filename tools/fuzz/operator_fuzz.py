"""Random models of one operator on the provider, against ONNX Runtime's CPU provider.

    python -m tools.fuzz.operator_fuzz [--count 500] [--seed 0] [--backend cuda] [--half]
    [--optimized] [--kinds conv pool ...] [--jobs 2] [--replay 123 ...]

Each case has a process of its own to die in. Results may differ by rounding
(`tests.support.difference`); with --half inputs and weights are fp16 on the provider, and the same
values in fp32 on ONNX Runtime. Cases that ONNX Runtime does not take count as nothing. Exit status
1 when one is wrong, crashes or hangs.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.support.cuda import older
from tests.support.difference import HALF, difference
from tests.support.isolate import Lost, run_each
from tools.fuzz import (
    operator_draws,
    operator_draws_chain,
    operator_draws_move,
    operator_draws_quantised,
)
from tracea_onnx.codegen import backend as backends

KINDS = {
    **operator_draws.KINDS,
    **operator_draws_move.KINDS,
    **operator_draws_chain.KINDS,
    **operator_draws_quantised.KINDS,
}
#: Of a result's largest value: sums of thousands of products, in any order.
_SINGLE = 2e-4
#: What rounding leaves where values of the order of one cancel, of fp32 and of fp16.
_NOISE = (5e-5, 4e-3)
_STEEP = ("Mod", "ReduceProd")


@dataclass(frozen=True)
class Outcome:
    """status: right, wrong, refused (by ONNX Runtime) or error; op: its last operator; ours, nodes:
    how many the provider ran, and of how many.
    """

    kind: str
    op: str
    status: str
    text: str = ""
    ours: int = 0
    nodes: int = 0


def draw(seed: int, kinds: list[str]) -> tuple[str, onnx.ModelProto, dict[str, Any]]:
    random = Random(seed)
    kind = random.choice(kinds)
    d = operator_draws.Draw(random, np.random.default_rng(seed))
    KINDS[kind](d)
    return kind, d.model(symbolic=random.random() < 0.4), d.fed


def narrow(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its fp32 inputs and weights in fp16, but for factors of sizes (Resize) and
    statistics, which stay as they are.
    """
    out = onnx.ModelProto()
    out.CopyFrom(model)
    kept = {i for n in out.graph.node for i in (n.input[2:3] if n.op_type == "Resize" else [])}
    for i in out.graph.input:
        if i.type.tensor_type.elem_type == TensorProto.FLOAT:
            i.type.tensor_type.elem_type = TensorProto.FLOAT16
    for k, t in enumerate(out.graph.initializer):
        if t.data_type == TensorProto.FLOAT and t.name not in kept:
            out.graph.initializer[k].CopyFrom(
                numpy_helper.from_array(numpy_helper.to_array(t).astype(np.float16), t.name)
            )
    return out


def rounded(value: Any) -> Any:
    return value.astype(np.float16).astype(np.float32) if value.dtype == np.float32 else value


def _negligible(want: Any, got: Any, narrow: bool) -> bool:
    """Whether what lies between them is the rounding of values of the order of one."""
    a, b = np.asarray(want), np.asarray(got)
    return bool(
        a.dtype == b.dtype == np.float32
        and a.shape == b.shape
        and np.isfinite(a).all()
        and np.abs(a - b).max(initial=0) < _NOISE[narrow]
    )


def _sizes(model: onnx.ModelProto, fed: Mapping[str, Any]) -> tuple[int | None, ...]:
    """Sizes of the first axis to run with, too (None: its own). Nothing is left to reduce, and no
    rows where ONNX Runtime differs from ONNX: it gives other shapes along axes counted from the
    end, 0 as the mean of nothing, and C without beta from a Gemm of no terms; TopK of 1.30 divides
    by the number of rows, GRU of no steps ends the process, LSTM's leaves results as they are.
    """
    if not any(d.dim_param for i in model.graph.input for d in i.type.tensor_type.shape.dim):
        return (None,)
    least = 0
    if any(n.op_type.startswith(("Reduce", "Arg")) for n in model.graph.node):
        least = max((len(v) for v in fed.values() if v.ndim), default=0)
    elif any(n.op_type in ("GRU", "Gemm", "LSTM", "RNN", "TopK") for n in model.graph.node):
        least = 1
    return (None, *(n for n in (0, 1, 2, 5, 17, 64) if n >= least))


def _other(given: dict[str, Any], sizes: Sequence[int | None], random: Random) -> dict[str, Any]:
    """Other values in the same types, of one of these sizes of the first axis (None: its own)."""
    size = random.choice(sizes)
    axes = {len(v) for v in given.values() if v.ndim}
    out = {}
    for k, v in given.items():
        # indices stay those that it drew: distinct ones
        turned = np.roll(v, 7) if np.issubdtype(v.dtype, np.floating) else v
        out[k] = (
            np.resize(turned, (size, *v.shape[1:]))
            if size is not None and len(axes) == 1 and v.ndim
            else turned
        )
    return out


def _apart(want: list[Any], got: list[Any], narrow: bool) -> float:
    got = [g.astype(np.float32) if g.dtype == np.float16 else g for g in got]
    return (
        0.0
        if all(_negligible(a, b, narrow) for a, b in zip(want, got, strict=True))
        else difference(want, got)
    )


def _compare(
    peer: Any,
    made: Any,
    fed: dict[str, Any],
    narrow: bool,
    sizes: Sequence[int | None],
    random: Random,
) -> float:
    """The largest difference, of these inputs and of others in between, which leave nothing right
    in memory; often enough for a graph to be replayed.
    """

    def run(values: dict[str, Any]) -> list[Any]:
        out: list[Any] = made.run(
            None,
            {
                k: v.astype(np.float16) if narrow and v.dtype == np.float32 else v
                for k, v in values.items()
            },
        )
        return out

    want, worst = peer.run(None, fed), 0.0
    for _ in range(2):
        worst = max(worst, _apart(want, run(fed), narrow))
        other = _other(fed, sizes, random)
        try:
            expected = peer.run(None, other)
        except Exception:  # sizes that the graph does not take
            continue
        worst = max(worst, _apart(expected, run(other), narrow))
    return max(worst, _apart(want, run(fed), narrow))


def run(seed: int, kinds: list[str], backend: str, half: bool, optimized: bool = False) -> Outcome:
    from tests.support.sessions import assigned, session

    kind, model, fed = draw(seed, kinds)
    op, ours, nodes = model.graph.node[-1].op_type, 0, 0
    if half and any(n.op_type in _STEEP for n in model.graph.node):
        return Outcome(kind, op, "refused", "what fp16 rounds on the way decides the result")
    try:
        if half:
            fed = {k: rounded(v) for k, v in fed.items()}
            for k, t in enumerate(model.graph.initializer):
                model.graph.initializer[k].CopyFrom(
                    numpy_helper.from_array(rounded(numpy_helper.to_array(t)), t.name)
                )
        peer = session(model)
        want = peer.run(None, fed)
        if sum(np.asarray(w).size for w in want) > 1 << 24:
            return Outcome(kind, op, "refused", "too large")
    except Exception as e:  # any refusal of the peer: nothing to compare with
        return Outcome(kind, op, "refused", str(e).splitlines()[0][:160])
    try:
        tried = narrow(model) if half else model
        if optimized:
            import tracea_onnx

            tried = tracea_onnx.optimize(tried, verify=False).model
        made = session(tried, provider=True, everything=True, backend=backend)
        ours, nodes = assigned(made)
        apart = _compare(peer, made, fed, half, _sizes(model, fed), Random(seed))
    except Exception as e:  # the report names every kind of failure
        text = " ".join(str(e).splitlines())[:300]
        # The fp16 form of some operators is not one that ONNX has, or that ONNX Runtime runs.
        unknown = half and any(
            reason in text
            for reason in ("NOT_IMPLEMENTED", "Type Error", "MLFloat16 data type is not supported")
        )
        return Outcome(
            kind, op, "refused" if unknown else "error", f"{type(e).__name__}: {text}", ours, nodes
        )
    bound = 2 * HALF if half else _SINGLE
    return Outcome(
        kind, op, "right" if apart <= bound else "wrong", f"{apart:.1e} apart", ours, nodes
    )


def describe(model: onnx.ModelProto, fed: Mapping[str, Any]) -> str:
    nodes = "; ".join(
        f"{n.op_type}("
        + ", ".join(f"{a.name}={helper.get_attribute_value(a)}" for a in n.attribute)
        + ")"
        for n in model.graph.node
    )
    stored = {
        t.name: list(t.dims)
        if len(t.dims) > 1 or t.dims[:1] > [8]
        else numpy_helper.to_array(t).tolist()
        for t in model.graph.initializer
    }
    symbolic = any(d.dim_param for i in model.graph.input for d in i.type.tensor_type.shape.dim)
    return (
        f"{nodes} fed { {k: (v.shape, str(v.dtype)) for k, v in fed.items()} } stored "
        f"{stored}{' symbolic' * symbolic}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0, help="of the first case; the others follow")
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--backend", default="cpu", choices=backends.names())
    parser.add_argument("--half", action="store_true")
    parser.add_argument(
        "--optimized", action="store_true", help="the model goes through `optimize` before"
    )
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0, help="stop after so many (0: never)")
    parser.add_argument(
        "--replay", nargs="*", type=int, default=[], help="these cases alone, with their models"
    )
    parser.add_argument("--arch", type=int, help="kernels for an older CUDA device (80, 89)")
    args = parser.parse_args()
    if args.arch:
        older.pretend(args.arch)
    began, count, left = time.monotonic(), Counter[str](), Counter[str]()
    seeds = args.replay or list(range(args.seed, args.seed + args.count))
    for seed, result in run_each(
        seeds,
        lambda s: run(s, args.kinds, args.backend, args.half, args.optimized),
        jobs=args.jobs,
        timeout=60,
    ):
        o = Outcome("", "", "crash", result.reason) if isinstance(result, Lost) else result
        count[o.status] += 1
        if o.status in ("right", "wrong") and o.ours < o.nodes:
            left[o.op] += 1
        if args.replay or o.status not in ("right", "refused"):
            kind, model, fed = draw(seed, args.kinds)
            print(
                f"{o.status} {seed} {kind} {o.text} ({o.ours} of {o.nodes} nodes): "
                f"{describe(model, fed)[:900]}",
                flush=True,
            )
        if args.seconds and time.monotonic() - began > args.seconds:
            break
    counts = ", ".join(f"{n} {status}" for status, n in count.most_common())
    print(
        f"{counts} in {time.monotonic() - began:.0f} s; not all on the provider: "
        f"{dict(left.most_common(12))}"
    )
    return 1 if count["wrong"] + count["error"] + count["crash"] else 0


if __name__ == "__main__":
    sys.exit(main())
