"""Pointwise chains: maximal, with broadcasting, apart from what convolutions and products take; and
random graphs for all chain rules.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper

from tests.host.rules.rules_oracle import (
    ACTIVATIONS,
    activation,
    check,
    compute,
    find,
    model,
    node,
    only,
    ops,
    reason,
)
from tracea_onnx.ir.expr import Expr

SHAPE = (2, 3, 4, 5)


def weights(*shape: int, seed: int = 1) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_each_activation_between_two_additions(name: str) -> None:
    tail, constants, opset = activation(name, "c", "d")
    m = model(
        [node("Add", "x z", "c"), *tail, node("Add", "d x", "y")],
        {"x": SHAPE, "z": SHAPE},
        ["y"],
        constants,
        opset=max(opset, 11),
    )
    match = only(m, "pointwise")
    assert len(match.nodes) == len(m.graph.node) and match.inputs == ("x", "z")
    check(m, match)


@pytest.mark.parametrize("fmod", [0, 1])
def test_remainders_of_floats(fmod: int) -> None:
    """With the sign of the divisor from opset 28 on, or of the dividend."""
    m = model(
        [node("Sub", "x z", "c"), node("Mod", "c z", "d", fmod=fmod), node("Add", "d x", "y")],
        {"x": SHAPE, "z": SHAPE},
        ["y"],
        {},
        opset=28,
    )
    match = only(m, "pointwise")
    assert ops(match) == ["Sub", "Mod", "Add"] and match.inputs == ("x", "z")
    x, z = np.random.default_rng(0).standard_normal((2, *SHAPE))
    want = (np.fmod if fmod else np.mod)(x - z, z) + x
    # ONNX Runtime has these of floats from 1.32 on
    np.testing.assert_allclose(
        compute(match.spec, dict(zip(match.spec.roles, (x, z), strict=True))), want, rtol=1e-12
    )


def test_inputs_broadcast_and_the_result_has_the_largest_shape() -> None:
    m = model(
        [node("Mul", "a b", "c"), node("Add", "c d", "e"), node("Tanh", "e", "y")],
        {"a": (2, 3, 1), "b": (1, 3, 4), "d": (4,)},
        ["y"],
        {},
    )
    match = only(m, "pointwise")
    assert match.inputs == ("a", "b", "d")
    check(m, match)


def test_a_value_of_smaller_shape_is_computed_before() -> None:
    """Recomputing it for every element it broadcasts to would cost more than storing it."""
    m = model(
        [node("Exp", "a", "e"), node("Add", "e x", "s"), node("Relu", "s", "y")],
        {"x": SHAPE, "a": (5,)},
        ["y"],
        {},
    )
    assert ops(only(m, "pointwise")) == ["Add", "Relu"]


def test_branches_join_into_one_chain() -> None:
    nodes = [
        node("Exp", "x", "a"),
        node("Sin", "x", "b"),
        node("Mul", "a z", "c"),
        node("Sub", "c b", "d"),
        node("Where", "k d x", "y"),
    ]
    m = model(
        nodes, {"x": SHAPE, "z": (3, 1, 1), "k": (5,)}, ["y"], {}, types={"k": TensorProto.BOOL}
    )
    match = only(m, "pointwise")
    assert len(match.nodes) == 5
    check(m, match)


def test_the_epilogue_of_a_convolution_is_not_part_of_a_chain() -> None:
    nodes = [
        node("Relu", "x", "a"),
        node("Neg", "a", "b"),
        node("Conv", "b w", "c"),
        node("Relu", "c", "d"),
        node("Exp", "d", "y"),
    ]
    m = model(nodes, {"x": (1, 3, 5, 5)}, ["y"], {"w": weights(4, 3, 1, 1)})
    _, matches, refusals = find(m, "pointwise")
    assert [ops(x) for x in matches] == [["Relu", "Neg"]]
    assert any("belongs to the kernel of Conv 'n_c'" in r.reason for r in refusals)


def test_a_long_chain_is_cut_at_48_instructions_and_6_tensors() -> None:
    long = [
        node("Tanh", "x" if k == 0 else f"t{k - 1}", "y" if k == 59 else f"t{k}") for k in range(60)
    ]
    _, matches, _ = find(model(long, {"x": SHAPE}, ["y"], {}), "pointwise")
    assert sorted(len(x.nodes) for x in matches) == [12, 48]
    wide = [
        node("Add", f"{'x' if k == 0 else f't{k - 1}'} r{k}", "y" if k == 8 else f"t{k}")
        for k in range(9)
    ]
    m = model(wide, {"x": SHAPE, **{f"r{k}": SHAPE for k in range(9)}}, ["y"], {})
    _, matches, _ = find(m, "pointwise")
    assert [len(x.inputs) for x in matches] == [5, 6]
    for match in matches:
        check(m, match)


@pytest.mark.parametrize(
    "exponent",
    [np.float32(1), np.float32(2), np.float32(3), np.float32(0.5), np.int64(2), np.int32(3)],
)
def test_powers_with_float_and_integer_exponents(exponent: npt.ArrayLike) -> None:
    m = model(
        [node("Abs", "x", "a"), node("Pow", "a p", "b"), node("Neg", "b", "y")],
        {"x": SHAPE},
        ["y"],
        {"p": exponent},
        opset=15,
    )
    check(m, only(m, "pointwise"))


def test_comparisons_and_logic_inside() -> None:
    nodes = [
        node("Greater", "x z", "g"), node("LessOrEqual", "x one", "l"), node("And", "g l", "b"),
        node("Not", "b", "n"),
        node("Cast", "n", "f", to=1), node("Where", "b x z", "w"), node("Add", "w f", "y"),
    ]  # fmt: skip
    m = model(nodes, {"x": SHAPE, "z": SHAPE}, ["y"], {"one": np.float32(1)})
    match = only(m, "pointwise")
    assert len(match.nodes) == 7
    check(m, match)


# --- near misses ----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("m", "says"),
    [
        (
            model([node("Relu", "x", "y")], {"x": SHAPE}, ["y"], {}),
            "no pointwise operator comes before Relu 'n_y'",
        ),
        (
            model([node("Exp", "x", "a"), node("Relu", "a", "y")], {"x": SHAPE}, ["y", "a"], {}),
            "no other pointwise operator",
        ),
        (
            model(
                [node("Exp", "x", "a"), node("Relu", "a", "y"), node("Concat", "a a", "z", axis=0)],
                {"x": SHAPE},
                ["y", "z"],
                {},
            ),
            "no other pointwise",
        ),
        (
            model(
                [node("Abs", "x", "a"), node("Neg", "a", "y")],
                {"x": SHAPE},
                ["y"],
                {},
                types={"x": TensorProto.INT32, "y": TensorProto.INT32},
            ),
            "works on integers",
        ),
    ],
)
def test_near_misses_say_why(m: ModelProto, says: str) -> None:
    assert says in reason(m, "pointwise", "n_y")


def test_quantised_neighbours_are_left_alone() -> None:
    nodes = [
        node("QuantizeLinear", "x s z", "q"),
        node("DequantizeLinear", "q s z", "d"),
        node("Conv", "d w", "c"),
        node("Relu", "c", "r"),
        node("QuantizeLinear", "r s z", "q2"),
        node("DequantizeLinear", "q2 s z", "d2"),
        node("Add", "d2 x", "a"),
        node("Relu", "a", "y"),
    ]
    m = model(
        nodes,
        {"x": (1, 3, 4, 4)},
        ["y"],
        {"w": weights(3, 3, 1, 1), "s": np.float32(0.1), "z": np.int8(0)},
    )
    assert "reads DequantizeLinear 'n_d': a quantized operator" in reason(m, "conv", "n_c")
    assert find(m, "pointwise")[1] == []


def test_arithmetic_with_the_old_axis_attribute_is_refused() -> None:
    m = model(
        [
            node("Exp", "x", "e"),
            node("Add", "e v", "a", axis=1, broadcast=1),
            node("Relu", "a", "y"),
        ],
        {"x": (2, 3, 3), "v": (3,)},
        ["y"],
        {},
        opset=6,
    )
    m.graph.value_info.append(helper.make_tensor_value_info("a", TensorProto.FLOAT, [2, 3, 3]))
    assert "has the attribute 'axis'" in reason(m, "pointwise", "n_a")


# --- random graphs --------------------------------------------------------------------------------
UNARY = (
    "Relu",
    "Sigmoid",
    "Tanh",
    "Neg",
    "Abs",
    "Softplus",
    "Erf",
    "HardSwish",
    "Elu",
    "Sin",
    "Identity",
)
BINARY = ("Add", "Sub", "Mul", "Max", "Min", "PRelu")


def random_model(seed: int, start: str) -> ModelProto:
    """A random graph of pointwise nodes behind `start`, with other readers, graph outputs and
    broadcasts strewn in.
    """
    rng = random.Random(seed)
    shape: tuple[int, ...] = (2, 4, 3, 5) if start != "MatMul" else (2, 3, 4)
    inputs: dict[str, Sequence[int | str]] = {
        "x": shape,
        "full": shape,
        "row": shape[-1:],
        "channel": (shape[1], *[1] * (len(shape) - 2)),
    }
    constants: dict[str, npt.ArrayLike] = {"k": np.float32(0.3), "v": weights(*shape[-1:])}
    nodes: list[NodeProto] = []
    pool = ["x"]
    if start:
        constants["w"] = weights(4, 4, 3, 3) if start == "Conv" else weights(4, 4)
        nodes.append(node(start, "x w", "c", **({"pads": [1, 1, 1, 1]} if start == "Conv" else {})))
        pool = ["c"]
    outputs: list[str] = []
    for k in range(rng.randint(1, 9)):
        made = f"v{k}"
        a = rng.choice(pool[-3:])
        what = rng.random()
        if what < 0.45:
            nodes.append(node(rng.choice(UNARY), a, made))
        elif what < 0.9:
            b = rng.choice([*pool[-3:], "full", "row", "channel", "k", "v"])
            op = rng.choice(BINARY)
            nodes.append(
                node(op, f"{b} {a}" if rng.random() < 0.4 and op != "PRelu" else f"{a} {b}", made)
            )
        else:
            nodes.append(node("Softmax", a, made, axis=-1))
        pool.append(made)
        if rng.random() < 0.12:
            outputs.append(made)
    read = {i for n in nodes for i in n.input}
    outputs += [o for n in nodes for o in n.output if o not in read and o not in outputs]
    used = read | set(outputs)
    return model(
        nodes,
        {k: v for k, v in inputs.items() if k in used},
        outputs,
        {k: v for k, v in constants.items() if k in used},
    )


@pytest.mark.parametrize("start", ["", "Conv", "MatMul"])
@pytest.mark.parametrize("block", range(5))
def test_random_graphs_fuse_without_changing_a_value(start: str, block: int) -> None:
    matched = 0
    for seed in range(block * 30, block * 30 + 30):
        m = random_model(seed, start)
        for rule in ("pointwise", {"Conv": "conv", "MatMul": "gemm"}.get(start, "pointwise")):
            # `find` itself checks that nothing needed outside is hidden
            graph, matches, refusals = find(m, rule)
            assert all(r.reason and "\n" not in r.reason for r in refusals)
            for match in matches:
                matched += 1
                assert graph.escapes(match.nodes) == list(match.outputs)
                assert len(match.nodes) >= 2
                check(m, match, seed=seed)
                if "expr" in match.spec.attrs:
                    assert len(Expr.from_json(match.spec.attrs["expr"]).code) <= 48
    assert matched >= 15


@pytest.mark.parametrize("seed", range(40))
def test_a_chain_grows_to_the_last_node_that_can_join(seed: int) -> None:
    """After the chosen prefix no longer one is closed: adding the sole reader of the result would
    always break a guard.
    """
    from tracea_onnx.match.epilogue import POINTWISE

    m = random_model(seed, "Conv")
    graph, matches, _ = find(m, "conv")
    for match in matches:
        reader = graph.sole_consumer(match.outputs[0])
        if reader is not None and reader.op in POINTWISE:
            escaping = graph.escapes([*match.nodes, reader])
            operands = {i for i in reader.inputs if i != match.outputs[0]}
            assert len(escaping) != 1 or operands - {"k"}, reader.name


def test_a_constant_that_gives_the_result_its_rank() -> None:
    m = model(
        [node("Mul", "x two", "m"), node("Relu", "m", "y")],
        {"x": (3,)},
        ["y"],
        {"two": np.full((1, 1), 2.0)},
    )
    assert reason(m, "pointwise", "n_y") == "the rank of 'y' comes from a constant"


def test_infinite_constants_survive_the_spec() -> None:
    m = model(
        [node("Max", "x low", "a"), node("Min", "a high", "y")],
        {"x": (3,)},
        ["y"],
        {"low": np.float32(-np.inf), "high": np.float32(np.inf)},
    )
    text = json.dumps(only(m, "pointwise").spec.attrs["expr"], allow_nan=False)
    assert {i.imm for i in Expr.from_json(json.loads(text)).code if i.op == "const"} == {
        -np.inf,
        np.inf,
    }
