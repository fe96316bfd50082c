"""Pictures of measured times: how many times as fast as its peers each model is.

    python -m tools.plots                                  # the pictures of docs/
    python -m tools.plots models.json -o models.svg        # of what benchmarks/ wrote with --json

Needs the extra `plot`. The pictures of docs/ come from `benchmarks/results/`;
`tests/host/test_plots.py` fails where one is older than its figures.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tools.pages import RESULTS, ROOT
from tracea_onnx.bench.plot import Picture, Ratio, svg


def _published(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text("utf-8"))
    return found


def _under(found: dict[str, Any]) -> str:
    return f"{found['date']}, {found['machine']}"


def _cpu() -> Picture:
    """Ratios there are of the provider's time."""
    found = _published("models/cpu")
    rows = [row for table in found["tables"][:2] for row in table["rows"]]
    rows.sort(key=lambda row: row[3][0])

    def inverse(ratio: Sequence[float]) -> Ratio:
        middle, low, high = ratio
        return 1 / middle, 1 / high, 1 / low

    return Picture(
        "Times as fast as ONNX Runtime's CPU provider",
        _under(found),
        tuple(row[0] for row in rows),
        {
            name: tuple(inverse(row[column]) for row in rows)
            for name, column in (("1 thread", 3), ("2 threads", 6))
        },
    )


def _cuda() -> Picture:
    """Milliseconds there are of ours and of each peer."""
    found = _published("models/cuda")
    table = found["tables"][0]
    columns = [c["name"] for c in table["columns"]]
    names, model = [], ""
    for row in table["rows"]:
        model = row[0] or model
        names.append(f"{model}, batch {row[1]}")
    peers = ("ORT CUDA", "PyTorch graph", "torch.compile")
    return Picture(
        "Times as fast as each peer, fp16",
        _under(found),
        tuple(names),
        {
            peer: tuple(
                (x := row[columns.index(peer)] / row[columns.index("ours")], x, x)
                for row in table["rows"]
            )
            for peer in peers
        },
    )


#: The pictures of docs/ by file name.
PICTURES: dict[str, Callable[[], Picture]] = {
    "benchmarks-cpu.svg": _cpu,
    "benchmarks-cuda.svg": _cuda,
}


def measured(report: dict[str, Any]) -> Picture:
    """Of a file that a program of `benchmarks/` wrote."""
    rows = [r for r in report["rows"] if r.get("times") and r["times"]["ratios"]]
    if not rows:
        raise SystemExit("error: no row of the file has times of a peer; measure with peers")
    peers = list(dict.fromkeys(p for r in rows for p in r["times"]["ratios"]))

    def ratio(row: dict[str, Any], peer: str) -> Ratio | None:
        found = row["times"]["ratios"].get(peer)
        return None if found is None else (found[0], found[1], found[2])

    machine = report["gpu"].get("device", "") or report["machine"]
    return Picture(
        "Times as fast as each peer",
        f"{report['date']}, {machine}",
        tuple(r["name"] for r in rows),
        {peer: tuple(ratio(r, peer) for r in rows) for peer in peers},
    )


def stale() -> Iterator[str]:
    """Pictures of docs/ that show other figures than `benchmarks/results/` has."""
    for name, make in PICTURES.items():
        file = ROOT / "docs" / name
        if not file.exists() or f"figures: {make().digest()} " not in file.read_text("utf-8"):
            yield name


def run(argv: Sequence[str] | None = None) -> int:
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("file", type=Path, nargs="?", help="what a benchmark wrote with --json")
    p.add_argument("-o", "--output", type=Path, help="where to write (default: FILE.svg)")
    args = p.parse_args(argv)
    if args.file is None:
        for name, make in PICTURES.items():
            (ROOT / "docs" / name).write_text(svg(make()), "utf-8")
    else:
        picture = measured(json.loads(args.file.read_text("utf-8")))
        (args.output or args.file.with_suffix(".svg")).write_text(svg(picture), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(run())
