"""Whole models on the CPU: the provider against ONNX Runtime (ORT) alone, and the optimized file on
stock ORT against the original.

    python -m benchmarks.cpu_models [NAME|FILE.onnx ...] [--corpus FOLDER] [--threads 1,2]
    [--seconds 4] [--clock wall|cpu] [--output FILE.md]

Without names, the whole zoo. Every ratio is a time against ORT's (below 1: faster), the median over
interleaved pairs with its 95 % interval."""

from __future__ import annotations

import argparse
import datetime
import gc
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx

from benchmarks.harness import Paired, compare
from tests.support.difference import difference
from tests.support.model_inputs import Feeds, batch_symbol, feeds_at, first_accepted
from tests.support.sessions import assigned, machine, session
from tracea_onnx.support import discovery

#: Sizes of the zoo's symbols.
ZOO_SIZES = {"batch": 1, "sequence": 128}
LEGS = ("provider", "stock")


@dataclass
class Row:
    """One model: `ratios` by (leg, threads); `worst` is the largest difference from ORT relative to
    the output's largest value.
    """

    name: str
    nodes: int = 0
    optimized: int = 0
    ours: int = 0
    assigned: int = 0
    ratios: dict[tuple[str, int], Paired] = field(default_factory=dict)
    worst: float = 0.0
    problem: str = ""


def caller(made: Any, feeds: Sequence[Feeds]) -> Callable[[int], object]:
    return lambda k: made.run(None, feeds[k % len(feeds)])


def measure(
    name: str,
    source: Path,
    model: onnx.ModelProto,
    sizes: dict[str, int] | None,
    *,
    threads: Sequence[int],
    legs: Sequence[str],
    seconds: float,
    clock: str,
    batch: int,
) -> Row:
    """All legs of one model.

    `sizes` None: the first sizes the model accepts, at the batch asked for.
    """
    import tracea_onnx

    row = Row(name, nodes=len(model.graph.node))
    folder = source.parent
    if sizes is None:
        probe = session(source)
        sizes = first_accepted(model, folder, lambda f: probe.run(None, f))
        del probe
    if (symbol := batch_symbol(model)) is not None:
        sizes = {**sizes, symbol: batch}
    feeds = [feeds_at(model, folder, sizes, seed) for seed in range(4)]
    with tempfile.TemporaryDirectory() as scratch:
        optimized = Path(scratch) / "optimized.onnx"
        if "stock" in legs:
            tracea_onnx.optimize(source, output=optimized, verify=False)
            row.optimized = len(onnx.load(optimized, load_external_data=False).graph.node)
        for count in threads:
            plain = session(source, threads=count)
            for leg in legs:
                ours = (
                    session(source, provider=True, threads=count)
                    if leg == "provider"
                    else session(optimized, threads=count)
                )
                if leg == "provider":
                    row.ours, row.assigned = assigned(ours)
                row.worst = max(
                    [
                        row.worst,
                        *(difference(plain.run(None, f), ours.run(None, f)) for f in feeds[:2]),
                    ]
                )
                row.ratios[leg, count] = compare(
                    caller(ours, feeds),
                    caller(plain, feeds),
                    seconds=seconds,
                    clock=clock if count == 1 else "wall",
                )
                del ours
                gc.collect()
    return row


def table(rows: Sequence[Row], threads: Sequence[int], legs: Sequence[str]) -> str:
    """Markdown, one line a model."""
    heads = ["model", "nodes", "optimized", "provider ran"]
    for count in threads:
        suffix = f"{count} thread{'s' if count > 1 else ''}"
        heads += [f"ORT ms, {suffix}", *(f"{leg} / ORT, {suffix}" for leg in legs)]
    heads.append("largest relative difference")
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for row in rows:
        if row.problem:
            lines.append(f"| {row.name} | {row.problem} |" + " |" * (len(heads) - 2))
            continue
        cells = [
            row.name,
            str(row.nodes),
            str(row.optimized or "-"),
            f"{row.ours} / {row.assigned}" if row.assigned else "-",
        ]
        for count in threads:
            cells += [
                f"{row.ratios[legs[0], count].theirs:.2f}",
                *(str(row.ratios[leg, count]) for leg in legs),
            ]
        lines.append("| " + " | ".join([*cells, f"{row.worst:.1e}"]) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Paired timing of whole models: the provider and the optimized file against ONNX Runtime."
    )
    parser.add_argument(
        "models", nargs="*", help="names of the zoo or .onnx files (default: the zoo)"
    )
    parser.add_argument("--corpus", type=Path, help="every .onnx file under this folder, too")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument(
        "--legs",
        default=",".join(LEGS),
        help="provider: the original on the provider; stock: the optimized file on stock ORT",
    )
    parser.add_argument(
        "--seconds", type=float, default=4.0, help="per model, leg and thread count"
    )
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument(
        "--clock",
        choices=("wall", "cpu"),
        default="wall",
        help="cpu: the calling thread's time, for one thread on a busy machine",
    )
    parser.add_argument("--output", type=Path, help="write the table here, too")
    args = parser.parse_args()
    threads, legs = [int(n) for n in args.threads.split(",")], args.legs.split(",")
    if unknown := set(legs) - set(LEGS):
        parser.error(f"unknown legs {sorted(unknown)}; there are {', '.join(LEGS)}")
    chosen: list[str] = args.models or (
        [] if args.corpus else [n for n in discovery.names("models") if n != "demo"]
    )
    if args.corpus:
        chosen += [str(p) for p in sorted(args.corpus.rglob("*.onnx"))]
    rows: list[Row] = []
    for name in chosen:
        with tempfile.TemporaryDirectory() as scratch:
            zoo = name in discovery.names("models")
            try:
                source = Path(scratch) / f"{name}.onnx" if zoo else Path(name)
                if zoo:
                    onnx.save(discovery.module("models", name).build(), source)
                model = onnx.load(source, load_external_data=False)
                sizes = dict(ZOO_SIZES) if zoo else None
                row = measure(
                    source.stem,
                    source,
                    model,
                    sizes,
                    threads=threads,
                    legs=legs,
                    seconds=args.seconds,
                    clock=args.clock,
                    batch=args.batch,
                )
            except Exception as e:  # one model that does not run must not hide the others
                row = Row(
                    Path(name).stem,
                    problem=f"{type(e).__name__}: {(str(e).strip() or '?').splitlines()[0][:160]}",
                )
            rows.append(row)
            print(table([row], threads, legs).splitlines()[-1], file=sys.stderr, flush=True)
    text = f"{datetime.date.today().isoformat()}; {machine()}; batch {args.batch}; clock {args.clock}\n\n{table(rows, threads, legs)}\n"
    print(text)
    if args.output:
        args.output.write_text(text)
    return 1 if any(r.problem for r in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
