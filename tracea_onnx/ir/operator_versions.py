"""Whether a node says only what the project has read.

An operator newer than what was read, or with an attribute that `op_traits.py` does not list, may
mean what nothing here knows of: rules, canonicalization and lowering pass over such a node, and
ONNX Runtime runs it. An attribute at its default says nothing new.
"""

from __future__ import annotations

from functools import cache

from onnx import AttributeProto, NodeProto, defs, helper

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
#: ONNX Runtime narrows the other integers, each in places of its own.
_INT32, _WIDE = 1 << 31, frozenset({"start", "end"})


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
    for a in node.attribute:
        if a.name not in names and (contrib or _value(a) != _default(op, a.name)):
            return (
                f"{op} has the attribute '{a.name}', which this version of tracea-onnx does "
                "not read"
            )
        if a.name in _TRUTHS and a.i not in (0, 1):
            return f"{op} has {a.name} {a.i}, which is neither 0 nor 1"
        if a.type == AttributeProto.INT and not -_INT32 <= a.i < _INT32 and a.name not in _WIDE:
            return f"{op} has {a.name} {a.i}, of which ONNX Runtime takes 32 bits"
    return ""
