"""The backend of `torch.compile`: its options, and what becomes of a graph of Dynamo."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from tracea_onnx import provider
from tracea_onnx.errors import UsageError
from tracea_onnx.torch import graphs, reasons
from tracea_onnx.torch.compiled import Compiled
from tracea_onnx.torch.graphs import Graph
from tracea_onnx.torch.reasons import RunsInEagerError

#: Options of the backend itself; the others are the provider's.
OPTIONS = {
    "weights": ("constant", "argument"),  # whether a session may pack them when it is made
    "verify": ("1", "0"),  # whether the first run is compared with PyTorch's
    "fallback": ("1", "0"),  # whether a graph may run in PyTorch, or that is an error
}


def tracea(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """The backend as Dynamo calls it. `options` are the provider's, and these:

    weights: `constant` (default): parameters and buffers are constants of a session, which is made
    anew when they change; `argument`: they are given to every run. verify: 1 (default) compares the
    first run with PyTorch's. fallback: 0 raises an error where a graph would run in PyTorch.
    """
    given = {k: _text(v) for k, v in (options or {}).items()}
    own = _own_options(given)
    if mode:
        reasons.once(f"the backend has no modes: mode={mode!r} changes nothing")
    operators = sum(n.op.startswith("call_") for n in gm.graph.nodes)
    graph = Graph(_name(), operators)
    graphs.seen.append(graph)
    began = time.perf_counter()
    try:
        compiled = Compiled(gm, example_inputs, given, graph, own)
    except RunsInEagerError as e:
        graph.leave(str(e), allowed=own["fallback"] == "1")
        eager: Callable[..., Any] = gm.forward
        return eager
    graph.seconds = time.perf_counter() - began
    return compiled


tracea.reset = graphs.reset  # type: ignore[attr-defined]  # torch.compiler.reset calls it


def _own_options(given: dict[str, str]) -> dict[str, str]:
    """Takes the backend's own options out of those that are given, and checks all."""
    own = {name: given.pop(name, values[0]) for name, values in OPTIONS.items()}
    for name, value in own.items():
        if value not in OPTIONS[name]:
            raise UsageError(
                f"option {name}={value!r} of the backend is not one of: {', '.join(OPTIONS[name])}"
            )
    known = {o.name for o in provider.OPTIONS}
    if unknown := sorted(set(given) - known):
        raise UsageError(
            f"the backend has no option {unknown[0]!r}",
            f"it has {', '.join(sorted(OPTIONS))}, and those of the provider",
        )
    return own


def _text(value: Any) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def _name() -> str:
    return str(torch._guards.CompileContext.current_compile_id() or len(graphs.seen))
