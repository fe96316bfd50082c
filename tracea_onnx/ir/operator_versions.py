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

from onnx import AttributeProto, NodeProto, TensorProto, defs, helper

from tracea_onnx.ir.op_traits import READ

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
_TYPES = frozenset(TensorProto.DataType.values()) - {TensorProto.UNDEFINED}
#: ONNX Runtime narrows the other integers, each in places of its own.
_INT32, _WIDE = 1 << 31, frozenset({"start", "end"})
#: What an attribute of ONNX Runtime's own operators holds.
_CONTRIB_KINDS = {
    name: kind
    for kind, names in {
        AttributeProto.INT: "axis do_rotary group interleaved is_packed_batching num_heads "
        "rotary_embedding_dim stash_type transA transB transBatchA transBatchB unidirectional",
        AttributeProto.FLOAT: "activation_alpha activation_beta activation_gamma alpha beta "
        "epsilon mask_filter_value scale",
        AttributeProto.STRING: "activation auto_pad",
        AttributeProto.INTS: "border dilations kernel_shape pads qkv_hidden_sizes strides",
        AttributeProto.FLOATS: "activation_params bias",
    }.items()
    for name in names.split()
}
#: Where the value of an attribute without a type lies (IR versions before 2 did not write the
#: type).
_UNTYPED = {
    "f": AttributeProto.FLOAT, "i": AttributeProto.INT, "s": AttributeProto.STRING,
    "t": AttributeProto.TENSOR, "g": AttributeProto.GRAPH,
    "floats": AttributeProto.FLOATS, "ints": AttributeProto.INTS, "strings": AttributeProto.STRINGS,
    "tensors": AttributeProto.TENSORS,
}  # fmt: skip


def kind_of(a: AttributeProto) -> AttributeProto.AttributeType:
    """What kind of value an attribute holds; of an empty list without a type, one of integers."""
    if a.type != AttributeProto.UNDEFINED:
        return a.type
    held = (_UNTYPED[f.name] for f, _ in a.ListFields() if f.name in _UNTYPED)
    return next(held, AttributeProto.INTS)


@cache
def _version(op: str, opset: int) -> int | None:
    """The version of a default-domain operator at an opset; None where the installed onnx does not
    know that opset.
    """
    if opset > defs.onnx_opset_version():
        return None
    try:
        return int(defs.get_schema(op, opset, "").since_version)
    except (defs.SchemaError, TypeError):
        return 0  # not an operator of ONNX at this opset


@cache
def _most(op: str, opset: int) -> tuple[int, int, int]:
    """The fewest and the most inputs of a default-domain operator, and the most outputs."""
    schema = defs.get_schema(op, opset, "")
    return schema.min_input, schema.max_input, schema.max_output


@cache
def _required(op: str, opset: int) -> int:
    """How many inputs, counted from the first, a default-domain operator cannot do without where
    they are among those given.
    """
    schema = defs.get_schema(op, opset, "")
    optional = defs.OpSchema.FormalParameterOption.Optional
    return next((k for k, i in enumerate(schema.inputs) if i.option == optional), schema.max_input)


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


@cache
def _may_lack_result(op: str, opset: int) -> bool:
    """Whether the first result of a default-domain operator is optional."""
    try:
        results = defs.get_schema(op, opset, "").outputs
    except (defs.SchemaError, TypeError):
        return False
    return bool(results) and results[0].option == defs.OpSchema.FormalParameterOption.Optional


@cache
def _kinds(op: str, opset: int) -> tuple[Mapping[str, int], frozenset[str]]:
    """The kinds of an operator's attributes as far as they are known, and which it must have."""
    try:
        known = defs.get_schema(op, opset, "").attributes
    except (defs.SchemaError, TypeError):  # TypeError: no 32 bits hold the opset
        kinds = {**_CONTRIB_KINDS, "scale": AttributeProto.INTS} if op == "Crop" else _CONTRIB_KINDS
        return (kinds if op in READ else {}), frozenset()
    # onnx's stubs lack the names of its enumerations
    kinds = {k: AttributeProto.AttributeType.Value(a.type.name) for k, a in known.items()}  # type: ignore[attr-defined]
    return kinds, frozenset(name for name, a in known.items() if a.required)


def _senseless(op: str, node: NodeProto, opset: int) -> str:
    """Why no reader of the node's attributes and results could make sense of them, or ""."""
    kinds, missing = _kinds(op, opset)
    given = [a.name for a in node.attribute]
    for a in node.attribute:
        wanted, kind = kinds.get(a.name), kind_of(a)
        if wanted is not None and kind != wanted:
            names = AttributeProto.AttributeType.Name
            return f"{op} has {a.name} as {names(kind)}, which must be {names(wanted)}"
        if wanted is None and "." not in op and _version(op, opset):
            return f"{op} has the attribute '{a.name}', which is not of opset {opset}"
    if len(set(given)) < len(given):
        twice = next(name for name in given if given.count(name) > 1)
        return f"{op} has the attribute '{twice}' twice"
    if not missing.issubset(given):
        return f"{op} lacks the attribute '{min(missing.difference(given))}'"
    if any(node.output[:1]) or (any(node.output) and _may_lack_result(op, opset)):
        return ""
    return f"the first result of {op} has no name"


def _value(a: AttributeProto) -> object:
    """What an attribute holds; itself where it has no type (IR versions before 2)."""
    value: object = a if a.type == AttributeProto.UNDEFINED else helper.get_attribute_value(a)
    return value


def unread(op: str, node: NodeProto, opset: int) -> str:
    """Why this node may mean what nobody here has read, in a sentence; "" when all of it was.

    Of operators that are in no table, only attributes and results are judged.
    """
    senseless = _senseless(op, node, opset)
    names = READ.get(op)
    if senseless or names is None:
        return senseless
    contrib = "." in op
    if not contrib and opset > NEWEST:
        version = _version(op, opset)
        if version is None or version > NEWEST:
            return (
                f"{op} of opset {opset} is newer than what this version of tracea-onnx knows "
                f"(opset {NEWEST})"
            )
    if not contrib and _version(op, opset):
        least, most, results = _most(op, opset)
        if not least <= len(node.input) <= most or len(node.output) > results:
            return (
                f"{op} has {len(node.input)} inputs and {len(node.output)} outputs, of which "
                f"ONNX knows {least} to {most} and {results}"
            )
        if not all(node.input[: _required(op, opset)]):
            return f"{op} lacks an input that it must have"
    for a in node.attribute:
        if a.name not in names and (contrib or _value(a) != _default(op, a.name)):
            return (
                f"{op} has the attribute '{a.name}', which this version of tracea-onnx does "
                "not read"
            )
        if a.name in _TRUTHS and a.i not in (0, 1):
            return f"{op} has {a.name} {a.i}, which is neither 0 nor 1"
        if (op, a.name) == ("Cast", "to") and a.i not in _TYPES:
            return f"{op} has {a.name} {a.i}, which is no element type"
        if a.type == AttributeProto.INT and not -_INT32 <= a.i < _INT32 and a.name not in _WIDE:
            return f"{op} has {a.name} {a.i}, of which ONNX Runtime takes 32 bits"
    return ""
