"""What a run has to compute for the outputs of an FX graph, and how these are made from it.

Outputs keep the aliases and strides that they have in eager mode: one that is a view of an argument
is made as a view of it, those that share memory are views of one result, and a result whose
elements lie in another order than its dimensions is computed in that order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx

from tracea_onnx.torch.reasons import RunsInEagerError
from tracea_onnx.torch.session import Slot, supported
from tracea_onnx.torch.sizes import Sizes, hint


class Result(NamedTuple):
    """A value that the run computes: `order` are its dimensions, the outermost first; `shape` is
    the place of its sizes in that order, None where they depend on data.
    """

    node: fx.Node
    order: tuple[int, ...]
    shape: int | None
    slot: Slot


#: Makes an output from the arguments, the results of the run and the lists of sizes.
Recipe = Callable[[Sequence[Any], Sequence[torch.Tensor], Sequence[tuple[int, ...]]], Any]


def traced(node: fx.Node) -> Any:
    """The value that Dynamo traced: a tensor without contents, or a number."""
    return node.meta.get("example_value")


class Outputs:
    """Of `graph`, whose placeholders are given in order."""

    def __init__(self, graph: fx.Graph, placeholders: Sequence[fx.Node]) -> None:
        self.results: list[Result] = []
        self.recipes: list[Recipe] = []
        self._graph = graph
        self._sizes = Sizes([traced(p) for p in placeholders])
        self._inputs: dict[int, list[int]] = {}  # storage → arguments
        for k, p in enumerate(placeholders):
            if isinstance(value := traced(p), torch.Tensor):
                self._inputs.setdefault(_storage(value), []).append(k)
        self._placeholders = placeholders
        self._found: dict[int, int] = {}  # storage → result
        (returned,) = graph.find_nodes(op="output")
        self._returned = returned.args[0]
        self._shared: dict[int, set[int]] = {}
        for node in self._returned:
            if isinstance(node, fx.Node) and isinstance(value := traced(node), torch.Tensor):
                self._shared.setdefault(_storage(value), set()).add(id(value))
        #: Places of the outputs that a run computes: no numbers, and no views of arguments.
        self.computed: set[int] = set()
        for k, node in enumerate(self._returned):
            self.recipes.append(self._recipe(node))
            value = traced(node) if isinstance(node, fx.Node) else None
            if isinstance(value, torch.Tensor) and _storage(value) not in self._inputs:
                self.computed.add(k)
        #: Lists of sizes of a call.
        self.sizes = self._sizes.compile()

    def _recipe(self, node: Any) -> Recipe:
        if not isinstance(node, fx.Node):
            return lambda arguments, results, sizes: node
        value = traced(node)
        if isinstance(value, int | torch.SymInt) and not isinstance(value, bool):
            at = self._sizes.add([value])
            return lambda arguments, results, sizes: sizes[at][0]
        if not isinstance(value, torch.Tensor):
            raise RunsInEagerError(f"it returns a {type(value).__name__}")
        supported(value)
        storage = _storage(value)
        if storage in self._inputs:
            return self._view_of_argument(self._inputs[storage], value)
        if len(self._shared[storage]) == 1:
            dense = _order(value)
            return self._own(self._result(node, value, dense or tuple(range(value.dim()))))
        return self._view_of_result(storage, value)

    def _view_of_argument(self, places: Sequence[int], value: torch.Tensor) -> Recipe:
        for k in places:
            if value is traced(self._placeholders[k]):
                return lambda arguments, results, sizes: arguments[k]
        if len(places) > 1:
            raise RunsInEagerError("it returns memory that arguments share, this time")
        (k,) = places
        base = traced(self._placeholders[k])
        if value.dtype != base.dtype:
            raise RunsInEagerError("it returns an argument's memory as another type")
        shape, stride = self._sizes.add(value.shape), self._sizes.add(value.stride())
        offset = self._sizes.add([value.storage_offset() - base.storage_offset()])

        def view(arguments: Any, results: Any, sizes: Any) -> torch.Tensor:
            argument: torch.Tensor = arguments[k]
            start = argument.storage_offset() + sizes[offset][0]
            return argument.as_strided(sizes[shape], sizes[stride], start)

        return view

    def _view_of_result(self, storage: int, value: torch.Tensor) -> Recipe:
        """Several outputs share the memory: all are views of what was computed there first."""
        if storage not in self._found:
            first = next(
                n
                for n in self._graph.nodes
                if isinstance(v := traced(n), torch.Tensor) and _storage(v) == storage
            )
            base: torch.Tensor = traced(first)
            order = _order(base)
            if (
                order is None
                or None in map(hint, base.shape)
                or (
                    hint(base.numel() * base.element_size())
                    != hint(base.untyped_storage().nbytes())
                )
            ):
                raise RunsInEagerError("outputs share memory of which none of them is the whole")
            self._found[storage] = self._result(first, base, order)
        k = self._found[storage]
        if value.dtype != self.results[k].slot.dtype:
            raise RunsInEagerError("outputs of several types share memory")
        shape, stride = self._sizes.add(value.shape), self._sizes.add(value.stride())
        offset = self._sizes.add([value.storage_offset()])
        return lambda arguments, results, sizes: results[k].as_strided(
            sizes[shape], sizes[stride], sizes[offset][0]
        )

    def _own(self, k: int) -> Recipe:
        order = self.results[k].order
        if order == tuple(range(len(order))):
            return lambda arguments, results, sizes: results[k]
        back = [order.index(d) for d in range(len(order))]
        return lambda arguments, results, sizes: results[k].permute(back)

    def _result(self, node: fx.Node, value: torch.Tensor, order: tuple[int, ...]) -> int:
        for k, known in enumerate(self.results):
            if traced(known.node) is value:
                return k
        shape = [value.shape[d] for d in order]
        at = self._sizes.add(shape) if self._sizes.known(shape) else None
        self.results.append(Result(node, order, at, Slot(value.dtype, value.device)))
        return len(self.results) - 1


def _storage(value: torch.Tensor) -> int:
    return int(value.untyped_storage()._cdata)


def _order(value: torch.Tensor) -> tuple[int, ...] | None:
    """Dimensions of a tensor without gaps, the outermost first; None where it has gaps or
    overlaps.
    """
    shape, stride = [hint(s) for s in value.shape], [hint(s) for s in value.stride()]
    if None in shape:
        return tuple(range(len(shape)))
    order = sorted(range(len(shape)), key=lambda d: (-stride[d], d))
    if all(shape[d] == 1 or stride[d] == _volume(shape, range(d + 1, len(shape)))
           for d in range(len(shape))):  # fmt: skip
        return tuple(range(len(shape)))  # contiguous, whatever the strides of dimensions of 1
    expected = 1
    for d in reversed(order):
        if shape[d] != 1:
            if stride[d] != expected:
                return None
            expected *= shape[d]
    return tuple(order)


def _volume(shape: Sequence[int], dims: range) -> int:
    n = 1
    for d in dims:
        n *= shape[d]
    return n
