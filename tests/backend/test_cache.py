"""`attention` over a cache with lengths, against float64, and `cache_write` against numpy, on every
instruction set of this machine.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tracea_onnx.errors import TraceaError
from tracea_onnx.ir.abi import DType
from tracea_onnx.runtime.native_library import aligned, isas, run_kernel

Array = np.ndarray[Any, Any]


def _placed(x: Array) -> Array:
    out = aligned(x.shape, x.dtype)
    out[...] = x
    return out


def _normal(seed: int, *shape: int) -> Array:
    return _placed(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def _lengths(values: list[int], dtype: DType) -> Array:
    return _placed(np.array(values, np.int32 if dtype == DType.I32 else np.int64))


def _reference(
    q: Array, k: Array, v: Array, n: list[int], *, causal: int, clamp: int, window: int,
    sinks: Array | None, bias: Array | None, cap: float,
) -> Array:  # fmt: skip
    """q [B, S, H, D]; k, v [B, KVH, T, D] of which row b has n[b]."""
    (b, s, h, _), group = q.shape, q.shape[2] // k.shape[1]
    y = np.zeros((b, s, h, v.shape[3]))
    for i, j, row in np.ndindex(b, h, s):
        past = max(0, n[i] - s) if clamp else n[i] - s
        end = min(max(0, row + past + 1), k.shape[2]) if causal else n[i]
        first = max(0, end - window) if window else 0
        keys, values = (x[i, j // group, first:end].astype(np.float64) for x in (k, v))
        scores = keys @ q[i, row, j].astype(np.float64) * 0.125
        scores = cap * np.tanh(scores / cap) if cap else scores
        scores = scores if bias is None else scores + bias[row, first:end]
        extra = [] if sinks is None else [sinks[j]]
        top = max([*scores, *extra], default=0.0)
        weights = np.exp(scores - top)
        total = weights.sum() + sum(np.exp(e - top) for e in extra)
        y[i, row, j] = weights @ values / total if total else 0.0
    return y


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize(("heads", "s", "room", "n"), [
    ((1, 1), 1, 1, [1]), ((4, 2), 1, 37, [37, 5]), ((8, 1), 1, 600, [599]), ((2, 2), 3, 31, [20]),
    ((6, 3), 7, 31, [7, 3]), ((3, 1), 40, 523, [522]), ((2, 1), 300, 310, [300, 290]),
])  # fmt: skip
@pytest.mark.parametrize(("form", "size"), [
    ("plain", 17), ("window", 16), ("sink", 9), ("smooth", 64), ("both ways", 7), ("capped", 33),
])  # fmt: skip
def test_attention_over_a_cache(
    isa: str, heads: tuple[int, int], s: int, room: int, n: list[int], form: str, size: int
) -> None:
    h, kv = heads
    b, window = len(n), 19 if form in ("window", "capped") else 0
    q, k, v = _normal(1, b, s, h, size), _normal(2, b, kv, room, size), _normal(3, b, kv, room, 11)
    for i in range(b):  # behind a row's last key lies what no one may read
        k[i, :, max(n[i], s) :], v[i, :, max(n[i], s) :] = np.nan, np.nan
    y = aligned((b, s, h, 11))
    y.fill(np.nan)
    wide = DType.I64 if form == "window" else DType.I32
    clamp, causal = int(form != "both ways"), int(form != "both ways")
    sinks = _normal(4, h) if form == "sink" else None
    bias = _normal(5, s, room) if form == "capped" else None
    ints = {
        "B": b, "H": h, "KVH": kv, "S": s, "T": room, "D": size, "DV": 11,
        "q_b": s * h * size, "q_s": h * size, "q_h": size,
        "k_b": kv * room * size, "k_s": size, "k_h": room * size,
        "v_b": kv * room * 11, "v_s": 11, "v_h": room * 11,
        "y_b": s * h * 11, "y_s": h * 11, "y_h": 11, "m_q": room, "m_k": 1,
        "mask_kind": int(bias is not None), "causal": causal, "clamp": clamp, "window": window,
        "lens_dtype": int(wide), "lens_add": 1, "smooth": int(form == "smooth"), "nan_to_zero": 2,
    }  # fmt: skip
    cap = 0.8 if form == "capped" else 0.0
    lens = _lengths([x - 1 for x in n], wide)
    operands = {"q": q, "k": k, "v": v, "lens": lens, "sink": sinks, "mask": bias, "y": y}
    want = _reference(
        q, k, v, n, causal=causal, clamp=clamp, window=window, bias=bias, cap=cap,
        sinks=np.zeros(h) if form == "smooth" else sinks,
    )  # fmt: skip
    for threads in (1, 5):
        run_kernel("attention", operands, ints, {"scale": 0.125, "softcap": cap}, isa=isa,
                   threads=threads)  # fmt: skip
        np.testing.assert_allclose(y, want, rtol=2e-5, atol=2e-6)
    for bad in (-2, room):
        lens[0] = bad
        with pytest.raises(TraceaError, match="bad data"):
            run_kernel("attention", operands, ints, {"scale": 0.125}, isa=isa)


@pytest.mark.parametrize("isa", isas())
def test_queries_before_every_key_see_nothing(isa: str) -> None:
    q, k, v, y = (_normal(i, 1, 5, 1, 8) for i in range(4))
    ints = {
        "B": 1, "H": 1, "KVH": 1, "S": 5, "T": 5, "D": 8, "DV": 8, "q_s": 8, "k_s": 8, "v_s": 8,
        "y_s": 8, "causal": 1, "nan_to_zero": 2, "lens_dtype": int(DType.I64),
    }  # fmt: skip
    lens = _lengths([2], DType.I64)
    run_kernel("attention", {"q": q, "k": k, "v": v, "lens": lens, "y": y}, ints, {"scale": 0.125},
               isa=isa)  # fmt: skip
    k, v = (x.transpose(0, 2, 1, 3) for x in (k, v))
    want = _reference(q, k, v, [2], causal=1, clamp=0, window=0, sinks=None, bias=None, cap=0)
    np.testing.assert_allclose(y, want, rtol=2e-5, atol=2e-6)
    assert not y[0, :3].any() and y[0, 3:].all()


@pytest.mark.parametrize("isa", isas()[:1])
@pytest.mark.parametrize("elem", [1, 2, 4, 8])
@pytest.mark.parametrize(("keep", "circular"), [(0, 0), (1, 0), (1, 1)])
@pytest.mark.parametrize("shared", [False, True])
def test_writing(isa: str, elem: int, keep: int, circular: int, shared: bool) -> None:
    b, h, s, room, d = 3, 2, 4, 11, 5
    p = room if keep or shared else 8
    rng, kind = np.random.default_rng(elem), np.dtype(f"u{elem}")
    past, x = (_placed(rng.integers(1, 99, n).astype(kind)) for n in ((b, h, p, d), (b, s, h, d)))
    y = past if shared else _placed(np.full((b, h, room, d), 123, kind))
    at = [7, 0, 9 if circular else 5]
    want = np.zeros((b, h, room, d), kind)
    for i, start in enumerate(at):
        held = p if keep or shared else start
        want[i, :, :held] = past[i, :, :held]
        for j in range(s):
            want[i, :, (start + j) % room] = x[i, j]
    ints = {
        "elem": elem, "B": b, "H": h, "S": s, "P": p, "T": room, "D": d, "x_b": s * h * d,
        "x_s": h * d, "x_h": d, "at_dtype": int(DType.I32), "at_add": -3, "keep": keep,
        "circular": circular,
    }  # fmt: skip
    places = _lengths([start + 3 for start in at], DType.I32)
    places[1] = 1  # before the first row is at it
    operands = {"past": past, "x": x, "at": places, "y": y}
    for threads in (1, 2):
        run_kernel("cache_write", operands, ints, isa=isa, threads=threads)
        np.testing.assert_array_equal(y, want)
    places[0] = -1
    with pytest.raises(TraceaError, match="bad data"):
        run_kernel("cache_write", operands, ints, isa=isa)
    places[0] = 12
    if circular:
        return
    with pytest.raises(TraceaError, match="bad data"):
        run_kernel("cache_write", operands, ints, isa=isa)
