"""Writes docs/fusion_matrix.md: python tests/exports/report.py

Rows are chains, columns exporters; a cell is fused when everything chains.py asks for fused, and right when all results are unchanged.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.exports import matrix  # noqa: E402
from tests.exports.matrix import Cell  # noqa: E402


def table(cells: Sequence[Cell]) -> list[str]:
    """Markdown rows of chains by exporters."""
    exporters = sorted({c.exporter for c in cells}, key=lambda e: (e.startswith("dynamo"), e))
    by = {(c.chain, c.exporter): c for c in cells}
    lines = ["| chain | " + " | ".join(exporters) + " |", "|---" * (len(exporters) + 1) + "|"]
    for chain in sorted({c.chain for c in cells}):
        row = [_mark(by.get((chain, e))) for e in exporters]
        lines.append(f"| {chain} | " + " | ".join(row) + " |")
    return lines


def _mark(cell: Cell | None) -> str:
    if cell is None:
        return ""
    fused, layers = cell.attention
    if cell.faults:
        return "**wrong**"
    if layers > 1:
        return f"{fused}/{layers}"
    return "✓" if not cell.missing else "–"


def main() -> int:
    cells = [matrix.evaluate(f) for f in matrix.files()]
    whole = [c for c in cells if c.attention[1] > 1]
    attention = [c for c in cells if c.attention[1] == 1]
    other = [c for c in cells if c.attention[1] == 0]
    layers, fused = sum(c.attention[1] for c in whole), sum(min(c.attention) for c in whole)
    good = lambda part: f"{sum(not c.missing and not c.faults for c in part)} of {len(part)}"  # noqa: E731
    lines = [
        "# Fusion matrix",
        "",
        "Written by `python tests/exports/report.py`; files, modules and exporters are in `tests/exports/`. `ts17d` is torch's TorchScript exporter at opset 17",
        "with a dynamic batch, `dynamo23` its torch.export exporter at opset 23 with fixed sizes, `hand` a graph written as tf2onnx, Keras or",
        "ONNX Runtime's own tools write it. A cell is ✓ when everything its chain is made of fused; an empty one means that the exporter has no such form.",
        "Every cell is checked: each fused spec against float64, and the model's results against ONNX Runtime without optimisations.",
        "",
        f"- chains without attention: {good(other)} cells fused",
        f"- attention chains: {good(attention)} cells fused",
        f"- whole networks: {fused} of {layers} attention layers fused",
        f"- wrong results: {sum(bool(c.faults) for c in cells)} of {len(cells)}",
        "",
        "## Chains",
        "",
        *table(other),
        "",
        "## Attention",
        "",
        *table(attention),
        "",
        "## Whole networks (attention layers)",
        "",
        *table(whole),
        "",
    ]
    missing = [c for c in cells if c.missing]
    if missing:
        lines += ["## What is missing", "", *(f"- {c.chain}.{c.exporter}: {'; '.join(c.missing)}" for c in missing), ""]
    text = "\n".join(lines)
    (ROOT / "docs" / "fusion_matrix.md").write_text(text, encoding="utf-8")
    print(text)
    return 1 if any(c.faults for c in cells) else 0


if __name__ == "__main__":
    sys.exit(main())
