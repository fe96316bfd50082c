"""Matrix-product rule: Gemm and MatMul in every exporter's form, biases, residuals, activations,
and what must not fuse.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from onnx import ModelProto, NodeProto, TensorProto

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

K, N = 13, 7


def weights(*shape: int, seed: int = 1) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def linear(
    tail: Sequence[NodeProto],
    constants: dict[str, npt.ArrayLike] | None = None,
    *,
    shape: Sequence[int | str] = (2, 5, K),
    inputs: dict[str, Sequence[int | str]] | None = None,
    outputs: Sequence[str] = ("y",),
    opset: int = 17,
    dtype: int = TensorProto.FLOAT,
    overridable: Sequence[str] = (),
) -> ModelProto:
    """x → MatMul(w) → c → `tail`."""
    values = {"w": weights(K, N), **(constants or {})}
    return model(
        [node("MatMul", "x w", "c"), *tail],
        {"x": shape, **(inputs or {})},
        outputs,
        values,
        opset=opset,
        dtype=dtype,
        overridable=overridable,
    )


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("swapped", [False, True])
def test_bias_in_either_order_then_each_activation(name: str, swapped: bool) -> None:
    tail, constants, opset = activation(name, "d", "y")
    m = linear(
        [node("Add", "b c" if swapped else "c b", "d"), *tail],
        {**constants, "b": weights(N)},
        opset=max(opset, 11),
    )
    match = only(m, "gemm")
    assert len(match.nodes) == 2 + len(tail)
    assert match.spec.roles == ("x", "w", "b")
    check(m, match)


@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize("bias", [(N,), (1, N), (5, 1), (5, N), ()])
def test_gemm_attributes_and_bias_broadcasts(
    trans_a: int, trans_b: int, bias: tuple[int, ...]
) -> None:
    first = node("Gemm", "x w b", "c", alpha=0.5, beta=1.5, transA=trans_a, transB=trans_b)
    values = {"w": weights(*((N, K) if trans_b else (K, N))), "b": weights(*bias)}
    m = model([first, node("Relu", "c", "y")], {"x": (K, 5) if trans_a else (5, K)}, ["y"], values)
    match = only(m, "gemm")
    assert (
        match.spec.attrs["alpha"] == pytest.approx(0.5) and match.spec.attrs["trans_a"] == trans_a
    )
    check(m, match)


def test_bias_residual_and_activation_around_it() -> None:
    m = linear(
        [node("Add", "c b", "d"), node("Add", "r d", "e"), node("Relu", "e", "y")],
        {"b": weights(N)},
        inputs={"r": (2, 5, N)},
    )
    match = only(m, "gemm")
    assert match.spec.roles == ("x", "w", "b", "e0")
    check(m, match)
    late = linear(
        [node("Add", "c r", "d"), node("Add", "d b", "y")],
        {"b": weights(N)},
        inputs={"r": (2, 5, N)},
    )
    match = only(late, "gemm")  # the bias joins after the residual: the order of additions is kept
    assert match.spec.roles == ("x", "w", "e0", "e1")
    check(late, match)


def test_run_time_weight_and_batched_product() -> None:
    m = model(
        [node("MatMul", "x k", "c"), node("Div", "c s", "d"), node("Add", "d mask", "y")],
        {"x": (2, 3, 4, 8), "k": (2, 3, 8, 5), "mask": (2, 1, 1, 5)},
        ["y"],
        {"s": np.float32(2.8)},
    )
    match = only(m, "gemm")
    assert match.spec.roles == ("x", "w", "e0")
    check(m, match)


@pytest.mark.parametrize("shape", [(2, 5, K), ("b", "s", K), (1, "s", K)])
@pytest.mark.parametrize("known", [True, False])
def test_conv1d_of_gpt2_absorbs_its_reshapes(shape: Sequence[int | str], known: bool) -> None:
    restore = [node("Reshape", "g shape", "r")]
    if not known:
        restore = [
            node("Shape", "x", "s"),
            node("Slice", "s zero two", "lead"),
            node("Concat", "lead width", "shape", axis=0),
            *restore,
        ]
    elif any(isinstance(d, str) for d in shape[:2]):
        pytest.skip("a constant shape cannot restore two symbolic dims")
    constants: dict[str, npt.ArrayLike] = {
        "flat": np.array([-1, K]),
        "w": weights(K, N),
        "b": weights(N),
    }
    extra: dict[str, npt.ArrayLike] = (
        {"shape": np.array([2, 5, N])}
        if known
        else {"zero": np.array([0]), "two": np.array([2]), "width": np.array([N])}
    )
    tail, more, _ = activation("gelu tanh pow", "r", "y")
    m = model(
        [node("Reshape", "x flat", "f"), node("Gemm", "f w b", "g"), *restore, *tail],
        {"x": shape},
        ["y"],
        {**constants, **extra, **more},
    )
    match = only(m, "gemm")
    assert len(match.nodes) == len(m.graph.node)
    assert match.spec.roles == ("x", "w", "b")
    check(m, match, sizes={"b": 3, "s": 4})


NORM: dict[str, npt.ArrayLike] = {
    "gamma": weights(N),
    "beta": weights(N, seed=2),
    "mean": weights(N, seed=3),
    "var": 0.5 + weights(N, seed=4) ** 2,
}


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("between", [False, True])
def test_batch_norm_of_the_columns(bias: bool, between: bool) -> None:
    """Of a matrix (ArcFace, PointNet), or between Reshapes to one and back (LeViT)."""
    norm = [node("BatchNormalization", "d gamma beta mean var", "y", epsilon=1e-3)]
    constants: dict[str, npt.ArrayLike] = {**NORM, **({"b": weights(N)} if bias else {})}
    if between:
        constants |= {"flat": np.array([-1, N]), "back": np.array([-1, 5, N])}
        norm = [
            node("Reshape", "d flat", "f"),
            node("BatchNormalization", "f gamma beta mean var", "n"),
            node("Reshape", "n back", "y"),
        ]
    m = linear(
        [node("Add", "c b", "d") if bias else node("Identity", "c", "d"), *norm],
        constants,
        shape=("n", 5, K) if between else ("n", K),
    )
    if not bias:
        del m.graph.node[1]
        m.graph.node[1].input[0] = "c"
    match = only(m, "gemm")
    assert len(match.nodes) == len(m.graph.node)
    assert match.spec.roles == (
        "x",
        "w",
        *(("b",) if bias else ()),
        "bn_scale",
        "bn_bias",
        "bn_mean",
        "bn_var",
    )
    check(m, match, sizes={"n": 3})


@pytest.mark.parametrize("fault", ["second reader", "other rows", "weight of a run"])
def test_batch_norm_that_stays(fault: str) -> None:
    norm = [
        node("Reshape", "c flat", "f"),
        node("BatchNormalization", "f gamma beta mean var", "n"),
        node("Reshape", "n back", "y"),
    ]
    constants: dict[str, npt.ArrayLike] = {
        **NORM,
        "flat": np.array([-1, N]),
        "back": np.array([5, -1, N] if fault == "other rows" else [-1, 5, N]),
    }
    tail = [*norm, node("Neg", "f", "z")] if fault == "second reader" else norm
    m = linear(
        tail,
        constants,
        shape=("n", 5, K),
        outputs=("y", "z") if fault == "second reader" else ("y",),
        overridable=["w"] if "run" in fault else (),
    )
    assert not [match for match in find(m, "gemm")[1] if "bn_scale" in match.spec.roles]


def test_conv1d_with_both_shapes_computed_at_run_time() -> None:
    tower = [
        node("Shape", "x", "s"),
        node("Slice", "s two three", "k"),
        node("Concat", "minus k", "flat", axis=0),
        node("Slice", "s zero two", "lead"),
        node("Concat", "lead width", "shape", axis=0),
    ]
    nodes = [
        *tower,
        node("Reshape", "x flat", "f"),
        node("Gemm", "f w b", "g"),
        node("Reshape", "g shape", "r"),
        node("Add", "r x2", "y"),
    ]
    constants: dict[str, npt.ArrayLike] = {
        "w": weights(K, N),
        "b": weights(N),
        **{
            k: np.array([v])
            for k, v in {"zero": 0, "two": 2, "three": 3, "minus": -1, "width": N}.items()
        },
    }
    m = model(nodes, {"x": ("n", "s", K), "x2": ("n", "s", N)}, ["y"], constants)
    match = only(m, "gemm")
    assert match.spec.roles == ("x", "w", "b", "e0") and len(match.nodes) == len(nodes)
    check(m, match, sizes={"n": 2, "s": 3})
    shared = model(
        [*nodes, node("Identity", "flat", "z")],
        {"x": ("n", "s", K), "x2": ("n", "s", N)},
        ["y", "z"],
        constants,
        types={"z": 7},
    )
    # a shape that others need stays outside
    assert only(shared, "gemm").spec.roles == ("x", "w", "b", "e0", "flat_shape")


def test_conv1d_with_other_reshapes_fuses_the_inner_gemm_alone() -> None:
    constants: dict[str, npt.ArrayLike] = {
        "flat": np.array([-1, K]),
        "w": weights(K, N),
        "other": np.array([5, 2, N]),
        "b": weights(N),
    }
    m = model(
        [
            node("Reshape", "x flat", "f"),
            node("Gemm", "f w", "g"),
            node("Add", "g b", "h"),
            node("Reshape", "h other", "y"),
        ],
        {"x": (2, 5, K)},
        ["y"],
        constants,
    )
    match = only(m, "gemm")
    assert ops(match) == ["Gemm", "Add"]
    check(m, match)
    bare = model(
        [node("Reshape", "x flat", "f"), node("Gemm", "f w", "g"), node("Reshape", "g other", "y")],
        {"x": (2, 5, K)},
        ["y"],
        {k: constants[k] for k in ("flat", "w", "other")},
    )
    assert "Reshape 'n_y' follows Gemm 'n_g'" in reason(bare, "gemm", "n_g")


@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        ("com.microsoft.FusedMatMul", {"alpha": 0.125, "transB": 1}),
        ("com.microsoft.FusedGemm", {"activation": "Relu", "transB": 1}),
    ],
)
def test_fused_products_of_onnx_runtime(op: str, attrs: dict[str, float]) -> None:
    m = model([node(op, "x w", "y", **attrs)], {"x": (5, K)}, ["y"], {"w": weights(N, K)})
    m.graph.output[0].type.tensor_type.shape.dim.add().dim_value = 5
    m.graph.output[0].type.tensor_type.shape.dim.add().dim_value = N
    match = only(m, "gemm")
    assert ops(match) == [op]
    check(m, match)


def test_half_precision_matches() -> None:
    assert (
        len(
            only(
                linear(
                    [node("Add", "c b", "d"), node("Relu", "d", "y")],
                    {"b": weights(N)},
                    dtype=TensorProto.FLOAT16,
                ),
                "gemm",
            ).nodes
        )
        == 3
    )


def test_an_overridable_bias_stays_an_input() -> None:
    m = linear([node("Add", "c b", "y")], {"b": weights(N)}, overridable=["b"])
    match = only(m, "gemm")
    assert match.inputs == ("x", "w", "b")


# --- near misses ----------------------------------------------------------------------------------
RELU = node("Relu", "c", "y")


@pytest.mark.parametrize(
    ("m", "says"),
    [
        (
            linear([], outputs=["c"]),
            "nothing after MatMul 'n_c' fuses: the result of MatMul 'n_c' is a graph output",
        ),
        (
            linear([node("Softmax", "c", "y")]),
            "Softmax 'n_y' follows MatMul 'n_c', and it is not a pointwise operator",
        ),
        (
            linear([RELU, node("Concat", "c c", "z", axis=1)], outputs=["y", "z"]),
            "is also read by Concat 'n_z'",
        ),
        (
            linear([node("Add", "c r", "y")], inputs={"r": (3, 2, 5, N)}),
            "not known to broadcast to [2, 5, 7]",
        ),
        (
            linear([node("Add", "c r", "y")], inputs={"r": (2, "q", N)}),
            "has shape [2, q, 7], which is not known to broadcast to [2, 5, 7]",
        ),
        (
            linear([node("Sigmoid", "c", "s"), node("Mul", "c s", "y")], outputs=["y", "s"]),
            "nothing after MatMul 'n_c' fuses: 's' inside the chain is a graph output",
        ),
        (
            model([node("MatMul", "x w", "c"), RELU], {"x": (5, K)}, ["y"], {"w": weights(K)}),
            "input 'w' of MatMul 'n_c' is a vector",
        ),
        (
            model(
                [node("com.microsoft.FusedMatMul", "x w", "c", transBatchA=1)],
                {"x": (2, 3, 4, 5)},
                ["c"],
                {"w": weights(5, N)},
            ),
            "transBatch",
        ),
        (
            model(
                [node("com.microsoft.FusedGemm", "x w", "c", activation="Softplus")],
                {"x": (5, K)},
                ["c"],
                {"w": weights(K, N)},
            ),
            "activation 'Softplus'",
        ),
    ],
)
def test_near_misses_say_why(m: ModelProto, says: str) -> None:
    assert says in reason(m, "gemm", "n_c")


def test_integer_products_are_refused() -> None:
    m = model(
        [node("MatMul", "x w", "c"), node("Abs", "c", "y")],
        {"x": (5, K)},
        ["y"],
        {"w": np.ones((K, N), np.int32)},
        types={"x": TensorProto.INT32, "y": TensorProto.INT32},
    )
    assert "works on integers" in reason(m, "gemm", "n_c")


def test_two_linear_layers_are_two_matches() -> None:
    gelu, constants, _ = activation("gelu erf, half last", "d", "h")
    tail = [node("Add", "c b", "d"), *gelu, node("MatMul", "h w2", "e"), node("Add", "b2 e", "y")]
    m = linear(tail, {**constants, "b": weights(N), "w2": weights(N, K), "b2": weights(K)})
    _, matches, _ = find(m, "gemm")
    assert [len(x.nodes) for x in matches] == [7, 2]
    for match in matches:
        check(m, match)
