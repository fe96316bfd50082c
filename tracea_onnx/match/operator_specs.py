"""What an ONNX operator computes by itself, as the spec of a fused op and operands by role. Rules
and lowering read such operators here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.ir.graph import Graph, Node
from tracea_onnx.ir.pointwise_ops import Code, fused_activation
from tracea_onnx.ir.refusals import Refuse, Why, require
from tracea_onnx.match.masks import Mask, causal_attrs, mask_attrs
from tracea_onnx.match.spec_table import (
    AttentionSpec,
    Attributes,
    BatchNormSpec,
    ConvSpec,
    ConvTransposeSpec,
    GemmNbitsSpec,
    GemmSpec,
    GroupNormSpec,
    LayerNormSpec,
    RopeSpec,
    SoftmaxSpec,
)
from tracea_onnx.shapes.symbolic import same, shapes

_MICROSOFT = "com.microsoft."
_NORM, _RMS = {"axis": -1, "epsilon": 1e-5}, {"axis": -1, "epsilon": 1e-5, "rms": True}
_BN = ("x", "bn_scale", "bn_bias", "bn_mean", "bn_var")

S = TypeVar("S", bound=Attributes)

#: The spec of each operator, the roles of its inputs, and attributes where the node gives none.
OPERATORS: Mapping[str, tuple[type[Attributes], tuple[str, ...], Mapping[str, Any]]] = {
    "Conv": (ConvSpec, ("x", "w", "b"), {}),
    f"{_MICROSOFT}FusedConv": (ConvSpec, ("x", "w", "b", "e0"), {}),
    "ConvTranspose": (ConvTransposeSpec, ("x", "w", "b"), {}),
    "MatMul": (GemmSpec, ("x", "w"), {}),
    "Gemm": (GemmSpec, ("x", "w", "b"), {}),
    f"{_MICROSOFT}MatMulNBits": (
        GemmNbitsSpec, ("x", "w", "scale", "zero", "g_idx", "b"), {}
    ),
    "BatchNormalization": (BatchNormSpec, _BN, {}),
    "LayerNormalization": (LayerNormSpec, ("x", "gamma", "beta"), _NORM),
    "RMSNormalization": (LayerNormSpec, ("x", "gamma"), _RMS),
    "SimplifiedLayerNormalization": (LayerNormSpec, ("x", "gamma"), _RMS),
    f"{_MICROSOFT}SimplifiedLayerNormalization": (LayerNormSpec, ("x", "gamma"), _RMS),
    f"{_MICROSOFT}SkipLayerNormalization": (
        LayerNormSpec, ("x", "res", "gamma", "beta", "xbias"), {**_NORM, "epsilon": 1e-12}
    ),
    f"{_MICROSOFT}SkipSimplifiedLayerNormalization": (
        LayerNormSpec, ("x", "res", "gamma", "xbias"), {**_RMS, "epsilon": 1e-12}
    ),
    "InstanceNormalization": (
        GroupNormSpec, ("x", "gamma", "beta"), {"num_groups": -1, "epsilon": 1e-5}
    ),
    "GroupNormalization": (GroupNormSpec, ("x", "gamma", "beta"), {"epsilon": 1e-5}),
    "Softmax": (SoftmaxSpec, ("x",), {"axis": -1}),
    "LogSoftmax": (SoftmaxSpec, ("x",), {"axis": -1, "log": True}),
    "RotaryEmbedding": (RopeSpec, ("x", "cos", "sin", "pos"), {"layout": "bhsd"}),
    "Attention": (AttentionSpec, ("q", "k", "v", "mask"), {}),
    f"{_MICROSOFT}RotaryEmbedding": (RopeSpec, ("x", "pos", "cos", "sin"), {"layout": "bhsd"}),
}  # fmt: skip


def read(g: Graph, node: Node, wanted: type[S]) -> tuple[S, dict[str, str]]:
    """The spec and the operands by role of one of `OPERATORS`. Refuses a node that is more than
    that.
    """
    kind, names, given = OPERATORS[node.op]
    roles = {r: n for r, n in zip(names, node.inputs, strict=False) if n}
    if kind is SoftmaxSpec and g.opset() < 13:
        given = {**given, "axis": 1}
    if kind is GemmNbitsSpec:
        spec: Attributes = _blobs(g, node, roles)
    elif kind is AttentionSpec:
        spec = _attention(g, node)
    else:
        spec = kind.of({**given, **node.attrs})
    if isinstance(spec, BatchNormSpec):
        _inference(g, node)
    elif isinstance(spec, LayerNormSpec):
        if any(node.outputs[1:3]):
            raise Refuse(Why.STATISTICS, node)
        # in a spec, axis 1 means channels: one that is counted from the front is made negative
        spec = replace(spec, axis=_axis(g, node, spec.axis))
    elif isinstance(spec, SoftmaxSpec):
        spec = replace(spec, axis=_axis(g, node, spec.axis))
        shape = shapes(g).dims(node.input(0)) or ()
        axis = len(shape) + spec.axis
        if g.opset() < 13 and any(d != 1 for d in shape[axis + 1 :]):
            raise Refuse(Why.FLATTENS, node, opset=g.opset(), axis=axis)
    elif isinstance(spec, GroupNormSpec):
        _per_channel(g, node, spec, roles)
    elif isinstance(spec, RopeSpec):
        spec = _rope(g, node, spec)
    elif isinstance(spec, ConvSpec) and node.op.endswith("FusedConv"):
        code = Code([node.outputs[0]])
        out = fused_conv(node, code)
        spec = replace(spec, expr=code.finish(out) if code.code else None)
    assert isinstance(spec, wanted)
    return spec, roles


def _axis(g: Graph, node: Node, axis: int) -> int:
    """The axis, counted from the end."""
    shape = shapes(g).dims(node.input(0))
    if shape is None:
        if axis >= 0:
            raise Refuse(Why.RANK_UNKNOWN, node, value=node.input(0))
        return axis
    if not -len(shape) <= axis < len(shape):
        raise Refuse(Why.AXIS, node, axis=axis, rank=len(shape))
    return axis % len(shape) - len(shape)


def _inference(g: Graph, bn: Node) -> None:
    """Refuse a BatchNormalization that is no scale and shift per channel."""
    if bn.attr("training_mode", 0) or (g.opset() < 7 and not bn.attr("is_test", 0)):
        raise Refuse(Why.TRAINING, bn)
    if any(bn.outputs[1:]):
        raise Refuse(Why.TRAINING_OUTPUTS, bn)
    if not bn.attr("spatial", 1):
        raise Refuse(Why.ATTRIBUTE, bn, attribute="spatial", value=0, wanted=1)


def _per_channel(g: Graph, node: Node, spec: GroupNormSpec, roles: dict[str, str]) -> None:
    """Before opset 21 scale and bias of GroupNormalization are per group and must do nothing."""
    shape = shapes(g).dims(node.input(0))
    if spec.groups == -1 or g.opset() >= 21 or (shape and spec.groups == shape[1]):
        return
    if not all_are(g, roles.pop("gamma", ""), 1.0) or not all_are(g, roles.pop("beta", ""), 0.0):
        raise Refuse(Why.GROUP_OPSET, node)


def all_are(g: Graph, name: str, value: float) -> bool:
    """Whether a constant has nothing but this number."""
    array = g.const(name)
    return array is not None and bool((array == value).all())


def _blobs(g: Graph, node: Node, roles: dict[str, str]) -> GemmNbitsSpec:
    """A MatMulNBits whose groups of terms are blocks one after the other."""
    require(node, weight_prepacked=0)
    given = {"bits": 4, **node.attrs}
    for name, (form, onnx) in GemmNbitsSpec.forms().items():
        value = given.get(onnx)
        if name in ("K", "N", "bits", "block") and not (form.ok(value) and value):
            raise Refuse(Why.ATTRIBUTE, node, attribute=onnx, value=value, wanted=form.words)
    spec = GemmNbitsSpec.of(given)
    if fault := spec.sense(spec.to_json(), set(), 1):
        raise Refuse(Why.UNREAD, node, fault=fault)
    groups = roles.pop("g_idx", "")
    if groups:
        of = g.const(groups)
        if of is None or not np.array_equal(of, np.arange(spec.K) // spec.block):
            raise Refuse(Why.FEW_BITS, node, value=node.input(1), what="groups that are no blocks")
    return spec


def _rope(g: Graph, node: Node, spec: RopeSpec) -> RopeSpec:
    """A rotary embedding of [batch, heads, sequence, head size], or of rank 3 with the heads side
    by side.
    """
    require(node, is_packed_batching=0, scale=1.0)
    shape = shapes(g).dims(node.input(0)) or ()
    heads, size = spec.num_heads or 0, shape[-1] if shape else None
    if len(shape) == 3 and heads > 0 and isinstance(shape[2], int):
        size = shape[2] // heads
        spec = replace(spec, layout="bsx")
    elif len(shape) != 4:
        raise Refuse(Why.ROPE_SHAPE, node, value=node.input(0))
    rot = spec.rot or size
    if not isinstance(rot, int):
        raise Refuse(Why.ROPE_SHAPE, node, value=node.input(0))
    return replace(spec, rot=rot, num_heads=heads if len(shape) == 3 else None)


def _attention(g: Graph, node: Node) -> AttentionSpec:
    """An attention whose heads lie as [batch, heads, sequence, head size], or side by
    side.
    """
    if any(node.inputs[4:]) or any(node.outputs[1:]):
        raise Refuse(Why.KV_CACHE, node)
    return attention(g, node, attention_mask(g, node, node.input(3)))


def attention(g: Graph, node: Node, masks: list[Mask]) -> AttentionSpec:
    """Spec of an Attention over its keys, without a cache of earlier ones."""
    cap = float(node.attr("softcap", 0.0))
    require(node, qk_matmul_output_mode=0)
    if cap < 0:
        raise Refuse(Why.ATTRIBUTE, node, attribute="softcap", value=cap, wanted="0 or more")
    q = shapes(g).dims(node.input(0))
    if q is None or len(q) not in (3, 4):
        raise Refuse(Why.QUERY_RANK, node, rank=len(q or ()) or "unknown")
    heads, flat = (node.attr("q_num_heads", 0), node.attr("kv_num_heads", 0)), len(q) == 3
    if flat and min(heads) < 1:
        raise Refuse(Why.NO_HEADS, node)
    layout = {"layout": "bsx" if flat else "bhsd"}
    # Upper-left alignment: the operator masks column t for row s when t > s, whatever the number of
    # keys. ONNX Runtime gives zeros for a row with nothing left to see, and takes the lowest number
    # of a mask for minus infinity.
    return AttentionSpec(
        q=layout,
        k=layout,
        v=layout,
        out=layout,
        num_heads=heads[0] if flat else 0,
        kv_heads=heads[1] if flat else 0,
        scale=attention_scale(node, per_head(q[2], heads[0]) if flat else q[3]),
        softcap=cap or None,
        nan_to_zero="masked",
        **causal_attrs(0 if node.attr("is_causal", 0) else None),
        **mask_attrs(masks),
    )


def per_head(width: DimLike, count: int) -> DimLike | None:
    """The head size where `count` heads share `width`; None where it is not whole."""
    return width // count if isinstance(width, int) and count and width % count == 0 else None


def attention_scale(node: Node, head_size: DimLike | None) -> float:
    """The factor of the scores, by default one over the root of the head size."""
    if given := node.attr("scale"):
        return float(given)
    if not isinstance(head_size, int) or head_size < 1:
        raise Refuse(Why.HEAD_SIZE, node, size="unknown" if head_size is None else head_size)
    return float(head_size**-0.5)


def attention_mask(g: Graph, node: Node, value: str) -> list[Mask]:
    """The mask of Attention or MultiHeadAttention, which must cover every key."""
    if not value:
        return []
    s = shapes(g)
    extent, key = s.dims(value), s.dims(node.input(1))
    if extent is None or not 2 <= len(extent) <= 4:
        raise Refuse(Why.MASK_RANK, node, value=value)
    last, keys = extent[-1], None if key is None or len(key) < 2 else key[-2]
    fixed = isinstance(last, int) and isinstance(keys, int)
    # From opset 24 on a mask may be shorter than the keys; before, one that does not broadcast is
    # not valid.
    if keys is None or (
        last != 1 and not same(last, keys) and (fixed or g.opset() >= 24 or node.op != "Attention")
    ):
        raise Refuse(Why.MASK_KEYS, node, value=value)
    return [Mask(value, "bool" if g.dtype(value) == DType.BOOL else "add")]


def fused_conv(node: Node, code: Code) -> int:
    """FusedConv(x, w, b, z): activation(convolution + z), of the first operand of `code`."""
    value = code.op("add", -1, code.operand(node.input(3))) if node.input(3) else -1
    return fused_activation(code, node, value, node.attr("activation_params") or [])
