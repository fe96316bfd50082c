"""Front ends of speech models run whole on the provider: log-mel spectra of Whisper and of Kaldi,
as exporters spell them, against float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, parser
from onnx.reference import ReferenceEvaluator

from tests.support.sessions import assigned, session

RNG = np.random.default_rng(0)
RATE = 16000

#: |STFT|^2 through ReduceL2, the last frame dropped; windows and mel weights are operators.
WHISPER = """
<ir_version: 9, opset_import: ["" : 18]>
whisper (float[batch, samples] audio) => (float[batch, bands, frames] y) {
  padded = Pad <mode = "reflect"> (audio, pads)
  signal = Unsqueeze (padded, last)
  w = HannWindow (n)
  s = STFT (signal, step, w, n)
  magnitude = ReduceL2 <keepdims = 0> (s, last)
  power = Mul (magnitude, magnitude)
  kept = Slice (power, zero, last, one)
  m = MelWeightMatrix (bands, n, rate, low, high)
  energies = MatMul (kept, m)
  turned = Transpose <perm = [0, 2, 1]> (energies)
  floored = Max (turned, tiny)
  natural = Log (floored)
  tenths = Mul (natural, to_tenths)
  top = ReduceMax <keepdims = 1> (tenths, all)
  least = Sub (top, eight)
  clipped = Max (tenths, least)
  moved = Add (clipped, four)
  y = Mul (moved, quarter)
}
"""

#: Frames by Gather; without their mean, with pre-emphasis, under a window, padded by the DFT.
KALDI = """
<ir_version: 9, opset_import: ["" : 20]>
kaldi (float[batch, samples] wave) => (float[batch, frames, bands] y) {
  frames_ = Gather <axis = 1> (wave, index)
  mean = ReduceMean <keepdims = 1> (frames_, last)
  centred = Sub (frames_, mean)
  first = Slice (centred, zero, one, two)
  others = Slice (centred, zero, last, two)
  before = Concat <axis = -1> (first, others)
  scaled = Mul (before, emphasis)
  emphasized = Sub (centred, scaled)
  hann = HannWindow <periodic = 0> (n)
  povey = Pow (hann, exponent)
  windowed = Mul (emphasized, povey)
  signal = Unsqueeze (windowed, last)
  s = DFT <onesided = 1> (signal, length)
  squared = Mul (s, s)
  power = ReduceSum <keepdims = 0> (squared, last)
  m = MelWeightMatrix (bands, length, rate, low, high)
  energies = MatMul (power, m)
  floored = Max (energies, tiny)
  y = Log (floored)
}
"""


def _model(text: str, **stored: Any) -> onnx.ModelProto:
    model: onnx.ModelProto = parser.parse_model(text)
    for name, v in stored.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(v), name))
    return model


def _numbers(*values: int) -> Any:
    return np.array(values, np.int64)


def _mel(bands: int, length: int, low: float, high: float) -> Any:
    """As the operator's reference implementation has it."""
    node = helper.make_node("MelWeightMatrix", list("abcde"), ["y"])
    values = (np.int64(bands), np.int64(length), np.int64(RATE), np.float32(low), np.float32(high))
    (found,) = ReferenceEvaluator(node).run(None, dict(zip("abcde", values, strict=True)))
    return np.asarray(found, np.float64)


def _check(model: onnx.ModelProto, name: str, x: Any, want: Any) -> None:
    made = session(model, provider=True)
    ran, nodes = assigned(made)
    assert ran == nodes > 0
    got = made.run(None, {name: x})[0]
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-4)


def whisper() -> onnx.ModelProto:
    return _model(
        WHISPER, pads=_numbers(0, 200, 0, 200), last=_numbers(-1), n=np.int64(400),
        step=np.int64(160), zero=_numbers(0), one=_numbers(1), bands=np.int64(80),
        rate=np.int64(RATE), low=np.float32(0), high=np.float32(8000), tiny=np.float32(1e-10),
        to_tenths=np.float32(1 / np.log(10)), all=_numbers(1, 2), eight=np.float32(8),
        four=np.float32(4), quarter=np.float32(0.25),
    )  # fmt: skip


@pytest.mark.parametrize("samples", [1600, 16123])
def test_whisper(samples: int) -> None:
    x = RNG.standard_normal((2, samples)).astype(np.float32)
    padded = np.pad(x.astype(np.float64), ((0, 0), (200, 200)), "reflect")
    window = np.hanning(401)[:-1]
    frames = np.lib.stride_tricks.sliding_window_view(padded, 400, 1)[:, ::160]
    power = np.abs(np.fft.rfft(frames * window)) ** 2
    energies = power[:, :-1] @ _mel(80, 400, 0, 8000)
    tenths = np.log10(np.maximum(energies.swapaxes(1, 2), 1e-10))
    want = (np.maximum(tenths, tenths.max((1, 2), keepdims=True) - 8) + 4) / 4
    _check(whisper(), "audio", x, want)


def test_a_signal_too_short_to_be_reflected_fails() -> None:
    made = session(whisper(), provider=True)
    with pytest.raises(Exception, match="axis 1 of what Pad"):
        made.run(None, {"audio": np.zeros((1, 200), np.float32)})


def test_kaldi() -> None:
    samples, length = 4000, 512
    index = np.arange(0, samples - 399, 160)[:, None] + np.arange(400)
    model = _model(
        KALDI, index=index, last=_numbers(-1), zero=_numbers(0), one=_numbers(1), two=_numbers(2),
        emphasis=np.float32(0.97), n=np.int64(400), exponent=np.float32(0.85),
        length=np.int64(length), bands=np.int64(40), rate=np.int64(RATE), low=np.float32(20),
        high=np.float32(7600), tiny=np.float32(1.2e-7),
    )  # fmt: skip
    x = (RNG.standard_normal((3, samples)) * 100).astype(np.float32)
    frames = x.astype(np.float64)[:, index]
    frames = frames - frames.mean(-1, keepdims=True)
    before = np.concatenate([frames[..., :1], frames[..., :-1]], -1)
    windowed = (frames - 0.97 * before) * np.hanning(400) ** 0.85
    power = np.abs(np.fft.rfft(windowed, length)) ** 2
    want = np.log(np.maximum(power @ _mel(40, length, 20, 7600), 1.2e-7))
    _check(model, "wave", x, want)
