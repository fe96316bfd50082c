"""What the spec of each fused op may say: its roles and attributes, with types and ranges. A spec
that is believed is checked here before it is lowered.

    fault(Spec("conv", ("x", "w"), {"strides": [0, 1]}), ...)   ->   "its strides is [0, 1], not a list of whole numbers from 1 to 2147483647"
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tracea_onnx.ir.abi import OPCODE_ARITY
from tracea_onnx.ir.contracts import Spec
from tracea_onnx.ir.expr import Expr
from tracea_onnx.match.strided_view import LAYOUTS, OUT_LAYOUTS

_MOST = (1 << 31) - 1
#: Instructions of one expression, and parts of a packed projection.
_LONGEST, _PARTS = 4096, 64


@dataclass(frozen=True)
class Form:
    """What an attribute may be: a test, and its words."""

    ok: Callable[[Any], bool]
    words: str


def _whole(value: object, low: int, high: int = _MOST) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _number(value: object) -> bool:
    return (
        isinstance(value, (int, float)) and not isinstance(value, bool) and -1e300 < value < 1e300
    )


def integer(low: int, high: int = _MOST) -> Form:
    return Form(lambda v: _whole(v, low, high), f"a whole number from {low} to {high}")


def integers(low: int, high: int = _MOST) -> Form:
    return Form(
        lambda v: isinstance(v, list) and 0 < len(v) <= 6 and all(_whole(x, low, high) for x in v),
        f"a list of whole numbers from {low} to {high}",
    )


def one_of(*values: str) -> Form:
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
        if len(ins[1]) != OPCODE_ARITY.get(ins[0], 2):
            return f"its instruction {k} gives {_short(ins[0])} {len(ins[1])} operands"
    try:
        Expr.from_json(dict(value))
    except ValueError as e:
        return str(e)
    return ""


FLAG = Form(lambda v: isinstance(v, bool) or _whole(v, 0, 1), "true or false")
CLEARED = Form(lambda v: v == "masked" or FLAG.ok(v), 'true, false or "masked"')
NUMBER = Form(_number, "a finite number")
FILL = Form(lambda v: v == "-inf" or _number(v), 'a finite number or "-inf"')
PAST = Form(lambda v: v == "kv" or _whole(v, -_MOST), 'a whole number or "kv"')
LAYOUT = Form(_is_layout, "a layout")
OUT = Form(
    lambda v: _is_layout(v) and v["layout"] in OUT_LAYOUTS,
    f"one of the layouts {', '.join(OUT_LAYOUTS)}",
)
EXPRESSION = Form(_is_expression, "an expression")

_BN = ("bn_scale", "bn_bias", "bn_mean", "bn_var")
_CONV = {
    "strides": integers(1), "dilations": integers(1), "pads": integers(0), "auto_pad": one_of("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"),
    "group": integer(1), "bn_eps": NUMBER, "expr": EXPRESSION,
}  # fmt: skip
_MASKS = {f"mask{k}_{name}": form for k in ("", "1") for name, form in (
    ("kind", one_of("none", "add", "bool", "drop")), ("scale", NUMBER), ("period", integer(1)), ("merged", FLAG),
)} | {"fill": FILL, "fill1": FILL}  # fmt: skip


@dataclass(frozen=True)
class Op:
    """A fused op: operands it must and may have, attributes it must and may have.

    `extras`: e0, e1, ... may follow, as many as `expr` has more inputs.
    """

    roles: tuple[str, ...]
    optional: tuple[str, ...]
    attrs: Mapping[str, Form]
    required: tuple[str, ...] = ()
    extras: bool = False
    outputs: int = 1


OPS: Mapping[str, Op] = {
    "conv": Op(("x", "w"), ("b", *_BN), _CONV, extras=True),
    "conv_transpose": Op(("x", "w"), ("b", *_BN), {**_CONV, "output_padding": integers(0), "output_shape": integers(1)}, extras=True),
    "gemm": Op(
        ("x", "w"), ("b", *_BN, "flat_shape", "shape"),
        {"trans_a": FLAG, "trans_b": FLAG, "alpha": NUMBER, "beta": NUMBER, "bn_eps": NUMBER, "expr": EXPRESSION}, extras=True,
    ),
    "swiglu": Op(
        ("x",), ("w", "b", "w_gate", "w_up", "b_gate", "b_up"), {"trans_b": FLAG, "expr": EXPRESSION, "split": integer(0, 1)}, required=("expr",)
    ),
    "attention": Op(
        ("q", "k", "v"), ("mask", "mask1", "head_scale"),
        {"q": LAYOUT, "k": LAYOUT, "v": LAYOUT, "out": OUT, "num_heads": integer(0), "kv_heads": integer(0), "scale": NUMBER, "causal": FLAG, "past": PAST,
         "nan_to_zero": CLEARED, "softcap": NUMBER, **_MASKS},
        required=("q", "k", "v", "out", "num_heads", "kv_heads", "scale"),
    ),
    "layernorm": Op(
        ("x",), ("res", "xbias", "gamma", "beta"), {"axis": integer(-8, 7), "eps": NUMBER, "rms": FLAG, "gamma_add": FLAG}, required=("axis", "eps"), outputs=2
    ),
    "groupnorm": Op(("x",), ("gamma", "beta"), {"groups": integer(-1), "eps": NUMBER, "expr": EXPRESSION}, required=("groups", "eps")),
    "softmax": Op(("x",), (), {"axis": integer(-8, 7), "log": FLAG}, required=("axis",)),
    "squeeze_excite": Op(
        ("x", "w1", "w2"), ("b1", "b2"), {"kind": one_of("conv", "gemm"), "trans_b": FLAG, "expr1": EXPRESSION, "expr2": EXPRESSION}, required=("kind",)
    ),
    "rope": Op(
        ("x", "cos", "sin"), ("pos",), {"layout": one_of("bhsd", "bshd", "bsx"), "interleaved": FLAG, "rot": integer(0), "num_heads": integer(0)},
        required=("layout",),
    ),
    "batchnorm": Op(("x", *_BN), (), {"bn_eps": NUMBER, "expr": EXPRESSION}, extras=True),
    "pointwise": Op((), (), {"expr": EXPRESSION}, required=("expr",)),
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
    return _roles_fault(spec, op) or _attrs_fault(spec, op) or _sense(spec, len(outputs))


def _roles_fault(spec: Spec, op: Op) -> str:
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


def _attrs_fault(spec: Spec, op: Op) -> str:
    for name, value in spec.attrs.items():
        if name not in op.attrs:
            return f"{spec.op} has no attribute {_short(name)}"
        if not op.attrs[name].ok(value):
            why = f" ({_expression_fault(value)})" if op.attrs[name] is EXPRESSION else ""
            return f"its {name} is {_short(value)}, not {op.attrs[name].words}{why}"
    missing = [name for name in op.required if name not in spec.attrs]
    return f"it has no {missing[0]}" if missing else ""


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _sense(spec: Spec, outputs: int) -> str:
    """What roles and attributes must have to do with each other."""
    a, roles = spec.attrs, set(spec.roles)
    if spec.op in ("conv", "conv_transpose"):
        lengths = {
            len(a[k]) for k in ("strides", "dilations", "output_padding", "output_shape") if k in a
        } | ({len(a["pads"]) / 2} if "pads" in a else set())
        if len(lengths) > 1:
            return "its strides, dilations and pads are for different numbers of dims"
        if any(
            p >= s
            for p, s in zip(a.get("output_padding", ()), a.get("strides") or [1] * 6, strict=False)
            if p
        ):
            return "its output_padding is not less than its strides"
    if "expr" in a and spec.op in ("swiglu", "pointwise", "groupnorm"):
        inputs = {"swiglu": 2, "groupnorm": 1}.get(spec.op, len(roles))
        if a["expr"]["n_in"] != inputs:
            return f"its expression has {a['expr']['n_in']} inputs, not {inputs}"
    if any(a[k]["n_in"] != 1 for k in ("expr1", "expr2") if k in a):
        return "its expressions have more than one input"
    if spec.op == "swiglu" and not ((roles >= {"w"} and not roles & {"w_gate", "w_up", "b_gate", "b_up"} and "split" in a) or (
        roles >= {"w_gate", "w_up"} and not roles & {"w", "b"} and "split" not in a
    )):  # fmt: skip
        return "it has neither one weight and a split nor two weights"
    if spec.op == "attention":
        if len(masks := [m for m in ("mask", "mask1") if m in roles]) == 1 and masks == ["mask1"]:
            return "it has a second mask without a first"
        for m in ("mask", "mask1"):
            if (a.get(f"{m}_kind", "none") != "none") != (m in roles):
                return (
                    f"its {m}_kind is {a.get(f'{m}_kind', 'none')}, and its operands say otherwise"
                )
    if spec.op == "layernorm" and outputs > 1 and not roles & {"res", "xbias"}:
        return "it has a sum as its result and nothing to add"
    return ""
