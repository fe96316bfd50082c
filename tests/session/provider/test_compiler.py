"""The partition compiler on the provider: storage tricks, symbolic dims and layouts give ORT's
results, and the provider runs every node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import tracea_onnx
from tracea_onnx import provider
from tracea_onnx.compiler import partition_compiler
from tracea_onnx.compiler.lower import lower
from tracea_onnx.ir.graph import Graph
from tracea_onnx.match import rule_set
from tracea_onnx.provider import create_session

Array = npt.NDArray[Any]
RNG = np.random.default_rng(7)


@pytest.fixture(autouse=True)
def own_numbers() -> None:
    """The same numbers for a test in whatever order tests run: bounds are close to rounding."""
    RNG.bit_generator.state = np.random.default_rng(7).bit_generator.state


def weight(name: str, *shape: int, scale: float = 0.3) -> Any:
    return numpy_helper.from_array((RNG.standard_normal(shape) * scale).astype(np.float32), name)


def ints(name: str, *values: int, dtype: Any = np.int64) -> Any:
    return numpy_helper.from_array(np.asarray(values, dtype), name)


def model(
    nodes: Sequence[Any],
    inputs: dict[str, Sequence[Any]],
    outputs: Sequence[str],
    weights: Sequence[Any],
    domains: Sequence[str] = (),
) -> bytes:
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, TensorProto.UNDEFINED, None) for n in outputs],
        list(weights),
    )
    for o in graph.output:
        o.type.Clear()
    opsets = [helper.make_opsetid("", 17), *(helper.make_opsetid(d, 1) for d in domains)]
    source: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()
    return source


def compare(source: bytes, *feeds: dict[str, Array], all_nodes: bool = True) -> None:
    """Every feed through one provider session and one plain session with optimisations off."""
    tracea_onnx.register()
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    plain = ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    ours = create_session(source, {"claim": "all"}, options)
    left = [
        n.op_type
        for p in ours.get_provider_graph_assignment_info()
        if p.ep_name != "TraceaExecutionProvider"
        for n in p.get_nodes()
    ]
    if all_nodes:
        assert not left, f"ONNX Runtime kept {left}"
    else:
        tracea_onnx.assert_provider_selected(ours)
    for feed in feeds:
        for want, got in zip(plain.run(None, feed), ours.run(None, feed), strict=True):
            assert want.shape == got.shape and want.dtype == got.dtype
            np.testing.assert_allclose(got, want, rtol=3e-5, atol=3e-5)


def image(n: int, c: int, h: int, w: int) -> Array:
    return RNG.standard_normal((n, c, h, w)).astype(np.float32)


def conv(x: str, w: str, y: str, **attrs: Any) -> Any:
    return helper.make_node("Conv", [x, w], [y], **attrs)


@pytest.mark.parametrize("channels", [(16, 16, 16), (16, 8, 24), (5, 16, 3), (32, 16, 1)])
def test_convolutions_write_into_a_concatenation(channels: tuple[int, int, int]) -> None:
    a, b, c = channels
    nodes = [
        conv("x", "wa", "a", pads=[1, 1, 1, 1]), conv("x", "wb", "b"),
        helper.make_node("Relu", ["a"], ["ra"]),
        conv("ra", "wc", "c", pads=[1, 1, 1, 1]),
        helper.make_node("Concat", ["ra", "b", "c"], ["cat"], axis=1),
        conv("cat", "wd", "y", pads=[2, 2, 2, 2]),
        helper.make_node("MaxPool", ["b"], ["z"], kernel_shape=[2, 2]),
    ]  # fmt: skip
    weights = [
        weight("wa", a, 4, 3, 3),
        weight("wb", b, 4, 1, 1),
        weight("wc", c, a, 3, 3),
        weight("wd", 7, a + b + c, 5, 5),
    ]
    source = model(nodes, {"x": ["n", 4, 9, 11]}, ["y", "z"], weights)
    compare(source, *({"x": image(n, 4, 9, 11)} for n in (1, 2, 7)))


@pytest.mark.parametrize("size", [(7, 9), (8, 8), (1, 13), (14, 15)])
def test_winograd_reads_past_odd_borders(size: tuple[int, int]) -> None:
    nodes = [
        conv("x", "w", "a", pads=[1, 1, 1, 1]),
        helper.make_node("Sigmoid", ["a"], ["s"]),
        helper.make_node("Mul", ["a", "s"], ["m"]),
        conv("m", "v", "y", pads=[1, 1, 1, 1]),
    ]
    compare(
        model(
            nodes,
            {"x": ["n", 17, *size]},
            ["y"],
            [weight("w", 33, 17, 3, 3), weight("v", 16, 33, 3, 3)],
        ),
        *({"x": image(n, 17, *size)} for n in (1, 3)),
    )


@pytest.mark.parametrize(
    ("n", "side", "family"),
    [
        (1, 3, "conv2d"), (1, 4, "conv2d_wino"), (8, 1, "conv2d"), (8, 2, "conv2d_wino"),
        ("n", 3, "conv2d"), (1, "side", "conv2d_wino"),
    ],
)  # fmt: skip
def test_winograd_is_for_enough_tiles(n: int | str, side: int | str, family: str) -> None:
    source = model(
        [conv("x", "w", "y", pads=[1, 1, 1, 1])], {"x": [n, 16, side, side]}, ["y"],
        [weight("w", 32, 16, 3, 3)],
    )  # fmt: skip
    compiled = partition_compiler.compile_graph(
        Graph(onnx.load_from_string(source)), everything=True
    )
    ((_, plan, _),) = compiled.entries
    assert family in {row["k"] for row in plan["run"]}
    sizes = (2 if isinstance(d, str) else d for d in (n, side))
    compare(source, {"x": image(next(sizes), 16, *[next(sizes)] * 2)})


def test_symbolic_height_and_width() -> None:
    nodes = [
        conv("x", "w", "a", pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("Resize", ["r", "", "scales"], ["u"], mode="nearest"),
        helper.make_node("AveragePool", ["u"], ["p"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["p", "u"], ["y"]),
    ]  # fmt: skip
    weights = [
        weight("w", 20, 3, 3, 3),
        numpy_helper.from_array(np.asarray([1, 1, 2, 2], np.float32), "scales"),
    ]
    source = model(nodes, {"x": ["n", 3, "h", "w"]}, ["y"], weights)
    compare(
        source,
        *({"x": image(n, 3, h, w)} for n, h, w in ((1, 8, 8), (2, 11, 6), (1, 32, 30), (2, 11, 6))),
    )


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("scales", [(0.6, 0.3), (0.7, 1.3), (1.15, 1.04)])
def test_resizing_of_operator_set_10(mode: str, scales: tuple[float, float]) -> None:
    """What shrinks is rounded up, what grows is rounded down, and an image whose size stays is
    copied.
    """
    node = helper.make_node("Resize", ["x", "scales"], ["y"], mode=mode)
    made = onnx.load_from_string(
        model(
            [node],
            {"x": [2, 8, 6, 9]},
            ["y"],
            [numpy_helper.from_array(np.asarray([1, 1, *scales], np.float32), "scales")],
        )
    )
    made.opset_import[0].version = 10
    compare(made.SerializeToString(), {"x": image(2, 8, 6, 9)})


def test_outputs_that_are_reshapes_inputs_and_shared() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Reshape", ["m", "shape"], ["y"]), helper.make_node("Relu", ["m"], ["r"]),
        helper.make_node("Identity", ["x"], ["same"]),
        helper.make_node("Transpose", ["r"], ["t"], perm=[1, 0]),
        helper.make_node("Add", ["y", "y"], ["twice"]),
    ]  # fmt: skip
    source = model(
        nodes,
        {"x": ["n", 6]},
        ["y", "m", "same", "t", "twice"],
        [weight("w", 6, 8), ints("shape", 0, 2, 4)],
    )
    compare(source, *({"x": RNG.standard_normal((n, 6)).astype(np.float32)} for n in (1, 2, 7)))


def test_shape_towers_are_followed_symbolically() -> None:
    node = helper.make_node
    nodes = [
        node("Shape", ["x"], ["s"]), node("Gather", ["s", "zero"], ["b"], axis=0),
        node("Gather", ["s", "one"], ["l"], axis=0),
        node("Unsqueeze", ["b", "axis0"], ["b1"]),
        node("Unsqueeze", ["l", "axis0"], ["l1"]),
        node("Concat", ["b1", "l1", "heads"], ["target"], axis=0),
        node("Reshape", ["x", "target"], ["h"]),
        node("Transpose", ["h"], ["t"], perm=[0, 2, 1, 3]), node("Relu", ["t"], ["r"]),
        node("Cast", ["target"], ["c32"], to=TensorProto.INT32),
        node("ReduceProd", ["c32"], ["p"], keepdims=0),
        node("Range", ["zero", "l", "one"], ["positions"]),
    ]  # fmt: skip
    weights = [
        ints("zero", dtype=np.int64),
        ints("one", dtype=np.int64),
        ints("axis0", 0),
        ints("heads", 3, 4),
    ]
    weights[:2] = [
        numpy_helper.from_array(np.asarray(k), name) for k, name in enumerate(("zero", "one"))
    ]
    source = model(nodes, {"x": ["n", "len", 12]}, ["r", "c32", "p", "positions"], weights)
    compare(
        source,
        *(
            {"x": RNG.standard_normal((n, s, 12)).astype(np.float32)}
            for n, s in ((1, 5), (2, 1), (7, 19))
        ),
    )


@pytest.mark.parametrize("mode", ["reflect", "edge", "constant"])
def test_padding_modes(mode: str) -> None:
    nodes = [helper.make_node("Pad", ["x", "pads"], ["p"], mode=mode), conv("p", "w", "y")]
    source = model(
        nodes,
        {"x": ["n", 3, 6, 7]},
        ["y", "p"],
        [ints("pads", 0, 0, 2, 3, 0, 0, 1, 4), weight("w", 5, 3, 3, 3)],
    )
    compare(source, *({"x": image(n, 3, 6, 7)} for n in (1, 2)))


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("Relu", []),
        ("Clip", [0.0, 1.0]),
        ("LeakyRelu", [0.2]),
        ("HardSigmoid", [0.3, 0.4]),
        ("Sigmoid", []),
        ("Tanh", []),
    ],
)
def test_ort_fused_convolution(name: str, params: list[float]) -> None:
    attrs = {"activation": name, "activation_params": params} if params else {"activation": name}
    fused = helper.make_node(
        "FusedConv", ["x", "w", "b", "z"], ["y"], domain="com.microsoft", pads=[1, 1, 1, 1], **attrs
    )
    source = model(
        [fused],
        {"x": [2, 3, 5, 6], "z": [2, 19, 5, 6]},
        ["y"],
        [weight("w", 19, 3, 3, 3), weight("b", 19)],
        ["com.microsoft"],
    )
    compare(source, {"x": image(2, 3, 5, 6), "z": image(2, 19, 5, 6)})


def test_quantised_neighbours_stay_with_ort() -> None:
    node = helper.make_node
    nodes = [
        node("QuantizeLinear", ["x", "scale", "zp"], ["q"]),
        node("DequantizeLinear", ["q", "scale", "zp"], ["d"]), node("Relu", ["d"], ["r"]),
        node("QuantizeLinear", ["r", "scale", "zp"], ["q2"]),
        node("DequantizeLinear", ["q2", "scale", "zp"], ["d2"]), node("MatMul", ["x", "w"], ["m"]),
    ]  # fmt: skip
    weights = [
        numpy_helper.from_array(np.asarray(0.05, np.float32), "scale"),
        numpy_helper.from_array(np.asarray(128, np.uint8), "zp"),
        weight("w", 8, 8),
    ]
    compare(
        model(nodes, {"x": [3, 8]}, ["d2", "m"], weights),
        {"x": RNG.standard_normal((3, 8)).astype(np.float32)},
        all_nodes=False,
    )


@pytest.mark.parametrize("make", [lambda n: (n, 5, 1), lambda n: (1, 5, n), lambda n: (n, 1, 1)])
def test_symbols_that_broadcast_only_sometimes(make: Callable[[int], tuple[int, ...]]) -> None:
    """The compiler cannot know whether `k` is 1: strides are chosen when the shapes are known."""
    source = model(
        [helper.make_node("Mul", ["x", "y"], ["m"]), helper.make_node("Add", ["m", "x"], ["z"])],
        {"x": ["a", 5, "b"], "y": ["c", "d", "e"]},
        ["z"],
        [],
    )
    compare(
        source,
        *(
            {
                "x": RNG.standard_normal((n, 5, n)).astype(np.float32),
                "y": RNG.standard_normal(make(n)).astype(np.float32),
            }
            for n in (1, 3, 4)
        ),
    )


def test_inputs_that_disagree_on_a_symbol_are_one_clear_error() -> None:
    source = model(
        [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Add", ["m", "y"], ["z"])],
        {"x": ["n", 4], "y": ["n", 4]},
        ["z"],
        [weight("w", 4, 4)],
    )
    session = create_session(source)
    tracea_onnx.assert_provider_selected(session)
    with pytest.raises(Exception, match="TraceaExecutionProvider"):
        session.run(None, {"x": np.zeros((2, 4), np.float32), "y": np.zeros((3, 4), np.float32)})


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3), (3, 1, 2, 0)])
@pytest.mark.parametrize(("kernel", "pads"), [((3, 3), (1, 1, 1, 1)), ((1, 2), (0, 1, 0, 0))])
def test_slices_of_step_two_below_a_convolution(
    order: tuple[int, ...], kernel: tuple[int, int], pads: tuple[int, ...]
) -> None:
    corners = [(0, 0), (1, 0), (0, 1), (1, 1)]
    nodes = [
        helper.make_node("Slice", ["x", f"from{k}", "to", "axes", "steps"], [f"s{k}"])
        for k in range(4)
    ]
    nodes += [
        helper.make_node("Concat", [f"s{k}" for k in order], ["c"], axis=1),
        conv("c", "w", "y", pads=list(pads)),
    ]
    weights = [ints(f"from{k}", *corner) for k, corner in enumerate(corners)]
    weights += [
        ints("to", 2**40, 2**40),
        ints("axes", 2, 3),
        ints("steps", 2, 2),
        weight("w", 5, 12, *kernel),
    ]
    source = model(nodes, {"x": ["n", 3, 10, 14]}, ["y"], weights)
    compare(source, {"x": image(1, 3, 10, 14)}, {"x": image(2, 3, 10, 14)})


@pytest.mark.parametrize("shape", [(), (3,)])
def test_a_constant_may_give_the_result_its_rank(shape: tuple[int, ...]) -> None:
    two = numpy_helper.from_array(np.full((1,) * (len(shape) + 1), 2, np.float32), "two")
    nodes = [helper.make_node("Mul", ["x", "two"], ["m"]), helper.make_node("Relu", ["m"], ["y"])]
    compare(model(nodes, {"x": shape}, ["y"], [two]), {"x": np.ones(shape, np.float32)})


def test_an_infinite_constant_behind_a_product() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Greater", ["k", "zero"], ["mask"]),
        helper.make_node("Where", ["mask", "p", "low"], ["y"]),
    ]  # fmt: skip
    limits = [
        numpy_helper.from_array(np.array(v, np.float32), n)
        for n, v in (("zero", 0.0), ("low", -np.inf))
    ]
    made = tracea_onnx.optimize(
        onnx.load_from_string(
            model(nodes, {"x": [2, 3], "k": [2, 4]}, ["y"], [weight("w", 3, 4), *limits])
        )
    )
    assert [f.rule for f in made.report.fused] == ["gemm"]
    rng = np.random.default_rng(1)
    compare(
        made.model.SerializeToString(),
        {
            "x": rng.standard_normal((2, 3)).astype(np.float32),
            "k": rng.standard_normal((2, 4)).astype(np.float32),
        },
    )


def test_a_lowering_that_fails_costs_its_node(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """So does a rule: each is said once, and the rest of the graph runs on the provider."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Sin", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "w"], ["y"]),
    ]
    source = model(nodes, {"x": ["n", 8]}, ["y"], [weight("w", 8, 8)])

    def fails(ctx: Any, op: Any) -> None:
        if any(n.op == "Sin" for n in op.nodes):
            raise IndexError("tuple index out of range")
        lower(ctx, op)

    def broken(graph: Any, anchor: Any) -> Any:
        raise KeyError("spec")

    monkeypatch.setattr(partition_compiler, "lower", fails)
    rules = rule_set.rules()
    monkeypatch.setattr(
        rule_set,
        "rules",
        lambda: (
            *rules,
            replace(rules[0], name="broken", anchors=frozenset({"MatMul"}), match=broken),
        ),
    )
    with pytest.warns(partition_compiler.Fault) as said:
        session = provider.create_session(
            source, {"claim": "all", "cache_dir": str(tmp_path / "cache")}
        )
    lines = {str(w.message).split(" (")[0] for w in said}
    assert any(line.startswith("the lowering of ") for line in lines)
    assert any(line.startswith("rule 'broken' failed on node ") for line in lines)
    assert provider.assigned_nodes(session) == ["MatMul", "MatMul"]
    x = {"x": RNG.standard_normal((3, 8)).astype(np.float32)}
    want = ort.InferenceSession(source, providers=["CPUExecutionProvider"]).run(None, x)
    np.testing.assert_allclose(session.run(None, x)[0], want[0], rtol=1e-4, atol=1e-4)
