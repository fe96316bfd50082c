"""Sizes of a model's free dims by name, and the shapes of its inputs at other batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onnx import ModelProto, ValueInfoProto

Sizes = dict[str, int]
Shapes = dict[str, tuple[int, ...]]


def inputs(model: ModelProto) -> list[ValueInfoProto]:
    """Inputs that a caller gives."""
    stored = {t.name for t in model.graph.initializer}
    return [i for i in model.graph.input if i.name not in stored]


def _symbols(value: ValueInfoProto) -> list[str | int]:
    """Each dim as its size or symbol; unnamed leading dims are one symbol "batch", other unnamed
    dims are told apart.
    """
    dims = value.type.tensor_type.shape.dim
    return [
        d.dim_value
        if d.dim_value > 0
        else d.dim_param or ("batch" if k == 0 else f"{value.name}:{k}")
        for k, d in enumerate(dims)
    ]


def batch_symbol(model: ModelProto) -> str | None:
    """The symbol that leads every input of rank 2 and more; None when there is no such."""
    leading = {_symbols(i)[0] for i in inputs(model) if len(_symbols(i)) > 1}
    only = leading.pop() if len(leading) == 1 else None
    return only if isinstance(only, str) else None


def sizes_of(model: ModelProto, shapes: Mapping[str, Sequence[int]]) -> Sizes:
    """Of the symbols, where the inputs have these shapes."""
    return {
        s: n
        for i in inputs(model)
        for s, n in zip(_symbols(i), shapes[i.name], strict=False)
        if isinstance(s, str)
    }


def shapes_at(model: ModelProto, sizes: Mapping[str, int]) -> Shapes:
    """The shape of every input when the symbols have these sizes."""
    return {
        i.name: tuple(d if isinstance(d, int) else sizes[d] for d in _symbols(i))
        for i in inputs(model)
    }


def shapes_of(values: Mapping[str, Any]) -> Shapes:
    """Of the inputs that are tensors."""
    return {name: tuple(getattr(v, "shape", ())) for name, v in values.items()}
