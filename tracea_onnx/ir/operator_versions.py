"""Whether a node says only what the project has read.

An operator newer than what was read, or with an attribute that `op_traits.py` does not list, may
mean what nothing here knows of: rules, canonicalization and lowering pass over such a node, and
ONNX Runtime runs it. An attribute at its default says nothing new. The same goes for a node that
makes no sense: with attributes missing, given twice, or of other kinds than the operator has, whose
readers would stumble over them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from tracea_onnx.ir import onnx_operators
from tracea_onnx.ir.messages import AttributeKind
from tracea_onnx.ir.onnx_operators import schema
from tracea_onnx.ir.op_traits import READ

if TYPE_CHECKING:
    from onnx import AttributeProto, NodeProto

#: The newest opset of the default domain whose changes were read.
NEWEST = 28

#: What is true or false. ONNX says nothing of other numbers, and ONNX Runtime's kernels take them
#: for one or the other.
_TRUTHS = frozenset(
    (
        "align_corners", "allowzero", "antialias", "broadcast", "ceil_mode", "count_include_pad",
        "detect_negative", "detect_positive", "do_rotary", "exclude_outside", "exclusive", "fmod",
        "interleaved", "is_causal", "is_packed_batching", "keepdims", "largest",
        "noop_with_empty_axes", "reverse", "saturate", "select_last_index", "sorted", "spatial",
        "storage_order", "training_mode", "transA", "transB", "transBatchA", "transBatchB",
        "unidirectional", "upper",
    )
)  # fmt: skip
#: Numbers of element types.
_TYPES = range(1, 29)
#: ONNX Runtime narrows the other integers, each in places of its own.
_INT32, _WIDE = 1 << 31, frozenset({"start", "end"})
#: What an attribute of ONNX Runtime's own operators holds.
_CONTRIB_KINDS = {
    name: kind
    for kind, names in {
        AttributeKind.INT: "K N accuracy_level axis bits block_size causal ceil_mode channels_last "
        "count_include_pad do_rotary gather_axis group interleaved is_packed_batching "
        "kv_cache_bit_width kv_num_heads local_window_size num_heads opset qk_output quantize_axis "
        "rotary_embedding_dim rotary_interleaved sliding_window_cache smooth_softmax stash_type "
        "transA transB transBatchA transBatchB unidirectional weight_prepacked",
        AttributeKind.FLOAT: "activation_alpha activation_beta activation_gamma alpha beta "
        "epsilon mask_filter_value qk_norm_epsilon scale softcap",
        AttributeKind.STRING: "activation auto_pad k_quant_type v_quant_type",
        AttributeKind.INTS: "border dilations kernel_shape pads qkv_hidden_sizes strides",
        AttributeKind.FLOATS: "activation_params bias",
    }.items()
    for name in names.split()
}
#: Where the value of an attribute without a type lies (IR versions before 2 did not write the
#: type).
_UNTYPED = {
    "f": AttributeKind.FLOAT, "i": AttributeKind.INT, "s": AttributeKind.STRING,
    "t": AttributeKind.TENSOR, "g": AttributeKind.GRAPH,
    "floats": AttributeKind.FLOATS, "ints": AttributeKind.INTS, "strings": AttributeKind.STRINGS,
    "tensors": AttributeKind.TENSORS,
}  # fmt: skip


def kind_of(a: AttributeProto) -> int:
    """Kind of value that an attribute holds; of an empty list without a type, integers."""
    if a.type:
        return a.type
    held = (_UNTYPED[f.name] for f, _ in a.ListFields() if f.name in _UNTYPED)
    return next(held, AttributeKind.INTS)


#: Where the value of each kind of attribute lies.
_HELD = {kind: name for name, kind in _UNTYPED.items()} | {
    AttributeKind.GRAPHS: "graphs", AttributeKind.SPARSE_TENSOR: "sparse_tensor",
    AttributeKind.SPARSE_TENSORS: "sparse_tensors", AttributeKind.TYPE_PROTO: "tp",
    AttributeKind.TYPE_PROTOS: "type_protos",
}  # fmt: skip


def value_of(a: AttributeProto) -> Any:
    """Value of an attribute, text as str."""
    kind = kind_of(a)
    value = getattr(a, _HELD[AttributeKind(kind)])
    if kind == AttributeKind.STRING:
        return value.decode("utf-8", "replace")
    if kind == AttributeKind.STRINGS:
        return [v.decode("utf-8", "replace") for v in value]
    return list(value) if kind in (AttributeKind.INTS, AttributeKind.FLOATS) else value


@cache
def _kinds(op: str, opset: int) -> tuple[Mapping[str, int], frozenset[str]]:
    """The kinds of an operator's attributes as far as they are known, and which it must have."""
    if (known := schema(op, opset)) is not None:
        return known.kinds, frozenset(known.needed)
    kinds = {**_CONTRIB_KINDS, "scale": AttributeKind.INTS} if op == "Crop" else _CONTRIB_KINDS
    return (kinds if op in READ else {}), frozenset()


def _senseless(op: str, node: NodeProto, opset: int) -> str:
    """Why no reader of the node's attributes and results could make sense of them, or ""."""
    kinds, missing = _kinds(op, opset)
    given = [a.name for a in node.attribute]
    for a in node.attribute:
        wanted, kind = kinds.get(a.name), kind_of(a)
        if wanted is not None and kind != wanted:
            held, right = AttributeKind(kind).name, AttributeKind(wanted).name
            return f"{op} has {a.name} as {held}, which must be {right}"
        if wanted is None and "." not in op and schema(op, opset):
            return f"{op} has the attribute '{a.name}', which is not of opset {opset}"
    if len(set(given)) < len(given):
        twice = next(name for name in given if given.count(name) > 1)
        return f"{op} has the attribute '{twice}' twice"
    if not missing.issubset(given):
        return f"{op} lacks the attribute '{min(missing.difference(given))}'"
    known = schema(op, opset) if any(node.output) else None
    if any(node.output[:1]) or (known is not None and known.optional_result):
        return ""
    return f"the first result of {op} has no name"


def _is_default(op: str, a: AttributeProto) -> bool:
    """Whether an attribute holds what its operator takes where it is not given."""
    newest = schema(op)
    default = None if newest is None else newest.defaults.get(a.name)
    return bool(a.type) and default is not None and value_of(a) == default


def unread(op: str, node: NodeProto, opset: int) -> str:
    """Why this node may mean what nobody here has read, in a sentence; "" when all of it was.

    Of operators that are in no table, only attributes and results are judged.
    """
    senseless = _senseless(op, node, opset)
    names = READ.get(op)
    if senseless or names is None:
        return senseless
    contrib = "." in op
    if not contrib and opset < 1:
        return f"{op} is of no version: the model imports no operator set of ONNX"
    known = None if contrib else schema(op, opset)
    newer = known is not None and known.since > NEWEST
    if not contrib and opset > NEWEST and (newer or not onnx_operators.is_known(opset)):
        return (
            f"{op} of opset {opset} is newer than what this version of tracea-onnx knows "
            f"(opset {NEWEST})"
        )
    if known is not None:
        inputs, outputs = len(node.input), len(node.output)
        if not known.least <= inputs <= known.most or outputs > known.results:
            return (
                f"{op} has {inputs} inputs and {outputs} outputs, of which ONNX knows "
                f"{known.least} to {known.most} and {known.results}"
            )
        if not all(node.input[: known.required]):
            return f"{op} lacks an input that it must have"
    for a in node.attribute:
        if a.name not in names and (contrib or not _is_default(op, a)):
            return (
                f"{op} has the attribute '{a.name}', which this version of tracea-onnx does "
                "not read"
            )
        if a.name in _TRUTHS and a.i not in (0, 1):
            return f"{op} has {a.name} {a.i}, which is neither 0 nor 1"
        if (op, a.name) == ("Cast", "to") and a.i not in _TYPES:
            return f"{op} has {a.name} {a.i}, which is no element type"
        if a.type == AttributeKind.INT and not -_INT32 <= a.i < _INT32 and a.name not in _WIDE:
            return f"{op} has {a.name} {a.i}, of which ONNX Runtime takes 32 bits"
    return ""
