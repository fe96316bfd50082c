"""What became of the graphs that Dynamo gave to the backend."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tracea_onnx.errors import UsageError
from tracea_onnx.torch import reasons


@dataclass
class Graph:
    """A graph that Dynamo gave to the backend.

    `name` is Dynamo's number of the frame and of its compilation. `reason` says why it runs in
    PyTorch, and is empty where it runs in a session: of `nodes`, so many on the provider, the rest
    on ONNX Runtime's CPU provider. `dynamic` are the sizes of arguments that one session takes any
    of.
    """

    name: str
    operators: int
    reason: str = ""
    nodes: int = 0
    provider_nodes: int = 0
    dynamic: list[str] = field(default_factory=list)
    calls: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        if self.reason:
            return f"graph {self.name}: in PyTorch ({self.operators} operators): {self.reason}"
        sizes = f", any {' and '.join(self.dynamic)}" if self.dynamic else ""
        return (
            f"graph {self.name}: {self.provider_nodes} of {self.nodes} nodes on the provider, "
            f"{self.calls} calls, made in {self.seconds:.1f} s{sizes}"
        )

    def leave(self, why: str, *, allowed: bool) -> None:
        """Leaves the graph to PyTorch from now on. Raises UsageError where that is not allowed."""
        if not allowed:
            raise UsageError(
                f"a graph would run in PyTorch: {why}", "the option fallback=1 lets it"
            )
        self.reason = why
        reasons.once(f"a graph of {self.operators} operators runs in PyTorch: {why}")


@dataclass
class Report:
    """Outcome of all graphs since the process began, or since `torch.compiler.reset`."""

    graphs: list[Graph]
    #: Why Dynamo ended graphs, of all of its backends, and how often.
    breaks: dict[str, int]

    @property
    def compiled(self) -> list[Graph]:
        """Graphs that run in sessions."""
        return [g for g in self.graphs if not g.reason]

    @property
    def eager(self) -> list[Graph]:
        """Graphs that run in PyTorch."""
        return [g for g in self.graphs if g.reason]

    def __str__(self) -> str:
        head = f"{len(self.compiled)} of {len(self.graphs)} graphs in sessions"
        lines = [f"graph break ({n}x): {_first_line(why)}" for why, n in self.breaks.items()]
        return "\n".join([head, *map(str, self.graphs), *lines])


seen: list[Graph] = []
_breaks_before: Counter[str] = Counter()


def report() -> Report:
    """Outcome of the graphs that `torch.compile(..., backend="tracea")` saw."""
    from torch._dynamo.utils import counters

    return Report(list(seen), dict(counters["graph_break"] - _breaks_before))


def reset() -> None:
    """Nothing was seen yet, and sentences may be logged again."""
    from torch._dynamo.utils import counters

    seen.clear()
    _breaks_before.clear()
    _breaks_before.update(counters["graph_break"])
    reasons.forget()


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else "?"
