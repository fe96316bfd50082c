"""What is true of each operator: the one table that all sets of operators come from.

`operators(Trait.POOL)` are the ONNX operators with a trait; `kinds` has the ops of specs too, which
are written with a colon (`:gemm`). An operator whose trait nothing asks for has no row."""

from __future__ import annotations

from enum import Flag, auto


class Trait(Flag):
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
    SUM = auto()  # its elements are sums of many terms
    STEEP = auto()  # values or slopes may leave fp16's range, or lose all digits in it
    # --- what it is
    CONV = auto()
    DECONV = auto()
    PRODUCT = auto()  # by a weight
    FUSED_PRODUCT = auto()  # of ONNX Runtime, with an activation or more transposes
    BATCHED = auto()  # a product of any number of matrices
    ROW_NORM = auto()  # over the last axes
    CHANNEL_NORM = auto()  # of [N, C, ...], per image
    BATCH_NORM = auto()
    POOL = auto()
    GLOBAL_POOL = auto()
    CONTROL = auto()  # it has bodies
    QUANTISE = auto()  # ONNX Runtime's int8 kernels look for it next to their operator
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


T = Trait
_UNARY = T.SAME_SHAPE | T.SAME_TYPE
_BINARY = T.BROADCAST | T.SAME_TYPE
_MOVE = T.MOVE | T.EXACT | T.SAME_TYPE | T.NARROW
_BF16 = _MOVE | T.ORT_BF16
_HEAVY = T.HEAVY | T.SUM | T.SAME_TYPE
_SEED = _HEAVY | T.SEED
_NORM = _UNARY | T.NARROW | T.SUM
_ORT = "com.microsoft."

#: Operators of one row share their traits; a colon marks the op of a spec.
_ROWS: tuple[tuple[str, Trait], ...] = (
    # --- pointwise (`pointwise_ops.py`)
    ("Celu Elu Erf Gelu HardSigmoid HardSwish LeakyRelu Mish PRelu Selu Shrink", _UNARY | T.NARROW),
    ("Atan Clip Sigmoid Softsign Swish Tanh ThresholdedRelu", _UNARY | T.NARROW),
    ("Acos Asin Cos Cosh Exp Log Reciprocal Sin Sinh Softplus Sqrt Tan", _UNARY | T.STEEP),
    ("Abs Ceil Floor Neg Relu Round Sign", _UNARY | T.EXACT | T.NARROW),
    (f"{_ORT}BiasGelu {_ORT}FastGelu {_ORT}Gelu {_ORT}QuickGelu", _UNARY),
    ("Add Div Mean Mul Sub Sum", _BINARY | T.NARROW),
    ("Mod Pow", _BINARY | T.STEEP),
    ("Max Min", _BINARY | T.EXACT | T.NARROW),
    ("And Equal Greater GreaterOrEqual Less LessOrEqual Or Xor", T.BROADCAST | T.BOOLEAN),
    ("IsInf IsNaN Not", T.SAME_SHAPE | T.BOOLEAN),
    ("Cast", T.SAME_SHAPE | T.EXACT),
    ("Identity", _BF16 | T.SAME_SHAPE | T.RESHAPE | T.STRIDED | T.AXES),
    ("Where", _MOVE | T.BROADCAST),
    (":pointwise", T.NARROW | T.KEEPS_IMAGE),
    # --- movement
    ("Concat", _BF16 | T.SLICE),
    ("DepthToSpace SpaceToDepth", _MOVE | T.PERMUTE),
    ("Dropout", _UNARY),  # one that canonicalization leaves is in training mode
    ("Expand", _MOVE | T.STRIDED | T.AXES | T.GROWS),
    ("Flatten Reshape", _BF16 | T.RESHAPE | T.STRIDED),
    ("Gather", _BF16 | T.STRIDED | T.GROWS),
    ("GatherElements GatherND", _BF16),
    ("Pad", _MOVE | T.GROWS),
    ("Slice Split", _BF16 | T.STRIDED),
    ("Squeeze Unsqueeze", _BF16 | T.RESHAPE | T.STRIDED | T.AXES),
    ("Tile", _MOVE | T.STRIDED | T.GROWS),
    ("Transpose", _BF16 | T.PERMUTE | T.STRIDED),
    ("Trilu", _MOVE | T.SAME_SHAPE),
    ("Scatter ScatterElements", _UNARY),
    ("ScatterND", _UNARY | T.GROWS),
    ("Constant", T.EXACT),
    ("ConstantOfShape", T.EXACT | T.GROWS),
    ("EyeLike OneHot Range", T.GROWS),
    ("Shape Size", T.SHAPE_ONLY),
    # --- products, convolutions, attention
    ("Conv", _SEED | T.CONV | T.IMAGE),
    (f"{_ORT}FusedConv", _HEAVY | T.CONV | T.IMAGE),
    (":conv", _SEED | T.CONV | T.IMAGE | T.NARROW_BODY),
    ("ConvTranspose", _SEED | T.DECONV | T.IMAGE),
    (":conv_transpose", _SEED | T.DECONV | T.IMAGE | T.NARROW_BODY),
    ("MatMul", _SEED | T.PRODUCT | T.BATCHED | T.GROWS),
    ("Gemm", _SEED | T.PRODUCT),
    (":gemm", _SEED | T.PRODUCT | T.NARROW_BODY),
    (f"{_ORT}FusedGemm", T.FUSED_PRODUCT | T.SAME_TYPE),
    (f"{_ORT}FusedMatMul", T.FUSED_PRODUCT | T.BATCHED | T.SAME_TYPE),
    ("Einsum", _SEED | T.BATCHED),
    (":swiglu", _SEED | T.NARROW_BODY),
    ("Attention", _SEED),
    (":attention", _SEED | T.SLICE),
    (f"{_ORT}Attention {_ORT}MultiHeadAttention", _HEAVY),
    ("RotaryEmbedding", _UNARY | T.HEAVY | T.NARROW | T.SLICE),
    (f"{_ORT}RotaryEmbedding", _UNARY | T.HEAVY),
    (":rope", T.HEAVY | T.NARROW | T.SLICE),
    (":squeeze_excite", T.HEAVY | T.NARROW | T.NARROW_BODY | T.KEEPS_IMAGE),
    ("GRU LSTM RNN", T.ASKED | T.SUM),
    ("ConvInteger DeformConv MatMulInteger QLinearConv QLinearMatMul", T.ASKED),
    (f"{_ORT}EmbedLayerNormalization {_ORT}GroupQueryAttention", T.ASKED),
    (f"{_ORT}MatMulNBits {_ORT}QAttention", T.ASKED),
    # --- norms, reductions, images
    ("LayerNormalization RMSNormalization :layernorm", _NORM | T.ROW_NORM | T.HEAVY),
    (f"SimplifiedLayerNormalization {_ORT}SimplifiedLayerNormalization", _UNARY),
    (f"{_ORT}SkipLayerNormalization {_ORT}SkipSimplifiedLayerNormalization", _UNARY),
    (
        "GroupNormalization InstanceNormalization :groupnorm",
        _NORM | T.CHANNEL_NORM | T.HEAVY | T.KEEPS_IMAGE,
    ),
    ("BatchNormalization :batchnorm", _UNARY | T.NARROW | T.BATCH_NORM | T.ASKED),
    ("LogSoftmax Softmax :softmax", _NORM | T.ASKED),
    ("Hardmax LRN LpNormalization MeanVarianceNormalization", _UNARY | T.ASKED),
    ("ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMean", T.SAME_TYPE | T.SUM),
    ("ReduceProd ReduceSum ReduceSumSquare", T.SAME_TYPE | T.SUM),
    ("ReduceMax ReduceMin TopK", T.SAME_TYPE | T.EXACT),
    ("CumSum", _UNARY),
    ("MaxPool", T.POOL | T.SAME_TYPE | T.EXACT | T.NARROW | T.IMAGE),
    ("AveragePool", T.POOL | T.SAME_TYPE | T.NARROW | T.IMAGE),
    ("LpPool", T.POOL | T.SAME_TYPE),
    ("GlobalAveragePool", T.GLOBAL_POOL | T.SAME_TYPE | T.NARROW),
    ("GlobalMaxPool", T.GLOBAL_POOL | T.SAME_TYPE | T.EXACT | T.NARROW),
    ("Resize", T.SAME_TYPE | T.NARROW | T.IMAGE | T.GROWS),
    ("Upsample", T.SAME_TYPE | T.IMAGE | T.GROWS),
    # --- what no rule starts at
    ("If Loop Scan SequenceMap", T.CONTROL),
    ("DequantizeLinear QuantizeLinear", T.QUANTISE),
    ("Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform", T.RANDOM),
    ("RandomUniformLike", T.RANDOM),
)
TRAITS = {op: traits for ops, traits in _ROWS for op in ops.split()}


def kinds(*traits: Trait) -> frozenset[str]:
    """Operators, and ops of specs, that have one of the traits at least."""
    return frozenset(op for op, has in TRAITS.items() if any(t in has for t in traits))


def operators(*traits: Trait) -> frozenset[str]:
    """ONNX operators that have one of the traits at least."""
    return frozenset(op for op in kinds(*traits) if not op.startswith(":"))
