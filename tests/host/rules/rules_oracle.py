"""What the rule tests share: a short way to write a model, and the meaning of each spec in
float64.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tracea_onnx.ir.activations import evaluate
from tracea_onnx.ir.contracts import Match, Spec
from tracea_onnx.ir.expr import Expr
from tracea_onnx.ir.graph import Graph
from tracea_onnx.ir.refusals import Refusal
from tracea_onnx.match import find as matching
from tracea_onnx.match import rule_set

F64 = npt.NDArray[np.float64]
Array = npt.NDArray[Any]


def node(op: str, inputs: str, outputs: str, **attrs: Any) -> NodeProto:
    """`node("Add", "a b", "y")`; "-" is an absent input, `com.microsoft.X` another domain; the node
    is called after its first output.
    """
    domain, _, kind = op.rpartition(".")
    names = ["" if i == "-" else i for i in inputs.split()]
    return helper.make_node(
        kind, names, outputs.split(), name=f"n_{outputs.split()[0]}", domain=domain, **attrs
    )


def model(
    nodes: Sequence[NodeProto],
    inputs: Mapping[str, Sequence[int | str]],
    outputs: Sequence[str],
    constants: Mapping[str, npt.ArrayLike],
    *,
    opset: int = 17,
    dtype: int = TensorProto.FLOAT,
    overridable: Sequence[str] = (),
    types: Mapping[str, int] | None = None,
) -> ModelProto:
    """A model with inferred shapes.

    Float constants and inputs take `dtype`; `overridable` constants are inputs too.
    """
    np_type = helper.tensor_dtype_to_np_dtype(dtype)
    arrays = {k: np.asarray(v) for k, v in constants.items()}
    arrays = {k: v.astype(np_type) if v.dtype.kind == "f" else v for k, v in arrays.items()}
    values = [
        helper.make_tensor_value_info(k, (types or {}).get(k, dtype), list(s))
        for k, s in inputs.items()
    ]
    values += [
        helper.make_tensor_value_info(
            k, helper.np_dtype_to_tensor_dtype(arrays[k].dtype), arrays[k].shape
        )
        for k in overridable
    ]
    graph = helper.make_graph(
        list(nodes),
        "g",
        values,
        [helper.make_tensor_value_info(o, (types or {}).get(o, dtype), None) for o in outputs],
        [numpy_helper.from_array(v, k) for k, v in arrays.items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return onnx.shape_inference.infer_shapes(made, data_prop=True)


def find(m: ModelProto, rule: str) -> tuple[Graph, list[Match], list[Refusal]]:
    graph = Graph(m)
    chosen = next(r for r in rule_set.rules() if r.name == rule)
    matches, refusals = matching.find(graph, rules=[chosen])
    return graph, matches, refusals


def only(m: ModelProto, rule: str) -> Match:
    """The single match of `rule`, its contract checked."""
    _, matches, refusals = find(m, rule)
    assert len(matches) == 1, [r.reason for r in refusals]
    return matches[0]


def reason(m: ModelProto, rule: str, anchor: str) -> str:
    """Why `rule` refuses at the node called `anchor`."""
    _, matches, refusals = find(m, rule)
    assert anchor not in [x.anchor.name for x in matches], "it matched"
    return next(r.reason for r in refusals if r.anchor == anchor)


def ops(m: Match) -> list[str]:
    return [n.op for n in m.nodes]


# --- running --------------------------------------------------------------------------------------
def feeds_of(
    m: ModelProto, rng: np.random.Generator, sizes: Mapping[str, int] | None = None
) -> dict[str, Array]:
    stored = {t.name for t in m.graph.initializer}
    out: dict[str, Array] = {}
    for i in m.graph.input:
        if i.name not in stored:
            t = i.type.tensor_type
            shape = [
                d.dim_value if d.HasField("dim_value") else (sizes or {})[d.dim_param]
                for d in t.shape.dim
            ]
            out[i.name] = rng.standard_normal(shape).astype(
                helper.tensor_dtype_to_np_dtype(t.elem_type)
            )
    return out


def plain_session(m: ModelProto) -> ort.InferenceSession:
    """ONNX Runtime without optimisations, on the calling thread (starting others costs more than
    small graphs do).
    """
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return ort.InferenceSession(m.SerializeToString(), options, providers=["CPUExecutionProvider"])


def run_all(m: ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Every value of the model, from ONNX Runtime without optimisations."""
    opened = ModelProto()
    opened.CopyFrom(m)
    made = [o for n in m.graph.node for o in n.output if o]
    del opened.graph.output[:]
    opened.graph.output.extend(helper.make_empty_tensor_value_info(o) for o in made)
    session = plain_session(opened)
    values = dict(zip(made, session.run(made, dict(feeds)), strict=True))
    # a feed overrides the initializer of its name
    return values | {t.name: numpy_helper.to_array(t) for t in m.graph.initializer} | dict(feeds)


def check(
    m: ModelProto,
    match: Match,
    *,
    sizes: Mapping[str, int] | None = None,
    tolerance: float = 2e-5,
    seed: int = 0,
) -> None:
    """The spec, evaluated in float64 on the values entering the chain, gives what the nodes
    give.
    """
    values = run_all(m, feeds_of(m, np.random.default_rng(seed), sizes))
    roles: dict[str, F64] = {}
    for role, name in zip(match.spec.roles, match.inputs, strict=True):
        roles[role] = np.asarray(values[name], np.float64)
    want = np.asarray(values[match.outputs[0]], np.float64)
    got = compute(match.spec, roles)
    assert got.shape == want.shape
    assert np.array_equal(np.isnan(got), np.isnan(want))
    scale = np.abs(np.nan_to_num(want)).max(initial=0.0) + 1e-6
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance * scale)


# --- what specs mean ------------------------------------------------------------------------------
def compute(spec: Spec, v: Mapping[str, F64]) -> F64:
    return {
        "batchnorm": _batch_norm,
        "conv": _conv,
        "conv_transpose": _conv,
        "gemm": _gemm,
        "gemm_nbits": _gemm_nbits,
        "swiglu": _swiglu,
        "squeeze_excite": _squeeze_excite,
        "pointwise": _pointwise,
    }[spec.op](spec, v)


def _epilogue(spec: Spec, acc: F64, v: Mapping[str, F64]) -> F64:
    if "expr" not in spec.attrs:
        return acc
    operands = [v[r] for r in spec.roles if r[0] == "e" and r[1:].isdigit()]
    out = evaluate(Expr.from_json(spec.attrs["expr"]), [acc, *operands])
    assert out.shape == acc.shape, "an operand of the epilogue enlarges the result"
    return out


def _conv(spec: Spec, v: Mapping[str, F64]) -> F64:
    names = {"strides", "dilations", "pads", "auto_pad", "group", "output_padding", "output_shape"}
    attrs: dict[str, Any] = {k: a for k, a in spec.attrs.items() if k in names}
    if attrs["auto_pad"] != "NOTSET":
        del attrs["pads"]
    # the reference evaluator splits transposed groups wrongly
    groups = attrs.pop("group") if spec.op == "conv_transpose" else 1
    op = helper.make_node(
        "Conv" if spec.op == "conv" else "ConvTranspose", ["x", "w"], ["y"], **attrs
    )
    infos = [helper.make_tensor_value_info(k, TensorProto.DOUBLE, None) for k in ("x", "w", "y")]
    alone = helper.make_model(
        helper.make_graph([op], "g", infos[:2], infos[2:]),
        opset_imports=[helper.make_opsetid("", 17)],
    )
    run = ReferenceEvaluator(alone)
    line = v["x"].ndim == 3 and v["w"].ndim == 4  # an image of height 1
    xs, ws = (
        np.split(v["x"][:, :, None] if line else v["x"], groups, axis=1),
        np.split(v["w"], groups, axis=0),
    )
    parts: list[F64] = [
        np.asarray(run.run(None, {"x": x, "w": w})) for x, w in zip(xs, ws, strict=True)
    ]
    acc = np.concatenate([p[0] for p in parts], axis=1)
    acc = acc[:, :, 0] if line else acc
    column = (-1, *[1] * (acc.ndim - 2))
    if "b" in v:
        acc = acc + v["b"].reshape(column)
    return _epilogue(spec, _normalised(spec, acc, v) if "bn_scale" in v else acc, v)


def _normalised(spec: Spec, x: F64, v: Mapping[str, F64]) -> F64:
    column = (-1, *[1] * (x.ndim - 2))
    factor = v["bn_scale"] / np.sqrt(v["bn_var"] + spec.attrs["bn_eps"])
    return np.asarray(
        (x - v["bn_mean"].reshape(column)) * factor.reshape(column) + v["bn_bias"].reshape(column)
    )


def _batch_norm(spec: Spec, v: Mapping[str, F64]) -> F64:
    return _epilogue(spec, _normalised(spec, v["x"], v), v)


def _product(x: F64, w: F64, trans_a: int, trans_b: int) -> F64:
    return np.asarray(
        (np.swapaxes(x, -1, -2) if trans_a else x) @ (np.swapaxes(w, -1, -2) if trans_b else w)
    )


def _gemm(spec: Spec, v: Mapping[str, F64]) -> F64:
    a = spec.attrs
    acc = a["alpha"] * _product(v["x"], v["w"], a["trans_a"], a["trans_b"])
    acc = acc + a["beta"] * v["b"] if "b" in v else acc
    if "bn_scale" in v:
        acc = (acc - v["bn_mean"]) * v["bn_scale"] / np.sqrt(v["bn_var"] + a["bn_eps"]) + v[
            "bn_bias"
        ]
    return _epilogue(spec, acc, v)


def _gemm_nbits(spec: Spec, v: Mapping[str, F64]) -> F64:
    a, w, scale = spec.attrs, v["w"], v["scale"]
    zero = v.get("zero", np.zeros(()))
    if a["form"] == "blobs":
        shifts = np.arange(0, 8, a["bits"])

        def apart(of: F64) -> F64:
            few = of.astype(np.int64)[..., None] >> shifts & (1 << a["bits"]) - 1
            return np.asarray(few.reshape(len(of), -1), np.float64)

        blocks = scale.reshape(a["N"], -1)
        zeros = apart(zero)[:, : blocks.shape[1]] if "zero" in v else 2.0 ** (a["bits"] - 1)
        each = (np.repeat(p, a["block"], 1) for p in (blocks, zeros + 0 * blocks))
        scale, zero = (p.T[: a["K"]] for p in each)
        w = apart(w.reshape(a["N"], -1)).T[: a["K"]]
    elif a["form"] == "nk":
        w, scale, zero = w.T, scale.T, zero.T
    if a["form"] != "blobs" and a["block"]:
        scale, zero = (np.repeat(p, a["block"], 0) if p.ndim else p for p in (scale, zero))
    acc = v["x"] @ ((w - zero) * scale) + v.get("b", np.zeros(1))
    return _epilogue(spec, acc, v)


def _swiglu(spec: Spec, v: Mapping[str, F64]) -> F64:
    expr, trans = Expr.from_json(spec.attrs["expr"]), spec.attrs["trans_b"]
    if "w" in v:
        halves = np.split(_product(v["x"], v["w"], 0, trans) + v.get("b", np.zeros(1)), 2, axis=-1)
        return evaluate(expr, halves if spec.attrs["split"] == 0 else halves[::-1])
    gate, up = (
        _product(v["x"], v[f"w_{k}"], 0, trans) + v.get(f"b_{k}", np.zeros(1))
        for k in ("gate", "up")
    )
    return evaluate(expr, [gate, up])


def _squeeze_excite(spec: Spec, v: Mapping[str, F64]) -> F64:
    value = v["x"].mean(axis=(2, 3))
    for k in "12":
        w = v[f"w{k}"].reshape(v[f"w{k}"].shape[:2])
        turn = spec.attrs["kind"] == "conv" or spec.attrs["trans_b"]
        value = value @ (w.T if turn else w) + v.get(f"b{k}", np.zeros(1)).reshape(-1)
        if f"expr{k}" in spec.attrs:
            value = evaluate(Expr.from_json(spec.attrs[f"expr{k}"]), [value])
    return np.asarray(v["x"] * value[:, :, None, None])


def _pointwise(spec: Spec, v: Mapping[str, F64]) -> F64:
    return evaluate(Expr.from_json(spec.attrs["expr"]), [v[r] for r in spec.roles])


# --- spellings of activations ---------------------------------------------------------------------
_CONSTANTS: dict[str, npt.ArrayLike] = {
    **{
        k: np.float32(v)
        for k, v in {
            "half": 0.5,
            "one": 1,
            "two": 2,
            "three": 3,
            "six": 6,
            "sixth": 1 / 6,
            "zero": 0,
            "r2": np.sqrt(2),
            "ir2": np.sqrt(0.5),
        }.items()
    },
    **{
        k: np.float32(v)
        for k, v in {"c0": 0.044715, "c1": np.sqrt(2 / np.pi), "k1702": 1.702}.items()
    },
    "half1": np.array([0.5], np.float32),
}

#: name -> (smallest opset, nodes from X to Y); other lower-case words are inner values or the
#: constants above.
SPELLINGS: dict[str, tuple[int, str]] = {
    "relu": (7, "Relu X > Y"),
    "leaky": (7, "LeakyRelu(alpha=0.1) X > Y"),
    "relu6 inputs": (11, "Clip X zero six > Y"),
    "relu6 min max": (13, "Max X zero > a; Min a six > Y"),
    "silu": (7, "Sigmoid X > s; Mul X s > Y"),
    "silu swapped": (7, "Sigmoid X > s; Mul s X > Y"),
    "hswish op": (14, "HardSwish X > Y"),
    "hswish hsigmoid": (7, "HardSigmoid(alpha=0.16666667) X > s; Mul X s > Y"),
    "hswish div outside": (11, "Add X three > a; Clip a zero six > k; Mul X k > m; Div m six > Y"),
    "hswish div inside": (11, "Add X three > a; Clip a zero six > k; Div k six > d; Mul d X > Y"),
    "hswish mul": (11, "Add three X > a; Clip a zero six > k; Mul k sixth > d; Mul X d > Y"),
    "mish": (7, "Softplus X > p; Tanh p > t; Mul X t > Y"),
    "mish op": (18, "Mish X > Y"),
    "mish exp": (7, "Exp X > e; Add e one > a; Log a > l; Tanh l > t; Mul t X > Y"),
    "gelu erf, half last": (
        13,
        "Div X r2 > d; Erf d > e; Add e one > a; Mul X a > m; Mul m half > Y",
    ),
    "gelu erf, half first": (
        13,
        "Mul X half > h; Mul X ir2 > d; Erf d > e; Add one e > a; Mul h a > Y",
    ),
    "gelu erf, half on erf": (
        13,
        "Div X r2 > d; Erf d > e; Add e one > a; Mul a half1 > h; Mul X h > Y",
    ),
    "gelu op": (20, "Gelu X > Y"),
    "gelu op tanh": (20, "Gelu(approximate='tanh') X > Y"),
    "gelu tanh pow": (
        13,
        (
            "Pow X three > p; Mul p c0 > k; Add X k > a; Mul a c1 > i; Tanh i > t; Add t one > o; "
            "Mul X o > m; Mul m half > Y"
        ),
    ),
    "gelu tanh fast": (
        13,
        (
            "Mul X half > h; Mul X c1 > s; Mul X c0 > k; Mul k X > j; Add j one > a; Mul s a > i; "
            "Tanh i > t; Add one t > o; Mul h o > Y"
        ),
    ),
    "gelu tanh cubed": (
        13,
        (
            "Mul X X > q; Mul X q > p; Mul c0 p > k; Add X k > a; Mul c1 a > i; Tanh i > t; "
            "Add t one > o; Mul half X > h; Mul h o > Y"
        ),
    ),
    "gelu quick": (7, "Mul X k1702 > k; Sigmoid k > s; Mul X s > Y"),
    "gelu microsoft": (13, "com.microsoft.Gelu X > Y"),
    "gelu fast microsoft": (13, "com.microsoft.FastGelu X > Y"),
    "gelu quick microsoft": (13, "com.microsoft.QuickGelu(alpha=1.702) X > Y"),
    "elu": (7, "Elu(alpha=0.7) X > Y"),
    "selu": (7, "Selu X > Y"),
    "celu": (12, "Celu(alpha=0.6) X > Y"),
    "softsign": (7, "Softsign X > Y"),
    "hsigmoid": (7, "HardSigmoid X > Y"),
    "tanh": (7, "Tanh X > Y"),
    "thresholded": (10, "ThresholdedRelu(alpha=0.3) X > Y"),
    "shrink": (9, "Shrink(lambd=0.4, bias=0.1) X > Y"),
    "where": (9, "Greater X zero > g; Mul X half1 > m; Where g X m > Y"),
    "squared relu": (7, "Relu X > r; Pow r two > Y"),
    "sum": (8, "Tanh X > t; Sum X t half > Y"),
    "mean": (8, "Tanh X > t; Mean X t one > Y"),
}
ACTIVATIONS = tuple(SPELLINGS)


def chain(text: str, x: str, y: str) -> list[NodeProto]:
    """Nodes written as `Op(attr=1) input ... > output; ...`, with X and Y for the ends and inner
    names made unique by `y`.
    """
    rename = {"X": x, "Y": y, **{k: k for k in _CONSTANTS}}
    made: list[NodeProto] = []
    for step in text.split("; "):
        found = re.fullmatch(r"([\w.]+)(?:\((.*)\))? (.*) > (\w+)", step)
        assert found is not None, step
        attrs = {
            k: ast.literal_eval(v)
            for k, _, v in (a.partition("=") for a in (found[2] or "").split(", ") if a)
        }
        ins = " ".join(rename.get(i, f"{y}_{i}") for i in found[3].split())
        made.append(node(found[1], ins, rename.get(found[4], f"{y}_{found[4]}"), **attrs))
    return made


def activation(name: str, x: str, y: str) -> tuple[list[NodeProto], dict[str, npt.ArrayLike], int]:
    """(nodes from `x` to `y`, constants, smallest opset) of one exporter's way to write an
    activation.
    """
    opset, text = SPELLINGS[name]
    nodes = chain(text, x, y)
    used = {i for n in nodes for i in n.input}
    return nodes, {k: v for k, v in _CONSTANTS.items() if k in used}, opset
