"""Convolution fused with the max pooling that follows it. In the first layers of a network the
result between both is the largest image of all; it is never stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tracea_onnx.compiler.lower.context import Lowering
from tracea_onnx.compiler.lower.epilogue import Epilogue
from tracea_onnx.compiler.lower.op import CONVOLUTIONS, Op, readers
from tracea_onnx.compiler.lower.value import Unsupported, Value
from tracea_onnx.compiler.lower.window import pooling
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.plan.builder import Ref
from tracea_onnx.shapes.windows import Window

#: Sizes of windows that the kernel pools, and their stride.
_WINDOWS, _STRIDE = frozenset({2, 3}), 2


def find(ops: Sequence[Op], outputs: Sequence[str]) -> dict[str, Op]:
    """Results of convolutions that nothing but a max pooling reads: each one's name -> that
    pooling.
    """
    made = {op.outputs[0] for op in ops if op.kind in CONVOLUTIONS} - set(outputs)
    return {
        name: read[0]
        for name, read in readers(ops).items()
        if name in made and len(read) == 1 and read[0].kind == "MaxPool"
    }


def windows(pool: Op, x: Value) -> tuple[Window, Window] | None:
    """The windows of a max pooling of `x`, where kernels pool such ones."""
    if x.rank != 4:
        return None
    try:
        rows, columns = pooling(pool, x)
        # a window may see nothing
        padded = any(max(w.padding()) >= w.kernel for w in (rows, columns))
    except Unsupported:
        return None
    if padded or any(
        w.kernel not in _WINDOWS or w.stride != _STRIDE or w.dilation != 1 for w in (rows, columns)
    ):
        return None
    return rows, columns


def sizes(axes: tuple[Window, Window]) -> dict[str, DimLike]:
    """The same as parameters of a launch."""
    rows, columns = axes
    return {
        "PKH": rows.kernel, "PKW": columns.kernel, "PPT": rows.padding()[0],
        "PPL": columns.padding()[0], "PH": rows.out, "PW": columns.out,
    }  # fmt: skip


def launch(
    ctx: Lowering,
    x: Value,
    dtype: DType,
    operands: Mapping[str, Ref | None],
    ints: Mapping[str, DimLike],
    epi: Epilogue,
) -> bool:
    """The convolution that makes `x` and the pooling that reads it as one launch, of 16-bit types;
    False where that cannot be.
    """
    pool = ctx.pooled.get(x.name)
    if pool is None or dtype.size != 2 or epi.full or epi.residual is not None:
        return False
    axes = windows(pool, x)
    if axes is None:
        return False
    out = ctx.define(pool.outputs[0], dtype, (*x.shape[:2], *(w.out for w in axes)))
    dst = ctx.new_nhwc(out)
    window = {**sizes(axes), **dst.pitches("y")}
    try:
        ctx.plan.launch(
            "conv_pool",
            operands,
            {"y": dst.ref},
            {**ints, **window},
            epi.floats,
            epi.program,
            whole=False,
            dtype=dtype,
        )
    except Unsupported:
        del ctx.values[out.name]
        return False
    return True
