"""Which shapes to run a model at: a first set of sizes it accepts, and inputs of other sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import onnx

from tracea_onnx.bench.batches import Sizes, shapes_at, shapes_of, sizes_of
from tracea_onnx.verify.input_values import generate

Feeds = dict[str, Any]


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
        return sizes_of(model, shapes_of(feeds))
    raise failure


def feeds_at(
    model: onnx.ModelProto, folder: Path | None, sizes: Mapping[str, int], seed: int
) -> Feeds:
    """Random inputs with the symbols at these sizes."""
    return next(generate(model, folder=folder, seed=seed, shapes=shapes_at(model, sizes)))
