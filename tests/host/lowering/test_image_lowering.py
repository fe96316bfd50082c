"""What convolutions and resizing of images become on CUDA."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.host.lowering.test_pooled import CUDA, Launch, Recorded
from tracea_onnx.compiler import partition_compiler, plan_writer
from tracea_onnx.ir.dims import evaluate
from tracea_onnx.ir.graph import Graph


def lowered(
    op: str,
    shape: tuple[Any, ...],
    inputs: dict[str, Any],
    *,
    dtype: Any = np.float16,
    opset: int = 21,
    **attrs: Any,
) -> list[Launch]:
    """Launches of one operator. inputs: its constant ones, or shapes of random ones; those whose
    names begin with "-" are not there.
    """
    element, rng = helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), np.random.default_rng(0)
    values = {
        k: v if isinstance(v, np.ndarray) else rng.standard_normal(v).astype(dtype)
        for k, v in inputs.items()
        if not k.startswith("-")
    }
    node = helper.make_node(op, ["x", *(k if k in values else "" for k in inputs)], ["y"], **attrs)
    infos = [
        helper.make_tensor_value_info("x", element, shape),
        helper.make_tensor_value_info("y", element, None),
    ]
    constants = [numpy_helper.from_array(v, k) for k, v in values.items()]
    return launches([node], infos, constants, opset)


def launches(
    nodes: list[NodeProto],
    infos: list[ValueInfoProto],
    constants: Sequence[TensorProto] = (),
    opset: int = 21,
) -> list[Launch]:
    """Launches of a graph, whose result is the last of `infos`."""
    graph = helper.make_graph(nodes, "g", infos[:-1], infos[-1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    seen: list[Launch] = []
    partition_compiler.compile_graph(
        Graph(model),
        plan_writer.Writer(CUDA, lambda name, probe: Recorded(name, [] if probe else seen)),
        everything=True,
    )
    return [launch for launch in seen if launch[0] != "nhwc_to_nchw"]


def convolution(op: str, weight: tuple[int, ...], **attrs: Any) -> str:
    """The family of a convolution of 12 channels."""
    return lowered(op, ("n", 12, 17, 19), {"w": weight}, **attrs)[-1][0]


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_depthwise(dtype: Any) -> None:
    assert convolution("Conv", (12, 1, 3, 3), group=12, dtype=dtype) == "conv2d_dw"
    assert convolution("Conv", (36, 1, 3, 3), group=12, dtype=dtype) == "conv2d_dw"
    assert convolution("Conv", (12, 2, 3, 3), group=6, dtype=dtype) == "conv2d"
    for outputs in (1, 2):
        assert (
            convolution("ConvTranspose", (12, outputs, 4, 4), group=12, strides=[2, 2], dtype=dtype)
            == "deconv2d_dw"
        )
    assert (
        convolution("ConvTranspose", (12, 1, 4, 4), group=12, dilations=[2, 2], dtype=dtype)
        == "deconv2d"
    )
    assert convolution("ConvTranspose", (12, 2, 4, 4), group=6, dtype=dtype) == "deconv2d"


@pytest.mark.parametrize("channels", [1, 3, 4, 5])
@pytest.mark.parametrize(("kernel", "stride"), [((7, 7), 2), ((3, 3), 1), ((9, 9), 1), ((1, 3), 3)])
def test_few_channels_of_f32_are_read_where_they_lie(
    channels: int, kernel: tuple[int, int], stride: int
) -> None:
    launches = lowered(
        "Conv",
        (1, channels, 63, 61),
        {"w": (8, channels, *kernel)},
        strides=[stride] * 2,
        dtype=np.float32,
    )
    assert [family for family, _ in launches] == ["nchw_to_nhwc"] * (channels > 4) + ["conv2d"]
    assert launches[-1][1]["x_cs"] == (1 if channels <= 4 else 8)


def test_few_channels_beyond_that_lie_close() -> None:
    image, conv = lowered("Conv", (1, 3, 63, 61), {"w": (8, 3, 21, 21)}, dtype=np.float32)
    assert (image[0], conv[0]) == ("nchw_to_nhwc", "conv2d") and image[1]["y_cs"] == conv[1][
        "x_cs"
    ] == 4


def test_lines_of_few_channels_are_read_where_they_lie() -> None:
    for dtype in (np.float32, np.float16):
        ((family, ints),) = lowered(
            "Conv", (1, 1, 16000), {"w": (64, 1, 10)}, strides=[5], dtype=dtype
        )
        assert family == "conv2d" and ints["x_cs"] == 1


def test_windows_that_tile_an_image_are_rows_of_a_product() -> None:
    for channels, kernel, dtype in (
        (3, 4, np.float16),
        (3, 16, np.float32),
        (1, 14, np.float16),
        (5, 3, np.float32),
    ):
        (_, copy), (family, ints) = lowered(
            "Conv",
            (1, channels, 84, 84),
            {"w": (8, channels, kernel, kernel)},
            strides=[kernel] * 2,
            dtype=dtype,
        )
        terms = channels * kernel * kernel
        assert (
            (family, ints["IC"], ints["KH"]) == ("conv2d", terms, 1)
            and ints["x_cs"] == -(-terms // 8) * 8
            and copy["elem"] == np.dtype(dtype).itemsize
        )
    # Few terms of f32 are multiplied where they lie.
    assert [
        family
        for family, _ in lowered(
            "Conv", (1, 3, 64, 64), {"w": (8, 3, 4, 4)}, strides=[4] * 2, dtype=np.float32
        )
    ] == ["conv2d"]


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("shape", [(2, 12, 17, 19), (2, 12, 19)])
def test_resizing(mode: str, shape: tuple[int, ...]) -> None:
    scales = {"-roi": None, "scales": np.array([1, 1, *(2 for _ in shape[2:])], np.float32)}
    sizes = {
        "-roi": None,
        "-scales": None,
        "sizes": np.array([*shape[:2], *(33 for _ in shape[2:])]),
    }
    for inputs, size in ((scales, (34, 38)), (sizes, (33, 33))):
        family, ints = lowered("Resize", shape, inputs, mode=mode)[-1]
        assert family == ("resize_cubic" if mode == "cubic" else "resize2d")
        assert (ints["OH"], ints["OW"]) == (size if len(shape) == 4 else (1, size[1]))


@pytest.mark.parametrize(
    ("op", "opset", "rounding"), [("Resize", 10, 4), ("Upsample", 9, 1), ("Resize", 11, 0)]
)
def test_rounding_of_older_operator_sets(op: str, opset: int, rounding: int) -> None:
    """ONNX Runtime rounds the places of operator set 10 down, and up where the image shrinks; an
    Upsample never shrinks one.
    """
    names = ["x", "roi", "scales"] if opset > 10 else ["x", "scales"]
    infos = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, d)
        for n, d in (("x", (1, 8, 4, 20)), ("y", None))
    ]
    scales = numpy_helper.from_array(np.array([1, 1, 1, 2], np.float32), "scales")
    roi = numpy_helper.from_array(np.array([], np.float32), "roi")
    (_, ints) = launches(
        [helper.make_node(op, names, ["y"], mode="nearest")], infos, [scales, roi], opset
    )[-1]
    assert ints["rounding"] == rounding


@pytest.mark.parametrize(("size", "scale"), [(20, 0.35), (40, 0.35), (10, 0.7), (100, 1.15)])
def test_resizing_multiplies_in_float32(size: int, scale: float) -> None:
    """The size of the result is ONNX Runtime's, which float64 often misses by one."""
    scales = np.array([1, 1, 1, scale], np.float32)
    infos = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, d)
        for n, d in (("x", (1, 8, 4, size)), ("y", None))
    ]
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="linear")
    graph = helper.make_graph(
        [node], "g", infos[:1], infos[1:], [numpy_helper.from_array(scales, "scales")]
    )
    m = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    session = ort.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"])
    width = session.run(None, {"x": np.zeros((1, 8, 4, size), np.float32)})[0].shape[3]
    _, ints = lowered("Resize", (1, 8, 4, size), {"-roi": None, "scales": scales}, mode="linear")[
        -1
    ]
    assert ints["OW"] == width


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_resizing_to_the_size_of_another_image(mode: str) -> None:
    """What segmentation models do whose images have any size."""
    infos = [
        helper.make_tensor_value_info(n, 1, d)
        for n, d in (("x", ("b", 8, "h", "w")), ("z", ("b", 3, "H", "W")), ("y", None))
    ]
    nodes = [
        helper.make_node("Shape", ["x"], ["front"], end=2),
        helper.make_node("Shape", ["z"], ["back"], start=2),
        helper.make_node("Concat", ["front", "back"], ["sizes"], axis=0),
        helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], mode=mode),
    ]  # fmt: skip
    (family, ints), *_ = [
        launch for launch in launches(nodes, infos) if launch[0].startswith("resize")
    ]
    assert (
        family == ("resize_cubic" if mode == "cubic" else "resize2d")
        and not isinstance(ints["OH"], int)
        and ints["OH"] != ints["IH"]
    )


@pytest.mark.parametrize(("scale", "height"), [(0.5, 8), (1.5, 25), (2.0, 34)])
def test_resizing_any_size_by_a_fraction(scale: float, height: int) -> None:
    _, ints = lowered(
        "Resize",
        (1, 8, "h", "w"),
        {"-roi": None, "scales": np.array([1, 1, scale, scale], np.float32)},
        mode="linear",
    )[-1]
    assert evaluate(ints["OH"], {"h": 17}) == height


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_space_to_depth(mode: str) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 6)).astype(np.float32)
    ((family, p),) = lowered(
        "SpaceToDepth", x.shape, {}, dtype=np.float32, opset=28, blocksize=2, mode=mode
    )
    assert family == "copy"
    sizes, source, target = (
        [int(evaluate(p[f"{name}{k}"], {})) for k in range(6)] for name in "nxy"
    )
    y = np.full(x.size, np.nan, np.float32)
    for place in np.ndindex(*sizes):
        y[np.dot(place, target)] = x.ravel()[np.dot(place, source)]
    node = helper.make_node("SpaceToDepth", ["x"], ["y"], blocksize=2, mode=mode)
    infos = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", x.shape), ("y", (2, 12, 2, 3)))
    ]
    model = helper.make_model(
        helper.make_graph([node], "g", infos[:1], infos[1:]),
        opset_imports=[helper.make_opsetid("", 28)],
    )
    want: Any = ReferenceEvaluator(model).run(None, {"x": x})
    np.testing.assert_array_equal(y.reshape(2, 12, 2, 3), want[0])
