"""A convolution that pools its own result: the first layers of a network, between which lies the
largest image of all, then never written.
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
    if pool is None or dtype.size != 2 or x.rank != 4 or epi.full or epi.residual is not None:
        return False
    try:
        p = pooling(pool, x)
    except Unsupported:
        return False
    # a window may see nothing
    padded = any(pad >= size for pad, size in zip(p.pads, p.kernel * 2, strict=True))
    if (
        not _WINDOWS.issuperset(p.kernel)
        or set(p.strides) != {_STRIDE}
        or set(p.dilations) != {1}
        or padded
    ):
        return False
    out = ctx.define(pool.outputs[0], dtype, (*x.shape[:2], *p.out))
    dst = ctx.new_nhwc(out)
    window: dict[str, DimLike] = {
        "PKH": p.kernel[0], "PKW": p.kernel[1], "PPT": p.pads[0], "PPL": p.pads[1], "PH": p.out[0], "PW": p.out[1],
        "y_cs": dst.cs, "y_rs": dst.rs, "y_ns": dst.ns,
    }  # fmt: skip
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
