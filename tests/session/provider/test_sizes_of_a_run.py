"""What stays on CUDA of models that assign to slices, sample images or have sizes that only a run
knows, so that a partition is not torn.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tests.host.lowering.test_pooled import CUDA, Launch, Recorded
from tracea_onnx import provider
from tracea_onnx.compiler import partition_compiler, plan_writer
from tracea_onnx.ir.graph import Graph

Nodes = list[tuple[str, str, str, dict[str, Any]]]


def model(
    nodes: Nodes,
    inputs: dict[str, tuple[int, tuple[Any, ...]]],
    constants: dict[str, Any] | None = None,
) -> ModelProto:
    made = [
        helper.make_node(op, reads.split(), writes.split(), name=writes, **attrs)
        for op, reads, writes, attrs in nodes
    ]
    infos = [helper.make_tensor_value_info(k, t, shape) for k, (t, shape) in inputs.items()]
    weights = [numpy_helper.from_array(np.asarray(v), k) for k, v in (constants or {}).items()]
    graph = helper.make_graph(
        made,
        "g",
        infos,
        [helper.make_tensor_value_info(nodes[-1][2], TensorProto.FLOAT, None)],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def cuda(m: ModelProto) -> tuple[list[Launch], list[str]]:
    """Launches, and why nodes leave."""
    seen: list[Launch] = []
    found = partition_compiler.compile_graph(
        Graph(m),
        plan_writer.Writer(CUDA, lambda name, probe: Recorded(name, [] if probe else seen)),
        everything=True,
    )
    return seen, [reason for _, reason in found.refused]


F, INDEX = TensorProto.FLOAT, TensorProto.INT64
ROWS: dict[str, tuple[int, tuple[Any, ...]]] = {
    "x": (F, ("b", 8)), "i": (INDEX, ("b", "k")), "u": (F, ("b", "k")), "p": (INDEX, ("b", 1)),
    "q": (INDEX, ("b", 2)), "r": (F, ("b", 8)),
}  # fmt: skip


@pytest.mark.parametrize(
    ("node", "families"),
    [
        (("ScatterElements", "x i u", "y", {"axis": 1}), ["copy", "scatter_along"]),
        (("ScatterND", "x p r", "y", {}), ["copy", "scatter_tuples"]),
        (("GatherElements", "x i", "y", {"axis": -1}), ["gather_elements"]),
        (("GatherElements", "x i", "y", {"axis": 0}), ["gather_along"]),
        (("GatherND", "x p", "y", {}), ["gather"]),
        (("GatherND", "x q", "y", {}), ["gather_tuples"]),
        (("Trilu", "x", "y", {"upper": 0}), ["triangle"]),
    ],
)  # fmt: skip
def test_elements_by_indices(
    node: tuple[str, str, str, dict[str, Any]], families: list[str]
) -> None:
    read = {k: v for k, v in ROWS.items() if k in node[1].split()}
    launches, refused = cuda(model([node], read))
    assert [family for family, _ in launches] == families and not refused


@pytest.mark.parametrize("op", ["ScatterElements", "ScatterND"])
def test_sums_are_left(op: str) -> None:
    """Which of them came first would show in the last digits."""
    inputs = "x i u" if op == "ScatterElements" else "x p r"
    _, (reason,) = cuda(
        model([(op, inputs, "y", {"reduction": "add"})], {k: ROWS[k] for k in inputs.split()})
    )
    assert "reduces" in reason


def test_sampling() -> None:
    read: dict[str, tuple[int, tuple[Any, ...]]] = {
        "x": (F, ("b", 16, "h", "w")),
        "grid": (F, ("b", "p", "q", 2)),
    }
    launches, refused = cuda(
        model(
            [
                (
                    "GridSample",
                    "x grid",
                    "y",
                    {"mode": "cubic", "padding_mode": "border", "align_corners": 1},
                )
            ],
            read,
        )
    )
    (ints,) = [i for family, i in launches if family == "grid_sample"]
    assert (ints["mode"], ints["pad"], ints["corners"]) == (2, 1, 1) and not refused


def test_the_best_of_a_row_by_its_number() -> None:
    """A detector's queries: the best anchors, by the best class of each."""
    read: dict[str, tuple[int, tuple[Any, ...]]] = {"x": (F, ("b", "n", 80))}
    nodes: Nodes = [
        ("ReduceMax", "x last", "best", {"keepdims": 0}),
        ("TopK", "best k", "values at", {}),
        ("GatherElements", "best at", "y", {"axis": 1}),
    ]
    constants = {"k": np.array([300]), "last": np.array([-1])}
    launches, refused = cuda(model(nodes, read, constants))
    assert [family for family, _ in launches] == [
        "reduce",
        "topk",
        "gather_elements",
    ] and not refused
    assert {k: launches[1][1][k] for k in ("k", "largest", "inner")} == {
        "k": 300,
        "largest": 1,
        "inner": 1,
    }
    nodes[1] = ("TopK", "best n", "values at", {})
    nodes[0:0] = [("Shape", "x", "n", {"start": 1, "end": 2})]
    sentence, *_ = cuda(model(nodes, read, constants))[1]
    assert "the number must be constant" in sentence


def _agrees(m: ModelProto, x: dict[str, np.ndarray[Any, Any]]) -> None:
    data = m.SerializeToString()
    session = provider.create_session(data, {"claim": "all"})
    provider.assert_provider_selected(session)
    assert {e.ep_name for e in session.get_provider_graph_assignment_info()} == {
        provider.PROVIDER_NAME
    }
    (want,) = ort.InferenceSession(data, providers=["CPUExecutionProvider"]).run(None, x)
    np.testing.assert_allclose(session.run(None, x)[0], want, rtol=1e-4, atol=1e-5)


def test_repeats_that_depend_on_a_size() -> None:
    """`repeat_interleave` as TorchScript writes it: how often is a dim among ones."""
    nodes: Nodes = [
        ("Shape", "x", "n", {"start": 1, "end": 2}), ("Mod", "n three", "rest", {}),
        ("Add", "rest three", "often", {}), ("Concat", "one often", "ones", {"axis": 0}),
        ("OneHot", "place depth ones", "hot", {}), ("Reshape", "hot flat", "repeats", {}),
        ("Tile", "x repeats", "t", {}), ("Softmax", "t", "y", {}),
    ]  # fmt: skip
    constants = {
        "three": np.array([3]),
        "one": np.array([1]),
        "place": np.array([-2]),
        "depth": np.array(3),
        "flat": np.array([-1]),
    }
    m = model(nodes, {"x": (F, ("b", "n", 5))}, constants)
    for n in (1, 5, 6):
        _agrees(m, {"x": np.random.default_rng(n).standard_normal((2, n, 5), dtype=np.float32)})
    launches, refused = cuda(m)
    assert [family for family, _ in launches] == ["copy", "softmax"] and not refused


def test_a_constant_in_a_shape_that_only_a_run_says() -> None:
    """Of weights, and of numbers that are sizes elsewhere."""
    nodes: Nodes = [
        ("Shape", "x", "n", {"end": 1}),
        ("Reshape", "w n", "v", {}),
        ("Reshape", "k n", "j", {}),
        ("Cast", "j", "f", {"to": F}),
        ("Mul", "v f", "y", {}),
    ]
    weights = {"w": np.arange(1, 17, dtype=np.float32).reshape(4, 4), "k": np.arange(16)}
    m = model(nodes, {"x": (F, ("b", 3))}, weights)
    _agrees(m, {"x": np.zeros((16, 3), np.float32)})


def test_channels_that_only_a_run_says() -> None:
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((8, 3, 3, 3), dtype=np.float32),
        "t": rng.standard_normal((8, 4, 2, 2), dtype=np.float32),
    }
    nodes: Nodes = [
        ("Conv", "x w", "c", {"pads": [1] * 4}),
        ("ConvTranspose", "c t", "y", {"strides": [2, 2]}),
    ]
    m = model(nodes, {"x": (F, ("n", "c", "h", "w"))}, weights)
    _agrees(m, {"x": rng.standard_normal((2, 3, 5, 6), dtype=np.float32)})
    session = provider.create_session(m.SerializeToString(), {"claim": "all"})
    with pytest.raises(Exception, match=r"weight takes differ: 4 and 3 \(of 'x'"):
        session.run(None, {"x": np.zeros((1, 4, 5, 6), np.float32)})


def test_products_over_batches_that_lie_apart() -> None:
    """Attention of hierarchical models: windows, heads and batch in another order than in
    memory.
    """
    rng = np.random.default_rng(0)
    nodes: Nodes = [
        ("Transpose", "q", "a", {"perm": [0, 3, 2, 1, 4]}),
        ("Transpose", "k", "c", {"perm": [0, 3, 2, 4, 1]}),
        ("MatMul", "a c", "y", {}),
    ]
    read: dict[str, tuple[int, tuple[Any, ...]]] = {
        "q": (F, ("b", 4, 5, 3, 8)),
        "k": (F, ("b", 6, 5, 3, 8)),
    }
    m = model(nodes, read)
    _agrees(
        m,
        {
            "q": rng.standard_normal((2, 4, 5, 3, 8), dtype=np.float32),
            "k": rng.standard_normal((2, 6, 5, 3, 8), dtype=np.float32),
        },
    )
    launches, refused = cuda(m)
    assert [family for family, _ in launches] == ["copy", "copy", "matmul"] and not refused


def test_resizing_to_the_size_of_another_image() -> None:
    rng = np.random.default_rng(0)
    nodes: Nodes = [
        ("Shape", "x", "front", {"end": 2}), ("Shape", "z", "back", {"start": 2}),
        ("Concat", "front back", "sizes", {"axis": 0}),
        ("Conv", "x w", "c", {}), ("Resize", "c   sizes", "y", {"mode": "linear"}),
    ]  # fmt: skip
    made = model(
        nodes,
        {"x": (F, ("b", 3, "h", "w")), "z": (F, ("b", 2, "H", "W"))},
        {"w": rng.standard_normal((3, 3, 1, 1), dtype=np.float32)},
    )
    made.graph.node[-1].input[:] = ["c", "", "", "sizes"]
    for big in ((7, 9), (2, 12)):
        _agrees(
            made,
            {
                "x": rng.standard_normal((2, 3, 4, 5), dtype=np.float32),
                "z": rng.standard_normal((2, 2, *big), dtype=np.float32),
            },
        )


@pytest.mark.parametrize(
    ("shape", "dilation", "left"),
    [
        ((1, 8, 33, 33), 6, False),
        ((1, 8, 33, 33), 18, True),
        (("n", 8, "h", "w"), 24, True),
        (("n", 8, "t"), 64, False),
    ],
)
def test_dilated_windows_that_mostly_see_padding_are_left(
    shape: tuple[Any, ...], dilation: int, left: bool
) -> None:
    """An image of 33 x 33 with 18 zeros on each side is four times as large on the CPU, whose
    kernels read them; CUDA's check bounds.
    """
    spatial = len(shape) - 2
    weight = {"w": np.ones((8, 8, *([3] * spatial)), np.float32)}
    m = model(
        [
            (
                "Conv",
                "x w",
                "y",
                {"dilations": [dilation] * spatial, "pads": [dilation] * (2 * spatial)},
            )
        ],
        {"x": (F, shape)},
        weight,
    )
    found = partition_compiler.compile_graph(Graph(m), plan_writer.writer_of({}), everything=True)
    assert [("would mostly multiply padding" in reason) for _, reason in found.refused] == (
        [True] if left else []
    )
    assert not cuda(m)[1]


def test_norms_by_statistics_of_a_run() -> None:
    """What TensorFlow makes of a layer norm: each row a channel, with a mean and a variance of its
    own.
    """
    rng = np.random.default_rng(0)
    nodes: Nodes = [
        ("Reshape", "x lead", "r", {}), ("ReduceMean", "r axes", "m", {"keepdims": 0}),
        ("Mul", "r r", "q", {}), ("ReduceMean", "q axes", "v", {"keepdims": 0}),
        ("ConstantOfShape", "rows", "s",
            {"value": numpy_helper.from_array(np.array([2], np.float32))}),
            ("BatchNormalization", "r s m m v", "n", {"epsilon": 1e-3}),
        ("MatMul", "n w", "y", {}),
    ]  # fmt: skip
    constants = {
        "lead": np.array([1, 6, 4, 8]),
        "axes": np.array([0, 2, 3]),
        "rows": np.array([6]),
        "w": rng.standard_normal((8, 3), dtype=np.float32),
    }
    m = model(nodes, {"x": (F, ("a", "b", 8))}, constants)
    _agrees(m, {"x": rng.standard_normal((3, 8, 8), dtype=np.float32)})
    assert not cuda(m)[1]


def test_labels_as_rows() -> None:
    nodes: Nodes = [("OneHot", "i depth values", "h", {"axis": 1}), ("MatMul", "h w", "y", {})]
    constants = {
        "depth": np.array(7),
        "values": np.array([0, 1], np.float32),
        "w": np.ones((5, 3), np.float32),
    }
    launches, refused = cuda(model(nodes, {"i": (INDEX, ("b", 5))}, constants))
    assert launches[0][0] == "one_hot" and launches[0][1]["depth"] == 7 and not refused
