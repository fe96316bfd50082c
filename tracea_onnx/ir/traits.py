"""What may be true of an operator. `op_traits.py` has the operators."""

from __future__ import annotations

from enum import Flag, auto


class Trait(Flag):
    """Properties of an operator or of an op of a spec."""

    # --- the first output, compared with the inputs
    SAME_SHAPE = auto()  # it has the dims of the first input
    BROADCAST = auto()  # it has the dims that all inputs broadcast to
    SAME_TYPE = auto()  # it has the element type of the first input (Where: of the second)
    BOOLEAN = auto()  # it is true or false
    RESHAPE = auto()  # it has the elements of the first input in their order
    PERMUTE = auto()  # it has every element of the first input once, in another order
    STRIDED = auto()  # it may be strides over the first input (`match/strided_view.py`)
    AXES = auto()  # it is the first input with axes of size one added, removed or repeated
    MOVE = auto()  # its elements are elements of the inputs (Pad: or a constant)
    EXACT = auto()  # its elements need no rounding where those of the inputs need none
    GROWS = auto()  # it may be much larger than the inputs, by values that inference may not know
    RANDOM = auto()  # it is no function of the inputs
    COUNTED = auto()  # it has as many slices along an axis as what the inputs hold says
    SUM = auto()  # its elements are sums of many terms
    STEEP = auto()  # values or slopes may leave fp16's range, or lose all digits in it
    # --- what it is
    CONV = auto()
    DECONV = auto()
    MATMUL = auto()  # by a weight, or of two run-time operands
    FUSED_MATMUL = auto()  # of ONNX Runtime, with an activation or more transposes
    BATCHED = auto()  # of any number of matrices
    ROW_NORM = auto()  # over the last axes
    CHANNEL_NORM = auto()  # of [N, C, ...], per image
    BATCH_NORM = auto()
    POOL = auto()
    GLOBAL_POOL = auto()
    CONTROL = auto()  # it has bodies
    QUANTISE = auto()  # ONNX Runtime's int8 kernels look for it next to their operator
    INTEGERS = auto()  # ONNX Runtime's own, of 8-bit operands with their scales
    SHAPE_ONLY = auto()  # it reads the shape of its input alone
    # --- what is done with it
    HEAVY = auto()  # a kernel for it is always worth a partition
    ASKED = auto()  # not that, but `explain` says why it is not fused
    NARROW = auto()  # harmless in fp16: it stays there behind an operator that is worth a cast
    SEED = auto()  # worth a cast to fp16
    NARROW_BODY = auto()  # a fused op whose body is narrow node by node; of others it is fp32
    ORT_BF16 = auto()  # ONNX Runtime's CPU provider computes it in bf16
    IMAGE = auto()  # lowering writes its result channels-last
    KEEPS_IMAGE = auto()  # lowering does so where its operand is
    SLICE = auto()  # lowering reads a slice of a wider projection in place, or copies it anyway
