"""LSTM, GRU and RNN on the provider against `tests/support/recurrent.py` in float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.support import recurrent
from tests.support.sessions import assigned, session
from tracea_onnx.explain.explanation import explain

KINDS = tuple(recurrent.GATES)
INPUTS = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")
OUTPUTS = ("Y", "Y_h", "Y_c")


def feeds(
    kind: str, sizes: tuple[int, int, int, int], names: str, attrs: Mapping[str, Any]
) -> dict[str, Any]:
    """Inputs for steps, rows of the batch, inputs and units; `names` are the optional ones."""
    rng = np.random.default_rng(sum(sizes))
    steps, batch, width, hidden = sizes
    directions = 2 if attrs.get("direction") == "bidirectional" else 1
    first, gates = bool(attrs.get("layout", 0)), recurrent.GATES[kind] * hidden
    state = (batch, directions, hidden) if first else (directions, batch, hidden)
    shapes = {
        "X": (batch, steps, width) if first else (steps, batch, width),
        "W": (directions, gates, width), "R": (directions, gates, hidden),
        "B": (directions, 2 * gates), "initial_h": state, "initial_c": state,
        "P": (directions, 3 * hidden),
    }  # fmt: skip
    made: dict[str, Any] = {
        k: (rng.standard_normal(s) * (1 if k == "X" else 0.4)).astype(np.float32)
        for k, s in shapes.items()
        if k in ("X", "W", "R") or k in names.split()
    }
    if "sequence_lens" in names:
        made["sequence_lens"] = rng.integers(min(steps, 1), steps + 1, batch).astype(np.int32)
    return made


def model(
    kind: str,
    given: Mapping[str, Any],
    attrs: Mapping[str, Any],
    *,
    outputs: Sequence[str] = OUTPUTS,
    symbolic: bool = False,
    variable: Sequence[str] = ("X", "sequence_lens", "initial_h", "initial_c"),
) -> onnx.ModelProto:
    """A model of one node; all inputs but the variable ones are initializers."""
    outputs = [o if o in outputs and (o != "Y_c" or kind == "LSTM") else "" for o in OUTPUTS]
    while not outputs[-1]:
        outputs.pop()
    inputs = [k if k in given else "" for k in INPUTS]
    while not inputs[-1]:
        inputs.pop()
    node = helper.make_node(kind, inputs, outputs, hidden_size=given["R"].shape[2], **attrs)

    def info(name: str) -> onnx.ValueInfoProto:
        v = given[name]
        dims = [f"{name}{k}" if symbolic and d != v.shape[-1] else d for k, d in enumerate(v.shape)]
        if symbolic and name == "X":
            dims = ["batch", "steps"] if attrs.get("layout", 0) else ["steps", "batch"]
            dims = [*dims, v.shape[2]]
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(v.dtype), dims)

    graph = helper.make_graph(
        [node],
        "g",
        [info(k) for k in given if k in variable],
        [helper.make_tensor_value_info(o, TensorProto.FLOAT, None) for o in outputs if o],
        [numpy_helper.from_array(v, k) for k, v in given.items() if k not in variable],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def check(kind: str, given: Mapping[str, Any], attrs: Mapping[str, Any], **more: Any) -> None:
    """The provider runs the node, twice, with the results that float64 gives."""
    threads = more.pop("threads", 1)
    s = session(model(kind, given, attrs, **more), provider=True, threads=threads)
    assert assigned(s)[0] == 1
    want = dict(zip(OUTPUTS, recurrent.run(kind, given, attrs), strict=True))
    feed = {i.name: given[i.name] for i in s.get_inputs()}
    for _ in range(2):
        for o, got in zip(s.get_outputs(), s.run(None, feed), strict=True):
            assert got.shape == want[o.name].shape and got.dtype == np.float32
            np.testing.assert_allclose(got, want[o.name], rtol=0, atol=2e-5, err_msg=o.name)


#: Steps, rows of the batch, inputs, units: around panels of 32 units and tiles of rows.
SIZES = [
    (1, 1, 1, 1), (3, 1, 5, 7), (2, 3, 4, 16), (5, 2, 3, 31), (4, 5, 33, 32), (3, 17, 7, 33),
    (2, 1, 3, 97), (3, 29, 2, 65), (2, 113, 3, 20), (2, 2, 3, 800),
]  # fmt: skip
VARIANTS: list[tuple[str, dict[str, Any], str]] = [
    *((k, {}, "B") for k in KINDS),
    ("GRU", {"linear_before_reset": 1}, "B"),
]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize(("kind", "attrs", "names"), VARIANTS, ids=str)
def test_sizes(
    kind: str, attrs: dict[str, Any], names: str, sizes: tuple[int, int, int, int]
) -> None:
    check(kind, feeds(kind, sizes, names, attrs), attrs)


@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("kind", KINDS)
def test_everything_at_once(kind: str, direction: str, layout: int) -> None:
    """With all inputs, sizes known or not, for one thread and for more, all outputs or one."""
    attrs = {"direction": direction, "layout": layout, "linear_before_reset": layout}
    cell = {"LSTM": "initial_c P"}.get(kind, "")
    attrs = {k: v for k, v in attrs.items() if kind == "GRU" or k != "linear_before_reset"}
    for sizes in ((5, 3, 4, 33), (4, 19, 6, 8), (3, 1, 2, 271)):
        given = feeds(kind, sizes, f"B sequence_lens initial_h {cell}", attrs)
        check(kind, given, attrs, symbolic=True, threads=2)
        check(kind, given, attrs)
    for outputs in (("Y",), ("Y_h",), ("Y_h", "Y_c")):
        check(kind, given, attrs, outputs=outputs, threads=3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", [(0, 2, 3, 5), (3, 0, 3, 5), (0, 0, 3, 5)], ids=str)
def test_no_steps_and_no_rows(kind: str, sizes: tuple[int, int, int, int]) -> None:
    given = feeds(kind, sizes, "B initial_h", {})
    check(kind, given, {}, symbolic=True)
    check(kind, feeds(kind, sizes, "B sequence_lens", {}), {}, symbolic=True)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_that_a_run_computes(kind: str) -> None:
    given = feeds(kind, (3, 2, 4, 35), "B initial_h", {})
    check(kind, given, {}, variable=tuple(given))


@pytest.mark.parametrize(
    ("kind", "attrs"),
    [
        ("LSTM", {"clip": 0.3}),
        ("LSTM", {"input_forget": 1}),
        ("LSTM", {"activations": ["HardSigmoid", "Relu", "Softplus"], "activation_alpha": [0.3]}),
        ("LSTM", {"activations": ["Sigmoid", "Tanh", "Elu"] * 2, "direction": "bidirectional"}),
        ("GRU", {"clip": 0.2, "linear_before_reset": 1}),
        (
            "GRU",
            {
                "activations": ["HardSigmoid", "LeakyRelu"],
                "activation_alpha": [0.3, 0.1],
                "activation_beta": [0.4],
            },
        ),
        ("RNN", {"clip": 0.5, "activations": ["Relu"]}),
        ("RNN", {"activations": ["Elu"], "activation_alpha": [0.7]}),
    ],
    ids=str,
)
def test_activations_and_clip(kind: str, attrs: dict[str, Any]) -> None:
    given = feeds(kind, (4, 3, 5, 21), "B initial_h", attrs)
    check(kind, given, attrs)


@pytest.mark.parametrize("lens", [[5, 1], [-1, 1]], ids=str)
def test_lengths_out_of_range_are_an_error(lens: list[int]) -> None:
    given = feeds("LSTM", (4, 2, 3, 5), "B sequence_lens", {})
    s = session(model("LSTM", given, {}), provider=True)
    with pytest.raises(Exception, match="'recurrent_layer' met an index out of range"):
        s.run(None, {"X": given["X"], "sequence_lens": np.array(lens, np.int32)})


@pytest.mark.parametrize(
    ("attrs", "why"),
    [
        ({"activations": ["Sigmoid", "Tanh", "Softsign"]}, "activation Softsign"),
        (
            {
                "activations": ["Sigmoid", "Tanh", "Tanh", "Sigmoid", "Relu", "Tanh"],
                "direction": "bidirectional",
            },
            "the same for each direction",
        ),
    ],
    ids=str,
)
def test_what_no_kernel_computes_stays_with_onnx_runtime(attrs: dict[str, Any], why: str) -> None:
    given = feeds("LSTM", (4, 2, 3, 5), "B", attrs)
    made = model("LSTM", given, attrs)
    assert assigned(session(made, provider=True)) == (0, 1)
    assert why in str(explain(made, backend="cpu", provider=True).to_json())


@pytest.mark.parametrize("kind", KINDS)
def test_sequences_without_steps(kind: str) -> None:
    given = feeds(kind, (4, 3, 5, 6), "B sequence_lens initial_h", {})
    given["sequence_lens"][:] = [0, 4, 2]
    check(kind, given, {})


def test_behind_a_branch_of_unknown_rank() -> None:
    """PyTorch's exporter adds the axis of the batch in an If, whose result has no rank before it
    runs; the operator takes rank 3 alone.
    """
    given = feeds("LSTM", (3, 1, 4, 20), "B", {})
    made = model("LSTM", given, {}, variable=())
    axes = numpy_helper.from_array(np.array([1]), "axes")
    flat = helper.make_tensor_value_info("flat", TensorProto.FLOAT, [None, 4])
    joined = helper.make_graph(
        [helper.make_node("Unsqueeze", ["flat", "axes"], ["with"])],
        "then",
        [],
        [onnx.ValueInfoProto(name="with")],
    )
    other = helper.make_graph(
        [helper.make_node("Identity", ["flat"], ["without"])],
        "else",
        [],
        [onnx.ValueInfoProto(name="without")],
    )
    fork = helper.make_node("If", ["batched"], ["X"], then_branch=joined, else_branch=other)
    yes = helper.make_tensor_value_info("batched", TensorProto.BOOL, [])
    weights = [t for t in made.graph.initializer if t.name != "X"]
    graph = helper.make_graph(
        [fork, *made.graph.node], "g", [flat, yes], made.graph.output, [*weights, axes]
    )
    built = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    s = session(built, provider=True)
    ours, _ = assigned(s)
    got = s.run(None, {"flat": given["X"][:, 0], "batched": np.array(True)})
    assert ours == 1
    for v, want in zip(got, recurrent.run("LSTM", given, {}), strict=True):
        np.testing.assert_allclose(v, want, rtol=0, atol=2e-5)
    with pytest.raises(Exception, match="rank"):
        s.run(None, {"flat": given["X"][:, 0], "batched": np.array(False)})
