"""A graph of Dynamo in a session."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx

from tracea_onnx.errors import UsageError
from tracea_onnx.torch import devices, reasons
from tracea_onnx.torch.exported import Exported, export
from tracea_onnx.torch.graphs import Graph
from tracea_onnx.torch.outputs import Outputs, traced
from tracea_onnx.torch.reasons import RunsInEagerError
from tracea_onnx.torch.session import Slot, TensorSession, external, supported
from tracea_onnx.torch.sizes import symbolic

#: After so many calls in a row that found other weights than the one before, a session takes them
#: as arguments.
_RESTLESS = 2


class _State(NamedTuple):
    """A session with these weights as constants. `stamp` is their memory and how often it was
    written; `held` keeps that memory from being somebody else's. `taken` are the places of the
    arguments that a run takes.
    """

    stamp: list[Any]
    held: list[torch.Tensor]
    session: TensorSession | None
    taken: list[int]


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

    def _make(self, arguments: Sequence[Any]) -> _State:
        held = [arguments[k].detach() for k in self._weights]
        stamp = self._stamp(arguments)
        model = self._exported
        if model is None or not self._slots:
            return _State(stamp, held, None, [])
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
        taken = [k for k in model.arguments if k not in self._weights]
        return _State(stamp, held, session, taken)

    def _stamp(self, arguments: Sequence[Any]) -> list[Any]:
        return [(arguments[k].data_ptr(), arguments[k]._version) for k in self._weights]

    def _current(self, arguments: Sequence[Any]) -> _State:
        """The session, made anew where weights have changed."""
        state = self._state
        if state.stamp == self._stamp(arguments):
            self._restless = 0
            return state
        with self._lock:
            if self._state.stamp != self._stamp(arguments):
                self._restless += 1
                if self._restless > _RESTLESS:
                    reasons.once("weights change from call to call: they are given to every run")
                    self._weights = []
                self._state = self._make(arguments)
            return self._state

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
            _, _, session, taken = self._current(arguments)
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
        self._graph.leave(why, allowed=self._own["fallback"] == "1")
        self._state = _State([], [], None, [])
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
    tensors = [a for a in arguments if isinstance(a, torch.Tensor)]
    begins = [begin for t in tensors if (begin := t.untyped_storage().data_ptr())]
    return len(set(begins)) < len(begins)


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
    made.graph.initializer.extend(external(name, t) for name, t in weights.items())
    return bytes(made.SerializeToString())
