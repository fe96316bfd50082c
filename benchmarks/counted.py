"""How fast operators are whose results have as many elements as contents say, beside ONNX Runtime.

    python -m benchmarks.counted [--threads 1] [--json FILE]

Both are sessions of one node, which allocate their results. Results are compared first: all are
equal. With one thread the calling thread's time counts, else the wall clock. A ratio is ONNX
Runtime's time over ours.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from benchmarks import harness
from tests.support.sessions import session

Arrays = dict[str, Any]
RNG = np.random.default_rng(0)


def _boxes(classes: int, boxes: int, keep: int, least: float) -> tuple[str, Arrays, Arrays]:
    first, size = RNG.random((1, boxes, 2)) * 600, RNG.random((1, boxes, 2)) * 80
    given = {
        "b": np.concatenate((first, first + size), -1).astype(np.float32),
        "p": RNG.random((1, classes, boxes)).astype(np.float32) ** 3,
    }
    kept = {
        "m": np.array([keep]), "o": np.array([0.5], np.float32), "s": np.array([least], np.float32),
    }  # fmt: skip
    return "NonMaxSuppression", given, kept


def _mask(*shape: int, share: float) -> Any:
    return RNG.random(shape) < share


def cases() -> Iterator[tuple[str, str, Arrays, Arrays]]:
    """Names, operators, inputs, constants."""
    for classes, boxes, keep, least in (
        (1, 2000, 300, 0.25), (80, 8400, 100, 0.25), (80, 8400, 100, 0.9), (90, 1917, 100, 0.25),
    ):  # fmt: skip
        name = f"{classes} x {boxes} scores above {least}, {keep} kept"
        yield name, *_boxes(classes, boxes, keep, least)
    for shape, share in (((2, 128), 0.8), ((640, 640), 0.01), ((640, 640), 0.5)):
        text = "x".join(map(str, shape))
        yield f"{text}, {share:.0%} true", "NonZero", {"x": _mask(*shape, share=share)}, {}
    scores = RNG.random((8400, 80)) * _mask(8400, 80, share=0.05)
    yield "8400x80 floats, 5% not zero", "NonZero", {"x": scores.astype(np.float32)}, {}
    rows = RNG.random((8400, 85)).astype(np.float32)
    yield "5% of 8400 rows of 85", "Compress", {"x": rows, "c": _mask(8400, share=0.05)}, {}
    line = RNG.random(100_000).astype(np.float32)
    yield "half of 100,000 elements", "Compress", {"x": line, "c": _mask(100_000, share=0.5)}, {}
    for count, different in ((1000, 100), (100_000, 1000)):
        x = RNG.integers(0, different, count)
        yield f"{count} integers, {different} different", "Unique", {"x": x}, {}
    yield "100,000 different floats", "Unique", {"x": line}, {}


def _model(op: str, given: Arrays, kept: Arrays) -> onnx.ModelProto:
    how: Arrays = {"axis": 0} if op == "Compress" and given["x"].ndim > 1 else {}
    outputs = ["y", "first", "which", "times"] if op == "Unique" else ["y"]
    inputs = [
        helper.make_tensor_value_info(
            n, helper.np_dtype_to_tensor_dtype(v.dtype), [f"{n}{a}" for a in range(v.ndim)]
        )
        for n, v in given.items()
    ]
    graph = helper.make_graph(
        [helper.make_node(op, [*given, *kept], outputs, **how)],
        "g",
        inputs,
        [onnx.ValueInfoProto(name=o) for o in outputs],
        [numpy_helper.from_array(v, n) for n, v in kept.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def main() -> int:
    parser = harness.parser(__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    report = harness.Report("counted", args, device=False)
    for name, op, given, kept in cases():
        model = _model(op, given, kept)
        sides = {
            "ours": session(model, provider=True, everything=True, threads=args.threads),
            "onnxruntime": session(model, threads=args.threads),
        }
        mine, want = (s.run(None, given) for s in sides.values())
        if not all(map(np.array_equal, mine, want)):
            report.fail(f"{op}: {name}", "the results differ")
            continue
        samplers = {
            side: harness.run_sampler(
                lambda s=s, given=given: s.run(None, given),  # type: ignore[misc]
                least=0.01,
                alone=args.threads == 1,
            )
            for side, s in sides.items()
        }
        times = harness.interleaved(samplers, rounds=args.rounds)
        report.row(f"{op}: {name}", times, times=times)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
