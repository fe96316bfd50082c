"""Which versions and attributes of each operator the project has read.

An operator newer than its version here, or with an attribute that is not listed, may mean what
nothing here knows of: rules, canonicalisation and lowering pass over such a node, and ONNX Runtime
runs it. An attribute at its default says nothing new."""

from __future__ import annotations

from functools import cache

from onnx import AttributeProto, NodeProto, defs, helper

#: The newest opset of the default domain whose changes were read.
NEWEST = 28

_WINDOW = "auto_pad dilations kernel_shape pads strides"
_REDUCTION = "axes keepdims noop_with_empty_axes"


def _each(operators: str, attributes: str) -> dict[str, str]:
    return dict.fromkeys(operators.split(), attributes)


#: Attributes that are read, or that change no result (seed, momentum, stash_type: float32 is what
#: kernels accumulate in).
_ATTRIBUTES: dict[str, str] = {
    **_each("Abs Acos Add And Asin Atan Ceil Cos Cosh Div Equal Erf Exp Expand Floor GlobalAveragePool GlobalMaxPool Greater GreaterOrEqual HardSwish "
        "Identity IsNaN Less LessOrEqual Log MatMul Max Mean Min Mish Mul Neg Not Or PRelu Pow Reciprocal Relu Round Sigmoid Sign Sin Sinh Size "
        "Softplus Softsign Sqrt Sub Sum Tan Tanh Tile Where Xor", ""),
    **_each("ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare", _REDUCTION),
    **_each("Celu Elu LeakyRelu Swish ThresholdedRelu", "alpha"),
    **_each("Concat Flatten Gather GatherElements LogSoftmax OneHot Scatter Softmax", "axis"),
    **_each("ArgMax ArgMin", "axis keepdims select_last_index"),
    **_each("DepthToSpace SpaceToDepth", "blocksize mode"),
    **_each("Squeeze Unsqueeze", "axes"),
    **_each("LayerNormalization RMSNormalization SimplifiedLayerNormalization", "axis epsilon stash_type"),
    "Attention": "is_causal kv_num_heads q_num_heads qk_matmul_output_mode scale softcap softmax_precision",
    "AveragePool": f"{_WINDOW} ceil_mode count_include_pad",
    "BatchNormalization": "epsilon momentum spatial training_mode",
    "Cast": "round_mode saturate to",
    "Clip": "max min",
    "ConstantOfShape": "value",
    "Conv": f"{_WINDOW} group",
    "ConvTranspose": f"{_WINDOW} group output_padding output_shape",
    "CumSum": "exclusive reverse",
    "Dropout": "ratio seed",
    "Einsum": "equation",
    "GatherND": "batch_dims",
    "Gelu": "approximate",
    "Gemm": "alpha beta broadcast transA transB",
    "GridSample": "align_corners mode padding_mode",
    "GroupNormalization": "epsilon num_groups stash_type",
    "HardSigmoid": "alpha beta",
    "InstanceNormalization": "epsilon",
    "IsInf": "detect_negative detect_positive",
    "LRN": "alpha beta bias size",
    "MaxPool": f"{_WINDOW} ceil_mode storage_order",
    "Mod": "fmod",
    "Pad": "mode pads value",
    "Range": "stash_type",
    "Reshape": "allowzero shape",
    "Resize": "antialias axes coordinate_transformation_mode cubic_coeff_a exclude_outside extrapolation_value keep_aspect_ratio_policy mode nearest_mode scales",
    "RotaryEmbedding": "interleaved num_heads rotary_embedding_dim",
    "ScatterElements": "axis reduction",
    "ScatterND": "reduction",
    "Selu": "alpha gamma",
    "Shape": "end start",
    "Shrink": "bias lambd",
    "Slice": "axes ends starts",
    "Split": "axis num_outputs split",
    "TopK": "axis k largest sorted",
    "Transpose": "perm",
    "Trilu": "upper",
    "Upsample": "mode scales",
    "com.microsoft.Attention": "do_rotary mask_filter_value num_heads qkv_hidden_sizes scale unidirectional",
    "com.microsoft.BiasGelu": "",
    "com.microsoft.EmbedLayerNormalization": "epsilon",
    "com.microsoft.FastGelu": "",
    "com.microsoft.FusedConv": f"{_WINDOW} activation activation_params group",
    "com.microsoft.FusedGemm": "activation activation_alpha activation_beta activation_gamma alpha beta transA transB",
    "com.microsoft.FusedMatMul": "alpha transA transB transBatchA transBatchB",
    "com.microsoft.Gelu": "",
    "com.microsoft.MultiHeadAttention": "mask_filter_value num_heads scale unidirectional",
    "com.microsoft.QuickGelu": "alpha",
    "com.microsoft.RotaryEmbedding": "interleaved is_packed_batching num_heads rotary_embedding_dim scale",
    "com.microsoft.SimplifiedLayerNormalization": "axis epsilon stash_type",
    "com.microsoft.SkipLayerNormalization": "epsilon",
    "com.microsoft.SkipSimplifiedLayerNormalization": "epsilon",
}  # fmt: skip
#: What is true or false. ONNX says nothing of other numbers, and ONNX Runtime's kernels take them
#: for one or the other.
_TRUTHS = frozenset(
    _each(
        "align_corners allowzero antialias broadcast ceil_mode count_include_pad detect_negative detect_positive do_rotary "
        "exclude_outside exclusive fmod interleaved is_causal is_packed_batching keepdims largest noop_with_empty_axes reverse saturate select_last_index sorted "
        "spatial storage_order training_mode transA transB transBatchA transBatchB unidirectional upper",
        "",
    )
)
#: ONNX Runtime narrows the other integers, each in places of its own.
_INT32, _WIDE = 1 << 31, frozenset({"start", "end"})
READ: dict[str, frozenset[str]] = {
    op: frozenset(names.split()) for op, names in _ATTRIBUTES.items()
}


@cache
def _version(op: str, opset: int) -> int | None:
    """The version of a default-domain operator at an opset; None where the installed onnx does not
    know that opset.
    """
    if opset > defs.onnx_opset_version():
        return None
    try:
        return int(defs.get_schema(op, opset, "").since_version)
    except defs.SchemaError:
        return 0  # not an operator of ONNX at this opset


@cache
def _most(op: str, opset: int) -> tuple[int, int, int]:
    """The fewest and the most inputs of a default-domain operator, and the most outputs."""
    schema = defs.get_schema(op, opset, "")
    return schema.min_input, schema.max_input, schema.max_output


@cache
def _default(op: str, attribute: str) -> object:
    """What an attribute of the default domain is where it is not given; None without a default."""
    try:
        known = defs.get_schema(op, "").attributes.get(attribute)
    except defs.SchemaError:
        return None
    if known is None or known.default_value.type == AttributeProto.UNDEFINED:
        return None
    value: object = helper.get_attribute_value(known.default_value)
    return value


def _value(a: AttributeProto) -> object:
    """What an attribute holds; itself where it has no type (IR versions before 2)."""
    value: object = a if a.type == AttributeProto.UNDEFINED else helper.get_attribute_value(a)
    return value


def unread(op: str, node: NodeProto, opset: int) -> str:
    """Why this node may mean what nobody here has read, in a sentence; "" when all of it was.

    Operators that are in no table are not judged.
    """
    names = READ.get(op)
    if names is None:
        return ""
    contrib = "." in op
    if not contrib and opset > NEWEST:
        version = _version(op, opset)
        if version is None or version > NEWEST:
            return f"{op} of opset {opset} is newer than what this version of tracea-onnx knows (opset {NEWEST})"
    if not contrib and _version(op, opset):
        least, most, results = _most(op, opset)
        if not least <= len(node.input) <= most or len(node.output) > results:
            return f"{op} has {len(node.input)} inputs and {len(node.output)} outputs, of which ONNX knows {least} to {most} and {results}"
    for a in node.attribute:
        if a.name not in names and (contrib or _value(a) != _default(op, a.name)):
            return f"{op} has the attribute '{a.name}', which this version of tracea-onnx does not read"
        if a.name in _TRUTHS and a.i not in (0, 1):
            return f"{op} has {a.name} {a.i}, which is neither 0 nor 1"
        if a.type == AttributeProto.INT and not -_INT32 <= a.i < _INT32 and a.name not in _WIDE:
            return f"{op} has {a.name} {a.i}, of which ONNX Runtime takes 32 bits"
    return ""
