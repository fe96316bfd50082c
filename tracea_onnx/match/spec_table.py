"""What the spec of each fused op may say: its roles and attributes, with types and ranges. A spec
that is believed is checked here before it is lowered.

    fault(Spec("conv", ("x", "w"), {"strides": [0, 1]}), ...)
    ->  "its strides is [0, 1], not a list of whole numbers from 1 to 2147483647"
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Self, get_origin, get_type_hints

from tracea_onnx.ir.abi import OPCODE
from tracea_onnx.ir.contracts import Spec
from tracea_onnx.ir.expr import Expr
from tracea_onnx.match.strided_view import LAYOUTS, OUT_LAYOUTS
from tracea_onnx.support.data_classes import dataclass

_MOST = (1 << 31) - 1
#: Instructions of one expression, and parts of a packed projection.
_LONGEST, _PARTS = 4096, 64


@dataclass(frozen=True)
class Form:
    """Values that an attribute may have: a test, its words, and how a value that passes is read."""

    ok: Callable[[Any], bool]
    words: str
    read: Callable[[Any], Any] = lambda v: v


def _whole(value: object, low: int, high: int = _MOST) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _number(value: object) -> bool:
    return (
        isinstance(value, (int, float)) and not isinstance(value, bool) and -1e300 < value < 1e300
    )


def integer(low: int, high: int = _MOST) -> Form:
    """An integer in that range."""
    return Form(lambda v: _whole(v, low, high), f"a whole number from {low} to {high}", int)


def integers(low: int, high: int = _MOST) -> Form:
    """A list of integers in that range."""
    return Form(
        lambda v: isinstance(v, list) and 0 < len(v) <= 6 and all(_whole(x, low, high) for x in v),
        f"a list of whole numbers from {low} to {high}",
        lambda v: [int(x) for x in v],
    )


def one_of(*values: str) -> Form:
    """One of these strings."""
    return Form(lambda v: isinstance(v, str) and v in values, f"one of {', '.join(values)}")


def _is_layout(value: object) -> bool:
    if (
        not isinstance(value, Mapping)
        or not set(value) <= {"layout", "index"}
        or not isinstance(value.get("layout"), str)
    ):
        return False
    digits = re.findall(r"[0-9]+", value["layout"])
    if len(digits) > 1 or (
        digits and not (digits[0][0] != "0" and len(digits[0]) <= 3 and int(digits[0]) <= _PARTS)
    ):
        return False
    template = value["layout"].replace(digits[0], "p") if digits else value["layout"]
    packed = "p" in template
    return (
        template in LAYOUTS
        and packed == bool(digits)
        and ("index" in value) <= packed
        and (not packed or _whole(value.get("index", 0), 0, int(digits[0]) - 1))
    )


def _is_expression(value: object) -> bool:
    return _expression_fault(value) == ""


def _expression_fault(value: object) -> str:
    if (
        not isinstance(value, Mapping)
        or set(value) != {"n_in", "out", "code"}
        or not _whole(value["n_in"], 0, 256)
        or not _whole(value["out"], 0)
    ):
        return "it has no n_in, out and code that can be read"
    code = value["code"]
    if not isinstance(code, list) or len(code) > _LONGEST:
        return f"its code is not a list of at most {_LONGEST} instructions"
    for k, ins in enumerate(code):
        if not (
            isinstance(ins, list)
            and len(ins) == 3
            and isinstance(ins[0], str)
            and isinstance(ins[1], list)
            and all(_whole(a, 0) for a in ins[1])
        ):
            return f"its instruction {k} cannot be read"
        if ins[2] not in ("inf", "-inf", "nan") if isinstance(ins[2], str) else not _number(ins[2]):
            return f"the constant of its instruction {k} is no number"
        if ins[0] in OPCODE and len(ins[1]) != OPCODE[ins[0]].arity:
            return f"its instruction {k} gives {_short(ins[0])} {len(ins[1])} operands"
    try:
        Expr.from_json(dict(value))
    except ValueError as e:
        return str(e)
    return ""


FLAG = Form(lambda v: isinstance(v, bool) or _whole(v, 0, 1), "true or false", bool)
CLEARED = Form(
    lambda v: v == "masked" or FLAG.ok(v),
    'true, false or "masked"',
    lambda v: v if v == "masked" else bool(v),
)
NUMBER = Form(_number, "a finite number", float)
FILL = Form(lambda v: v == "-inf" or _number(v), 'a finite number or "-inf"', float)
PAST = Form(lambda v: v == "kv" or _whole(v, -_MOST), 'a whole number or "kv"')
LAYOUT = Form(_is_layout, "a layout")
OUT = Form(
    lambda v: _is_layout(v) and v["layout"] in OUT_LAYOUTS,
    f"one of the layouts {', '.join(OUT_LAYOUTS)}",
)
EXPRESSION = Form(_is_expression, "an expression", Expr.from_json)

_MASKS = one_of("none", "add", "bool", "drop")


class Attributes:
    """Base of the specs of all fused ops. A spec is a frozen dataclass of its attributes.

    The annotation of an attribute holds its form, and its ONNX name where that differs. Without a
    default it is required; with None or () as the default it is optional.

    op:       the fused op's name, which is that of its lowering.
    roles:    operands that it must have; `optional`, operands that it may have.
    extras:   whether e0, e1, ... may follow, as many as `expr` has more inputs.
    outputs:  how many results it may have.
    """

    op: ClassVar[str]
    roles: ClassVar[tuple[str, ...]] = ()
    optional: ClassVar[tuple[str, ...]] = ()
    extras: ClassVar[bool] = False
    outputs: ClassVar[int] = 1

    @classmethod
    @cache
    def forms(cls) -> dict[str, tuple[Form, str]]:
        """Of each attribute the form, and its name in ONNX."""
        hints = get_type_hints(cls, include_extras=True)
        found = {n: t.__metadata__ for n, t in hints.items() if get_origin(t) is Annotated}
        return {n: (m[0], m[1] if len(m) > 1 else n) for n, m in found.items()}

    @classmethod
    def of(cls, attrs: Mapping[str, Any]) -> Self:
        """From JSON that was checked, or from the attributes of the ONNX operator. What the spec
        does not know is left out.
        """
        given = {}
        for name, (form, onnx) in cls.forms().items():
            if (value := attrs.get(name, attrs.get(onnx))) is not None:
                given[name] = form.read(value)
        return cls(**given)

    def to_json(self) -> dict[str, Any]:
        """The attributes as JSON values, without the optional ones that are absent."""
        values = ((name, getattr(self, name)) for name in self.forms())
        return {
            k: v.to_json() if isinstance(v, Expr) else v for k, v in values if v not in (None, ())
        }

    @staticmethod
    def sense(a: Mapping[str, Any], roles: set[str], outputs: int) -> str:
        """Contradiction between attributes, roles and results; "" if there is none."""
        return ""


_BN = ("bn_scale", "bn_bias", "bn_mean", "bn_var")


@dataclass(frozen=True, kw_only=True)
class ConvSpec(Attributes):
    """Attributes of `conv`: y = epilogue(conv(x, w) + b)."""

    op = "conv"
    roles = ("x", "w")
    optional = ("b", *_BN)
    extras = True
    strides: Annotated[Sequence[int], integers(1)] = ()
    dilations: Annotated[Sequence[int], integers(1)] = ()
    pads: Annotated[Sequence[int], integers(0)] = ()
    auto_pad: Annotated[str, one_of("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")] = "NOTSET"
    group: Annotated[int, integer(1)] = 1
    bn_eps: Annotated[float | None, NUMBER] = None
    expr: Annotated[Expr | None, EXPRESSION] = None

    @staticmethod
    def sense(a: Mapping[str, Any], roles: set[str], outputs: int) -> str:
        """Why these attributes make no sense together with the roles, or ""."""
        lengths = {
            len(a[k]) for k in ("strides", "dilations", "output_padding", "output_shape") if k in a
        } | ({len(a["pads"]) / 2} if "pads" in a else set())
        if len(lengths) > 1:
            return "its strides, dilations and pads are for different numbers of dims"
        strides = a.get("strides") or [1] * 6
        if any(p >= s for p, s in zip(a.get("output_padding", ()), strides, strict=False) if p):
            return "its output_padding is not less than its strides"
        return ""


@dataclass(frozen=True, kw_only=True)
class ConvTransposeSpec(ConvSpec):
    """Attributes of `conv_transpose`: y = epilogue(conv_transpose(x, w) + b)."""

    op = "conv_transpose"
    output_padding: Annotated[Sequence[int], integers(0)] = ()
    output_shape: Annotated[Sequence[int], integers(1)] = ()


@dataclass(frozen=True, kw_only=True)
class GemmSpec(Attributes):
    """Attributes of `gemm`: y = epilogue(alpha op(x) op(w) + beta b)."""

    op = "gemm"
    roles = ("x", "w")
    optional = ("b", *_BN, "flat_shape", "shape")
    extras = True
    trans_a: Annotated[bool | int, FLAG, "transA"] = 0
    trans_b: Annotated[bool | int, FLAG, "transB"] = 0
    alpha: Annotated[float, NUMBER] = 1.0
    beta: Annotated[float, NUMBER] = 1.0
    bn_eps: Annotated[float | None, NUMBER] = None
    expr: Annotated[Expr | None, EXPRESSION] = None


@dataclass(frozen=True, kw_only=True)
class GemmNbitsSpec(Attributes):
    """Attributes of `gemm_nbits`: y = epilogue(x (w - zero) scale + b) with weights of 2, 4 or 8
    bits.

    form: how w lies: [K, N], [N, K], or as blobs [N, blocks, bytes] of MatMulNBits. block: terms
    of a column that share scale and zero; 0: all.
    """

    op = "gemm_nbits"
    roles = ("x", "w", "scale")
    optional = ("zero", "b", "flat_shape", "shape")
    extras = True
    form: Annotated[str, one_of("kn", "nk", "blobs")] = "blobs"
    K: Annotated[int, integer(1)]
    N: Annotated[int, integer(1)]
    bits: Annotated[int, integer(2, 8)] = 4
    block: Annotated[int, integer(0, 1 << 24), "block_size"]
    signed: Annotated[bool, FLAG] = False
    expr: Annotated[Expr | None, EXPRESSION] = None

    @staticmethod
    def sense(a: Mapping[str, Any], roles: set[str], outputs: int) -> str:
        """Why these attributes make no sense together with the roles, or ""."""
        if a.get("bits", 4) not in (2, 4, 8):
            return f"its bits are {a['bits']}, not 2, 4 or 8"
        return f"its block is {a['block']}, not a multiple of 16" if a["block"] % 16 else ""


@dataclass(frozen=True, kw_only=True)
class SwigluSpec(Attributes):
    """Attributes of `swiglu`: y = expr(x w_gate + b_gate, x w_up + b_up)."""

    op = "swiglu"
    roles = ("x",)
    optional = ("w", "b", "w_gate", "w_up", "b_gate", "b_up")
    trans_b: Annotated[bool | int, FLAG] = 0
    expr: Annotated[Expr, EXPRESSION]
    split: Annotated[int | None, integer(0, 1)] = None

    @staticmethod
    def sense(a: Mapping[str, Any], roles: set[str], outputs: int) -> str:
        """Why these attributes make no sense together with the roles, or ""."""
        packed, apart = {"w", "b"}, {"w_gate", "w_up", "b_gate", "b_up"}
        if (
            "w" not in roles or roles & apart
            if "split" in a
            else not roles >= {"w_gate", "w_up"} or roles & packed
        ):
            return "it has neither one weight and a split nor two weights"
        return _inputs(a, 2)


@dataclass(frozen=True)
class MaskSpec:
    """One mask of an attention."""

    kind: str
    scale: float
    period: int
    merged: bool
    fill: float


#: Roles of masks, in the order in which these apply.
MASKS = ("mask", "mask1", "mask2")


@dataclass(frozen=True, kw_only=True)
class AttentionSpec(Attributes):
    """Attributes of `attention`: softmax(scale q k^T + mask) v, per head."""

    op = "attention"
    roles = ("q", "k", "v")
    optional = (*MASKS, "head_scale")
    q: Annotated[Mapping[str, Any], LAYOUT]
    k: Annotated[Mapping[str, Any], LAYOUT]
    v: Annotated[Mapping[str, Any], LAYOUT]
    out: Annotated[Mapping[str, Any], OUT]
    num_heads: Annotated[int, integer(0)]
    kv_heads: Annotated[int, integer(0)]
    scale: Annotated[float, NUMBER]
    causal: Annotated[bool, FLAG] = False
    past: Annotated[int | str | None, PAST] = None
    nan_to_zero: Annotated[bool | str, CLEARED] = False
    softcap: Annotated[float | None, NUMBER] = None
    mask_kind: Annotated[str, _MASKS] = "none"
    mask_scale: Annotated[float | None, NUMBER] = None
    mask_period: Annotated[int | None, integer(1)] = None
    mask_merged: Annotated[bool | None, FLAG] = None
    fill: Annotated[float | str | None, FILL] = None
    mask1_kind: Annotated[str | None, _MASKS] = None
    mask1_scale: Annotated[float | None, NUMBER] = None
    mask1_period: Annotated[int | None, integer(1)] = None
    mask1_merged: Annotated[bool | None, FLAG] = None
    fill1: Annotated[float | str | None, FILL] = None
    mask2_kind: Annotated[str | None, _MASKS] = None
    mask2_scale: Annotated[float | None, NUMBER] = None
    mask2_period: Annotated[int | None, integer(1)] = None
    mask2_merged: Annotated[bool | None, FLAG] = None
    fill2: Annotated[float | str | None, FILL] = None

    def masks(self) -> list[MaskSpec]:
        """The masks in the order they apply; one that is absent has the kind none."""
        found = []
        for k, m in enumerate(MASKS):
            scale, fill = getattr(self, f"{m}_scale"), getattr(self, f"fill{k or ''}")
            found.append(
                MaskSpec(
                    kind=getattr(self, f"{m}_kind") or "none",
                    scale=1.0 if scale is None else scale,
                    period=getattr(self, f"{m}_period") or 0,
                    merged=bool(getattr(self, f"{m}_merged")),
                    fill=float("-inf" if fill is None else fill),
                )
            )
        return found

    @staticmethod
    def sense(a: Mapping[str, Any], roles: set[str], outputs: int) -> str:
        """Why these attributes make no sense together with the roles, or ""."""
        for before, m in pairwise(MASKS):
            if m in roles and before not in roles:
                return f"it has {m} without {before}"
        for m in MASKS:
            kind = a.get(f"{m}_kind", "none")
            if (kind != "none") != (m in roles):
                return f"its {m}_kind is {kind}, and its operands say otherwise"
        return ""


@dataclass(frozen=True, kw_only=True)
class LayerNormSpec(Attributes):
    """`layernorm`, RMS norm without the mean: (x - mean) / sqrt(var + eps) * gamma + beta."""

    op = "layernorm"
    roles = ("x",)
    optional = ("res", "xbias", "gamma", "beta")
    outputs = 2
    axis: Annotated[int, integer(-8, 7)]
    eps: Annotated[float, NUMBER, "epsilon"]
    rms: Annotated[bool, FLAG] = False
    gamma_add: Annotated[bool, FLAG] = False

    @staticmethod
    def sense(a: Mapping[str, Any], roles: set[str], outputs: int) -> str:
        """Why these attributes make no sense together with the roles, or ""."""
        summed = roles & {"res", "xbias"}
        return "it has a sum as its result and nothing to add" if outputs > 1 and not summed else ""


@dataclass(frozen=True, kw_only=True)
class GroupNormSpec(Attributes):
    """Attributes of `groupnorm`: statistics over the channels of a group and all pixels."""

    op = "groupnorm"
    roles = ("x",)
    optional = ("gamma", "beta")
    groups: Annotated[int, integer(-1), "num_groups"]
    eps: Annotated[float, NUMBER, "epsilon"]
    expr: Annotated[Expr | None, EXPRESSION] = None

    @staticmethod
    def sense(a: Mapping[str, Any], roles: set[str], outputs: int) -> str:
        """Why these attributes make no sense together with the roles, or ""."""
        return _inputs(a, 1)


@dataclass(frozen=True, kw_only=True)
class SoftmaxSpec(Attributes):
    """Attributes of `softmax` over one axis."""

    op = "softmax"
    roles = ("x",)
    axis: Annotated[int, integer(-8, 7)]
    log: Annotated[bool, FLAG] = False


@dataclass(frozen=True, kw_only=True)
class SqueezeExciteSpec(Attributes):
    """Attributes of `squeeze_excite`: x * gate(w2 act(w1 mean(x) + b1) + b2)."""

    op = "squeeze_excite"
    roles = ("x", "w1", "w2")
    optional = ("b1", "b2")
    kind: Annotated[str, one_of("conv", "gemm")]
    trans_b: Annotated[bool | int, FLAG] = 0
    expr1: Annotated[Expr | None, EXPRESSION] = None
    expr2: Annotated[Expr | None, EXPRESSION] = None

    @staticmethod
    def sense(a: Mapping[str, Any], roles: set[str], outputs: int) -> str:
        """Why these attributes make no sense together with the roles, or ""."""
        more = any(a[k]["n_in"] != 1 for k in ("expr1", "expr2") if k in a)
        return "its expressions have more than one input" if more else ""


@dataclass(frozen=True, kw_only=True)
class RopeSpec(Attributes):
    """Attributes of `rope`: pairs of elements rotated by an angle per position."""

    op = "rope"
    roles = ("x", "cos", "sin")
    optional = ("pos",)
    layout: Annotated[str, one_of("bhsd", "bshd", "bsx")]
    interleaved: Annotated[bool, FLAG] = False
    rot: Annotated[int, integer(0), "rotary_embedding_dim"] = 0
    num_heads: Annotated[int | None, integer(0)] = None


@dataclass(frozen=True, kw_only=True)
class BatchNormSpec(Attributes):
    """Attributes of `batch_norm` with constant statistics."""

    op = "batchnorm"
    roles = ("x", *_BN)
    extras = True
    bn_eps: Annotated[float, NUMBER, "epsilon"] = 1e-5
    expr: Annotated[Expr | None, EXPRESSION] = None


@dataclass(frozen=True, kw_only=True)
class PointwiseSpec(Attributes):
    """Attributes of `pointwise`: an expression over broadcast inputs."""

    op = "pointwise"
    expr: Annotated[Expr, EXPRESSION]

    @staticmethod
    def sense(a: Mapping[str, Any], roles: set[str], outputs: int) -> str:
        """Why these attributes make no sense together with the roles, or ""."""
        return _inputs(a, len(roles))


def _inputs(a: Mapping[str, Any], wanted: int) -> str:
    found = a["expr"]["n_in"] if "expr" in a else wanted
    return "" if found == wanted else f"its expression has {found} inputs, not {wanted}"


OPS: Mapping[str, type[Attributes]] = {
    c.op: c
    for c in (
        ConvSpec, ConvTransposeSpec, GemmSpec, GemmNbitsSpec, SwigluSpec, AttentionSpec,
        LayerNormSpec, GroupNormSpec, SoftmaxSpec, SqueezeExciteSpec, RopeSpec,
        BatchNormSpec, PointwiseSpec,
    )
}  # fmt: skip


def read(text: object) -> tuple[Spec | None, str]:
    """The spec that a call's attribute holds; None, and why, where it holds none."""
    try:
        found = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        found = None
    if (
        not isinstance(found, dict)
        or set(found) != {"op", "roles", "attrs"}
        or not isinstance(found["op"], str)
        or not isinstance(found["attrs"], dict)
    ):
        return None, "it cannot be read"
    if not isinstance(found["roles"], list) or not all(isinstance(r, str) for r in found["roles"]):
        return None, "it names no roles"
    return Spec(found["op"], tuple(found["roles"]), found["attrs"]), ""


def fault(spec: Spec, inputs: Sequence[str], outputs: Sequence[str]) -> str:
    """What is wrong with a spec for a call with these operands and results, in words that follow
    "its description is wrong: "; "" when nothing is.
    """
    op = OPS.get(spec.op)
    if op is None:
        return f"there is no fused op {_short(spec.op)}"
    if len(spec.roles) > len(inputs) or not all(inputs[: len(spec.roles)]):
        return f"it has {len(spec.roles)} roles for {len([i for i in inputs if i])} operands"
    if not 1 <= len(outputs) <= op.outputs or not any(outputs):
        return f"it has {len(outputs)} results"
    return (
        _roles_fault(spec, op)
        or _attrs_fault(spec, op)
        or op.sense(spec.attrs, set(spec.roles), len(outputs))
    )


def _roles_fault(spec: Spec, op: type[Attributes]) -> str:
    if len(set(spec.roles)) != len(spec.roles):
        return "a role is there twice"
    if spec.op == "pointwise":
        return (
            ""
            if spec.roles == tuple(f"x{k}" for k in range(len(spec.roles)))
            else "its roles are not x0, x1, ..."
        )
    named = [r for r in spec.roles if not (op.extras and re.fullmatch(r"e[0-9]{1,3}", r))]
    extras = [r for r in spec.roles if r not in named]
    if odd := sorted(set(named) - {*op.roles, *op.optional}):
        return f"{spec.op} has no role {_short(odd[0])}"
    if missing := [r for r in op.roles if r not in named]:
        return f"role '{missing[0]}' is not there"
    if extras != [f"e{k}" for k in range(len(extras))]:
        return "its roles for the expression are not e0, e1, ..."
    statistics = [r for r in _BN if r in named]
    if 0 < len(statistics) < 4:
        return f"it has {' and '.join(statistics)} alone"
    expr = spec.attrs.get("expr")
    reads = expr["n_in"] - 1 if isinstance(expr, Mapping) and _is_expression(expr) else 0
    if op.extras and len(extras) != reads:
        return f"its expression reads another number of operands than the {len(extras)} it has"
    return ""


def _attrs_fault(spec: Spec, op: type[Attributes]) -> str:
    known = op.forms()
    for name, value in spec.attrs.items():
        if name not in known:
            return f"{spec.op} has no attribute {_short(name)}"
        form = known[name][0]
        if not form.ok(value):
            why = f" ({_expression_fault(value)})" if form is EXPRESSION else ""
            return f"its {name} is {_short(value)}, not {form.words}{why}"
    missing = [n for n in known if not hasattr(op, n) and n not in spec.attrs]
    return f"it has no {missing[0]}" if missing else ""


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
