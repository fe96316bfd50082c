"""Fourier transforms on the provider against `numpy.fft` in float64, and against ONNX Runtime where
it computes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.support.all_pairs import all_pairs
from tests.support.sessions import assigned, session

RNG = np.random.default_rng(0)


def _model(
    node: onnx.NodeProto, dims: Sequence[int | str], stored: dict[str, Any], opset: int
) -> onnx.ModelProto:
    graph = helper.make_graph(
        [node, helper.make_node("Neg", ["t"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in stored.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def _pairs(z: Any) -> Any:
    return np.stack([z.real, z.imag], -1)


def _complex(x: Any) -> Any:
    x = x.astype(np.float64)
    return x[..., 0] if x.shape[-1] == 1 else x[..., 0] + 1j * x[..., 1]


def _close(got: Any, want: Any, length: int) -> None:
    """Within the rounding of a sum of so many terms."""
    assert got.shape == want.shape and got.dtype == np.float32
    bound = 3e-7 * (length**0.5 + 4) * max(1.0, float(np.abs(want).max(initial=0.0)))
    np.testing.assert_allclose(got, want, rtol=0, atol=bound)


def _dft(x: Any, axis: int, length: int | None, *, inverse: bool, half: bool) -> Any:
    axis = axis + 1 if axis < 0 else axis  # of the complex array
    z = _complex(x)
    if half and inverse:
        return np.fft.irfft(z, length, axis)[..., None]
    return _pairs(
        (np.fft.ifft if inverse else np.fft.rfft if half else np.fft.fft)(z, length, axis)
    )


#: Shape of the signal, axis (None: none given), length.
SIGNALS: list[tuple[tuple[int, ...], int | None, int | None]] = [
    ((3, 16, 1), None, None), ((1, 7, 1), 1, None), ((3, 97, 1), 1, None), ((2, 1, 1), 1, None),
    ((2, 2, 1), 1, None), ((2, 3, 20, 1), -2, None), ((2, 15, 4, 1), 1, None),
    ((6, 5, 2, 1), 0, None), ((2, 20, 1), 1, 13), ((2, 20, 1), 1, 31), ((5, 1), 0, None),
    ((2, 400, 1), 1, None), ((2, 642, 1), 1, None), ((2, 2, 640, 3, 1), 2, None),
    ((3, 16, 2), None, None), ((3, 7, 2), 1, None), ((2, 3, 20, 2), -2, None),
    ((2, 15, 4, 2), 1, None), ((6, 5, 2, 2), 0, 9), ((2, 20, 2), 1, 13), ((2, 1, 2), 1, None),
    ((2, 20, 2), 1, 31), ((2, 251, 2), 1, None),
    # long enough for fast transforms on every axis, cropped and padded, with large prime factors
    ((2, 512, 1), 1, None), ((3, 1024, 2), 1, None), ((2, 625, 1), 1, None),
    ((1, 4096, 1), 1, None),
    ((2, 3, 400, 5, 2), 2, None), ((128, 7, 3, 1), 0, None), ((2, 300, 4, 1), 1, 512),
    ((2, 600, 1), 1, 480), ((2, 300, 2), 1, 512), ((2, 600, 3, 2), 1, 480), ((2, 1009, 1), 1, None),
    ((2, 502, 2), 1, None), ((1, 8192, 1), 1, None), ((1, 6007, 1), 1, None),
]  # fmt: skip


#: ONNX Runtime that refuses an inverse transform of one side.
_OLD_INFERENCE = tuple(map(int, ort.__version__.split(".")[:2])) < (1, 31)


@pytest.mark.parametrize(
    ("signal", "opset", "symbolic"), all_pairs(SIGNALS, [17, 20], [False, True]), ids=str
)
def test_dft(
    signal: tuple[tuple[int, ...], int | None, int | None], opset: int, symbolic: bool
) -> None:
    shape, axis, length = signal
    x = RNG.standard_normal(shape).astype(np.float32)
    for inverse, half in ((0, 0), (1, 0), (0, 1), (1, 1)):
        real = shape[-1] == 1
        if half and (real == bool(inverse) or (opset < 20 and inverse)):
            continue
        if half and inverse and _OLD_INFERENCE:
            continue
        if half and inverse and shape[(-2 if axis is None else axis)] == 1 and length is None:
            continue  # a length of 0
        names, stored = ["x", "", ""], dict[str, Any]()
        attrs: dict[str, Any] = {"inverse": inverse, "onesided": half}
        if length is not None:
            names[1], stored["n"] = "n", np.int64(length)
        if axis is not None and opset >= 20:
            names[2], stored["axis"] = "axis", np.int64(axis)
        elif axis is not None:
            attrs["axis"] = axis
        while not names[-1]:
            names.pop()
        at = (1 if opset < 20 else -2) if axis is None else axis
        dims = [
            n if not symbolic or k in (at % len(shape), len(shape) - 1) else f"d{k}"
            for k, n in enumerate(shape)
        ]
        model = _model(helper.make_node("DFT", names, ["t"], **attrs), dims, stored, opset)
        made = session(model, provider=True, everything=True)
        assert assigned(made) == (2, 2)
        want = -_dft(x, at, length, inverse=bool(inverse), half=bool(half))
        _close(made.run(None, {"x": x})[0], want, shape[at])


def test_dft_as_onnx_runtime() -> None:
    """A default axis, which depends on the opset."""
    x = RNG.standard_normal((2, 4, 6, 1)).astype(np.float32)
    for opset in (17, 20):
        model = _model(helper.make_node("DFT", ["x"], ["t"]), x.shape, {}, opset)
        made = session(model, provider=True, everything=True)
        assert assigned(made) == (2, 2)
        want = session(model).run(None, {"x": x})[0]
        np.testing.assert_allclose(made.run(None, {"x": x})[0], want, atol=1e-5)


def _stft(x: Any, step: int, length: int, window: Any, half: bool) -> Any:
    z = _complex(x)
    frames = np.lib.stride_tricks.sliding_window_view(z, length, axis=1)[:, ::step]
    frames = frames * (1.0 if window is None else window.astype(np.float64))
    return _pairs((np.fft.rfft if half else np.fft.fft)(frames))


#: Signal, step, length of frames (None: that of the window, or of the signal), window, one side.
FRAMES: list[tuple[tuple[int, ...], int, int | None, int | None, bool]] = [
    ((1, 100, 1), 8, 16, 16, True), ((3, 100, 1), 8, 16, None, True),
    ((3, 101, 1), 7, None, 13, True), ((2, 64, 1), 4, None, None, True),
    ((3, 100, 1), 8, 16, 16, False), ((3, 50, 2), 5, 11, 11, False),
    ((1, 50, 2), 5, 12, None, False), ((2, 40, 1), 3, 1, 1, True),
    ((1, 2000, 1), 160, 400, 400, True), ((3, 5000, 1), 512, 1031, 1031, True),
    ((3, 31, 1), 40, 31, 31, True), ((3, 3000, 1), 200, 800, 800, True),
    ((1, 3000, 1), 200, 802, None, True), ((2, 3000, 1), 128, 512, 512, True),
    ((1, 5000, 1), 256, 1024, 1024, True), ((1, 6000, 1), 512, 2048, None, False),
    ((2, 3000, 2), 100, 400, 400, False), ((1, 9000, 1), 1000, 4096, 4096, True),
]  # fmt: skip


@pytest.mark.parametrize("symbolic", [False, True], ids=["fixed", "symbolic"])
@pytest.mark.parametrize(
    ("shape", "step", "length", "window", "half"), FRAMES, ids=[str(f) for f in FRAMES]
)
def test_stft(
    shape: tuple[int, ...],
    step: int,
    length: int | None,
    window: int | None,
    half: bool,
    symbolic: bool,
) -> None:
    if symbolic and not length and not window:
        pytest.skip("a length of frames that only a run knows")
    x = RNG.standard_normal(shape).astype(np.float32)
    stored: dict[str, Any] = {"step": np.int64(step)}
    w = None
    if window:
        w = stored["w"] = (RNG.random(window) + 0.1).astype(np.float32)
    if length:
        stored["length"] = np.int64(length)
    names = ["x", "step", "w" if window else "", "length" if length else ""]
    while not names[-1]:
        names.pop()
    dims: Sequence[int | str] = ["batch", "samples", shape[-1]] if symbolic else shape
    node = helper.make_node("STFT", names, ["t"], onesided=int(half))
    model = _model(node, dims, stored, 17)
    made = session(model, provider=True, everything=True)
    assert assigned(made) == (2, 2)
    frame = length or window or shape[1]
    for batch in (shape[0], 1) if symbolic else shape[:1]:
        want = -_stft(x[:batch], step, frame, w, half)
        _close(made.run(None, {"x": x[:batch]})[0], want, frame)
    if symbolic:
        longer = RNG.standard_normal((2, shape[1] + 3 * step + 1, shape[2])).astype(np.float32)
        _close(made.run(None, {"x": longer})[0], -_stft(longer, step, frame, w, half), frame)


def test_a_signal_shorter_than_its_frames_fails() -> None:
    node = helper.make_node("STFT", ["x", "step", "", "length"], ["t"])
    model = _model(node, ["b", "n", 1], {"step": np.int64(2), "length": np.int64(8)}, 17)
    made = session(model, provider=True, everything=True)
    assert assigned(made) == (2, 2)
    with pytest.raises(Exception, match="signal of STFT"):
        made.run(None, {"x": np.zeros((1, 7, 1), np.float32)})


def test_transforms_of_one_side_say_what_numbers_have() -> None:
    x = RNG.standard_normal((2, 512, 1)).astype(np.float32)
    for name, names, want in (
        ("STFT", ["x", "step", "", "length"], _stft(x, 100, 64, None, True)),
        ("DFT", ["x"], _dft(x, 1, None, inverse=False, half=True)),
    ):
        node = helper.make_node(name, names, ["t"], onesided=1)
        stored = {"step": np.int64(100), "length": np.int64(64)} if name == "STFT" else {}
        made = session(_model(node, ["b", 512, "c"], stored, 17), provider=True, everything=True)
        assert assigned(made) == (2, 2)
        _close(made.run(None, {"x": x})[0], -want, 512)
        with pytest.raises(Exception, match="parts of the numbers"):
            made.run(None, {"x": np.concatenate([x, x], -1)})


@pytest.mark.parametrize("frame", [8, 400])
def test_a_window_of_the_run(frame: int) -> None:
    node = helper.make_node("STFT", ["x", "step", "w"], ["t"])
    model = _model(node, ["b", "n", 1], {"step": np.int64(3)}, 17)
    model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [frame]))
    made = session(model, provider=True, everything=True)
    assert assigned(made) == (2, 2)
    x = RNG.standard_normal((2, 500, 1)).astype(np.float32)
    for _ in range(2):
        w = RNG.standard_normal(frame).astype(np.float32)
        got = made.run(None, {"x": x, "w": w})[0]
        _close(got, -_stft(x, 3, frame, w, True), frame)


@pytest.mark.parametrize(
    ("op", "names", "dims", "stored"),
    [
        ("DFT", ["x"], ["b", "n", 1], {}),
        ("DFT", ["x"], ["b", 1 << 19, 1], {}),
        ("DFT", ["x"], ["b", 8, "c"], {}),
    ],
    ids=["a length of the run", "large tables", "unknown parts"],
)
def test_what_stays_with_onnx_runtime(
    op: str, names: list[str], dims: list[int | str], stored: dict[str, Any]
) -> None:
    model = _model(helper.make_node(op, names, ["t"], onesided=0), dims, stored, 17)
    made = session(model, provider=True, everything=True)
    assert assigned(made)[0] < 2
    x = RNG.standard_normal((2, dims[1] if isinstance(dims[1], int) else 8, 1)).astype(np.float32)
    want = session(model).run(None, {"x": x})[0]
    np.testing.assert_allclose(made.run(None, {"x": x})[0], want, atol=1e-2)
