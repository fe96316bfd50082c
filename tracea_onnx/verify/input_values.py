"""Inputs a model is likely to accept: shapes consistent by symbol, ids within their table, masks of
ones, random data elsewhere.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, TypeProto, ValueInfoProto, helper

from tracea_onnx.errors import ModelError, UsageError
from tracea_onnx.ir.graph import Graph, Node, subgraphs
from tracea_onnx.ir.op_traits import Trait, operators
from tracea_onnx.shapes import symbolic
from tracea_onnx.verify import input_sizes
from tracea_onnx.verify.input_sizes import open_axes, tensor_type

#: A value ONNX Runtime takes: an array, a list of arrays (sequence), or None (absent optional).
Value = Any
#: Bytes that the inputs made for a model may take together.
MOST_BYTES = 1 << 30
#: Elements of the largest value of a model that guessed sizes may lead to.
MOST_ELEMENTS = 1 << 28
#: Axes that an array of numpy may have.
_MOST_AXES = 64 if int(np.__version__.partition(".")[0]) >= 2 else 32
#: Numbers that are drawn for one input; a larger one repeats them. A prime: no size of a model
#: divides it.
_DRAWN = 4_194_301
_PASS = operators(Trait.MOVE) | {"Abs", "Cast", "Clip"}


@dataclass(frozen=True)
class Range:
    """Integers low <= v < high."""

    low: int
    high: int


def generate(
    model: ModelProto,
    *,
    folder: Path | None = None,
    seed: int = 0,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> Iterator[dict[str, Value]]:
    """Candidate feeds for the model's inputs, the likeliest shapes first (`input_sizes`); the
    caller takes the first that runs.

    `shapes` fixes the shape of named inputs, and with it the symbols they share. Raises UsageError
    when a shape contradicts the model, ModelError where every shape takes more than MOST_BYTES.
    """
    graph = Graph(model, folder=folder)
    stored = {t.name for t in model.graph.initializer}
    wanted = [i for i in model.graph.input if i.name not in stored]
    fixed = dict(shapes or {})
    symbols = bind(wanted, fixed)
    _check_fixed(wanted, fixed)
    tables = {i.name: _index_range(graph, i.name) for i in wanted}
    refused: tuple[input_sizes.Shapes, int] | None = None
    any_made = False
    for found, largest in input_sizes.shapes(model, wanted, fixed, symbols):
        if largest > MOST_ELEMENTS or sum(_bytes(i, found[i.name]) for i in wanted) > MOST_BYTES:
            refused = refused or (found, largest)
            continue
        any_made = True
        rng = np.random.default_rng(seed)
        yield {i.name: _value(i.name, i.type, found[i.name], rng, tables[i.name]) for i in wanted}
    if not any_made and refused is not None:
        raise ModelError(*_too_large(wanted, fixed, *refused))


def _bytes(i: ValueInfoProto, shape: Sequence[int]) -> int:
    """Bytes of an input of this shape; a string is counted as 64 bytes."""
    tensor = tensor_type(i.type)
    count = math.prod(shape) * (2 if i.type.HasField("sequence_type") else 1)
    try:
        return count * (
            64
            if tensor is None or tensor.elem_type == TensorProto.STRING
            else np.dtype(helper.tensor_dtype_to_np_dtype(tensor.elem_type)).itemsize
        )
    except (KeyError, TypeError):
        return count


def _check_fixed(wanted: Sequence[ValueInfoProto], fixed: Mapping[str, Sequence[int]]) -> None:
    """Raise for an input that cannot be made, however small its open dims are."""
    for i in wanted:
        tensor = tensor_type(i.type)
        if tensor is not None and len(tensor.shape.dim) > _MOST_AXES:
            what = (
                f"input '{i.name}' has {len(tensor.shape.dim)} dims (at most {_MOST_AXES} are "
                "made for verification)"
            )
            raise ModelError(what, "give --no-verify")
        least = (
            fixed.get(i.name) or [max(d.dim_value, 1) for d in tensor.shape.dim]
            if tensor is not None
            else []
        )
        size = _bytes(i, least)
        if size > MOST_BYTES and i.name in fixed:
            raise UsageError(
                f"input '{i.name}' of shape {list(least)} would take {_gib(size)} (at most "
                f"{_gib(MOST_BYTES)} are made)",
                "give a smaller --input-shape",
            )
        if size > MOST_BYTES:
            what = (
                f"input '{i.name}' has dims {list(least)} and would take {_gib(size)} (at "
                f"most {_gib(MOST_BYTES)} are made for verification)"
            )
            raise ModelError(what, "give --load-inputs, or --no-verify")


def _gib(n: int) -> str:
    return f"{n / (1 << 30):.3g} GiB" if n < 1 << 80 else "more than 1e+15 GiB"


def _too_large(
    wanted: Sequence[ValueInfoProto],
    fixed: Mapping[str, Sequence[int]],
    found: Mapping[str, Sequence[int]],
    largest: int,
) -> tuple[str, str]:
    """Error text for shapes that are too large to be made or run, with the options that give
    others.
    """
    worst = max(wanted, key=lambda i: _bytes(i, found[i.name]))
    total = sum(_bytes(i, found[i.name]) for i in wanted)
    options = asked(wanted, fixed, found)
    fix = (
        f"give smaller sizes in the form of {options}, or --load-inputs, or --no-verify"
        if options
        else "give --load-inputs, or --no-verify"
    )
    if total > MOST_BYTES:
        each = f"input '{worst.name}' of shape {list(found[worst.name])}" + (
            " and the others" if len(wanted) > 1 else ""
        )
        return (
            (
                f"{each} would take {_gib(total)} (at most {_gib(MOST_BYTES)} are made for "
                "verification)"
            ),
            fix,
        )
    return (
        (
            f"a value of the model would have {largest:.3g} elements with the sizes found for its "
            f"inputs (at most {MOST_ELEMENTS:.3g} are tried)"
        ),
        fix,
    )


def asked(
    wanted: Sequence[ValueInfoProto],
    fixed: Mapping[str, Sequence[int]],
    like: Mapping[str, Sequence[int]] | None = None,
) -> str:
    """The --input-shape options that fix every open dim, with sizes as in `like` where it has the
    input, else the smallest; "" when no dim is open.
    """
    parts = []
    for i in wanted:
        tensor = tensor_type(i.type)
        if i.name in fixed or tensor is None or not open_axes(i):
            continue
        made = (like or {}).get(i.name)
        dims = made if made is not None else [max(d.dim_value, 1) for d in tensor.shape.dim]
        parts.append(f"--input-shape {shlex.quote(i.name + ':' + ','.join(map(str, dims)))}")
    return " ".join(parts)


def bind(wanted: Sequence[ValueInfoProto], fixed: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Symbols whose value follows from the fixed shapes.

    Raises UsageError when one contradicts the inputs, or is of none.
    """
    out: dict[str, int] = {}
    unknown = fixed.keys() - {i.name for i in wanted}
    if unknown:
        raise UsageError(
            f"the model has no input called '{sorted(unknown)[0]}'",
            f"its inputs are {', '.join(i.name for i in wanted)}",
        )
    for i in wanted:
        shape, tensor = fixed.get(i.name), tensor_type(i.type)
        if shape is None or tensor is None or not tensor.HasField("shape"):
            continue
        if len(tensor.shape.dim) != len(shape):
            raise UsageError(
                f"input '{i.name}' has rank {len(tensor.shape.dim)}, not {len(shape)}",
                "correct --input-shape",
            )
        for d, n in zip(tensor.shape.dim, shape, strict=True):
            if d.HasField("dim_value") and d.dim_value != n:
                raise UsageError(
                    f"input '{i.name}' has a fixed dimension {d.dim_value}, not {n}",
                    "correct --input-shape",
                )
            if d.dim_param and out.setdefault(d.dim_param, n) != n:
                raise UsageError(
                    f"dimension '{d.dim_param}' would be both {out[d.dim_param]} and {n}",
                    "correct --input-shape",
                )
    return out


def _value(
    name: str,
    kind: TypeProto,
    shape: tuple[int, ...],
    rng: np.random.Generator,
    table: Range | None,
) -> Value:
    if kind.HasField("sequence_type"):
        return [_value(name, kind.sequence_type.elem_type, shape, rng, table) for _ in range(2)]
    if kind.HasField("optional_type"):
        return _value(name, kind.optional_type.elem_type, shape, rng, table)
    elem = kind.tensor_type.elem_type
    if elem == TensorProto.STRING:
        return np.array([f"text {k}" for k in range(math.prod(shape))], dtype=object).reshape(shape)
    try:
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(elem))
    except (KeyError, TypeError):
        raise ModelError(
            f"input '{name}' has a type no value can be made for", "give inputs with --load-inputs"
        ) from None
    lower = name.lower()
    if dtype.kind == "b" or "mask" in lower:
        return np.ones(shape, dtype)
    if dtype.kind in "iu":
        return _integers(lower, dtype, shape, rng, table)
    if lower.endswith("_penalty"):
        return np.ones(shape, dtype)
    return _repeated(shape, lambda n: rng.standard_normal(n).astype(dtype))


def _repeated(shape: tuple[int, ...], draw: Callable[[int], Value]) -> Value:
    """An array of what `draw` gives for a number of elements, over and over where there are
    many.
    """
    count = math.prod(shape)
    return draw(count).reshape(shape) if count <= _DRAWN else np.resize(draw(_DRAWN), shape)


#: What the inputs of ONNX Runtime's search operators (BeamSearch, GreedySearch, Sampling) mean by
#: their names.
_NAMED = {"max_length": 20, "min_length": 1, "num_beams": 2, "num_return_sequences": 1}


def _integers(
    name: str,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    rng: np.random.Generator,
    table: Range | None,
) -> Value:
    if name in _NAMED:
        return np.full(shape, _NAMED[name], dtype)
    if "position" in name and shape:
        positions = np.broadcast_to(np.arange(shape[-1]), shape)
        return (
            positions if table is None else np.minimum(positions, max(table.high - 1, 0))
        ).astype(dtype)
    info = np.iinfo(dtype)
    if table is not None:
        low, high = max(table.low, 0), min(table.high, int(info.max) + 1)
    elif dtype.itemsize == 1:
        low, high = int(info.min), int(info.max) + 1
    # small positive numbers are valid ids, lengths, axes of most models; a scalar or a vector of
    # one is a count more often than an id
    else:
        low, high = 1, 3
    return _repeated(shape, lambda n: rng.integers(low, max(high, low + 1), n).astype(dtype))


def _index_range(graph: Graph, name: str) -> Range | None:
    """Values an integer input may take when it reaches the indices of a Gather: those inside the
    smallest table it reads.
    """
    sizes = list(_tables(graph, name))
    return Range(0, min(sizes)) if sizes else None


def _tables(graph: Graph, name: str) -> Iterator[int]:
    """Sizes of the tables that a value is an index into, also in bodies of control flow that read
    it.
    """
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
                yield size
            elif (n.op in _PASS and n.input(0) == value) or n.op == "Concat":
                stack += n.outputs
            for body in subgraphs(n.proto):
                yield from _tables(
                    Graph(graph.model, body, folder=graph.folder, outer=graph), value
                )


def _table_size(graph: Graph, n: Node, value: str) -> int | None:
    if n.op not in ("Gather", "GatherElements") or n.input(1) != value:
        return None
    shape = graph.shape(n.input(0)) or symbolic.shapes(graph).dims(n.input(0))
    axis = int(n.attr("axis", 0))
    if shape is None or not -len(shape) <= axis < len(shape):
        return None
    size = shape[axis]
    return size if isinstance(size, int) and size > 0 else None


def load_inputs(path: Path) -> dict[str, Value]:
    """Arrays of an .npz file by name (no pickles). Raises UsageError."""
    try:
        with path.open("rb") as data, np.load(data, allow_pickle=False) as file:
            return {k: file[k] for k in file.files}
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist", "check the path given") from None
    except MemoryError:
        raise
    except Exception:  # numpy's, zipfile's and zlib's errors share no other class
        raise UsageError(
            f"{path} is not an .npz file of plain arrays",
            "write it with numpy.savez(path, name=array, ...)",
        ) from None


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
