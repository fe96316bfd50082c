"""What is true of each operator, and which of its attributes were read: the one table that all sets
of operators come from.

`operators(Trait.POOL)` are the ONNX operators with a trait; `kinds` has the ops of specs too, which
are written with a colon (`:gemm`). A pointwise operator that is one instruction has its row in the
table of opcodes (`abi.py`), one that is made of several in `COMPOSED`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from tracea_onnx.ir.abi import OPCODES_OF, Opcode
from tracea_onnx.ir.traits import Trait as Trait
from tracea_onnx.support.data_classes import dataclass

T = Trait
_UNARY = T.SAME_SHAPE | T.SAME_TYPE
_BINARY = T.BROADCAST | T.SAME_TYPE
_MOVE = T.MOVE | T.EXACT | T.SAME_TYPE | T.NARROW
_BF16 = _MOVE | T.ORT_BF16
_HEAVY = T.HEAVY | T.SUM | T.SAME_TYPE
_SEED = _HEAVY | T.SEED
_NORM = _UNARY | T.NARROW | T.SUM
_IMAGES = _NORM | T.CHANNEL_NORM | T.HEAVY | T.KEEPS_IMAGE
_ORT = "com.microsoft."
_WINDOW = "auto_pad dilations kernel_shape pads strides"
_REDUCTION = "axes keepdims noop_with_empty_axes"
_PLACES = "coordinate_transformation_mode"
_RESIZE = f"antialias axes {_PLACES} cubic_coeff_a exclude_outside"
_RECURRENT = "activation_alpha activation_beta activations"
_TRANSPOSED = "transA transB"


@dataclass(frozen=True)
class Composed:
    """A pointwise operator as an expression of opcodes: `x`, `y`, `z` are its inputs, the names of
    `attributes`, which hold ONNX's defaults, its attributes, and `...` folds over all inputs.
    """

    expression: str
    traits: Trait
    attributes: Mapping[str, float] = field(default_factory=dict)


COMPOSED: dict[str, Composed] = {
    "Greater": Composed("lt(y, x)", T.BROADCAST | T.BOOLEAN),
    "GreaterOrEqual": Composed("le(y, x)", T.BROADCAST | T.BOOLEAN),
    "Identity": Composed("x", _BF16 | T.SAME_SHAPE | T.RESHAPE | T.STRIDED | T.AXES),
    "Max": Composed("max(...)", _BINARY | T.EXACT | T.NARROW),
    "Min": Composed("min(...)", _BINARY | T.EXACT | T.NARROW),
    "Shrink": Composed(
        "where(lt(x, neg(lambd)), add(x, bias), where(lt(lambd, x), sub(x, bias), 0))",
        _UNARY | T.NARROW,
        {"lambd": 0.5, "bias": 0.0},
    ),
    "SwiGLU": Composed(
        "mul(quick_gelu(x, alpha), y)", T.SAME_SHAPE | T.SAME_TYPE | T.NARROW, {"alpha": 1.0}
    ),
    "Sum": Composed("add(...)", _BINARY | T.NARROW),
    "ThresholdedRelu": Composed("where(lt(alpha, x), x, 0)", _UNARY | T.NARROW, {"alpha": 1.0}),
    f"{_ORT}QuickGelu": Composed("quick_gelu(x, alpha)", _UNARY, {"alpha": 1.702}),
}

#: Operators of one row share their traits and the attributes that are read, or that change no
#: result
#: (seed, momentum, stash_type: float32 is what kernels accumulate in). None: nobody read them, and
#: no node is passed over for an attribute. A colon marks the op of a spec.
_ROWS: tuple[tuple[str, Trait, str | None], ...] = (
    # --- pointwise, by functions of `pointwise_ops.py`
    ("Cast", T.SAME_SHAPE | T.EXACT, "round_mode saturate to"),
    ("CastLike", T.SAME_SHAPE | T.EXACT, "round_mode saturate"),
    ("Clip", _UNARY | T.NARROW, "max min"),
    ("Gelu", _UNARY | T.NARROW, "approximate"),
    ("IsInf", T.SAME_SHAPE | T.BOOLEAN, "detect_negative detect_positive"),
    ("Mean", _BINARY | T.NARROW, ""),
    ("Mod", _BINARY | T.STEEP, "fmod"),
    ("BitShift", _BINARY | T.EXACT, "direction"),
    ("Pow", _BINARY | T.STEEP, ""),
    (f"{_ORT}BiasGelu {_ORT}FastGelu {_ORT}Gelu", _UNARY, ""),
    (":pointwise", T.NARROW | T.KEEPS_IMAGE, None),
    # --- movement
    ("Concat", _BF16 | T.SLICE, "axis"),
    ("DepthToSpace SpaceToDepth", _MOVE | T.PERMUTE, "blocksize mode"),
    ("Dropout", _UNARY, "ratio seed"),  # one that canonicalization leaves is in training mode
    ("Expand", _MOVE | T.STRIDED | T.AXES | T.GROWS, ""),
    ("Flatten", _BF16 | T.RESHAPE | T.STRIDED, "axis"),
    ("Reshape", _BF16 | T.RESHAPE | T.STRIDED, "allowzero shape"),
    ("Gather", _BF16 | T.STRIDED | T.GROWS, "axis"),
    ("GatherElements", _BF16, "axis"),
    ("GatherND", _BF16, "batch_dims"),
    ("Pad", _MOVE | T.GROWS, "mode pads value"),
    ("Slice", _BF16 | T.STRIDED, "axes ends starts"),
    ("Split", _BF16 | T.STRIDED, "axis num_outputs split"),
    ("Squeeze Unsqueeze", _BF16 | T.RESHAPE | T.STRIDED | T.AXES, "axes"),
    ("Tile", _MOVE | T.STRIDED | T.GROWS, ""),
    ("Transpose", _BF16 | T.PERMUTE | T.STRIDED, "perm"),
    ("Trilu", _MOVE | T.SAME_SHAPE, "upper"),
    ("ReverseSequence", _MOVE | T.SAME_SHAPE | T.PERMUTE, "batch_axis time_axis"),
    ("Scatter", _UNARY, "axis"),
    ("ScatterElements", _UNARY, "axis reduction"),
    ("ScatterND", _UNARY | T.GROWS, "reduction"),
    ("TensorScatter", _UNARY, "axis mode"),
    ("Constant", T.EXACT, None),
    ("ConstantOfShape", T.EXACT | T.GROWS, "value"),
    ("EyeLike", T.GROWS | T.SAME_SHAPE, "dtype k"),
    ("BlackmanWindow HammingWindow HannWindow MelWeightMatrix", T.GROWS, None),
    ("OneHot", T.GROWS, "axis"),
    ("Range", T.GROWS, "stash_type"),
    ("Shape", T.SHAPE_ONLY, "end start"),
    ("Size", T.SHAPE_ONLY, ""),
    # --- products, convolutions, attention
    ("Conv", _SEED | T.CONV | T.IMAGE, f"{_WINDOW} group"),
    (
        f"{_ORT}FusedConv",
        _HEAVY | T.CONV | T.IMAGE,
        f"{_WINDOW} activation activation_params group",
    ),
    (":conv", _SEED | T.CONV | T.IMAGE | T.NARROW_BODY, None),
    ("ConvTranspose", _SEED | T.DECONV | T.IMAGE, f"{_WINDOW} group output_padding output_shape"),
    (":conv_transpose", _SEED | T.DECONV | T.IMAGE | T.NARROW_BODY, None),
    ("MatMul", _SEED | T.MATMUL | T.BATCHED | T.GROWS, ""),
    ("Gemm", _SEED | T.MATMUL, f"alpha beta broadcast {_TRANSPOSED}"),
    (":gemm", _SEED | T.MATMUL | T.NARROW_BODY, None),
    (
        f"{_ORT}FusedGemm",
        T.FUSED_MATMUL | T.SAME_TYPE,
        f"activation activation_alpha activation_beta activation_gamma alpha beta {_TRANSPOSED}",
    ),
    (
        f"{_ORT}FusedMatMul",
        T.FUSED_MATMUL | T.BATCHED | T.SAME_TYPE,
        f"alpha {_TRANSPOSED} transBatchA transBatchB",
    ),
    ("Einsum", _SEED | T.BATCHED, "equation"),
    ("DFT STFT", _HEAVY, "axis inverse onesided"),
    (":swiglu", _SEED | T.NARROW_BODY, None),
    (
        "Attention",
        _SEED,
        "is_causal kv_num_heads q_num_heads qk_matmul_output_mode scale softcap softmax_precision",
    ),
    (":attention", _SEED | T.SLICE, None),
    (
        f"{_ORT}Attention",
        _HEAVY,
        "do_rotary mask_filter_value num_heads qkv_hidden_sizes scale unidirectional",
    ),
    (f"{_ORT}MultiHeadAttention", _HEAVY, "mask_filter_value num_heads scale unidirectional"),
    (
        f"{_ORT}GroupQueryAttention",
        _HEAVY | T.SLICE,
        (
            "causal do_rotary k_quant_type kv_cache_bit_width kv_num_heads local_window_size"
            " num_heads qk_norm_epsilon qk_output rotary_interleaved scale sliding_window_cache"
            " smooth_softmax softcap v_quant_type"
        ),
    ),
    (
        "RotaryEmbedding",
        _UNARY | T.HEAVY | T.NARROW | T.SLICE,
        "interleaved num_heads rotary_embedding_dim",
    ),
    (
        f"{_ORT}RotaryEmbedding",
        _UNARY | T.HEAVY,
        "interleaved is_packed_batching num_heads rotary_embedding_dim scale",
    ),
    (":rope", T.HEAVY | T.NARROW | T.SLICE, None),
    (":squeeze_excite", T.HEAVY | T.NARROW | T.NARROW_BODY | T.KEEPS_IMAGE, None),
    (
        "GRU LSTM RNN",
        _HEAVY,
        f"{_RECURRENT} clip direction hidden_size input_forget layout linear_before_reset",
    ),
    (
        "DeformConv",
        T.HEAVY | T.SUM | T.SAME_TYPE,
        "dilations group kernel_shape offset_group pads strides",
    ),
    ("ConvInteger QLinearConv", T.ASKED | T.HEAVY, f"{_WINDOW} group"),
    (f"{_ORT}QLinearAdd {_ORT}QLinearMul {_ORT}QLinearSigmoid {_ORT}QLinearWhere", T.INTEGERS, ""),
    (
        f"{_ORT}QLinearAveragePool",
        T.INTEGERS,
        "auto_pad ceil_mode channels_last count_include_pad kernel_shape pads strides",
    ),
    (f"{_ORT}QLinearConcat", T.INTEGERS, "axis"),
    (f"{_ORT}QLinearGlobalAveragePool", T.GLOBAL_POOL | T.INTEGERS, "channels_last"),
    (f"{_ORT}QLinearLeakyRelu", T.INTEGERS, "alpha"),
    (f"{_ORT}QLinearSoftmax", T.INTEGERS, "axis opset"),
    (f"{_ORT}QGemm", T.ASKED | T.HEAVY, f"alpha {_TRANSPOSED}"),
    ("MatMulInteger QLinearMatMul", T.ASKED | T.HEAVY, ""),
    (f"{_ORT}EmbedLayerNormalization", T.ASKED, "epsilon"),
    (f"{_ORT}QAttention", T.ASKED, None),
    (f"{_ORT}MatMulNBits", _HEAVY, "K N accuracy_level bits block_size weight_prepacked"),
    (":gemm_nbits", _HEAVY, None),
    (f"{_ORT}GatherBlockQuantized", T.HEAVY | T.GROWS, "bits block_size gather_axis quantize_axis"),
    # --- norms, reductions, images
    (
        "LayerNormalization RMSNormalization",
        _NORM | T.ROW_NORM | T.HEAVY,
        "axis epsilon stash_type",
    ),
    (":layernorm", _NORM | T.ROW_NORM | T.HEAVY, None),
    (
        f"SimplifiedLayerNormalization {_ORT}SimplifiedLayerNormalization",
        _UNARY,
        "axis epsilon stash_type",
    ),
    (f"{_ORT}SkipLayerNormalization {_ORT}SkipSimplifiedLayerNormalization", _UNARY, "epsilon"),
    ("GroupNormalization", _IMAGES, "epsilon num_groups stash_type"),
    ("InstanceNormalization", _IMAGES, "epsilon"),
    (":groupnorm", _IMAGES, None),
    (
        "BatchNormalization",
        _UNARY | T.NARROW | T.BATCH_NORM | T.ASKED,
        "epsilon momentum spatial training_mode",
    ),
    (":batchnorm", _UNARY | T.NARROW | T.BATCH_NORM | T.ASKED, None),
    ("LogSoftmax Softmax", _NORM | T.ASKED, "axis"),
    (":softmax", _NORM | T.ASKED, None),
    ("LRN", _UNARY | T.ASKED, "alpha beta bias size"),
    ("Hardmax", _UNARY | T.ASKED, "axis"),
    ("LpNormalization", _UNARY | T.ASKED, "axis p"),
    ("MeanVarianceNormalization", _UNARY | T.ASKED, "axes"),
    ("ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMean", T.SAME_TYPE | T.SUM, _REDUCTION),
    ("ReduceProd ReduceSum ReduceSumSquare", T.SAME_TYPE | T.SUM, _REDUCTION),
    ("ReduceMax ReduceMin", T.SAME_TYPE | T.EXACT, _REDUCTION),
    ("ArgMax ArgMin", T(0), "axis keepdims select_last_index"),
    ("TopK", T.SAME_TYPE | T.EXACT, "axis k largest sorted"),
    ("CumSum", _UNARY, "exclusive reverse"),
    (
        "MaxPool",
        T.POOL | T.SAME_TYPE | T.EXACT | T.NARROW | T.IMAGE,
        f"{_WINDOW} ceil_mode storage_order",
    ),
    (
        "AveragePool",
        T.POOL | T.SAME_TYPE | T.NARROW | T.IMAGE,
        f"{_WINDOW} ceil_mode count_include_pad",
    ),
    ("LpPool", T.POOL | T.SAME_TYPE, f"{_WINDOW} ceil_mode p"),
    ("MaxUnpool", T.SAME_TYPE | T.EXACT, "kernel_shape pads strides"),
    ("Col2Im", T.SAME_TYPE, "dilations pads strides"),
    ("CenterCropPad", _MOVE | T.GROWS, "axes"),
    ("GlobalAveragePool", T.GLOBAL_POOL | T.SAME_TYPE | T.NARROW, ""),
    ("GlobalMaxPool", T.GLOBAL_POOL | T.SAME_TYPE | T.EXACT | T.NARROW, ""),
    ("GlobalLpPool", T.GLOBAL_POOL | T.SAME_TYPE, "p"),
    ("AffineGrid", T.SAME_TYPE | T.GROWS, "align_corners"),
    ("GridSample", T(0), "align_corners mode padding_mode"),
    (
        "RoiAlign",
        T.SAME_TYPE | T.SUM | T.GROWS,
        f"{_PLACES} mode output_height output_width sampling_ratio spatial_scale",
    ),
    ("Det", T.SAME_TYPE | T.SUM | T.STEEP, ""),
    ("NonMaxSuppression", T.COUNTED | T.HEAVY, "center_point_box"),
    ("Unique", T.COUNTED | T.HEAVY | T.SAME_TYPE, "axis sorted"),
    ("Compress", T.COUNTED | T.EXACT | T.SAME_TYPE, "axis"),
    ("NonZero", T.COUNTED, ""),
    (
        "Resize",
        T.SAME_TYPE | T.NARROW | T.IMAGE | T.GROWS,
        f"{_RESIZE} extrapolation_value keep_aspect_ratio_policy mode nearest_mode scales",
    ),
    ("Upsample", T.SAME_TYPE | T.IMAGE | T.GROWS, "mode scales"),
    # --- what ONNX took back
    ("Affine", _UNARY, "alpha beta"),
    ("ImageScaler", _UNARY, "bias scale"),
    ("Crop", T.SAME_TYPE, "border scale"),
    # --- what no rule starts at
    ("If Loop Scan SequenceMap", T.CONTROL, None),
    (
        "DequantizeLinear QuantizeLinear",
        T.QUANTISE | T.SAME_SHAPE,
        "axis block_size output_dtype precision saturate",
    ),
    (f"{_ORT}DequantizeLinear {_ORT}QuantizeLinear", T.QUANTISE | T.SAME_SHAPE, "axis block_size"),
    ("DynamicQuantizeLinear", T.SAME_SHAPE, ""),
    ("Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform", T.RANDOM, None),
    ("RandomUniformLike", T.RANDOM, None),
)


def _traits(opcode: Opcode, attributes: Mapping[str, float]) -> Trait:
    """Of the operator that is this instruction."""
    traits = opcode.traits
    if T.SAME_SHAPE not in traits:
        traits |= T.SAME_SHAPE if opcode.arity - len(attributes) == 1 else T.BROADCAST
    return traits if T.BOOLEAN in traits else traits | T.SAME_TYPE


TRAITS = {
    **{op: traits for ops, traits, _ in _ROWS for op in ops.split()},
    **{op: _traits(*row) for op, row in OPCODES_OF.items()},
    **{op: made.traits for op, made in COMPOSED.items()},
}
#: The attributes of each operator that were read.
READ: dict[str, frozenset[str]] = {
    **{op: frozenset(a.split()) for ops, _, a in _ROWS if a is not None for op in ops.split()},
    **{op: frozenset(attributes) for op, (_, attributes) in OPCODES_OF.items()},
    **{op: frozenset(made.attributes) for op, made in COMPOSED.items()},
}


#: As integers, since many sets are made while the package is imported.
_BITS = {op: traits.value for op, traits in TRAITS.items()}


def kinds(*traits: Trait) -> frozenset[str]:
    """Operators, and ops of specs, that have one of the traits at least."""
    wanted = 0
    for t in traits:
        wanted |= t.value
    return frozenset(op for op, has in _BITS.items() if has & wanted)


def operators(*traits: Trait) -> frozenset[str]:
    """ONNX operators that have one of the traits at least."""
    return frozenset(op for op in kinds(*traits) if not op.startswith(":"))
