"""How an operand broadcasts against an output: the C++ `enum Broadcast`."""

from __future__ import annotations

from tracea_onnx.compiler.lower.value import Dims, Value

FULL, CHANNEL, ROW, SCALAR = range(4)
#: CHANNEL of f32 beside narrower operands, in `pointwise_nhwc` where the target has such.
CHANNEL_F32 = 4


def operand_kind(v: Value, out: Dims, channel_axis: int) -> int | None:
    """FULL, CHANNEL (one value per index of `channel_axis`), SCALAR, ROW (all but the last axis),
    or None.
    """
    if all(d == 1 for d in v.shape):
        return SCALAR
    pad = len(out) - v.rank
    if pad < 0:
        return None
    aligned = (*(1 for _ in range(pad)), *v.shape)
    differs = [
        k for k, (d, o) in enumerate(zip(aligned, out, strict=True)) if not (d is o or d == o)
    ]
    if not differs:
        # [C, H, W] beside an image of a batch of one is read as what it is not, an image [N, C, W].
        return FULL if v.rank == len(out) or channel_axis == len(out) - 1 else None
    if (
        all(d == 1 for k, d in enumerate(aligned) if k != channel_axis)
        and channel_axis not in differs
    ):
        return CHANNEL
    if channel_axis == len(out) - 1 and differs == [channel_axis] and aligned[channel_axis] == 1:
        return ROW
    return None
