"""Inputs a model is likely to accept: shapes consistent by symbol, ids within their table, masks of ones, random data elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, TypeProto, ValueInfoProto, helper

from tracea_onnx.errors import ModelError, UsageError
from tracea_onnx.graph import Graph, Node

#: A value ONNX Runtime takes: an array, a list of arrays (sequence), or None (absent optional).
Value = Any
#: Sizes tried for unknown dims, in order: (first axis, image side, anything else). The first the model accepts is used.
GUESSES = (
    (2, 64, 7), (1, 64, 7), (2, 224, 16), (1, 224, 16), (1, 224, 1), (1, 640, 128), (1, 1, 1), (1, 512, 512), (2, 32, 8), (1, 28, 32),
    (1, 96, 64), (1, 128, 80), (1, 256, 100), (1, 299, 160), (1, 320, 256), (1, 384, 400), (1, 336, 1024), (1, 518, 16000),
)  # fmt: skip
_PASS = frozenset({"Identity", "Cast", "Reshape", "Unsqueeze", "Squeeze", "Flatten", "Expand", "Slice", "Transpose", "Concat", "Tile", "Clip", "Abs"})


@dataclass(frozen=True)
class Range:
    """Integers low <= v < high."""

    low: int
    high: int


def generate(
    model: ModelProto, *, folder: Path | None = None, seed: int = 0, shapes: Mapping[str, tuple[int, ...]] | None = None
) -> Iterator[dict[str, Value]]:
    """Candidate feeds for the model's inputs, one for each guess at the unknown dims; the caller takes the first that runs.

    `shapes` fixes the shape of named inputs, and with it the symbols they share. Raises UsageError when a shape contradicts the model.
    """
    graph = Graph(model, folder=folder)
    stored = {t.name for t in model.graph.initializer}
    wanted = [i for i in model.graph.input if i.name not in stored]
    fixed = dict(shapes or {})
    symbols = bind(wanted, fixed)
    tables = {i.name: _index_range(graph, i.name) for i in wanted}
    required = {i.name: _required(graph, i.name) for i in wanted}
    made: set[tuple[object, ...]] = set()
    for guess in GUESSES:
        known = dict(symbols)
        concrete = {i.name: fixed.get(i.name) or _shape(i, known, guess, required[i.name]) for i in wanted}
        key = tuple(concrete.items())
        if key in made:
            continue
        made.add(key)
        rng = np.random.default_rng(seed)
        yield {i.name: _value(i.name, i.type, concrete[i.name], rng, tables[i.name]) for i in wanted}


def _tensor_type(t: TypeProto) -> TypeProto.Tensor | None:
    if t.HasField("tensor_type"):
        return t.tensor_type
    if t.HasField("sequence_type"):
        return _tensor_type(t.sequence_type.elem_type)
    if t.HasField("optional_type"):
        return _tensor_type(t.optional_type.elem_type)
    return None


def bind(wanted: Sequence[ValueInfoProto], fixed: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Symbols whose value follows from the fixed shapes. Raises UsageError when one contradicts the inputs, or is of none."""
    out: dict[str, int] = {}
    unknown = fixed.keys() - {i.name for i in wanted}
    if unknown:
        raise UsageError(f"the model has no input called '{sorted(unknown)[0]}'", f"its inputs are {', '.join(i.name for i in wanted)}")
    for i in wanted:
        shape, tensor = fixed.get(i.name), _tensor_type(i.type)
        if shape is None or tensor is None or not tensor.HasField("shape"):
            continue
        if len(tensor.shape.dim) != len(shape):
            raise UsageError(f"input '{i.name}' has rank {len(tensor.shape.dim)}, not {len(shape)}", "correct --input-shape")
        for d, n in zip(tensor.shape.dim, shape, strict=True):
            if d.HasField("dim_value") and d.dim_value != n:
                raise UsageError(f"input '{i.name}' has a fixed dimension {d.dim_value}, not {n}", "correct --input-shape")
            if d.dim_param and out.setdefault(d.dim_param, n) != n:
                raise UsageError(f"dimension '{d.dim_param}' would be both {out[d.dim_param]} and {n}", "correct --input-shape")
    return out


def _shape(i: ValueInfoProto, known: dict[str, int], guess: tuple[int, int, int], required: Mapping[int, int]) -> tuple[int, ...]:
    tensor = _tensor_type(i.type)
    if tensor is None or not tensor.HasField("shape"):
        return (guess[2],)
    dims = tensor.shape.dim
    image = len(dims) == 4 and (1 in required or dims[1].dim_value in (1, 3, 4) or dims[3].dim_value in (1, 3, 4))
    out: list[int] = []
    for k, d in enumerate(dims):
        if d.HasField("dim_value") and d.dim_value > 0:
            out.append(d.dim_value)
            continue
        past = "past" in d.dim_param and "sequence" in d.dim_param
        size = guess[0] if k == 0 else (guess[1] if image else guess[2])
        size = required.get(k - len(dims), required.get(k, size))
        if d.dim_param:
            if "batch" in d.dim_param.lower():
                size = guess[0]
            elif "+" in d.dim_param:  # "past_sequence_length + sequence_length", as optimum writes it
                size = sum(known.setdefault(p.strip(), guess[2]) for p in d.dim_param.split("+"))
            elif past:
                size = guess[2]
            size = known.setdefault(d.dim_param, size)
        out.append(size)
    return tuple(out)


def _value(name: str, kind: TypeProto, shape: tuple[int, ...], rng: np.random.Generator, table: Range | None) -> Value:
    if kind.HasField("sequence_type"):
        return [_value(name, kind.sequence_type.elem_type, shape, rng, table) for _ in range(2)]
    if kind.HasField("optional_type"):
        return _value(name, kind.optional_type.elem_type, shape, rng, table)
    elem = kind.tensor_type.elem_type
    if elem == TensorProto.STRING:
        return np.array([f"text {k}" for k in range(int(np.prod(shape)))], dtype=object).reshape(shape)
    try:
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(elem))
    except (KeyError, TypeError):
        raise ModelError(f"input '{name}' has a type no value can be made for", "give inputs with --load-inputs") from None
    lower = name.lower()
    if dtype.kind == "b" or "mask" in lower:
        return np.ones(shape, dtype)
    if dtype.kind in "iu":
        return _integers(lower, dtype, shape, rng, table)
    if lower.endswith("_penalty"):
        return np.ones(shape, dtype)
    return rng.standard_normal(shape).astype(dtype)


#: What the inputs of ONNX Runtime's search operators (BeamSearch, GreedySearch, Sampling) mean by their names.
_NAMED = {"max_length": 20, "min_length": 1, "num_beams": 2, "num_return_sequences": 1}


def _integers(name: str, dtype: np.dtype[Any], shape: tuple[int, ...], rng: np.random.Generator, table: Range | None) -> Value:
    if name in _NAMED:
        return np.full(shape, _NAMED[name], dtype)
    if "position" in name and shape:
        positions = np.broadcast_to(np.arange(shape[-1]), shape)
        return (positions if table is None else np.minimum(positions, table.high - 1)).astype(dtype)
    if dtype.itemsize == 1 and table is None:
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max + 1, shape).astype(dtype)
    if table is not None:
        return rng.integers(max(table.low, 0), max(table.high, 1), shape).astype(dtype)
    # Small positive numbers are valid ids, lengths, axes of most models; a scalar or a vector of one is a count more often than an id.
    return rng.integers(1, 3, shape).astype(dtype)


def _index_range(graph: Graph, name: str) -> Range | None:
    """Values an integer input may take when it reaches the indices of a Gather: those inside the smallest table it reads."""
    high: int | None = None
    seen: set[str] = set()
    stack = [name]
    while stack:
        value = stack.pop()
        if value in seen:
            continue
        seen.add(value)
        for n in graph.consumers(value):
            size = _table_size(graph, n, value)
            if size is not None:
                high = size if high is None else min(high, size)
            elif (n.op in _PASS and n.input(0) == value) or n.op == "Concat":
                stack += n.outputs
    return None if high is None else Range(0, high)


def _required(graph: Graph, name: str) -> dict[int, int]:
    """Axes whose size the weights decide: the channels of a convolution (axis 1), the columns of a product (axis -1)."""
    for n in graph.consumers(name):
        shape = graph.shape(n.input(1)) if len(n.inputs) > 1 and n.input(0) == name and graph.is_const(n.input(1)) else None
        if shape is None or len(shape) < 2:
            continue
        if n.op == "Conv" and isinstance(shape[1], int):
            return {1: shape[1] * int(n.attr("group", 1))}
        rows = shape[-1 if n.attr("transB", 0) else -2]
        if n.op in ("MatMul", "Gemm") and isinstance(rows, int) and not n.attr("transA", 0):
            return {-1: rows}
    return {}


def _table_size(graph: Graph, n: Node, value: str) -> int | None:
    if n.op not in ("Gather", "GatherElements") or n.input(1) != value:
        return None
    shape = graph.shape(n.input(0))
    axis = int(n.attr("axis", 0))
    if shape is None or not -len(shape) <= axis < len(shape):
        return None
    size = shape[axis]
    return size if isinstance(size, int) and size > 0 else None


def load_inputs(path: Path) -> dict[str, Value]:
    """Arrays of an .npz file by name (no pickles). Raises UsageError."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return {k: file[k] for k in file.files}
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist", "check the path given to --load-inputs") from None
    except (OSError, ValueError, AttributeError, TypeError):
        raise UsageError(f"{path} is not an .npz file of plain arrays", "write it with numpy.savez(path, name=array, ...)") from None


def parse_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """`name:1,3,224,224` -> (name, dims). Raises UsageError."""
    name, colon, dims = text.rpartition(":")
    try:
        shape = tuple(int(d) for d in dims.split(",") if d.strip())
    except ValueError:
        shape = (-1,)
    if not colon or not name or any(d < 0 for d in shape):
        raise UsageError(f"'{text}' is not an input shape", "write it as name:1,3,224,224")
    return name, shape
