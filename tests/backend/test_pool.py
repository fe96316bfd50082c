"""`pool2d`, `global_pool` and `resize2d` against float64 and ONNX Runtime; borders hold NaN, which
must not be read.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from onnx import TensorProto, helper

from tracea_onnx.runtime.native_library import aligned, isas, run_kernel

F32 = npt.NDArray[np.float32]
ISAS = isas()


def _random(seed: int, *shape: int) -> F32:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _channels_last(x: F32, cs: int, border: int = 1) -> tuple[F32, int]:
    """[N, C, H, W] in a channels-last buffer surrounded by NaN, and the offset of its first
    pixel.
    """
    n, c, h, w = x.shape
    buffer = aligned((n, h + 2 * border, w + 2 * border, cs))
    buffer.fill(np.nan)
    buffer[:, border : border + h, border : border + w, :c] = x.transpose(0, 2, 3, 1)
    return buffer, (border * (w + 2 * border) + border) * cs


def _pitches(name: str, buffer: F32) -> dict[str, int]:
    return {
        f"{name}_cs": buffer.shape[3],
        f"{name}_rs": buffer.shape[2] * buffer.shape[3],
        f"{name}_ns": buffer[0].size,
    }


def _reference(node: str, x: F32, **attributes: Any) -> F32:
    ort = pytest.importorskip("onnxruntime")
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    initializers, names = [], ["x"]
    if node == "Resize":
        scales = attributes.pop("scales")
        initializers, names = (
            [helper.make_tensor("scales", TensorProto.FLOAT, [4], [1.0, 1.0, *scales])],
            ["x", "", "scales"],
        )
    graph = helper.make_graph(
        [helper.make_node(node, names, ["y"], **attributes)], "g", inputs, outputs, initializers
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    return np.asarray(
        ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(
            None, {"x": x}
        )[0],
        np.float32,
    )


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize(
    ("size", "kernel", "strides", "dilations", "pads", "ceil"),
    [
        ((2, 3, 7, 9), (3, 3), (2, 2), (1, 1), (1, 1, 1, 1), 0),
        ((1, 64, 12, 12), (2, 2), (2, 2), (1, 1), (0, 0, 0, 0), 0),
        ((1, 17, 9, 10), (3, 3), (2, 2), (1, 1), (0, 1, 1, 0), 1),
        ((1, 33, 20, 20), (5, 5), (1, 1), (1, 1), (2, 2, 2, 2), 0),
        ((2, 16, 11, 8), (3, 2), (1, 3), (2, 1), (1, 0, 2, 1), 0),
        ((1, 80, 5, 5), (5, 5), (1, 1), (1, 1), (0, 0, 0, 0), 0),
        ((1, 1, 1, 1), (1, 1), (1, 1), (1, 1), (0, 0, 0, 0), 0),
        ((1, 5, 1, 31), (1, 3), (1, 2), (1, 1), (0, 1, 0, 1), 1),
        ((1, 7, 6, 6), (3, 3), (2, 2), (1, 1), (0, 0, 0, 0), 1),
    ],
)
@pytest.mark.parametrize("threads", [1, 3])
def test_windows(
    size: tuple[int, int, int, int],
    kernel: tuple[int, int],
    strides: tuple[int, int],
    dilations: tuple[int, int],
    pads: tuple[int, int, int, int],
    ceil: int,
    mode: int,
    isa: str,
    threads: int,
) -> None:
    x = _random(0, *size)
    attributes: dict[str, Any] = {
        "kernel_shape": kernel,
        "strides": strides,
        "dilations": dilations,
        "pads": pads,
        "ceil_mode": ceil,
    }
    if mode:
        attributes["count_include_pad"] = int(mode == 2)
    expected = _reference("AveragePool" if mode else "MaxPool", x, **attributes)
    n, c, oh, ow = expected.shape
    source, first = _channels_last(x, c + 4)
    target = np.full((n, oh, ow, c + 3), 8.0, np.float32)
    ints = {
        "mode": mode,
        "N": n,
        "C": c,
        "IH": size[2],
        "IW": size[3],
        "OH": oh,
        "OW": ow,
        "KH": kernel[0],
        "KW": kernel[1],
        "SH": strides[0],
        "SW": strides[1],
    }
    ints |= (
        {
            "DH": dilations[0],
            "DW": dilations[1],
            "PT": pads[0],
            "PL": pads[1],
            "PB": pads[2],
            "PR": pads[3],
        }
        | _pitches("x", source)
        | _pitches("y", target)
    )
    run_kernel("pool2d", {"x": (source, first), "y": target}, ints, isa=isa, threads=threads)
    got = target[..., :c].transpose(0, 3, 1, 2)
    if mode:
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    else:
        np.testing.assert_array_equal(got, expected)
    assert (target[..., c:] == 8.0).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize(
    ("n", "c", "h", "w"),
    [
        (1, 1, 1, 1),
        (2, 3, 5, 7),
        (1, 64, 7, 7),
        (2, 100, 3, 40),
        (1, 130, 33, 1),
        (3, 16, 2, 2),
        (1, 20, 200, 170),
    ],
)
@pytest.mark.parametrize("threads", [1, 4])
def test_global(mode: int, n: int, c: int, h: int, w: int, isa: str, threads: int) -> None:
    x = _random(1, n, c, h, w) + 3
    source, first = _channels_last(x, c + 2)
    y = np.full((n, c + 5), 8.0, np.float32)
    ints = {"mode": mode, "N": n, "C": c, "H": h, "W": w, "y_ns": c + 5} | _pitches("x", source)
    run_kernel("global_pool", {"x": (source, first), "y": y}, ints, isa=isa, threads=threads)
    exact = x.astype(np.float64)
    expected = exact.mean((2, 3)) if mode else exact.max((2, 3))
    np.testing.assert_allclose(y[:, :c], expected, rtol=3e-7 if mode else 0)
    assert (y[:, c:] == 8.0).all()


COORDINATES = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
ROUNDINGS = ("round_prefer_floor", "floor", "ceil", "round_prefer_ceil")


def _resize(
    x: F32,
    scales: tuple[float, float],
    mode: int,
    coord: int,
    rounding: int,
    isa: str,
    threads: int,
    told: bool = True,
) -> tuple[F32, F32]:
    """`told`: the kernel is given the scales, else it takes those of the sizes."""
    attributes: dict[str, Any] = {
        "mode": "linear" if mode else "nearest",
        "coordinate_transformation_mode": COORDINATES[coord],
    }
    if not mode:
        attributes["nearest_mode"] = ROUNDINGS[rounding]
    expected = _reference("Resize", x, scales=scales, **attributes)
    n, c, oh, ow = expected.shape
    source, first = _channels_last(x, c + 1)
    target = np.full((n, oh, ow, c + 3), 8.0, np.float32)
    ints = (
        {
            "mode": mode,
            "coord": coord,
            "rounding": rounding,
            "N": n,
            "C": c,
            "IH": x.shape[2],
            "IW": x.shape[3],
            "OH": oh,
            "OW": ow,
        }
        | _pitches("x", source)
        | _pitches("y", target)
    )
    run_kernel(
        "resize2d",
        {"x": (source, first), "y": target},
        ints,
        {"scale_h": scales[0] * told, "scale_w": scales[1] * told},
        isa=isa,
        threads=threads,
    )
    assert (target[..., c:] == 8.0).all()
    return target[..., :c].transpose(0, 3, 1, 2), expected


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("coord", range(4))
@pytest.mark.parametrize("rounding", range(4))
@pytest.mark.parametrize("scales", [(2.0, 2.0), (1.5, 0.5), (3.0, 0.6), (0.4, 1.0)])
def test_nearest(coord: int, rounding: int, scales: tuple[float, float], isa: str) -> None:
    for threads, shape in ((1, (2, 17, 7, 9)), (3, (1, 3, 5, 4))):
        got, expected = _resize(_random(2, *shape), scales, 0, coord, rounding, isa, threads)
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("coord", range(4))
@pytest.mark.parametrize("scales", [(2.0, 2.0), (1.5, 0.5), (3.0, 0.6), (0.4, 1.0)])
def test_linear(coord: int, scales: tuple[float, float], isa: str) -> None:
    for threads, shape in ((1, (2, 17, 7, 9)), (3, (1, 3, 5, 4))):
        got, expected = _resize(_random(3, *shape), scales, 1, coord, 0, isa, threads)
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def _places(coord: int, rounding: str, opset: int, scaled: bool) -> Any:
    """A session that resizes `x` to the sizes, or by the scales, of each run."""
    ort = pytest.importorskip("onnxruntime")
    if tuple(map(int, ort.__version__.split(".")[:2])) < (1, 31):
        pytest.skip("older ONNX Runtimes take no place beside a half for a half")
    more = (
        {}
        if opset < 11
        else {"coordinate_transformation_mode": COORDINATES[coord], "nearest_mode": rounding}
    )
    names = (
        ["x", "scales"] if opset < 11 else ["x", "", "scales"] if scaled else ["x", "", "", "sizes"]
    )
    asked = helper.make_tensor_value_info(
        names[-1], TensorProto.FLOAT if scaled else TensorProto.INT64, [4]
    )
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 1, None, None]) for n in "xy"]
    graph = helper.make_graph(
        [helper.make_node("Resize", names, ["y"], mode="nearest", **more)],
        "g",
        [values[0], asked],
        values[1:],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def _nearest_places(
    session: Any,
    coord: int,
    rounding: int,
    h: int,
    w: int,
    asked: dict[str, Any],
    scales: tuple[float, float],
) -> None:
    x = np.arange(h * w, dtype=np.float32).reshape(1, 1, h, w)
    (want,) = session.run(None, {"x": x, **asked})
    oh, ow = want.shape[2:]
    y = np.full((1, oh, ow, 1), -1.0, np.float32)
    ints = {
        "mode": 0,
        "coord": coord,
        "rounding": rounding,
        "N": 1,
        "C": 1,
        "IH": h,
        "IW": w,
        "OH": oh,
        "OW": ow,
    }
    source = x.reshape(1, h, w, 1)
    run_kernel(
        "resize2d",
        {"x": source, "y": y},
        ints | _pitches("x", source) | _pitches("y", y),
        {"scale_h": scales[0], "scale_w": scales[1]},
    )
    np.testing.assert_array_equal(y[..., 0], want[0], f"{h} x {w} to {oh} x {ow}, {asked}")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("coord", range(4))
@pytest.mark.parametrize("rounding", range(4))
def test_nearest_places_of_sizes(coord: int, rounding: int) -> None:
    """Places just beside a half, whose nearest position float32 decides."""
    session = _places(coord, ROUNDINGS[rounding], 19, False)
    for n in range(1, 27):
        for m in range(1, 49, 2):
            _nearest_places(
                session,
                coord,
                rounding,
                n,
                n,
                {"sizes": np.array([1, 1, m, m + 1])},
                (m / n, (m + 1) / n),
            )


@pytest.mark.sampled(4)
@pytest.mark.parametrize("coord", range(4))
@pytest.mark.parametrize("rounding", range(4))
def test_nearest_places_of_scales(coord: int, rounding: int) -> None:
    """Scales that are not the ratios of the sizes, and such as leave one size or both as they
    are.
    """
    session = _places(coord, ROUNDINGS[rounding], 19, True)
    for w in range(1, 34, 3):
        for scale in np.array([0.3, 0.4999, 0.7, 1, 1.01, 1.04, 1.1, 1.3, 2.9], np.float32):
            for h, other in ((7, 1.0), (40, 0.6), (5, 1.15)):
                scales = (float(np.float32(other)), float(scale))
                if int(np.float32(w) * scale):
                    _nearest_places(
                        session,
                        coord,
                        rounding,
                        h,
                        w,
                        {"scales": np.array([1, 1, *scales], np.float32)},
                        scales,
                    )


@pytest.mark.parametrize("rounding", [0, 3])
def test_places_beside_a_half(rounding: int) -> None:
    """The second place is 0.5 or 1.5, or up to some units in the last place beside it: ONNX Runtime
    takes those within 1e-6 for a half.
    """
    session = _places(1, ROUNDINGS[rounding], 19, True)
    for half in (0.5, 1.5):
        for k in range(-40, 41):
            scale = float(np.float32(1 / (half + k * 2.0**-24)))
            _nearest_places(
                session,
                1,
                rounding,
                2,
                6,
                {"scales": np.array([1, 1, 1, scale], np.float32)},
                (1.0, scale),
            )


def test_nearest_places_of_operator_set_10() -> None:
    """What shrinks is rounded up, what grows is rounded down."""
    session = _places(1, "", 10, True)
    for w in range(1, 34):
        for scale in np.array([0.3, 0.5, 0.7, 1, 1.3, 2, 2.9], np.float32):
            scales = (0.6, float(scale))
            if int(np.float32(w) * scale):
                _nearest_places(
                    session, 1, 4, 12, w, {"scales": np.array([1, 1, *scales], np.float32)}, scales
                )


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("mode", [0, 1])
def test_scales_of_the_sizes(mode: int, isa: str) -> None:
    for shape, scales in (((2, 5, 8, 12), (1.5, 0.25)), ((1, 3, 9, 4), (2.0, 3.0))):
        got, expected = _resize(_random(4, *shape), scales, mode, 0, 1, isa, 1, told=False)
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
