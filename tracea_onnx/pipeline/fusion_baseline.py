"""The baseline file of `tracea-onnx check`: the fusions of a repository's models when they were
last accepted. A comparison shows the fusions that a new exporter or version of this package lost.

    {"version": 1, "models": {"detector.onnx": {"nodes": 61, "fusions": {"conv": 53, "attention":
    6}}}}

Models go by their paths from the file's folder; nodes are those of the fused model, which are more
where a fusion took less of its chain; rules by how often each fused.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracea_onnx.errors import UsageError
from tracea_onnx.ir.refusals import Refusal
from tracea_onnx.model_io import model_file
from tracea_onnx.pipeline.optimizer import optimize

_VERSION = 1
#: What reading a file that is no baseline raises.
_NONE_SUCH = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


@dataclass(frozen=True)
class Fusions:
    """nodes: of the fused model. by_rule: how often each rule fused."""

    nodes: int
    by_rule: dict[str, int]

    def beyond(self, other: Fusions) -> dict[str, int]:
        """Rules that fused more often than in the other, by how often."""
        found = {rule: n - other.by_rule.get(rule, 0) for rule, n in self.by_rule.items()}
        return {rule: n for rule, n in found.items() if n > 0}


@dataclass(frozen=True)
class Compared:
    """before: what the baseline has, None where it has no such model. refused: why chains did not
    fuse.
    """

    model: str
    now: Fusions
    before: Fusions | None
    refused: list[Refusal]

    @property
    def worse(self) -> bool:
        """Whether a rule fused less often, or the fused model has more nodes."""
        before = self.before
        return before is not None and bool(before.beyond(self.now) or self.now.nodes > before.nodes)


class Baseline:
    """The least that a model has to fuse."""

    def __init__(self, path: Path, models: Mapping[str, Fusions]) -> None:
        self.path, self.models = path, dict(models)

    @classmethod
    def load(cls, path: Path, *, new: bool = False) -> Baseline:
        """new: there need not be such a file. Raises UsageError for one that is no baseline."""
        if new and not path.exists():
            return cls(path, {})
        try:
            content: Any = json.loads(path.read_text("utf-8"))
            assert content["version"] == _VERSION
            models = {
                str(name): Fusions(
                    int(row["nodes"]), {str(rule): int(n) for rule, n in row["fusions"].items()}
                )
                for name, row in content["models"].items()
            }
        except OSError as e:
            raise UsageError(
                f"{path} cannot be read ({e.strerror})", "write it with --update"
            ) from None
        except _NONE_SUCH:
            raise UsageError(
                f"{path} is no baseline of fusions", "write it anew with --update"
            ) from None
        return cls(path, models)

    def compare(self, model: Path, *, backend: str) -> Compared:
        """Fuses the model (in memory, unverified). Raises ModelError."""
        report = optimize(model, backend=backend, verify=False).report
        by_rule = dict(sorted(Counter(f.rule for f in report.fused).items()))
        name = Path(os.path.relpath(model, self.path.parent)).as_posix()
        near = [r for r in report.refused if r.near]
        return Compared(name, Fusions(report.nodes_after, by_rule), self.models.get(name), near)

    def save(self) -> None:
        """Write the file."""
        models = {n: {"nodes": f.nodes, "fusions": f.by_rule} for n, f in self.models.items()}
        content = {"version": _VERSION, "models": dict(sorted(models.items()))}
        model_file.write_bytes(self.path, (json.dumps(content, indent=1) + "\n").encode())
