"""The float64 judge of the random graphs (`tests/support/double.py`,
`tools/fuzz/graph_differential.py`): its operators, what it takes for rounding, what it does not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.support import double
from tests.support.sessions import session
from tools.fuzz.graph_differential import _beyond, _measured

RNG = np.random.default_rng(0)


def _model(
    nodes: list[onnx.NodeProto],
    shapes: dict[str, tuple[int, ...]],
    outputs: list[str],
    opset: int = 21,
    **constants: Any,
) -> onnx.ModelProto:
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()]
    results = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs]
    stored = [numpy_helper.from_array(np.asarray(v), n) for n, v in constants.items()]
    return helper.make_model(
        helper.make_graph(nodes, "g", inputs, results, stored),
        opset_imports=[helper.make_opsetid("", opset)],
        ir_version=9,
    )


def _agrees(model: onnx.ModelProto, **fed: Any) -> None:
    for want, got in zip(
        session(model, optimize=False).run(None, fed), double.run(model, fed), strict=True
    ):
        assert want.shape == got.shape
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def _random(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def _looped(trips: int) -> onnx.ModelProto:
    value = helper.make_tensor_value_info
    inside = [
        helper.make_node("Mul", ["s", "s"], ["q"]),
        helper.make_node("Add", ["q", "x"], ["t"]),
        helper.make_node("Identity", ["go"], ["on"]),
    ]
    read = [
        value("i", TensorProto.INT64, []),
        value("go", TensorProto.BOOL, []),
        value("s", TensorProto.FLOAT, [2, 3]),
    ]
    made = [
        value("on", TensorProto.BOOL, []),
        value("t", TensorProto.FLOAT, [2, 3]),
        value("q", TensorProto.FLOAT, [2, 3]),
    ]
    body = helper.make_graph(inside, "body", read, made)
    return _model(
        [helper.make_node("Loop", ["trips", "", "x"], ["last", "all"], body=body)],
        {"x": (2, 3)},
        ["last", "all"],
        trips=np.int64(trips),
    )


@pytest.mark.parametrize("trips", [1, 3])
def test_results_of_iterations_make_a_new_axis(trips: int) -> None:
    _agrees(_looped(trips), x=_random(2, 3))


@pytest.mark.parametrize(
    ("group", "more"),
    [
        (1, {}), (2, {"strides": [2, 3], "pads": [1, 0, 2, 1]}),
        (4, {"dilations": [2, 1], "output_padding": [1, 0], "strides": [2, 1]}),
        (2, {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
        (2, {"auto_pad": "SAME_LOWER", "strides": [2, 3]}),
        (1, {"output_shape": [10, 10], "strides": [2, 3]}),
    ],
)  # fmt: skip
def test_groups_of_transposed_convolutions(group: int, more: dict[str, Any]) -> None:
    node = helper.make_node(
        "ConvTranspose", ["x", "w", "b"], ["y"], group=group, kernel_shape=[3, 2], **more
    )
    _agrees(
        _model([node], {"x": (2, 4, 5, 4)}, ["y"], w=_random(4, 3, 3, 2), b=_random(3 * group)),
        x=_random(2, 4, 5, 4),
    )


@pytest.mark.parametrize("axis", [1, -3])
def test_elements_gathered_along_any_axis(axis: int) -> None:
    node = helper.make_node("GatherElements", ["x", "at"], ["y"], axis=axis)
    _agrees(
        _model([node], {"x": (4, 5, 6)}, ["y"], at=RNG.integers(-4, 4, (2, 5, 3))),
        x=_random(4, 5, 6),
    )


def test_normalization_of_mean_and_variance() -> None:
    _agrees(
        _model(
            [helper.make_node("MeanVarianceNormalization", ["x"], ["y"], axes=[0, 2])],
            {"x": (4, 5, 6)},
            ["y"],
        ),
        x=_random(4, 5, 6),
    )


def test_softsign_of_a_scalar() -> None:
    _agrees(
        _model(
            [
                helper.make_node("ReduceSum", ["x"], ["s"], keepdims=0),
                helper.make_node("Softsign", ["s"], ["y"]),
            ],
            {"x": (4, 5)},
            ["y"],
        ),
        x=_random(4, 5),
    )


@pytest.mark.parametrize(
    "coord",
    ["half_pixel", "half_pixel_symmetric", "asymmetric", "align_corners", "pytorch_half_pixel"],
)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_resizing(mode: str, coord: str) -> None:
    if mode == "nearest" and coord == "half_pixel_symmetric":
        pytest.skip(
            "which of two places ONNX Runtime takes there is not known to the evaluation, which "
            "says so"
        )
    roundings = (
        ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]
        if mode == "nearest"
        else ["floor"]
    )
    for rounding in roundings:
        more = {
            "mode": mode,
            "coordinate_transformation_mode": coord,
            **({"nearest_mode": rounding} if mode == "nearest" else {}),
        }
        for scales in ((1.5, 0.3), (1.0, 2.7), (0.6, 0.5)):
            node = helper.make_node("Resize", ["x", "", "scales"], ["y"], **more)
            _agrees(
                _model(
                    [node], {"x": (2, 2, 9, 7)}, ["y"], scales=np.array([1, 1, *scales], np.float32)
                ),
                x=_random(2, 2, 9, 7),
            )
        for size in ((9, 7), (5, 13), (1, 1)):
            node = helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], **more)
            _agrees(
                _model([node], {"x": (2, 2, 9, 7)}, ["y"], sizes=np.array([2, 2, *size])),
                x=_random(2, 2, 9, 7),
            )


def test_cubic_that_leaves_out_what_is_outside() -> None:
    node = helper.make_node(
        "Resize", ["x", "", "scales"], ["y"], mode="cubic", exclude_outside=1, cubic_coeff_a=-0.5
    )
    _agrees(
        _model([node], {"x": (1, 1, 6, 7)}, ["y"], scales=np.array([1, 1, 2, 1.5], np.float32)),
        x=_random(1, 1, 6, 7),
    )


# --- what is rounding -----------------------------------------------------------------------------
_TERMS = 5000


def _cosine() -> tuple[Any, dict[str, Any], float]:
    """A Cos of sums of about 5000 to 1e4 in each of 4 rows: the reference, what it was fed, the
    unit in the last place of the sums.
    """
    nodes = [
        helper.make_node("ReduceSumSquare", ["x", "axes"], ["s"], keepdims=1),
        helper.make_node("Cos", ["s"], ["y"]),
    ]
    fed = {"x": _random(4, _TERMS) * np.float32(1.3)}
    return (
        _measured(_model(nodes, {"x": (4, _TERMS)}, ["y"], axes=np.array([1])), fed),
        fed,
        2.0**-10,
    )


def _by_rounding(reference: Any, fed: dict[str, Any], got: Any) -> bool:
    return _beyond(reference, [0], [got.astype(np.float32)], fed) == ""


@pytest.mark.parametrize("lucky", [False, True])
def test_a_cosine_errs_by_units_in_the_last_place_of_a_long_sum(lucky: bool) -> None:
    """Whether or not ONNX Runtime's own sum happens to be the right one."""
    reference, fed, unit = _cosine()
    sums = (fed["x"].astype(np.float64) ** 2).sum(1, keepdims=True)
    assert sums.min() > 2.0**13 and sums.max() < 2.0**14  # whose last place is `unit`
    if lucky:
        reference.expected = [np.cos(sums).astype(np.float32)]
    assert _by_rounding(reference, fed, np.cos(sums + 2 * unit))
    assert not _by_rounding(reference, fed, np.cos(sums + 100 * unit))


def test_a_term_that_is_left_out_is_no_rounding() -> None:
    reference, fed, _ = _cosine()
    squares = fed["x"].astype(np.float64) ** 2
    assert not _by_rounding(reference, fed, np.cos(squares[:, 1:].sum(1, keepdims=True)))


def test_a_function_that_errs_is_no_rounding() -> None:
    """The argument is an input, exact: a Sin of 1e4 has no excuse."""
    fed = {"x": np.linspace(9e3, 1e4, 512, dtype=np.float32)}
    reference = _measured(
        _model([helper.make_node("Sin", ["x"], ["y"])], {"x": (512,)}, ["y"]), fed
    )
    exact = np.sin(fed["x"].astype(np.float64))
    assert _by_rounding(reference, fed, exact * (1 + 2.0**-23))
    assert not _by_rounding(reference, fed, np.sin(fed["x"].astype(np.float64) * (1 + 2.0**-24)))


def test_one_wrong_element_of_many_is_no_rounding() -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Sin", ["m"], ["y"])]
    fed = {"x": _random(64, 300) * np.float32(50)}
    reference = _measured(_model(nodes, {"x": (64, 300)}, ["y"], w=_random(300, 128)), fed)
    exact = np.sin(
        fed["x"].astype(np.float64)
        @ numpy_helper.to_array(reference.source.model.graph.initializer[0]).astype(np.float64)
    )
    rough = np.sin(
        np.float32(
            fed["x"][:, ::-1]
            @ numpy_helper.to_array(reference.source.model.graph.initializer[0])[::-1]
        )
    )
    assert _by_rounding(reference, fed, rough)
    exact[17, 5] += 0.05
    assert not _by_rounding(reference, fed, exact)


def test_places_that_move_by_one_are_no_rounding() -> None:
    nodes = [
        helper.make_node("Exp", ["x"], ["e"]),
        helper.make_node("Resize", ["e", "", "scales"], ["y"], mode="nearest"),
    ]
    fed = {"x": _random(1, 3, 8, 8)}
    reference = _measured(
        _model(nodes, {"x": (1, 3, 8, 8)}, ["y"], scales=np.array([1, 1, 1.5, 1.5], np.float32)),
        fed,
    )
    assert _by_rounding(reference, fed, reference.expected[0] * (1 + 2.0**-23))
    assert not _by_rounding(reference, fed, np.roll(reference.expected[0], 1, axis=3))


def test_exact_values_stay_exact_under_noise() -> None:
    """Counts and rounded values have no rounding: a Floor of a sum of ones does not fall by one."""
    nodes = [
        helper.make_node("ReduceSum", ["x", "axes"], ["s"]),
        helper.make_node("Floor", ["s"], ["y"]),
    ]
    model, fed = (
        _model(nodes, {"x": (8, 64)}, ["y"], axes=np.array([1])),
        {"x": np.ones((8, 64), np.float32)},
    )
    np.testing.assert_array_equal(
        double.run(model, fed, np.random.default_rng(0))[0], np.full((8, 1), 64.0)
    )


def test_noise_reaches_bodies() -> None:
    fed = {"x": _random(2, 3)}
    exact, moved = (
        double.run(_looped(3), fed),
        double.run(_looped(3), fed, np.random.default_rng(0)),
    )
    gap = np.abs(exact[0] - moved[0]) / np.abs(exact[0])
    assert 0 < gap.max() < 1e-5


def test_without_an_evaluation_a_difference_stands() -> None:
    nodes = [helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="linear", antialias=1)]
    fed = {"x": _random(1, 1, 8, 8)}
    reference = _measured(
        _model(nodes, {"x": (1, 1, 8, 8)}, ["y"], scales=np.array([1, 1, 0.5, 0.5], np.float32)),
        fed,
    )
    assert "no float64 evaluation" in _beyond(reference, [0], reference.expected, fed)
