"""Convolution rules: every activation spelling fuses and means the same; near misses refuse with a
sentence that names the node.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, shape_inference

from tests.host.rules.rules_oracle import (
    ACTIVATIONS,
    activation,
    check,
    find,
    model,
    node,
    only,
    ops,
    reason,
)
from tracea_onnx.ir.activations import classify_activation
from tracea_onnx.ir.expr import Expr

C, K = 5, 7


def weights(*shape: int, seed: int = 1) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def batch_norm(channels: int) -> dict[str, npt.ArrayLike]:
    return {
        "g": weights(channels),
        "be": weights(channels, seed=2),
        "mu": weights(channels, seed=3),
        "va": np.abs(weights(channels, seed=4)) + 0.1,
    }


def conv_model(
    tail: Sequence[NodeProto],
    constants: dict[str, npt.ArrayLike] | None = None,
    *,
    shape: Sequence[int | str] = (2, C, 9, 8),
    outputs: Sequence[str] = ("y",),
    bias: bool = True,
    op: str = "Conv",
    opset: int = 17,
    w: npt.NDArray[np.float32] | None = None,
    inputs: dict[str, Sequence[int | str]] | None = None,
    extra: dict[str, Any] | None = None,
    **attrs: Any,
) -> ModelProto:
    """x → Conv → c → `tail`."""
    kernel = weights(*((K, C, 3, 3) if op == "Conv" else (C, K, 3, 3))) if w is None else w
    first = node(op, "x w b" if bias else "x w", "c", **{"pads": [1, 1, 1, 1], **attrs})
    channels = kernel.shape[0] if op == "Conv" else kernel.shape[1]
    values = {
        "w": kernel,
        **({"b": weights(channels, seed=9)} if bias else {}),
        **(constants or {}),
    }
    return model(
        [first, *tail],
        {"x": shape, **(inputs or {})},
        outputs,
        values,
        opset=opset,
        **(extra or {}),
    )


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_each_spelling_of_an_activation_fuses(name: str) -> None:
    tail, constants, opset = activation(name, "c", "y")
    m = conv_model(tail, constants, opset=max(opset, 11))
    match = only(m, "conv")
    assert len(match.nodes) == 1 + len(tail)
    assert match.spec.roles == ("x", "w", "b")
    check(m, match)


@pytest.mark.parametrize(
    "name",
    ["silu", "hswish mul", "mish exp", "gelu erf, half on erf", "gelu tanh fast", "relu6 min max"],
)
@pytest.mark.parametrize("residual", ["before", "after", "none"])
def test_batch_norm_residual_and_activation(name: str, residual: str) -> None:
    bn = node("BatchNormalization", "c g be mu va", "n", epsilon=1e-3)
    add = {"before": [node("Add", "r n", "a")], "after": [], "none": []}[residual]
    tail, constants, _ = activation(
        name, "a" if residual == "before" else "n", "z" if residual == "after" else "y"
    )
    last = [node("Add", "z r", "y")] if residual == "after" else []
    m = conv_model(
        [bn, *add, *tail, *last],
        {**constants, **batch_norm(K)},
        inputs={} if residual == "none" else {"r": (2, K, 9, 8)},
        bias=residual == "none",
    )
    match = only(m, "conv")
    assert len(match.nodes) == len(m.graph.node)
    assert match.spec.attrs["bn_eps"] == pytest.approx(1e-3)
    assert match.spec.roles[-1] == ("bn_var" if residual == "none" else "e0")
    check(m, match)


def test_clip_in_attribute_form_and_its_float32_defaults() -> None:
    both = conv_model([node("Clip", "c", "y", min=0.0, max=6.0)], opset=10)
    check(both, only(both, "conv"))
    low = conv_model([node("Clip", "c", "y", min=0.0)], opset=6)
    match = only(low, "conv")
    assert [i[0] for i in match.spec.attrs["expr"]["code"]] == ["const", "max"]
    check(low, match)


@pytest.mark.parametrize(
    "attrs",
    [
        {"strides": [2, 1], "pads": [0, 1, 2, 0]},
        {"dilations": [2, 2], "pads": [2, 2, 2, 2]},
        {"auto_pad": "SAME_LOWER", "pads": None},
        {"auto_pad": "VALID", "pads": None},
    ],
)
def test_attributes_are_kept(attrs: dict[str, Any]) -> None:
    m = conv_model([node("Relu", "c", "y")], **attrs)
    check(m, only(m, "conv"))


def test_grouped_depthwise_and_one_dimensional() -> None:
    depthwise = conv_model([node("Relu", "c", "y")], w=weights(C, 1, 3, 3), group=C)
    check(depthwise, only(depthwise, "conv"))
    grouped = conv_model(
        [node("Relu", "c", "y")], w=weights(8, 2, 3, 3), shape=(1, 4, 5, 5), group=2
    )
    check(grouped, only(grouped, "conv"))
    line = conv_model([node("Relu", "c", "y")], w=weights(K, C, 3), shape=(2, C, 11), pads=[1, 1])
    check(line, only(line, "conv"))


def padded(
    amounts: Sequence[int],
    *,
    value: float = 0.0,
    tail: Sequence[NodeProto] = (node("Relu", "c", "y"),),
    outputs: Sequence[str] = ("y",),
    **attrs: Any,
) -> ModelProto:
    constants: dict[str, npt.ArrayLike] = {
        "p": np.array(amounts),
        "v": np.float32(value),
        "w": weights(K, C, 3, 3),
    }
    nodes = [
        node("Pad", "x p v", "d", mode=attrs.pop("mode", "constant")),
        node("Conv", "d w", "c", **attrs),
        *tail,
    ]
    return model(nodes, {"x": (2, C, 9, 8)}, outputs, constants)


@pytest.mark.parametrize(
    "attrs", [{}, {"pads": [0, 2, 1, 0]}, {"auto_pad": "VALID", "strides": [2, 2]}]
)
def test_zero_padding_before_the_convolution_becomes_its_own(attrs: dict[str, Any]) -> None:
    m = padded([0, 0, 1, 2, 0, 0, 3, 0], **attrs)
    match = only(m, "conv")
    assert ops(match) == ["Pad", "Conv", "Relu"] and match.inputs[0] == "x"
    check(m, match)
    alone = padded([0, 0, 1, 1, 0, 0, 1, 1], tail=[], outputs=["c"], **attrs)
    check(alone, only(alone, "conv"))


@pytest.mark.parametrize(
    "m",
    [
        padded([0, 0, 1, 1, 0, 0, 1, 1], value=1.0),
        padded([0, 0, 1, 1, 0, 0, 1, 1], mode="reflect"),
        padded([1, 0, 1, 1, 0, 0, 1, 1]),
        padded([0, 0, 1, -1, 0, 0, 1, 1]),
        padded([0, 0, 1, 1, 0, 0, 1, 1], auto_pad="SAME_UPPER"),
        padded([0, 0, 1, 1, 0, 0, 1, 1], outputs=["y", "d"]),
    ],
)
def test_other_padding_stays_outside(m: ModelProto) -> None:
    match = only(m, "conv")
    assert ops(match) == ["Conv", "Relu"] and match.inputs[0] == "d"
    check(m, match)


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("shape", [(K, 1, 1), (1, K, 1, 1)])
def test_bias_written_as_add_and_then_batch_norm(swapped: bool, shape: tuple[int, ...]) -> None:
    add = node("Add", "b2 c" if swapped else "c b2", "d")
    m = conv_model(
        [add, node("BatchNormalization", "d g be mu va", "n"), node("Relu", "n", "y")],
        {**batch_norm(K), "b2": weights(*shape)},
        bias=False,
    )
    match = only(m, "conv")
    assert match.spec.roles == ("x", "w", "b", "bn_scale", "bn_bias", "bn_mean", "bn_var")
    check(m, match)


def test_per_channel_scale_and_shift_become_operands() -> None:
    m = conv_model(
        [node("Mul", "c s", "m"), node("Add", "m t", "a"), node("Relu", "a", "y")],
        {"s": weights(1, K, 1, 1), "t": weights(K, 1, 1)},
    )
    match = only(m, "conv")
    assert match.spec.roles == ("x", "w", "b", "e0", "e1")
    check(m, match)


def test_clip_bounds_computed_at_run_time_are_operands() -> None:
    m = conv_model([node("Clip", "c lo hi", "y")], inputs={"lo": (), "hi": ()})
    match = only(m, "conv")
    assert match.spec.roles[-2:] == ("e0", "e1")


def test_symbolic_sizes_residual_block() -> None:
    tail = [
        node("Relu", "c", "r"),
        node("Conv", "r w2", "d", pads=[1, 1, 1, 1]),
        node("Add", "r d", "a"),
        node("Relu", "a", "y"),
    ]
    m = conv_model(tail, {"w2": weights(K, K, 3, 3)}, shape=("n", C, "h", "w"), strides=[2, 2])
    _, matches, _ = find(m, "conv")
    assert [ops(x) for x in matches] == [["Conv", "Relu"], ["Conv", "Add", "Relu"]]
    check(m, matches[1], sizes={"n": 3, "h": 11, "w": 6})


def test_fused_conv_of_onnx_runtime_keeps_its_activation_and_residual() -> None:
    first = node(
        "com.microsoft.FusedConv",
        "x w b z",
        "c",
        pads=[1, 1, 1, 1],
        activation="LeakyRelu",
        activation_params=[0.2],
    )
    m = model(
        [first, node("Mul", "c two", "y")],
        {"x": (1, C, 6, 6)},
        ["y"],
        {"w": weights(K, C, 3, 3), "b": weights(K), "z": weights(1, K, 6, 6), "two": np.float32(2)},
    )
    m.graph.value_info.extend([helper.make_tensor_value_info("c", TensorProto.FLOAT, [1, K, 6, 6])])
    m = shape_inference.infer_shapes(m)
    match = only(m, "conv")
    assert [i[0] for i in match.spec.attrs["expr"]["code"]] == [
        "add",
        "const",
        "leaky_relu",
        "const",
        "mul",
    ]


@pytest.mark.parametrize("name", ["relu", "leaky", "hswish mul"])
@pytest.mark.parametrize("group", [1, 2])
def test_transposed_convolution(name: str, group: int) -> None:
    tail, constants, _ = activation(name, "n", "y")
    bn = node("BatchNormalization", "c g be mu va", "n")
    kernel = weights(4, 3, 3, 3)
    m = conv_model(
        [bn, *tail],
        {**constants, **batch_norm(3 * group), "b": weights(3 * group)},
        op="ConvTranspose",
        w=kernel,
        shape=(2, 4, 5, 6),
        strides=[2, 2],
        output_padding=[1, 0],
        group=group,
    )
    match = only(m, "conv_transpose")
    assert len(match.nodes) == len(m.graph.node)
    check(m, match)


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE])
def test_other_float_types_match(dtype: int) -> None:
    tail, constants, _ = activation("hswish mul", "c", "y")
    match = only(conv_model(tail, constants, extra={"dtype": dtype}, opset=22), "conv")
    assert len(match.nodes) == 5
    assert any(
        i.op == "const" and i.imm == 3.0 for i in Expr.from_json(match.spec.attrs["expr"]).code
    )


def test_casts_up_and_back_within_a_half_precision_chain() -> None:
    tail = [
        node("Cast", "c", "u", to=1),
        node("Sigmoid", "u", "s"),
        node("Mul", "u s", "m"),
        node("Cast", "m", "y", to=10),
    ]
    assert len(only(conv_model(tail, extra={"dtype": TensorProto.FLOAT16}), "conv").nodes) == 5


def test_the_expression_is_recognised_whatever_its_spelling() -> None:
    for name, act in (
        ("gelu erf, half first", "gelu_erf"),
        ("gelu tanh fast", "gelu_tanh"),
        ("mish exp", "mish"),
        ("hswish div inside", "hard_swish"),
    ):
        tail, constants, _ = activation(name, "c", "y")
        known = classify_activation(
            Expr.from_json(only(conv_model(tail, constants), "conv").spec.attrs["expr"])
        )
        assert known is not None and known[0] == act


# --- near misses ----------------------------------------------------------------------------------
RELU = node("Relu", "c", "y")
BN = "c g be mu va"


@pytest.mark.parametrize(
    ("m", "says"),
    [
        (conv_model([], outputs=["c"]), "the result of Conv 'n_c' is a graph output"),
        (
            conv_model([node("MaxPool", "c", "y", kernel_shape=[2, 2])]),
            "MaxPool 'n_y' follows Conv 'n_c', and it is not a pointwise operator",
        ),
        (
            conv_model([RELU, node("Concat", "c c", "z", axis=1)], outputs=["y", "z"]),
            "'c' inside the chain is also read by Concat 'n_z'",
        ),
        (conv_model([RELU], outputs=["y", "c"]), "the result of Conv 'n_c' is a graph output"),
        (
            conv_model([node("Add", "c r", "y")], inputs={"r": (2, 2, K, 9, 8)}),
            "has shape [2, 2, 7, 9, 8], which is not known to broadcast to [2, 7, 9, 8]",
        ),
        (
            conv_model(
                [node("Add", "c r", "y")],
                inputs={"r": (2, K, 9, 8)},
                shape=(2, C, 1, 1),
                w=weights(K, C, 1, 1),
                pads=[0, 0, 0, 0],
            ),
            "which is not known to broadcast to",
        ),
        (
            conv_model(
                [node("Add", "c r", "y")], inputs={"r": ("m", K, 9, 8)}, shape=("n", C, 9, 8)
            ),
            "has shape [m, 7, 9, 8], which is not known to broadcast to",
        ),
        (
            conv_model([node("Cast", "c", "y", to=7)], extra={"types": {"y": TensorProto.INT64}}),
            "casts to a type that is not floating point",
        ),
        (
            conv_model(
                [node("Cast", "c", "y", to=10)], extra={"types": {"y": TensorProto.FLOAT16}}
            ),
            "rounds to a narrower type",
        ),
        (
            conv_model(
                [node("IsInf", "c", "y", detect_negative=0)],
                extra={"types": {"y": TensorProto.BOOL}},
            ),
            "has detect_negative 0; the fused kernel takes 1",
        ),
        (
            conv_model([node("BatchNormalization", BN, "y mm mv", training_mode=1)], batch_norm(K)),
            "is in training mode",
        ),
        (
            conv_model(
                [node("BatchNormalization", BN, "y"), node("Concat", "c c", "z", axis=0)],
                batch_norm(K),
                outputs=["y", "z"],
            ),
            "'c' inside the chain is also read by Concat 'n_z'",
        ),
        (
            conv_model([node("BatchNormalization", BN, "y")], batch_norm(K), outputs=["y", "c"]),
            "'c' inside the chain is a graph output",
        ),
        (
            conv_model(
                [node("BatchNormalization", BN, "y")], batch_norm(K), extra={"overridable": ["va"]}
            ),
            "the parameter 'va' of BatchNormalization 'n_y' is not constant",
        ),
        (
            conv_model(
                [node("BatchNormalization", BN, "y")], batch_norm(K), extra={"overridable": ["w"]}
            ),
            "the weight 'w' of Conv 'n_c' is not constant",
        ),
        (
            conv_model(
                [node("BatchNormalization", BN, "y")], batch_norm(K), extra={"overridable": ["b"]}
            ),
            "the bias 'b' of Conv 'n_c' is not constant",
        ),
        (
            conv_model([node("BatchNormalization", BN, "y m2 v2 m3 v3")], batch_norm(K), opset=9),
            "also returns training statistics",
        ),
        (
            conv_model([node("BatchNormalization", BN, "y", spatial=0)], batch_norm(K), opset=7),
            "has spatial 0; the fused kernel takes 1",
        ),
        (
            conv_model(
                [node("Greater", "c zero", "y")],
                {"zero": np.float32(0)},
                extra={"types": {"y": TensorProto.BOOL}},
            ),
            "does not end in one",
        ),
        (
            conv_model([RELU], w=weights(K, C, 3, 3, 3), shape=(1, C, 4, 4, 4), pads=[1] * 6),
            "3 spatial dims",
        ),
    ],
)
def test_near_misses_say_why(m: ModelProto, says: str) -> None:
    assert says in reason(m, "conv", "n_c")


def test_a_second_reader_inside_the_chain_ends_it_there() -> None:
    tail = [node("Relu", "c", "r"), node("Mul", "r two", "y"), node("Concat", "r r", "z", axis=0)]
    assert ops(only(conv_model(tail, {"two": np.float32(2)}, outputs=["y", "z"]), "conv")) == [
        "Conv",
        "Relu",
    ]
    exposed = conv_model(tail[:2], {"two": np.float32(2)}, outputs=["y", "r"])
    assert ops(only(exposed, "conv")) == ["Conv", "Relu"]


def test_a_value_captured_by_a_subgraph_is_kept() -> None:
    def body(op: str) -> Any:
        return helper.make_graph(
            [node(op, "c", f"out_{op}")],
            op,
            [],
            [helper.make_tensor_value_info(f"out_{op}", 1, None)],
        )

    branch = helper.make_node(
        "If", ["cond"], ["z"], name="n_z", then_branch=body("Exp"), else_branch=body("Neg")
    )
    m = conv_model(
        [RELU, branch],
        inputs={"cond": ()},
        outputs=["y", "z"],
        extra={"types": {"cond": TensorProto.BOOL}},
    )
    assert "also read by If 'n_z'" in reason(m, "conv", "n_c")


def test_a_residual_that_depends_on_the_convolution_is_not_absorbed() -> None:
    tail = [
        node("MaxPool", "c", "p", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("Add", "c p", "y"),
    ]
    assert "also read by MaxPool 'n_p'" in reason(conv_model(tail), "conv", "n_c")


def test_at_most_four_operands() -> None:
    tail = [node("Add", f"{'c' if k == 0 else f'a{k - 1}'} r{k}", f"a{k}") for k in range(5)] + [
        node("Relu", "a4", "y")
    ]
    m = conv_model(tail, inputs={f"r{k}": (2, K, 9, 8) for k in range(5)})
    match = only(m, "conv")
    assert ops(match) == ["Conv", "Add", "Add", "Add", "Add"]
    check(m, match)


def test_uniform_constants_keep_every_bit() -> None:
    value = np.float32(0.1)
    match = only(conv_model([node("Mul", "c k", "y")], {"k": value}), "conv")
    assert [i.imm for i in Expr.from_json(match.spec.attrs["expr"]).code if i.op == "const"] == [
        float(value)
    ]


# --- BatchNormalization without a convolution -----------------------------------------------------
def bn_model(
    before: Sequence[NodeProto],
    tail: Sequence[NodeProto],
    *,
    outputs: Sequence[str] = ("y",),
    overridable: Sequence[str] = (),
    channels: int = 2 * C,
    **attrs: Any,
) -> ModelProto:
    nodes = [*before, node("BatchNormalization", "d g be mu va", "n", **attrs), *tail]
    values: dict[str, npt.ArrayLike] = {
        **batch_norm(channels),
        "w": weights(2 * C, C, 1, 1),
        "k": np.float32(0.5),
        "b": weights(2 * C),
    }
    used = {i for n in nodes for i in n.input}
    return model(
        nodes,
        {"x": ("n", C, 4, 3)},
        outputs,
        {k: v for k, v in values.items() if k in used},
        overridable=overridable,
    )


CONCAT = [node("Concat", "x x", "d", axis=1)]


@pytest.mark.parametrize("name", ["relu", "silu", "hswish mul"])
def test_batch_norm_after_concat_takes_its_activation(name: str) -> None:
    tail, constants, _ = activation(name, "n", "y")
    m = model(
        [*CONCAT, node("BatchNormalization", "d g be mu va", "n", epsilon=0.01), *tail],
        {"x": (2, C, 4, 3)},
        ["y"],
        {**batch_norm(2 * C), **constants},
    )
    match = only(m, "batch_norm")
    assert len(match.nodes) == 1 + len(tail) and match.spec.roles == (
        "x",
        "bn_scale",
        "bn_bias",
        "bn_mean",
        "bn_var",
    )
    check(m, match)
    assert find(m, "pointwise")[1] == []


def test_batch_norm_whose_convolution_has_another_reader() -> None:
    m = bn_model(
        [node("Conv", "x w", "d"), node("Exp", "d", "z")],
        [node("Relu", "n", "r"), node("Mul", "r k", "y")],
        outputs=["y", "z"],
    )
    match = only(m, "batch_norm")
    assert ops(match) == ["BatchNormalization", "Relu", "Mul"]
    check(m, match, sizes={"n": 2})


@pytest.mark.parametrize(
    ("m", "says"),
    [
        (
            bn_model([node("Conv", "x w", "d")], [node("Relu", "n", "y")]),
            "BatchNormalization 'n_n' is folded into the weights of Conv 'n_d'",
        ),
        (
            bn_model(CONCAT, [node("Softmax", "n", "y")]),
            "Softmax 'n_y' follows BatchNormalization 'n_n'",
        ),
        (
            bn_model(CONCAT, [node("Relu", "n", "y")], outputs=["y", "n"]),
            "the result of BatchNormalization 'n_n' is a graph output",
        ),
        (
            bn_model(CONCAT, [node("Relu", "n", "y")], overridable=["mu"]),
            "the parameter 'mu' of BatchNormalization 'n_n' is not constant",
        ),
        (
            bn_model(CONCAT, [node("Relu", "n", "y")], spatial=0),
            "the attribute 'spatial', which is not",
        ),
    ],
)
def test_batch_norm_near_misses_say_why(m: ModelProto, says: str) -> None:
    assert says in reason(m, "batch_norm", "n_n")
