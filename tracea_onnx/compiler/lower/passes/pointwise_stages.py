"""Deferred pointwise results: a pointwise launch that reads such a result computes it as a stage
before its own expression, and it is never stored.

Chains of integers, booleans and their conversions (masks, positions, buckets of relative positions)
become one launch each. A stage's result is rounded to its element type before the next one reads
it, so that results stay what they are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tracea_onnx.compiler.lower.axes import broadcast_strides, merge_dims, pad_rows
from tracea_onnx.compiler.lower.context import Lowering
from tracea_onnx.compiler.lower.op import Op, readers
from tracea_onnx.compiler.lower.value import Dims, Value, View, contiguous
from tracea_onnx.ir.abi import KERNEL_FLOATS, DType
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.ir.op_traits import Trait, operators
from tracea_onnx.ir.pointwise_ops import POINTWISE
from tracea_onnx.plan.builder import Ref
from tracea_onnx.support.data_classes import dataclass

#: Ops that take a stage as one of their own, and those that only place its axes.
_READERS = {*POINTWISE, ":pointwise"}
_VIEWS = operators(Trait.AXES)
#: Readers of one value that may each compute it; stages in a row.
_MOST, _LONGEST = 4, 12


@dataclass(frozen=True, eq=False)
class Stage:
    """A compiled expression of `inputs`, whose result has element type `dtype`."""

    program: Mapping[str, Any]
    dtype: DType
    inputs: tuple[Value | Stage, ...]


def find(ops: Sequence[Op], outputs: Collection[str], taken: Collection[str]) -> dict[str, int]:
    """Values of this partition that only pointwise expressions read, if need be after axes were
    placed, and how many of those.
    """
    read_by = readers(ops)
    found: dict[str, int] = {}

    def count(name: str) -> int:
        if name in outputs or name in taken:
            return 0
        total = 0
        for r in read_by.get(name, []):
            one = (
                1
                if r.kind in _READERS
                else count(r.outputs[0])
                if r.kind in _VIEWS and r.input(0) == name
                else 0
            )
            if one == 0:
                return 0
            total += one
        return total

    for op in ops:
        if op.kind in _READERS or op.kind in _VIEWS:
            n = count(op.outputs[0])
            if 0 < n <= _MOST:
                found[op.outputs[0]] = n
    return found


def stage_of(v: Value) -> Value | Stage:
    """The stage of a deferred value; of any other, the value."""
    return (
        v.deferred.stage
        if v.deferred is not None and v.view is None and isinstance(v.deferred.stage, Stage)
        else v
    )


def leaves(inputs: Sequence[Value | Stage]) -> list[Value]:
    """The tensors that stages read in the end, each once."""
    found: dict[int, Value] = {}
    for x in inputs:
        for v in [x] if isinstance(x, Value) else leaves(x.inputs):
            found.setdefault(id(v), v)
    return list(found.values())


def stages(inputs: Sequence[Value | Stage]) -> list[Stage]:
    """All stages below, each once, what they read before them."""
    found: dict[int, Stage] = {}
    for x in inputs:
        if isinstance(x, Stage):
            for s in (*stages(x.inputs), x):
                found.setdefault(id(s), s)
    return list(found.values())


def should_defer(ctx: Lowering, out: Value, inputs: Sequence[Value | Stage]) -> bool:
    """Whether a value should be computed by its readers: floats only for a single one, and not
    after too many stages.
    """
    count = ctx.staged.get(out.name, 0)
    kinds = {out.dtype, *(v.dtype for v in inputs)}
    return (
        count > 0 and (count == 1 or not kinds <= KERNEL_FLOATS) and len(stages(inputs)) < _LONGEST
    )


def combined(
    inputs: Sequence[Value | Stage], program: Mapping[str, Any], dtype: DType
) -> Mapping[str, Any]:
    """The program of a launch that reads `leaves(inputs)`."""
    before = stages(inputs)
    if not before:
        return program
    own = leaves(inputs)
    place = {id(x): k for k, x in enumerate([*own, *before])}
    rows = [
        {"program": s.program, "dtype": int(s.dtype), "from": [place[id(x)] for x in s.inputs]}
        for s in (*before, Stage(program, dtype, tuple(inputs)))
    ]
    return {"n_in": len(own), "stages": rows}


def placed(ctx: Lowering, x: Value, axes: Sequence[int | None], out: Value) -> bool:
    """Makes `out` the stages of `x` with its axes where `axes` says (None: a new one of size 1);
    False where x is no stage.
    """
    stage = stage_of(x)
    if not isinstance(stage, Stage) or out.name not in ctx.staged:
        return False
    moved: dict[int, Value | Stage] = {}

    def leaf(v: Value) -> Value:
        view, before = ctx.strided(v), x.rank - v.rank
        kept = [None if a is None or a < before else a - before for a in axes]
        transposed = Value(
            f"{v.name}\0placed", v.dtype, tuple(1 if k is None else v.shape[k] for k in kept)
        )
        transposed.view = View(view.ref, tuple(0 if k is None else view.strides[k] for k in kept))
        return transposed

    def again(s: Value | Stage) -> Value | Stage:
        if id(s) not in moved:
            moved[id(s)] = (
                leaf(s)
                if isinstance(s, Value)
                else Stage(s.program, s.dtype, tuple(again(i) for i in s.inputs))
            )
        return moved[id(s)]

    new = again(stage)
    assert isinstance(new, Stage)
    defer(ctx, out, new)
    return True


def defer(ctx: Lowering, out: Value, stage: Stage) -> None:
    """Leaves `out` to its readers."""

    def make() -> None:
        launch(ctx, stage.inputs, out, stage.program)

    ctx.values[out.name] = out
    ctx.defer(out, "", leaves([stage]), make, stage)


def rows_of(
    ctx: Lowering, values: Sequence[Value], shape: Dims
) -> list[tuple[DimLike, list[DimLike]]]:
    """Dims of one launch over these values, and the strides of each, adjacent axes merged."""
    views = [ctx.strided(v) for v in values]
    return merge_dims(
        shape,
        [
            contiguous(shape),
            *(
                broadcast_strides(ctx.plan, view, v.shape, shape)
                for view, v in zip(views, values, strict=True)
            ),
        ],
    )


def launch(
    ctx: Lowering, inputs: Sequence[Value | Stage], out: Value, program: Mapping[str, Any]
) -> None:
    """out = program(inputs), the stages among them computed on the way."""
    values = leaves(inputs)
    rows = pad_rows(rows_of(ctx, values, out.shape), 6, 1 + len(values))
    ints: dict[str, DimLike] = {"y_dtype": int(out.dtype)}
    for d, (n, s) in enumerate(rows):
        ints[f"n{d}"] = n
        for k in range(len(values)):
            ints[f"x{k}_{d}"] = s[k + 1]
    for k, v in enumerate(values):
        ints[f"x{k}_dtype"] = int(v.dtype)
    operands: dict[str, Ref | None] = {f"x{k}": ctx.strided(v).ref for k, v in enumerate(values)}
    ctx.plan.launch(
        "pointwise",
        operands,
        {"y": ctx.new_plain(out)},
        ints,
        None,
        combined(inputs, program, out.dtype),
    )
