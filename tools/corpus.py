"""Every model of a folder, end to end: optimize, verify, run on stock ONNX Runtime (ORT) and on the
provider, at several batch sizes.

    python -m tools.corpus FOLDER [--backend cuda] [--jobs 2] [--timeout 900] [--output
    FILE.md]

Outputs are compared with ORT's with its optimisations off, relative to each output's largest value.
Where that exceeds both four times what ORT's own optimisations change and the rounding floor of the
precision, a float64 evaluation decides: the model is wrong when the root mean square error is more
than twice ORT's, or when it cannot be evaluated. Exit status 1 when anything is wrong, raises or
crashes, or when optimizing twice gives other bytes or the interface or metadata changed. A model
that ORT itself does not run is listed and counts as neither.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.isolate import Lost, run_each

BATCHES = (1, 2, 7)


@dataclass
class Line:
    """One model.

    `status`: ok, wrong, error, crash, or skipped (ORT does not run it); `batches`: sizes that ran
    in one session of each leg.
    """

    name: str
    status: str = "ok"
    reason: str = ""
    nodes: int = 0
    optimized: int = 0
    share: tuple[int, int] = (0, 0)
    optimized_share: tuple[int, int] = (0, 0)
    batches: list[int] = field(default_factory=list)
    worst: float = 0.0
    seconds: float = 0.0


def check(path: Path, backend: str = "cpu") -> Line:
    """All legs of one file; every exception ends as a line. backend: what the provider runs on."""
    line, began = Line(path.stem), time.perf_counter()
    try:
        with tempfile.TemporaryDirectory() as scratch:
            _check(path, line, Path(scratch), backend)
    except Exception as e:  # the table names every kind of failure
        where = traceback.extract_tb(e.__traceback__)[-1]
        text = " ".join(str(e).split())[:200]
        line.status, line.reason = (
            "error",
            f"{type(e).__name__}: {text} ({Path(where.filename).name}:{where.lineno})",
        )
    line.seconds = time.perf_counter() - began
    return line


def _check(path: Path, line: Line, scratch: Path, backend: str) -> None:
    import onnx

    import tracea_onnx
    from tests.support.difference import difference, floor
    from tests.support.model_inputs import feeds_at, first_accepted
    from tests.support.sessions import assigned, session
    from tracea_onnx.bench.batches import batch_symbol
    from tracea_onnx.errors import TraceaError
    from tracea_onnx.model_io import model_file

    try:
        oracle = session(path, optimize=False)
    except Exception as e:  # ORT refuses it: it must be refused in words here, too
        line.status, line.reason = "skipped", " ".join(str(e).split())[:200]
        with contextlib.suppress(TraceaError):
            tracea_onnx.optimize(path, verify=False)
        return
    source = model_file.load(path)
    line.nodes = len(source.model.graph.node)
    try:
        sizes = first_accepted(source.model, path.parent, lambda f: oracle.run(None, f))
    except Exception as e:  # no inputs could be made that ORT takes
        line.status, line.reason = "skipped", " ".join(str(e).split())[:200]
        return
    optimized = scratch / "optimized.onnx"
    tracea_onnx.optimize(path, output=optimized)
    line.optimized = len(onnx.load(optimized, load_external_data=False).graph.node)
    line.reason = promises(source, optimized, scratch)
    line.status = "wrong" if line.reason else "ok"
    legs: dict[str, Any] = {
        "provider": session(path, provider=True, backend=backend),
        "provider, optimized": session(optimized, provider=True, backend=backend),
    }
    if backend == "cpu":
        legs |= {
            "stock ORT": session(optimized),
            "provider, every node": session(path, provider=True, everything=True),
        }
    line.share, line.optimized_share = (
        assigned(legs["provider"]),
        assigned(legs["provider, optimized"]),
    )
    usual = session(path)
    symbol = batch_symbol(source.model)
    # the float64 evaluation is slow: differences like one that it found to be ORT's are not judged
    # again
    judged = 0.0
    for batch in BATCHES if symbol else (0,):
        feeds = feeds_at(
            source.model, path.parent, {**sizes, symbol: batch} if symbol else sizes, seed=batch
        )
        try:
            expected = oracle.run(None, feeds)
        except Exception:  # a model whose batch is symbolic in name only
            continue
        line.batches.append(batch)
        noise = difference(expected, usual.run(None, feeds))
        bound = max(floor(source.model), 4 * noise if math.isfinite(noise) else 0.0)
        for leg, made in legs.items():
            error = difference(expected, made.run(None, feeds))
            line.worst = max(line.worst, error)
            if error > max(bound, judged) and line.status == "ok":
                judged = 2 * error
                line.status, line.reason = judge(
                    source.model,
                    feeds,
                    usual,
                    made,
                    f"{leg}, batch {batch}: {error:.1e} from ORT where {bound:.1e} is rounding",
                )


def promises(source: Any, optimized: Path, scratch: Path) -> str:
    """What a second run, `inline` or the optimized file itself loses of what it must keep; "" when
    nothing.
    """
    import onnx

    import tracea_onnx
    from tracea_onnx.model_io import model_file
    from tracea_onnx.rewrite import inline

    tracea_onnx.optimize(optimized, output=scratch / "again.onnx", verify=False)
    if optimized.read_bytes() != (scratch / "again.onnx").read_bytes():
        return "optimizing twice changes the file"
    before, after = source.model, onnx.load(optimized)
    stored = {t.name for t in before.graph.initializer}
    if [i for i in before.graph.input if i.name not in stored] != list(after.graph.input) or list(
        before.graph.output
    ) != list(after.graph.output):
        return "the interface changed"
    if any(
        getattr(before, k) != getattr(after, k)
        for k in ("doc_string", "producer_name", "model_version", "domain")
    ):
        return "a field of the model changed"
    if (
        before.graph.doc_string != after.graph.doc_string
        or before.graph.name != after.graph.name
        or list(before.metadata_props) != list(after.metadata_props)
    ):
        return "metadata of the model changed"
    plain = inline.inline(model_file.load(optimized).model)
    return (
        f"{plain.functions[0].domain} functions stay after inline"
        if any(f.domain == "ai.tracea" for f in plain.functions)
        else ""
    )


def judge(model: Any, feeds: dict[str, Any], usual: Any, made: Any, what: str) -> tuple[str, str]:
    """(status, reason) by the errors of both sessions against float64, over all outputs."""
    from tests.support import double

    try:
        exact = double.run(model, feeds)
    except Exception as e:  # an operator the reference evaluator lacks: the difference stands
        return "wrong", f"{what}; no float64 evaluation: {' '.join(str(e).split())[:80]}"
    theirs, ours = (
        double.errors(exact, usual.run(None, feeds)),
        double.errors(exact, made.run(None, feeds)),
    )
    pairs = ", ".join(f"{b:.1e} (ORT {a:.1e})" for a, b in zip(theirs, ours, strict=True))
    exact_ints = all(
        np.array_equal(a, b)
        for a, b in zip(exact, made.run(None, feeds), strict=True)
        if np.asarray(b).dtype.kind in "iub"
    )
    fine = exact_ints and all(b <= 2 * a for a, b in zip(theirs, ours, strict=True))
    return ("ok" if fine else "wrong"), f"{what}; rmse against float64 {pairs}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Check every model of a folder on stock ONNX Runtime and on the provider."
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--match", default="", help="only files whose path contains this")
    parser.add_argument("--backend", default="cpu", choices=("cpu", "cuda"), help="of the provider")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds a model may take")
    parser.add_argument("--output", type=Path, help="write the table here, too")
    args = parser.parse_args()
    if not args.folder.is_dir():
        parser.error(f"{args.folder} is not a folder")
    files = [p for p in sorted(args.folder.rglob("*.onnx")) if args.match in str(p)]
    lines: list[Line] = []
    for path, found in run_each(
        files, partial(check, backend=args.backend), jobs=args.jobs, timeout=args.timeout
    ):
        line = Line(path.stem, "crash", found.reason) if isinstance(found, Lost) else found
        line.name = str(path.relative_to(args.folder).with_suffix(""))
        lines.append(line)
        if line.status not in ("ok", "skipped"):
            print(f"{line.name}: {line.status}: {line.reason}", file=sys.stderr, flush=True)
    lines.sort(key=lambda x: x.name)
    rows = [
        (
            "| model | nodes | optimized | provider ran | of the optimized | batches | worst "
            "relative error | result |"
        ),
        "|---|---|---|---|---|---|---|---|",
    ]
    for x in lines:
        sizes = ", ".join(map(str, x.batches)) if x.batches != [0] else "fixed"
        verdict = f"{x.status}: {x.reason}" if x.reason else x.status
        shares = " | ".join(f"{a} / {b}" for a, b in (x.share, x.optimized_share))
        rows.append(
            f"| {x.name} | {x.nodes} | {x.optimized} | {shares} | {sizes} | {x.worst:.1e} | "
            f"{verdict} |"
        )
    counts = {
        s: sum(x.status == s for x in lines) for s in ("ok", "wrong", "error", "crash", "skipped")
    }
    ran = [x.share[0] / x.share[1] for x in lines if x.share[1]]
    share = (
        f"; mean share of nodes on the provider {100 * sum(ran) / len(ran):.0f} %" if ran else ""
    )
    text = "\n".join(
        [
            *rows,
            "",
            f"{len(lines)} models: " + ", ".join(f"{n} {s}" for s, n in counts.items()) + share,
        ]
    )
    print(text)
    if args.output:
        args.output.write_text(text + "\n")
    return 1 if counts["wrong"] + counts["error"] + counts["crash"] else 0


if __name__ == "__main__":
    sys.exit(main())
