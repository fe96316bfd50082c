"""Normalisation rules: every exporter's spelling means what its spec says, and near misses refuse
with a sentence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper, shape_inference

from tests.host.rules.rules_oracle import find, model, node, only, reason
from tests.host.rules.rules_oracle_attention import check_spec

N = 7
F = np.float32


def weights(*shape: int, seed: int = 1) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape).astype(F)


def constants(**extra: npt.ArrayLike) -> dict[str, npt.ArrayLike]:
    return {
        "g": weights(N),
        "b": weights(N, seed=2),
        "eps": F(1e-3),
        "two": F(2.0),
        "one": F(1.0),
        "neg_half": F(-0.5),
        "half": F(0.5),
        "last": np.array([-1]),
        "second": np.array([1]),
        **extra,
    }


def build(
    nodes: list[NodeProto],
    *,
    shape: tuple[int | str, ...] = ("batch", 3, N),
    outputs: tuple[str, ...] = ("y",),
    opset: int = 13,
    **kw: Any,
) -> ModelProto:
    used = {i for n in nodes for i in n.input}
    return model(
        nodes,
        {"x": shape, **kw.pop("inputs", {})},
        outputs,
        {k: v for k, v in constants(**kw.pop("extra", {})).items() if k in used},
        opset=opset,
        **kw,
    )


MEAN = [node("ReduceMean", "x", "m", axes=[-1]), node("Sub", "x m", "d")]
SQUARES = {"pow": [node("Pow", "d two", "q")], "mul": [node("Mul", "d d", "q")]}
ROOTS = {
    "sqrt div": [node("Sqrt", "e", "r"), node("Div", "d r", "z")],
    "reciprocal": [node("Sqrt", "e", "r"), node("Reciprocal", "r", "i"), node("Mul", "d i", "z")],
    "reciprocal swapped": [
        node("Sqrt", "e", "r"),
        node("Reciprocal", "r", "i"),
        node("Mul", "i d", "z"),
    ],
    "one over": [node("Sqrt", "e", "r"), node("Div", "one r", "i"), node("Mul", "d i", "z")],
    "power": [node("Pow", "e neg_half", "i"), node("Mul", "d i", "z")],
    "half power": [node("Pow", "e half", "r"), node("Div", "d r", "z")],
}
TAILS = {
    "affine": [node("Mul", "z g", "s"), node("Add", "s b", "y")],
    "affine swapped": [node("Mul", "g z", "s"), node("Add", "b s", "y")],
    "scale": [node("Mul", "z g", "y")],
    "shift": [node("Add", "z b", "y")],
    "plain": [node("Identity", "z", "y")],
}
VARIANCE = [node("ReduceMean", "q", "v", axes=[-1]), node("Add", "v eps", "e")]


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("root", ROOTS)
@pytest.mark.parametrize("square", SQUARES)
def test_layer_norm_decomposed(square: str, root: str, tail: str) -> None:
    m = build([*MEAN, *SQUARES[square], *VARIANCE, *ROOTS[root], *TAILS[tail]])
    match = only(m, "layernorm")
    assert match.spec.roles == (
        "x",
        *(
            r
            for r in ("gamma", "beta")
            if r[0]
            in {"affine": "gb", "affine swapped": "gb", "scale": "g", "shift": "b", "plain": ""}[
                tail
            ]
        ),
    )
    assert match.spec.attrs["eps"] == pytest.approx(1e-3)
    check_spec(m, match, sizes={"batch": 2})


@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize("back", ["Unsqueeze", "Reshape"])
def test_torch_var(back: str, rms: bool) -> None:
    """The dynamo exporter's torch.var: a mean of its own, and the reduced axis dropped and put
    back.
    """
    second = [node("ReduceMean", "x", "m2", axes=[2]), node("Sub", "x m2", "d2")]
    variance = [
        node("Mul", "x x" if rms else "d2 d2", "q"),
        node("ReduceMean", "q", "v0", axes=[2], keepdims=0),
        node(back, f"v0 {back}", "v"),
    ]
    rest = [
        node("Add", "v eps", "e"),
        node("Sqrt", "e", "r"),
        node("Div", "x r" if rms else "d r", "z"),
        node("Mul", "z g", "y"),
    ]
    extra = {"Unsqueeze": np.array([2]), "Reshape": np.array([2, 3, 1])}
    m = build([*([] if rms else [*MEAN, *second]), *variance, *rest], shape=(2, 3, N), extra=extra)
    check_spec(m, only(m, "rmsnorm" if rms else "layernorm"))


EARLY = {
    "on the root": [
        node("Sqrt", "e", "r"),
        node("Reciprocal", "r", "i"),
        node("Mul", "i g", "s"),
        node("Mul", "C s", "z"),
    ],
    "on the input": [node("Sqrt", "e", "r"), node("Mul", "g C", "s"), node("Div", "s r", "z")],
}


@pytest.mark.parametrize("early", EARLY)
@pytest.mark.parametrize("rms", [False, True])
def test_gamma_before_the_division(early: str, rms: bool) -> None:
    rest = [
        NodeProto.FromString(n.SerializeToString())
        for n in [*SQUARES["mul"], *VARIANCE, *EARLY[early]]
    ]
    for n in rest:
        n.input[:] = [("x" if rms else "d") if i in ("C", "d") else i for i in n.input]
    m = build(
        [
            *([] if rms else MEAN),
            *rest,
            node("Identity" if rms else "Add", "z" if rms else "z b", "y"),
        ]
    )
    match = only(m, "rmsnorm" if rms else "layernorm")
    assert match.spec.roles == (("x", "gamma") if rms else ("x", "gamma", "beta"))
    check_spec(m, match, sizes={"batch": 2})


@pytest.mark.parametrize("root", ROOTS)
@pytest.mark.parametrize("square", SQUARES)
@pytest.mark.parametrize("plus_one", ["constant", "run-time", "no"])
def test_rms_norm_decomposed(square: str, root: str, plus_one: str) -> None:
    tail = {
        "no": [node("Mul", "g z", "y")],
        "constant": [node("Mul", "z g", "y")],
        "run-time": [node("Add", "w one", "w1"), node("Mul", "z w1", "y")],
    }[plus_one]
    nodes = [*SQUARES[square], *VARIANCE, *ROOTS[root], *tail]
    for n in nodes:
        n_inputs = ["x" if i == "d" else i for i in n.input]
        del n.input[:]
        n.input.extend(n_inputs)
    m = build(nodes, inputs={"w": (N,)} if plus_one == "run-time" else {})
    for n in nodes:  # the tables above are shared
        restored = ["d" if i == "x" else i for i in n.input]
        del n.input[:]
        n.input.extend(restored)
    match = only(m, "rmsnorm")
    assert match.spec.attrs["rms"]
    assert match.spec.attrs["gamma_add"] == (plus_one == "run-time")
    check_spec(m, match, sizes={"batch": 3})


def test_layer_norm_axes_as_input_and_over_two_axes() -> None:
    nodes = [
        node("ReduceMean", "x ax", "m"),
        node("Sub", "x m", "d"),
        node("Mul", "d d", "q"),
        node("ReduceMean", "q ax", "v"),
        node("Add", "v eps", "e"),
    ]
    m = build(
        [*nodes, *ROOTS["sqrt div"], node("Mul", "z g2", "y")],
        opset=18,
        extra={"ax": np.array([1, 2]), "g2": weights(3, N)},
    )
    match = only(m, "layernorm")
    assert match.spec.attrs["axis"] == -2
    check_spec(m, match, sizes={"batch": 2})


def test_keras_form_scales_input_and_mean() -> None:
    nodes = [
        *MEAN,
        *SQUARES["mul"],
        *VARIANCE,
        node("Sqrt", "e", "r"),
        node("Reciprocal", "r", "i"),
        node("Mul", "i g", "s"),
        node("Mul", "m s", "ms"),
    ]
    m = build(
        [*nodes, node("Sub", "b ms", "sh"), node("Mul", "x s", "xs"), node("Add", "xs sh", "y")]
    )
    match = only(m, "layernorm")
    assert len(match.nodes) == len(m.graph.node)
    check_spec(m, match, sizes={"batch": 2})


@pytest.mark.parametrize("at", ["root", "result"])
def test_rounding_in_the_middle_is_kept(at: str) -> None:
    """In a float32 norm half precision loses something; between two ends of half precision it does
    not (below).
    """
    casts = [
        node("Cast", "i" if at == "root" else "z", "h", to=TensorProto.FLOAT16),
        node("Cast", "h", "w", to=TensorProto.FLOAT),
    ]
    head = [
        node("Mul", "x x", "q"),
        node("ReduceMean", "q", "v", axes=[-1]),
        node("Add", "v eps", "e"),
        node("Sqrt", "e", "r"),
        node("Reciprocal", "r", "i"),
    ]
    tail = (
        [*casts, node("Mul", "x w", "z"), node("Mul", "z g", "y")]
        if at == "root"
        else [node("Mul", "x i", "z"), *casts, node("Mul", "w g", "y")]
    )
    m = build([*head, *tail])
    _, matches, refusals = find(m, "rmsnorm")
    if at == "result":
        assert [x.outputs for x in matches] == [("z",)]
    else:
        assert not matches and any("rounds to a narrower type" in r.reason for r in refusals)


@pytest.mark.parametrize("weight_first", [True, False])
def test_rms_norm_in_half_precision_with_casts(weight_first: bool) -> None:
    tail = [
        node("Cast", "z", "h", to=TensorProto.FLOAT16),
        node("Mul", "gh h" if weight_first else "h gh", "y"),
    ]
    nodes = [
        node("Cast", "x", "d", to=TensorProto.FLOAT),
        *SQUARES["pow"],
        *VARIANCE,
        *ROOTS["reciprocal"],
        *tail,
    ]
    c = {k: v for k, v in constants().items() if k in ("two", "eps")}
    m = model(nodes, {"x": (2, 3, N)}, ["y"], {}, opset=13, dtype=TensorProto.FLOAT16)
    m.graph.initializer.extend([numpy_helper.from_array(np.asarray(v, F), k) for k, v in c.items()])
    m.graph.initializer.append(numpy_helper.from_array(weights(N).astype(np.float16), "gh"))
    m = shape_inference.infer_shapes(m)
    match = only(m, "rmsnorm")
    assert match.inputs == ("x", "gh")
    assert len(match.nodes) == len(nodes)
    check_spec(m, match, tolerance=2e-3)


@pytest.mark.parametrize("op", ["LayerNormalization", "RMSNormalization"])
def test_operators(op: str) -> None:
    rms = op == "RMSNormalization"
    m = build(
        [node(op, "x g" if rms else "x g b", "y", epsilon=1e-3)],
        opset=23 if rms else 17,
        shape=(2, 3, N),
    )
    match = only(m, "rmsnorm" if rms else "layernorm")
    assert match.spec.attrs == {
        "axis": -1,
        "eps": pytest.approx(1e-3),
        "rms": rms,
        "gamma_add": False,
    }
    if not rms:  # ONNX Runtime has no RMSNormalization before 1.23
        check_spec(m, match)


@pytest.mark.parametrize("used_later", [True, False])
@pytest.mark.parametrize("bias", ["none", "left", "right"])
@pytest.mark.parametrize("form", ["operator", "decomposed"])
def test_skip_layer_norm(form: str, bias: str, used_later: bool) -> None:
    first = {
        "none": [node("Add", "x res", "s0")],
        "left": [node("Add", "x b", "xb"), node("Add", "xb res", "s0")],
        "right": [node("Add", "b res", "rb"), node("Add", "x rb", "s0")],
    }[bias]
    if form == "operator":
        norm = [node("LayerNormalization", "s0 g", "y")]
    else:
        norm = [
            node("ReduceMean", "s0", "m", axes=[-1]),
            node("Sub", "s0 m", "d"),
            *SQUARES["pow"],
            *VARIANCE,
            *ROOTS["sqrt div"],
            node("Mul", "z g", "y"),
        ]
    later = [node("Relu", "s0", "u")] if used_later else []
    m = build(
        [*first, *norm, *later],
        inputs={"res": ("batch", 3, N)},
        outputs=("y", "u") if used_later else ("y",),
        opset=17,
    )
    match = only(m, "skip_layernorm")
    assert match.outputs == (("y", "s0") if used_later else ("y",))
    assert "xbias" in match.spec.roles if bias != "none" else "xbias" not in match.spec.roles
    check_spec(m, match, sizes={"batch": 2})


def test_microsoft_skip_layer_norm_returns_its_sum() -> None:
    skip = node(
        "com.microsoft.SkipLayerNormalization", "x res g b b", "y mean deviation s", epsilon=1e-3
    )
    skip.output[1] = skip.output[2] = ""
    m = build([skip], inputs={"res": (2, 3, N)}, shape=(2, 3, N), opset=17, outputs=("y", "s"))
    match = only(m, "skip_layernorm")
    assert match.outputs == ("y", "s")
    check_spec(m, match)


def chain(**change: NodeProto | list[NodeProto]) -> list[NodeProto]:
    """The commonest decomposed LayerNorm with some of its nodes (by output) replaced."""
    nodes = [*MEAN, *SQUARES["pow"], *VARIANCE, *ROOTS["sqrt div"], *TAILS["affine"]]
    out: list[NodeProto] = []
    for n in nodes:
        new = change.get(n.output[0], n)
        out += new if isinstance(new, list) else [new]
    return out


NEAR_MISSES: dict[str, tuple[list[NodeProto], dict[str, Any], str]] = {
    "variance read twice": (
        [*chain(), node("Relu", "v", "extra")],
        {"outputs": ("y", "extra")},
        "read by 2 nodes",
    ),
    "exposed variance": (chain(), {"outputs": ("y", "v")}, "is a graph output"),
    "exposed centred value": (chain(), {"outputs": ("y", "d")}, "output"),
    "root read twice": (
        [*chain(), node("Relu", "r", "extra")],
        {"outputs": ("y", "extra")},
        "read by 2 nodes",
    ),
    "variance over another axis": (
        chain(v=node("ReduceMean", "q", "v", axes=[1])),
        {},
        "different axes",
    ),
    "mean over more axes": (
        chain(m=node("ReduceMean", "x", "m", axes=[1, 2])),
        {},
        "different axes",
    ),
    "axes dropped": (
        chain(
            v=[
                node("ReduceMean", "q", "v0", axes=[-1], keepdims=0),
                node("Relu", "v0", "v1"),
                node("Unsqueeze", "v1 last", "v"),
            ]
        ),
        {},
        "keepdims",
    ),
    "cubed": (
        chain(q=node("Pow", "d three", "q")),
        {"extra": {"three": F(3.0)}},
        "does not average squares",
    ),
    "epsilon after the root": (
        chain(
            e=node("Identity", "v", "e"), r=[node("Sqrt", "e", "r0"), node("Add", "r0 eps", "r")]
        ),
        {},
        "after the square root",
    ),
    "epsilon at run time": (
        chain(e=node("Add", "v epsilon", "e")),
        {"inputs": {"epsilon": (1,)}},
        "not a constant scalar",
    ),
    "epsilon overridable": (chain(), {"overridable": ("eps",)}, "not a constant scalar"),
    "epsilon per position": (
        chain(),
        {"extra": {"eps": np.full((3, 1), 1e-3, F)}},
        "not a constant scalar",
    ),
    "other value divided": (chain(z=node("Div", "x r", "z")), {}, "does not divide"),
    "root divided by value": (chain(z=node("Div", "r d", "z")), {}, "does not apply"),
    "root multiplied": (chain(z=node("Mul", "d r", "z")), {}, "does not apply"),
    "exponential instead of root": (chain(r=node("Exp", "e", "r")), {}, "instead of a square root"),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_misses_of_layer_norm_refuse(name: str) -> None:
    nodes, kw, why = NEAR_MISSES[name]
    m = build(nodes, **kw)
    anchor = next(n.name for n in m.graph.node if n.output[0] in ("v", "v0"))
    assert why in reason(m, "layernorm", anchor)


@pytest.mark.parametrize(
    ("extra", "roles"),
    [
        ({"g": weights(3, N)}, ("x",)),
        ({"g": weights(1)}, ("x",)),
        ({"g": weights(3, 1)}, ("x",)),
        ({"b": weights(3, N)}, ("x", "gamma")),
    ],
)
def test_weights_of_another_shape_stay_outside(
    extra: dict[str, npt.ArrayLike], roles: tuple[str, ...]
) -> None:
    m = build(chain(), extra=extra)
    match = only(m, "layernorm")
    assert match.spec.roles == roles
    check_spec(m, match, sizes={"batch": 2})


def test_operator_guards() -> None:
    m = build([node("LayerNormalization", "x g b", "y mean")], opset=17, outputs=("y", "mean"))
    assert "mean or standard deviation" in reason(m, "layernorm", "n_y")
    m = build([node("LayerNormalization", "x g b", "y", stash_type=11)], opset=17)
    assert "stash_type" in reason(m, "layernorm", "n_y")
    m = build([node("LayerNormalization", "x g", "y")], opset=17, extra={"g": weights(3, N)})
    assert "normalized shape" in reason(m, "layernorm", "n_y")


@pytest.mark.parametrize("order", ["x res", "res x"])
def test_residual_that_broadcasts(order: str) -> None:
    """Position embeddings: one row per place for the whole batch."""
    m = build(
        [node("Add", order, "s0"), node("LayerNormalization", "s0 g", "y")],
        inputs={"res": (1, 3, N)},
        opset=17,
    )
    match = only(m, "skip_layernorm")
    assert match.inputs[:2] == ("x", "res")
    check_spec(m, match, sizes={"batch": 2})


@pytest.mark.parametrize("res", [(2, 1, 3, N), (N,), (1, "places", N)])
def test_residual_that_enlarges_or_is_a_bias_is_not_taken_in(res: tuple[int | str, ...]) -> None:
    m = build(
        [node("Add", "x res", "s0"), node("LayerNormalization", "s0 g", "y")],
        inputs={"res": res},
        opset=17,
    )
    assert "not the sum" in reason(m, "skip_layernorm", "n_y")


def test_overridable_weight_is_an_operand_not_a_constant() -> None:
    m = build(chain(), overridable=("g",))
    assert only(m, "layernorm").inputs == ("x", "g", "b")


# --- group and instance normalisation -------------------------------------------------------------
C, G = 6, 3


def group_nodes(*, affine: bool = True, back: str = "shape") -> list[NodeProto]:
    first = [
        node("Reshape", "x into", "xg"),
        node("InstanceNormalization", "xg ones zeros", "n", epsilon=1e-3),
    ]
    last = (
        [node("Shape", "x", "sh"), node("Reshape", "n sh", "w")]
        if back == "shape"
        else [node("Reshape", "n back", "w")]
    )
    return [
        *first,
        *last,
        *([node("Mul", "w gc", "s"), node("Add", "s bc", "y")] if affine else []),
    ]


def group_model(
    nodes: list[NodeProto],
    *,
    outputs: tuple[str, ...] = ("y",),
    opset: int = 17,
    shape: tuple[int | str, ...] = ("batch", C, 5, 4),
    extra: Mapping[str, npt.ArrayLike] | None = None,
) -> ModelProto:
    c: dict[str, npt.ArrayLike] = {
        "into": np.array([0, G, -1]),
        "back": np.array([-1, C, 5, 4]),
        "ones": np.ones(G, F),
        "zeros": np.zeros(G, F),
        "gc": weights(C, 1, 1),
        "bc": weights(1, C, 1, 1, seed=2),
        "g": weights(C),
        "b": weights(C, seed=3),
        **(extra or {}),
    }
    used = {i for n in nodes for i in n.input}
    return model(
        nodes, {"x": shape}, outputs, {k: v for k, v in c.items() if k in used}, opset=opset
    )


@pytest.mark.parametrize("activation", ["none", "silu", "relu"])
@pytest.mark.parametrize("back", ["shape", "constant"])
@pytest.mark.parametrize("affine", [True, False])
def test_group_norm_decomposed(affine: bool, back: str, activation: str) -> None:
    nodes = group_nodes(affine=affine, back=back)
    end = nodes[-1].output[0]
    act = {
        "none": [],
        "silu": [node("Sigmoid", end, "sg"), node("Mul", f"{end} sg", "a")],
        "relu": [node("Relu", end, "a")],
    }[activation]
    m = group_model([*nodes, *act], outputs=("a" if act else end,))
    match = only(m, "groupnorm")
    assert match.spec.attrs["groups"] == G
    assert len(match.nodes) == len(m.graph.node)
    check_spec(m, match, sizes={"batch": 2})
    assert not find(m, "instancenorm")[1]


def test_group_normalization_operator_scales_per_channel_from_opset_21() -> None:
    m = group_model(
        [node("GroupNormalization", "x g b", "y", num_groups=G, epsilon=1e-3)],
        opset=21,
        shape=(2, C, 5, 4),
    )
    match = only(m, "groupnorm")
    assert match.spec.roles == ("x", "gamma", "beta")
    check_spec(m, match)


def test_group_normalization_18_scales_per_group() -> None:
    plain = node("GroupNormalization", "x ones zeros", "w", num_groups=G)
    m = group_model(
        [plain, node("Mul", "w gc", "s"), node("Add", "s bc", "y")], opset=18, shape=(2, C, 5, 4)
    )
    match = only(m, "groupnorm")
    assert match.spec.roles == ("x", "gamma", "beta")
    check_spec(m, match)
    m = group_model(
        [node("GroupNormalization", "x gg zeros", "y", num_groups=G)],
        opset=18,
        extra={"gg": weights(G)},
    )
    assert "per group" in reason(m, "groupnorm", "n_y")


def test_instance_norm_with_activation() -> None:
    m = group_model(
        [node("InstanceNormalization", "x g b", "n"), node("LeakyRelu", "n", "y", alpha=0.2)]
    )
    match = only(m, "instancenorm")
    assert match.spec.attrs["groups"] == -1
    assert len(match.nodes) == 2
    check_spec(m, match, sizes={"batch": 2})


@pytest.mark.parametrize(
    ("extra", "why"),
    [
        ({"ones": weights(G)}, "per group"),
        ({"zeros": np.ones(G, F)}, "per group"),
        ({"back": np.array([-1, C, 20])}, "does not restore"),
        ({"back": np.array([-1, C // 2, 5, 8])}, "does not restore"),
    ],
)
def test_near_misses_of_group_norm_refuse(extra: dict[str, npt.ArrayLike], why: str) -> None:
    m = group_model(group_nodes(affine=False, back="constant"), outputs=("w",), extra=extra)
    assert why in reason(m, "groupnorm", "n_n")


def test_group_norm_whose_inner_value_is_needed_refuses() -> None:
    m = group_model([*group_nodes(), node("Relu", "xg", "extra")], outputs=("y", "extra"))
    assert "'xg' inside the chain is read by 2 nodes" in reason(m, "groupnorm", "n_n")
    m = group_model(group_nodes(), outputs=("y", "n"))
    assert "Reshape back" in reason(m, "groupnorm", "n_n")


def test_weights_along_another_axis_stay_outside_a_group_norm() -> None:
    m = group_model(group_nodes(), extra={"gc": weights(1, 5, 1)}, shape=(2, C, 5, 4))
    match = only(m, "groupnorm")
    assert "gamma" not in match.spec.roles
    check_spec(m, match)


@pytest.mark.parametrize("axes", [[-1, -1], [2, -1]])
@pytest.mark.parametrize("given", ["attribute", "input"])
@pytest.mark.parametrize("which", [(0,), (1,), (0, 1)])
def test_an_axis_twice_is_no_norm(which: tuple[int, ...], given: str, axes: list[int]) -> None:
    """ONNX Runtime divides such a sum by more elements than it has."""
    opset = 13 if given == "attribute" else 18

    def mean(source: str, out: str, k: int) -> NodeProto:
        own = axes if k in which else [-1]
        if given == "attribute":
            return node("ReduceMean", source, out, axes=own)
        return node("ReduceMean", f"{source} a{k}", out)

    nodes = [mean("x", "m", 0), node("Sub", "x m", "d"), *SQUARES["mul"], mean("q", "v", 1)]
    nodes += [VARIANCE[1], *ROOTS["sqrt div"], *TAILS["affine"]]
    extra = {f"a{k}": np.array(axes if k in which else [-1]) for k in (0, 1)}
    m = build(nodes, opset=opset, extra=extra)
    assert reason(m, "layernorm", "n_v") == "ReduceMean has an axis twice"
