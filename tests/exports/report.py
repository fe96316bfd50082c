"""Writes docs/fusion_matrix.md: python tests/exports/report.py

Rows are chains, columns exporters; a cell is fused when everything chains.py asks for fused, and
right when all results are unchanged.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.exports import matrix  # noqa: E402
from tests.exports.matrix import Cell  # noqa: E402

#: Measured once, with models that are not in this repository; the rest of the report is computed.
BEYOND = """\
## Beyond the matrix

Models that are not in this repository, exported by torch and checked in the same way (small sizes,
random weights, opsets 11 to 23, eager and SDPA, fixed and dynamic sizes), against ONNX Runtime
without optimisations. The rules were extended with part of them at hand, so another network may
fare worse.

- 133 networks, of texts, images and sound, decoders with a cache among them, in 560 files: 1145 of
  1216 softmaxes fused as attention; wrong results: 0.
- bert, vit, gpt2, llama, t5, swin, whisper and clip in half precision, in 37 files of opsets 13, 20
  and 23: 80 of 82; wrong results: 0.
- 134 other chains (fp32 and fp16) in 850 files: 817 fuse; wrong results: 0. The same in bf16 do not
  run on ONNX Runtime's CPU provider, and were not compared.

What stays unfused, and why:

- attention whose scores are more than scale, masks and products: bounded by a tanh (Gemma 2),
  multiplied by a factor per head (SwinV2), the sum of several relative-position products (XLNet,
  Funnel, ProphetNet in dynamic exports), or multiplied by a triangle, then masked once more
  (GPT-1);
- some masks of decoders with a cache, whose size the file does not tell (GPT-Neo);
- a softmax that is not attention: over groups (GroupViT), of a kernel (ConvBERT), over contexts
  (MobileViTv2, SwiftFormer);
- scores in another type than the queries: an fp16 model exported with an fp32 mask;
- exp(x) / sum(exp(x)) without a maximum subtracted, which overflows where softmax does not;
- ONNX Runtime's own Attention, GroupQueryAttention and MultiHeadAttention with a bias: they also
  compute projections or keep a cache (`explain` says what to export instead);
- convolutions in three dimensions, a one-dimensional convolution as a channel gate (ECA),
  BatchNormalization over a number of channels that is not in the file, and a pointwise operator
  behind a pixel shuffle.
"""


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
        (
            "Written by `python tests/exports/report.py`; files are in `tests/exports/files/`, "
            "modules and"
        ),
        "exporters in `tests/exports/`.",
        "`ts17d` is torch's TorchScript exporter at opset 17 with a dynamic batch, `dynamo23` its",
        (
            "torch.export exporter at opset 23 with fixed sizes, `hand` a graph written as "
            "tf2onnx, "
            "Keras or ONNX"
        ),
        (
            "Runtime's own tools write it. A cell is ✓ when everything its chain is made of fused; "
            "an empty one"
        ),
        (
            "means that the exporter has no such form. Every cell is checked: each fused spec "
            "against float64,"
        ),
        "and the model's results against ONNX Runtime without optimisations.",
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
        lines += [
            "## What is missing",
            "",
            *(f"- {c.chain}.{c.exporter}: {'; '.join(c.missing)}" for c in missing),
            "",
        ]
    text = "\n".join([*lines, BEYOND])
    (ROOT / "docs" / "fusion_matrix.md").write_text(text, encoding="utf-8")
    print(text)
    return 1 if any(c.faults for c in cells) else 0


if __name__ == "__main__":
    sys.exit(main())
