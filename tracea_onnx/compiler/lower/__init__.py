"""Lowering: ops to kernel launches. `LOWER` maps an op kind to the function that lowers it: `OPS`
of the modules in `ops/`, which are found by name.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from importlib import import_module

import numpy as np

from tracea_onnx.compiler.lower import ops, quantised_moves
from tracea_onnx.compiler.lower.context import Lowering
from tracea_onnx.compiler.lower.op import Op
from tracea_onnx.compiler.lower.ops.pointwise import lower_expression
from tracea_onnx.compiler.lower.value import Unsupported
from tracea_onnx.ir.abi import INTEGERS, DType
from tracea_onnx.ir.dims import Dim
from tracea_onnx.ir.element_types import numpy_type
from tracea_onnx.ir.expr import Expr
from tracea_onnx.ir.graph import Array
from tracea_onnx.ir.op_traits import Trait, kinds, operators
from tracea_onnx.shapes.environment import Whole
from tracea_onnx.shapes.operands import whole
from tracea_onnx.shapes.shape_values import OPERATORS, content

_MODULES = {
    m.name: import_module(f"{ops.__name__}.{m.name}") for m in pkgutil.iter_modules(ops.__path__)
}
LOWER: dict[str, Callable[[Lowering, Op], None]] = {
    kind: fn for module in _MODULES.values() for kind, fn in module.OPS.items()
}
#: Modules of `ops` whose kinds carry no arithmetic that would be worth a partition by itself.
_LIGHT = ("copies", "indexed", "movement", "padding", "pointwise", "topk")
#: Kinds that carry a model's arithmetic: a partition without any is left to ORT.
COMPUTE = frozenset(
    (
        ":pointwise",
        *(kind for name, module in _MODULES.items() if name not in _LIGHT for kind in module.OPS),
    )
)

#: Kinds whose first operand has a batch and channels.
_CHANNELS = kinds(Trait.CHANNEL_NORM, Trait.BATCH_NORM, Trait.GLOBAL_POOL)
#: Operands that are lists of sizes, places or factors, so of rank 1. Axes may be a scalar.
_LISTS: dict[str, tuple[int, ...]] = {
    "Slice": (1, 2, 3, 4), "Split": (1,), "Reshape": (1,), "Expand": (1,), "Tile": (1,),
    "ConstantOfShape": (0,), "Resize": (2, 3), "Upsample": (1,), "Pad": (1,),
}  # fmt: skip


def _check_ranks(ctx: Lowering, op: Op) -> None:
    """Raise Unsupported for operands of ranks that the operator does not define: ONNX Runtime looks
    at some only when it runs the node.
    """
    if op.kind in _CHANNELS and (rank := _rank(ctx, op.input(0))) < 2:
        raise Unsupported(f"the operand of {op.kind} has rank {rank}, without a channel axis")
    for k in _LISTS.get(op.kind, ()):
        if op.input(k) and (rank := _rank(ctx, op.input(k))) != 1:
            raise Unsupported(
                f"'{op.input(k)}' of {op.kind} has rank {rank}; it must be a list of rank 1"
            )


def _rank(ctx: Lowering, name: str) -> int:
    known = ctx.values.get(name)
    return known.rank if known is not None else len(ctx.graph.shape(name) or ())


#: Operators on numbers that stand for sizes: their results are known, and are not stored until
#: something reads them. What is left out says more, such as that integers count.
_FOLLOWED = OPERATORS.keys() - operators(Trait.RESHAPE) - {"Expand"}


def _holds(dtype: DType, v: object) -> bool:
    """Whether the type holds a number as it is: shapes are followed in 64 bits."""
    if not isinstance(v, int) or dtype == DType.BOOL:
        return True
    span = np.iinfo(numpy_type(int(dtype)))
    return int(span.min) <= v <= int(span.max)


def _follow(ctx: Lowering, op: Op) -> bool:
    found = content(ctx, op) if op.kind in _FOLLOWED else None
    if found is None:
        return False
    dtype = ctx.graph.dtype(op.outputs[0])
    if any(isinstance(v, Whole) for v in found.flat):
        return dtype == DType.F32 and _follow_floats(ctx, op.outputs[0], found)
    if any(isinstance(v, float) for v in found.flat):
        if dtype != DType.F32 or any(isinstance(v, Dim) for v in found.flat):
            return False
        ctx.define(op.outputs[0], DType.F32, found.shape).data = found.astype(np.float32)
        return True
    if dtype is None:
        like = op.input(1 if op.kind == "Where" else 0)
        dtype = DType.I64 if op.kind in ("Shape", "Size") else ctx.value(like).dtype
    if dtype not in INTEGERS or not all(_holds(DType(dtype), v) for v in found.flat):
        return False
    out = ctx.define(op.outputs[0], DType(dtype), found.shape)
    out.ints = tuple(v if isinstance(v, Dim) else int(v) for v in found.flat)
    return True


def _follow_floats(ctx: Lowering, name: str, found: Array) -> bool:
    """Floats that hold dims are made of integers where something reads them."""
    numbers = [whole(v) for v in found.flat]
    if any(n is None for n in numbers):
        return False
    held = ctx.define(f"{name}\0whole", DType.I64, found.shape)
    held.ints = tuple(n for n in numbers if n is not None)
    out = ctx.define(name, DType.F32, found.shape)
    out.sizes = found
    same = Expr(1, (), 0)
    ctx.defer(out, "", (), lambda: lower_expression(ctx, same, [held], name, DType.F32))
    return True


def lower(ctx: Lowering, op: Op) -> None:
    """Emit the launches of `op` and define its outputs; raises Unsupported."""
    late = ctx.late.pop(op.outputs[0], None)
    if late is not None:
        if late.make():
            return
        for before in late.ops:
            ctx.postponed.discard(before.outputs[0])
            lower(ctx, before)
    if op.outputs[0] in ctx.postponed or _follow(ctx, op):
        return
    fn = LOWER.get(op.kind)
    if fn is None:
        unread = op.nodes[0].unread if op.nodes else ""
        raise Unsupported(op.why or unread or f"no kernel computes {op.kind}")
    _check_ranks(ctx, op)
    if not quantised_moves.lower(ctx, op, fn):
        fn(ctx, op)
