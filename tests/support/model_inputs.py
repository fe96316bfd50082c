"""Which shapes to run a model at: its free dims by name, a first set of sizes it accepts, and the
same at other batches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import onnx

from tracea_onnx.verify.input_values import generate

Feeds = dict[str, Any]
Sizes = dict[str, int]
Shapes = dict[str, tuple[int, ...]]


def _inputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    stored = {t.name for t in model.graph.initializer}
    return [i for i in model.graph.input if i.name not in stored]


def _symbols(value: onnx.ValueInfoProto) -> list[str | int]:
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


def batch_symbol(model: onnx.ModelProto) -> str | None:
    """The symbol that leads every input of rank 2 and more; None when there is no such."""
    leading = {_symbols(i)[0] for i in _inputs(model) if len(_symbols(i)) > 1}
    only = leading.pop() if len(leading) == 1 else None
    return only if isinstance(only, str) else None


def shapes_at(model: onnx.ModelProto, sizes: Mapping[str, int]) -> Shapes:
    """The shape of every input when the symbols have these sizes."""
    return {
        i.name: tuple(d if isinstance(d, int) else sizes[d] for d in _symbols(i))
        for i in _inputs(model)
    }


def first_accepted(
    model: onnx.ModelProto, folder: Path | None, run: Callable[[Feeds], object]
) -> Sizes:
    """Sizes of the symbols at which `run` takes the generated inputs.

    Raises the last error when it takes none.
    """
    failure: Exception = ValueError("the model has no inputs that can be made")
    for feeds in generate(model, folder=folder):
        try:
            run(feeds)
        except Exception as e:  # any refusal of the runtime means: try the next guess
            failure = e
            continue
        return {
            s: n
            for i in _inputs(model)
            for s, n in zip(_symbols(i), getattr(feeds[i.name], "shape", ()), strict=False)
            if isinstance(s, str)
        }
    raise failure


def feeds_at(
    model: onnx.ModelProto, folder: Path | None, sizes: Mapping[str, int], seed: int
) -> Feeds:
    """Random inputs with the symbols at these sizes."""
    return next(generate(model, folder=folder, seed=seed, shapes=shapes_at(model, sizes)))
