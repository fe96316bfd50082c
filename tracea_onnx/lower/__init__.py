"""Lowering: ops to kernel launches. `LOWER` maps an op kind to the function that lowers it."""

from __future__ import annotations

from tracea_onnx.lower import attention, contrib, conv, copies, einsum, image, indexed, linear, movement, norm, padding, pointwise, topk
from tracea_onnx.lower.context import Lowering
from tracea_onnx.lower.op import UNTRUSTED, WRONG, Op
from tracea_onnx.lower.value import Unsupported
from tracea_onnx.patterns_ops import POINTWISE

LOWER = {
    **dict.fromkeys(POINTWISE, pointwise.pointwise), ":pointwise": pointwise.pointwise, "Cast": pointwise.cast,
    **movement.OPS, **copies.OPS, **indexed.OPS, **padding.OPS, **conv.OPS, **linear.OPS, **einsum.OPS, **attention.OPS, **norm.OPS, **image.OPS,
    **topk.OPS, **contrib.OPS,
}  # fmt: skip
#: Kinds that carry a model's arithmetic: a partition without any is left to ORT.
COMPUTE = frozenset({*conv.OPS, *linear.OPS, *einsum.OPS, *attention.OPS, *contrib.OPS, *norm.OPS, *image.OPS, ":pointwise"})


def lower(ctx: Lowering, op: Op) -> None:
    """Emit the launches of `op` and define its outputs; raises Unsupported with a sentence."""
    fn = LOWER.get(op.kind)
    if op.kind == UNTRUSTED:
        wrong = op.attr(WRONG)
        raise Unsupported(f"the description of the fused op is wrong: {wrong}" if wrong else "ONNX Runtime inlines the fused op, and the rules match its body")
    if fn is None:
        raise Unsupported((op.nodes[0].unread if op.nodes else "") or f"no kernel computes {op.kind}")
    fn(ctx, op)
