"""Regions of images, deformable convolutions, determinants and the bits of integers in sessions,
against definitions in numpy and, where it has them, ONNX Runtime.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.gpu.cases.regions import aligned_regions, moved_windows
from tests.support.all_pairs import all_pairs
from tests.support.sessions import assigned, session

RNG = np.random.default_rng(3)


def _signal(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def _model(
    op: str, operands: dict[str, Any], stored: str, opset: int, known: bool, **attrs: Any
) -> onnx.ModelProto:
    """One node of these operands (None: left out), of which those `stored` are constants, and
    others have unknown sizes but where they are `known`, and but for the channels of an image.
    """
    given = [
        helper.make_tensor_value_info(
            k,
            helper.np_dtype_to_tensor_dtype(v.dtype),
            [d if known or (k == "x" and a == 1) else f"{k}{a}" for a, d in enumerate(v.shape)],
        )
        for k, v in operands.items()
        if v is not None and k not in stored
    ]
    kept = [numpy_helper.from_array(v, k) for k, v in operands.items() if k in stored]
    node = helper.make_node(
        op, ["" if v is None else k for k, v in operands.items()], ["y"], **attrs
    )
    graph = helper.make_graph([node], "g", given, [onnx.ValueInfoProto(name="y")], kept)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def _run(
    op: str, operands: dict[str, Any], stored: str = "", opset: int = 22, known: bool = False,
    **attrs: Any,
) -> Any:  # fmt: skip
    """The provider's result."""
    made = session(
        _model(op, operands, stored, opset, known, **attrs), provider=True, everything=True
    )
    assert assigned(made) == (1, 1)
    return made.run(None, {k: v for k, v in operands.items() if v is not None and k not in stored})[
        0
    ]


def _close(got: Any, want: Any, scale: float) -> None:
    assert got.shape == want.shape and got.dtype == np.float32
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=2e-6 * scale)


# --- regions --------------------------------------------------------------------------------------
_PLACES = ("half_pixel", "output_half_pixel")


#: Images, results, samples of each of these and scale.
_REGIONS = [
    ((2, 3, 7, 9), (2, 3), 2, 0.8),
    ((1, 17, 5, 4), (7, 1), 0, 0.25),
    ((3, 16, 1, 1), (1, 2), 1, 1.0),
]


@pytest.mark.parametrize(
    ("form", "opset", "mode", "known"),
    all_pairs(_REGIONS, [10, 16, 22], ["avg", "max"], [False, True]),
)
def test_regions(form: tuple[Any, ...], opset: int, mode: str, known: bool) -> None:
    (n, c, h, w), bins, ratio, scale = form
    x, count = _signal(n, c, h, w), 11
    corners = RNG.uniform(-3, 1.3 * max(h, w), (count, 2, 2)) / scale
    corners.sort(1)
    rois = corners.reshape(count, 4).astype(np.float32)
    batch = RNG.integers(0, n, count)
    for places in _PLACES if opset >= 16 else ("",):
        how = {"coordinate_transformation_mode": places} if places else {}
        got = _run(
            "RoiAlign", {"x": x, "r": rois, "b": batch}, "", opset, known, mode=mode,
            output_height=bins[0], output_width=bins[1], sampling_ratio=ratio, spatial_scale=scale,
            **how,
        )  # fmt: skip
        half = int(places == "half_pixel")
        want = aligned_regions(
            x, rois.astype(np.float64), batch, bins, half, ratio, scale, int(mode == "max")
        )
        _close(got, want, 20.0)


def test_regions_agree_with_onnx_runtime() -> None:
    x, rois = _signal(2, 5, 20, 30), np.array([[1, 2, 17, 9], [-3, 4, 25, 60]], np.float32)
    given = {"x": x, "r": rois, "b": np.array([1, 0])}
    how: dict[str, Any] = {"output_height": 3, "output_width": 4, "spatial_scale": 0.5}
    for opset, mode in ((10, "avg"), (16, "avg"), (10, "max"), (16, "max")):
        want = session(_model("RoiAlign", given, "", opset, True, mode=mode, **how)).run(
            None, given
        )
        _close(_run("RoiAlign", given, "", opset, mode=mode, **how), want[0], 10.0)


def test_a_region_of_no_image_is_an_error() -> None:
    given = {"x": _signal(2, 3, 4, 4), "r": np.ones((1, 4), np.float32), "b": np.array([2])}
    with pytest.raises(Exception, match="out of range"):
        _run("RoiAlign", given, "", 16)


# --- deformable convolutions ----------------------------------------------------------------------
_DEFORMED: list[dict[str, Any]] = [
    {"x": (2, 6, 5, 7), "w": (4, 6, 3, 2), "pads": [1, 0, 1, 0], "strides": [1, 2]},
    {"x": (1, 8, 6, 5), "w": (32, 8, 1, 1), "offset_group": 2},
    {"x": (2, 12, 6, 7), "w": (6, 4, 2, 3), "group": 3, "offset_group": 4, "dilations": [2, 1]},
    {"x": (1, 5, 4, 4), "w": (5, 1, 3, 3), "group": 5, "pads": [1] * 4, "kernel_shape": [3, 3]},
    {"x": (3, 1, 3, 3), "w": (1, 1, 3, 3), "pads": [2, 2, 2, 2]},
]  # fmt: skip


@pytest.mark.parametrize(
    ("form", "opset", "masked", "bias", "known"),
    all_pairs(_DEFORMED, [19, 22], *3 * [[False, True]]),
)
def test_deformed(form: dict[str, Any], opset: int, masked: bool, bias: bool, known: bool) -> None:
    shape, weights = form["x"], form["w"]
    attrs = {k: v for k, v in form.items() if k not in ("x", "w")}
    groups, moved = attrs.get("group", 1), attrs.get("offset_group", 1)
    pads, strides = attrs.get("pads", [0] * 4), attrs.get("strides", [1, 1])
    dilations, (n, _, h, w), kernel = attrs.get("dilations", [1, 1]), shape, weights[2:]
    oh, ow = (
        (size + 2 * p - d * (k - 1) - 1) // s + 1
        for size, p, d, k, s in zip((h, w), pads, dilations, kernel, strides, strict=False)
    )
    taps = kernel[0] * kernel[1]
    offset = (RNG.uniform(-2, 2, (n, 2 * moved * taps, oh, ow))).astype(np.float32)
    mask = RNG.random((n, moved * taps, oh, ow)).astype(np.float32) if masked else None
    x, held = _signal(*shape), _signal(*weights)
    b = _signal(weights[0]) if bias else None
    operands = {"x": x, "w": held, "o": offset, "b": b, "m": mask}
    got = _run("DeformConv", operands, "wb" if bias else "w", opset, known, **attrs)
    seen = moved_windows(
        x.astype(np.float64), offset.astype(np.float64), mask, kernel, tuple(strides),
        tuple(dilations), (pads[0], pads[1]), groups, moved,
    )  # fmt: skip
    made = weights[0] // groups
    rows = held.reshape(groups, made, -1, taps).transpose(0, 1, 3, 2)  # taps before channels
    want = np.einsum("nhwgkc,gmkc->ngmhw", seen, rows).reshape(n, -1, oh, ow)
    _close(got, want + (0 if b is None else b[:, None, None]), 20.0)


def test_deformed_by_weights_of_a_run_and_before_a_convolution() -> None:
    x, w, o = _signal(1, 4, 6, 6), _signal(16, 4, 3, 3), _signal(1, 18, 4, 4)
    operands = {"x": x, "w": w, "o": o}
    got = _run("DeformConv", operands, known=True)
    _close(_run("DeformConv", operands, "w"), got, 10.0)
    second = _signal(8, 16, 3, 3)
    graph = helper.make_graph(
        [
            helper.make_node("DeformConv", ["x", "w", "o"], ["d"]),
            helper.make_node("Relu", ["d"], ["r"]),
            helper.make_node("Conv", ["r", "v"], ["y"], pads=[1, 1, 1, 1]),
        ],
        "g",
        [helper.make_tensor_value_info(k, 1, v.shape) for k, v in (("x", x), ("o", o))],
        [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(v, k) for k, v in (("w", w), ("v", second))],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=10)
    made = session(model, provider=True)
    assert assigned(made) == (3, 3)
    rest = helper.make_model(
        helper.make_graph(
            [helper.make_node("Conv", ["r", "v"], ["y"], pads=[1, 1, 1, 1])],
            "g",
            [helper.make_tensor_value_info("r", 1, got.shape)],
            [onnx.ValueInfoProto(name="y")],
            [numpy_helper.from_array(second, "v")],
        ),
        opset_imports=[helper.make_opsetid("", 19)],
        ir_version=10,
    )
    want = session(rest).run(None, {"r": np.maximum(got, 0)})[0]
    _close(made.run(None, {"x": x, "o": o})[0], want, 100.0)


# --- determinants ---------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("shape", "known", "opset"),
    all_pairs([(1, 1), (3, 3), (2, 5, 4, 4), (3, 40, 40), (0, 2, 2)], [False, True], [11, 22]),
)
def test_determinants(shape: Any, known: bool, opset: int) -> None:
    x = _signal(*shape)
    want = np.linalg.det(x.astype(np.float64))
    got = _run("Det", {"a": x}, "", opset, known)
    assert got.shape == want.shape
    most = np.prod(np.linalg.norm(x.astype(np.float64), axis=-1), -1)  # as Hadamard has it
    assert (np.abs(got - want) <= 1e-6 * most + 1e-6 * np.abs(want)).all()


def test_determinants_of_what_is_singular_or_no_number() -> None:
    x = np.zeros((4, 3, 3), np.float32)
    x[1] = np.diag([2.0, 0.0, 3.0])
    x[2] = [[0, 1, 0], [1, 0, 0], [0, 0, 1]]
    x[3, 1, 1] = np.nan
    got = _run("Det", {"a": x})
    np.testing.assert_array_equal(got[:3], [0, 0, -1])
    assert np.isnan(got[3]) or got[3] == 0


# --- bits -----------------------------------------------------------------------------------------
_INTEGERS = (np.uint8, np.int8, np.uint16, np.int16, np.uint32, np.int32, np.int64)


def _whole(kind: Any, *shape: int) -> Any:
    span = np.iinfo(kind)
    return RNG.integers(span.min, span.max, shape, kind, endpoint=True)


@pytest.mark.parametrize("kind", _INTEGERS)
@pytest.mark.parametrize("name", ["and", "or", "xor"])
def test_bits_of_two(name: str, kind: Any) -> None:
    a, b = _whole(kind, 3, 1, 7), _whole(kind, 5, 7)
    got = _run(f"Bitwise{name.title()}", {"a": a, "b": b}, opset=18)
    want = getattr(np, f"bitwise_{name}")(a, b)
    assert got.dtype == kind
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("kind", _INTEGERS)
def test_bits_turned(kind: Any) -> None:
    a = _whole(kind, 4, 9)
    np.testing.assert_array_equal(_run("BitwiseNot", {"a": a}, opset=18), ~a)


@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.uint32])
def test_bits_shifted(kind: Any, direction: str) -> None:
    a, bits = _whole(kind, 200), np.iinfo(kind).bits
    b = RNG.integers(0, 75, 200).astype(kind)
    got = _run("BitShift", {"a": a, "b": b}, opset=11, direction=direction)
    wide, by = a.astype(np.uint64), np.minimum(b, 63).astype(np.uint64)
    moved = (wide << by if direction == "LEFT" else wide >> by) & np.uint64((1 << bits) - 1)
    np.testing.assert_array_equal(got, np.where(b < bits, moved, 0))


def test_what_is_shifted_out_does_not_come_back() -> None:
    a = np.array([255, 1, 128, 77], np.uint8)
    two = np.array(2, np.uint8)
    graph = helper.make_graph(
        [
            helper.make_node("BitShift", ["a", "two"], ["b"], direction="LEFT"),
            helper.make_node("BitShift", ["b", "two"], ["y"], direction="RIGHT"),
        ],
        "g",
        [helper.make_tensor_value_info("a", 2, ["n"])],
        [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(two, "two")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=10)
    made = session(model, provider=True, everything=True)
    assert assigned(made)[0] == 2
    np.testing.assert_array_equal(made.run(None, {"a": a})[0], (a << 2 & 255) >> 2)
