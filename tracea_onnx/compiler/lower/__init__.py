"""Lowering: ops to kernel launches. `LOWER` maps an op kind to the function that lowers it: `OPS` of
the modules in `ops/`, which are found by name.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from importlib import import_module

from tracea_onnx.compiler.lower import ops
from tracea_onnx.compiler.lower.context import Lowering
from tracea_onnx.compiler.lower.op import Op
from tracea_onnx.compiler.lower.value import Unsupported
from tracea_onnx.ir.op_traits import Trait, kinds

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


def lower(ctx: Lowering, op: Op) -> None:
    """Emit the launches of `op` and define its outputs; raises Unsupported."""
    fn = LOWER.get(op.kind)
    if fn is None:
        unread = op.nodes[0].unread if op.nodes else ""
        raise Unsupported(op.why or unread or f"no kernel computes {op.kind}")
    _check_ranks(ctx, op)
    fn(ctx, op)
