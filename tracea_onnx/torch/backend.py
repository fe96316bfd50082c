"""The backend of `torch.compile`: a graph of Dynamo as a session on the provider.

A graph whose results need gradients, that torch.onnx cannot convert, or whose outputs cannot be
made as in eager mode, runs in PyTorch. `report` says what became of every graph.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from tracea_onnx import provider
from tracea_onnx.errors import TraceaError, UsageError
from tracea_onnx.torch import devices, reasons
from tracea_onnx.torch.exported import Exported, export
from tracea_onnx.torch.outputs import Outputs, traced
from tracea_onnx.torch.reasons import RunsInEagerError
from tracea_onnx.torch.session import Slot, TensorSession, supported
from tracea_onnx.torch.sizes import symbolic

#: Options of the backend itself; the others are the provider's.
OPTIONS = {
    "weights": ("constant", "argument"),  # whether a session may pack them when it is made
    "verify": ("1", "0"),  # whether the first run is compared with PyTorch's
    "fallback": ("1", "0"),  # whether a graph may run in PyTorch, or that is an error
}
#: After so many calls in a row that found other weights than the one before, a session takes them
#: as arguments.
_RESTLESS = 2


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


@dataclass
class Report:
    """What became of the graphs since the process began, or since `torch.compiler.reset`."""

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


_graphs: list[Graph] = []
_breaks_before: Counter[str] = Counter()


def report() -> Report:
    """What became of the graphs that `torch.compile(..., backend="tracea")` saw."""
    from torch._dynamo.utils import counters

    return Report(list(_graphs), dict(counters["graph_break"] - _breaks_before))


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
    began = time.perf_counter()
    try:
        compiled = Compiled(gm, example_inputs, given, graph, own)
    except RunsInEagerError as e:
        if own["fallback"] == "0":
            raise UsageError(f"a graph would run in PyTorch: {e}", "see fallback=1") from e
        graph.reason = str(e)
        reasons.once(f"a graph of {operators} operators runs in PyTorch: {e}")
        _graphs.append(graph)
        eager: Callable[..., Any] = gm.forward
        return eager
    graph.seconds = time.perf_counter() - began
    _graphs.append(graph)
    return compiled


def _reset() -> None:
    from torch._dynamo.utils import counters

    _graphs.clear()
    _breaks_before.clear()
    _breaks_before.update(counters["graph_break"])
    reasons.forget()


tracea.reset = _reset  # type: ignore[attr-defined]  # torch.compiler.reset calls it


class Compiled:
    """A graph in a session: called with the graph's arguments, returns its outputs."""

    def __init__(
        self, gm: fx.GraphModule, examples: Sequence[Any], options: dict[str, str], graph: Graph,
        own: dict[str, str],
    ) -> None:  # fmt: skip
        placeholders = gm.graph.find_nodes(op="placeholder")
        tensors = [e for e in examples if isinstance(e, torch.Tensor)]
        for tensor in tensors:
            if type(tensor) not in _PLAIN:
                raise RunsInEagerError(f"it takes a {type(tensor).__name__}")
            supported(tensor)
        _no_gradients(gm)
        self._gm, self._graph, self._options = gm, graph, options
        self._device = devices.common({t.device for t in tensors})
        self._outputs = Outputs(gm.graph, placeholders)
        self._exported: Exported | None = None
        if graph.operators:
            self._exported = export(gm, examples, self._outputs.results)
        model = self._exported
        self._mutated = model.mutated if model else []
        if self._mutated and torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
            raise RunsInEagerError(_RECORDED)
        self._slots = [r.slot for r in self._outputs.results]
        self._slots += [Slot(examples[k].dtype, examples[k].device) for k in self._mutated]
        self._weights = [
            k for k in (model.arguments if model else ())
            if own["weights"] == "constant" and k not in self._mutated and _is_weight(examples[k])
        ]  # fmt: skip
        self._own = own
        self._verified = own["verify"] == "0"
        self._lock = threading.Lock()
        self._restless = 0
        self._state = self._make(examples)
        graph.dynamic = _dynamic(placeholders)

    def _make(self, arguments: Sequence[Any]) -> tuple[Any, TensorSession | None, list[int]]:
        """The stamp of the weights, the session that has them as constants, and the places of what
        it takes.
        """
        stamp = self._stamp(arguments)
        model = self._exported
        if model is None or not self._slots:
            return stamp, None, []
        names = [i.name for i in model.model.graph.input]
        weights = {names[model.arguments.index(k)]: arguments[k] for k in self._weights}
        try:
            session = TensorSession(
                _with_constants(model.model, weights), weights, self._slots, self._device,
                self._options,
            )  # fmt: skip
        except RunsInEagerError:
            raise
        except Exception as e:
            if "provider option" in (line := reasons.of_conversion(e)):
                raise UsageError(line[line.index("provider option") :]) from e
            raise RunsInEagerError(f"no session: {reasons.of_conversion(e)}") from e
        self._graph.nodes, self._graph.provider_nodes = session.nodes, session.provider_nodes
        if not session.provider_nodes:
            raise RunsInEagerError(
                f"the provider takes none of its {session.nodes} ONNX nodes, as it would not pay; "
                "the option claim='all' gives it those that it can run"
            )
        return stamp, session, [k for k in model.arguments if k not in self._weights]

    def _stamp(self, arguments: Sequence[Any]) -> list[Any]:
        return [(arguments[k].data_ptr(), arguments[k]._version) for k in self._weights]

    def _current(self, arguments: Sequence[Any]) -> tuple[TensorSession | None, list[int]]:
        """The session, made anew where weights have changed."""
        known, session, taken = self._state
        if known == self._stamp(arguments):
            self._restless = 0
            return session, taken
        with self._lock:
            if self._state[0] != self._stamp(arguments):
                self._restless += 1
                if self._restless > _RESTLESS:
                    reasons.once("weights change from call to call: they are given to every run")
                    self._weights = []
                self._state = self._make(arguments)
            return self._state[1:]

    def __call__(self, *arguments: Any) -> list[Any]:
        """The outputs, of arguments that Dynamo's guards let through."""
        self._graph.calls += 1
        if self._graph.reason:
            return list(self._gm(*arguments))
        if self._mutated and _overlap(arguments):
            reasons.once("a graph writes to arguments that share memory: it runs in PyTorch")
            return list(self._gm(*arguments))
        if self._exported is not None:
            for k, number in self._exported.numbers.items():
                if arguments[k].item() != number:
                    reasons.once(
                        f"a number is not the {number} that a session is for: PyTorch runs it"
                    )
                    return list(self._gm(*arguments))
        sizes = self._outputs.sizes(arguments)
        try:
            session, taken = self._current(arguments)
        except RunsInEagerError as e:
            return self._in_eager(str(e), arguments)
        results: list[torch.Tensor] = []
        if session is not None:
            shapes: list[Any] = [
                None if r.shape is None else sizes[r.shape] for r in self._outputs.results
            ]
            shapes += [arguments[k].shape for k in self._mutated]
            try:
                results = session.run([_tensor(arguments[k]) for k in taken], shapes)
            except Exception as e:
                if self._verified:
                    raise
                return self._in_eager(f"its first run fails: {reasons.of_conversion(e)}", arguments)
        written = results[len(self._outputs.results) :]
        if not self._verified:
            if self._differs(arguments, results, written, sizes):
                return self._in_eager(_WRONG, arguments)
            self._verified = True
        for k, new in zip(self._mutated, written, strict=True):
            arguments[k].copy_(new)
        return [recipe(arguments, results, sizes) for recipe in self._outputs.recipes]

    def _differs(
        self, arguments: Sequence[Any], results: Sequence[torch.Tensor],
        written: Sequence[torch.Tensor], sizes: Any,
    ) -> bool:  # fmt: skip
        """Whether a run is not PyTorch's: torch.onnx may convert an operator wrongly."""
        copies = list(arguments)
        for k in self._mutated:
            copies[k] = arguments[k].clone()
        wanted = self._gm(*copies)
        pairs = [(new, copies[k]) for k, new in zip(self._mutated, written, strict=True)]
        pairs += [
            (recipe(arguments, results, sizes), want)
            for k, (recipe, want) in enumerate(zip(self._outputs.recipes, wanted, strict=True))
            if k in self._outputs.computed
        ]
        return max((difference(got, want) for got, want in pairs), default=0.0) > 1

    def _in_eager(self, why: str, arguments: Sequence[Any]) -> list[Any]:
        """From now on in PyTorch."""
        if self._own["fallback"] == "0":
            raise TraceaError(f"a graph would run in PyTorch: {why}", "see fallback=1")
        self._graph.reason = why
        self._state = [], None, []
        reasons.once(f"a graph of {self._graph.operators} operators runs in PyTorch: {why}")
        return list(self._gm(*arguments))


def difference(got: torch.Tensor, want: torch.Tensor) -> float:
    """How far apart they are, in parts of what rounding may explain in a deep network; of numbers
    of floating point alone: an index or a flag may be another where two values are nearly equal.
    """
    if not want.is_floating_point() or not want.numel():
        return 0.0
    finite = want.isfinite()
    if not torch.equal(got.isfinite(), finite):
        return float("inf")
    apart = torch.where(finite, got.double() - want.double(), 0).abs().max()
    largest = torch.where(finite, want.double(), 0).abs().max()
    return float(apart / (_ROUNDING[want.element_size()] * largest + 1e-30))


#: By bytes of an element, of the largest element.
_ROUNDING = {2: 0.1, 4: 0.01, 8: 0.01}
_WRONG = "its results are not PyTorch's: torch.onnx or ONNX Runtime is wrong about it"
_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


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
    return str(torch._guards.CompileContext.current_compile_id() or len(_graphs))


_RECORDED = "autograd records it; call it in torch.inference_mode() or torch.no_grad()"


def _no_gradients(gm: fx.GraphModule) -> None:
    """Raises RunsInEagerError where autograd would record the graph."""
    (output,) = gm.graph.find_nodes(op="output")
    values = [traced(n) for n in output.args[0] if isinstance(n, fx.Node)]
    wanted = any(isinstance(v, torch.Tensor) and v.requires_grad for v in values)
    if wanted:
        raise RunsInEagerError(_RECORDED)


def _is_weight(example: Any) -> bool:
    """A parameter or buffer, of which PyTorch tells when it changes."""
    return (
        isinstance(example, torch.nn.Parameter)
        or getattr(example, "_dynamo_static_input_type", None) is not None
    ) and not example.is_inference()


def _dynamic(placeholders: Sequence[fx.Node]) -> list[str]:
    return [
        f"{node.name}.shape[{d}]"
        for node in placeholders
        if isinstance(value := traced(node), torch.Tensor)
        for d, size in enumerate(value.shape)
        if symbolic(size)
    ]


def _overlap(arguments: Sequence[Any]) -> bool:
    storages = [a.untyped_storage()._cdata for a in arguments if isinstance(a, torch.Tensor)]
    return len(set(storages)) < len(storages)


def _tensor(argument: Any) -> torch.Tensor:
    return argument if isinstance(argument, torch.Tensor) else torch.tensor(argument)


def _with_constants(model: Any, weights: Mapping[str, torch.Tensor]) -> bytes:
    """The model with these inputs as initializers whose contents are elsewhere."""
    import onnx

    made = onnx.ModelProto()
    made.CopyFrom(model)
    inputs = [i for i in made.graph.input if i.name not in weights]
    del made.graph.input[:]
    made.graph.input.extend(inputs)
    for name, tensor in weights.items():
        added = made.graph.initializer.add(
            name=name, dims=tensor.shape, data_type=devices.ELEMENT_TYPES[tensor.dtype],
            data_location=onnx.TensorProto.EXTERNAL,
        )  # fmt: skip
        added.external_data.add(key="location", value="in PyTorch's memory")
    return bytes(made.SerializeToString())


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else "?"
