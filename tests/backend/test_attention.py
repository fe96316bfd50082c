"""`attention` against softmax(scale q k^T + mask) v in float64, on every instruction set of this
machine.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tracea_onnx.runtime.native_library import aligned, isas, kernel_tasks, run_kernel

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]


def _random(seed: int, *shape: int) -> F32:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _reference(
    q: F32,
    k: F32,
    v: F32,
    scale: float,
    mask: npt.NDArray[Any] | None,
    causal: bool,
    past: int,
    cap: float = 0.0,
) -> F64:
    """q [B, S, H, D], k [B, T, KVH, D], v [B, T, KVH, DV]; rows without a key are zeros for a bool
    mask, NaN for an additive one.
    """
    group = q.shape[2] // k.shape[2]
    k64, v64 = np.repeat(k.astype(np.float64), group, 2), np.repeat(v.astype(np.float64), group, 2)
    scores = scale * np.einsum("bshd,bthd->bhst", q.astype(np.float64), k64)
    if cap:
        scores = cap * np.tanh(scores / cap)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == np.bool_ else scores + mask
    if causal:
        s, t = np.ogrid[: q.shape[1], : k.shape[1]]
        scores = np.where(t <= s + past, scores, -np.inf)
    with np.errstate(invalid="ignore"):
        p = np.exp(scores - scores.max(-1, keepdims=True, initial=-np.inf))
        p = p / p.sum(-1, keepdims=True)
    if mask is None or mask.dtype == np.bool_:
        p = np.where(np.isneginf(scores).all(-1, keepdims=True), 0.0, p)
    return np.asarray(np.einsum("bhst,bthd->bshd", p, v64))


def _attention(
    q: F32,
    k: F32,
    v: F32,
    isa: str,
    *,
    scale: float = 0.125,
    mask: npt.NDArray[Any] | None = None,
    causal: bool = False,
    past: int = 0,
    threads: int = 1,
    cap: float = 0.0,
) -> F32:
    """q, k, v may be views of one packed projection; mask is any broadcast view of [B, H, S, T]."""
    (b, s, h, d), (t, kv, dv) = q.shape, (k.shape[1], k.shape[2], v.shape[3])
    y = aligned((b, s, h, dv + 1))
    y.fill(np.nan)
    ints = {
        "B": b,
        "H": h,
        "KVH": kv,
        "S": s,
        "T": t,
        "D": d,
        "DV": dv,
        "causal": int(causal),
        "past": past,
    }
    for name, x in (("q", q), ("k", k), ("v", v), ("y", y)):
        ints |= {f"{name}_{axis}": x.strides[i] // 4 for i, axis in ((0, "b"), (1, "s"), (2, "h"))}
    if mask is not None:
        ints |= {
            "mask_kind": 2 if mask.dtype == np.bool_ else 1,
            **{f"m_{a}": n // mask.itemsize for a, n in zip("bhqk", mask.strides, strict=True)},
        }
    operands = {
        "q": _operand(q),
        "k": _operand(k),
        "v": _operand(v),
        "mask": None if mask is None else _operand(mask),
        "y": y,
    }
    if mask is not None and mask.dtype == np.bool_:
        ints["nan_to_zero"] = 1
    run_kernel(
        "attention",
        operands,
        ints,
        {"scale": scale, "fill": -np.inf, "softcap": cap},
        isa=isa,
        threads=threads,
    )
    assert np.isnan(y[..., dv:]).all(), "wrote past a row's end"
    return y[..., :dv]


def _operand(view: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], int]:
    base = view
    while (
        not base.flags.c_contiguous
        or base.size == 0
        or (
            isinstance(base.base, np.ndarray)
            and base.base.dtype == base.dtype
            and base.base.ndim > 1
        )
    ):
        if not isinstance(base.base, np.ndarray):
            break
        base = base.base
    return base, (view.ctypes.data - base.ctypes.data) // view.itemsize


def _check(y: F32, want: F64) -> None:
    assert y.shape == want.shape
    np.testing.assert_array_equal(np.isnan(y), np.isnan(want))
    np.testing.assert_allclose(y, want, rtol=2e-5, atol=2e-6)


SHAPES = [  # B, H, KVH, S, T, D, DV
    (1, 1, 1, 1, 1, 1, 1), (2, 3, 3, 5, 7, 8, 8), (1, 2, 2, 14, 32, 32, 32),
    (1, 2, 1, 15, 33, 17, 35), (2, 4, 2, 3, 65, 64, 64), (1, 1, 1, 29, 257, 31, 1),
    (1, 8, 1, 1, 130, 64, 64), (1, 2, 2, 37, 300, 80, 48), (1, 1, 1, 3, 511, 256, 256),
    (2, 3, 3, 1, 600, 64, 64), (1, 2, 1, 1, 33, 20, 150), (1, 2, 2, 2, 259, 7, 9),
]  # fmt: skip


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_shapes(isa: str, shape: tuple[int, ...], causal: bool) -> None:
    b, h, kv, s, t, d, dv = shape
    q, k, v = _random(1, b, s, h, d), _random(2, b, t, kv, d), _random(3, b, t, kv, dv)
    scale, past = d**-0.5, max(0, t - s)
    for threads in (1, 5):
        _check(
            _attention(q, k, v, isa, scale=scale, causal=causal, past=past, threads=threads),
            _reference(q, k, v, scale, None, causal, past),
        )


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize(
    "shape",
    [(2, 4, 2, 21, 300, 24, 40), (1, 2, 2, 2, 259, 17, 9), (1, 2, 1, 1, 700, 64, 64)],
    ids=str,
)
@pytest.mark.parametrize("cap", [0.5, 2.0, 50.0])
def test_capped_scores(isa: str, shape: tuple[int, ...], cap: float) -> None:
    b, h, kv, s, t, d, dv = shape
    q, k, v, mask = (
        3 * _random(1, b, s, h, d),
        _random(2, b, t, kv, d),
        _random(3, b, t, kv, dv),
        _random(4, b, h, s, t),
    )
    for m, causal in ((None, True), (mask, False)):
        _check(
            _attention(q, k, v, isa, mask=m, causal=causal, past=t - s, cap=cap),
            _reference(q, k, v, 0.125, m, causal, t - s, cap),
        )


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("threads", [1, 3])
def test_many_keys(isa: str, causal: bool, threads: int) -> None:
    """Several super-blocks of packed keys; scores grow along the keys, so the running maximum
    changes in every block.
    """
    q, k, v = _random(1, 1, 270, 1, 64), _random(2, 1, 3001, 1, 64), _random(3, 1, 3001, 1, 40)
    q[..., 0] = 1.0
    k[..., 0] += np.linspace(0, 60, 3001, dtype=np.float32)[None, :, None]
    y = _attention(q, k, v, isa, causal=causal, past=2700, threads=threads)
    _check(y, _reference(q, k, v, 0.125, None, causal, 2700))


@pytest.mark.parametrize("isa", isas())
def test_causal_without_past(isa: str) -> None:
    for s, t in ((45, 45), (600, 600), (20, 7)):
        q, k, v = _random(1, 1, s, 2, 16), _random(2, 1, t, 2, 16), _random(3, 1, t, 2, 16)
        _check(_attention(q, k, v, isa, causal=True), _reference(q, k, v, 0.125, None, True, 0))


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize(
    "dims",
    [(2, 3, 21, 50), (1, 1, 21, 50), (2, 1, 1, 50), (1, 3, 21, 1), (1, 1, 1, 1), (2, 1, 21, 50)],
    ids=str,
)
@pytest.mark.parametrize("kind", ["add", "bool"])
def test_masks_broadcast(isa: str, dims: tuple[int, ...], kind: str) -> None:
    q, k, v = _random(1, 2, 21, 3, 24), _random(2, 2, 50, 3, 24), _random(3, 2, 50, 3, 24)
    mask: npt.NDArray[Any] = _random(4, *dims)
    if kind == "bool":
        mask = mask > -0.5
        mask[..., 0] = True
    full = np.broadcast_to(mask, (2, 3, 21, 50))
    _check(_attention(q, k, v, isa, mask=full), _reference(q, k, v, 0.125, full, False, 0))


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("kind", ["add", "bool"])
def test_mask_with_spread_keys(isa: str, kind: str) -> None:
    q, k, v = _random(1, 1, 9, 2, 16), _random(2, 1, 45, 2, 16), _random(3, 1, 45, 2, 16)
    stored = _random(4, 45, 9)
    mask = np.broadcast_to((stored > 0 if kind == "bool" else stored).T, (1, 2, 9, 45))
    _check(_attention(q, k, v, isa, mask=mask), _reference(q, k, v, 0.125, mask, False, 0))


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("kind", ["add", "bool"])
@pytest.mark.parametrize("t", [40, 600, 3000])
@pytest.mark.parametrize("few", [False, True])
def test_rows_and_blocks_without_a_key(isa: str, kind: str, t: int, few: bool) -> None:
    q, k, v = _random(1, 1, 18, 1, 64), _random(2, 1, t, 1, 64), _random(3, 1, t, 1, 64)
    keep = np.zeros((1, 1, 18, t), bool)
    keep[0, 0, 0], keep[0, 0, 1, -1], keep[0, 0, 2, 3], keep[0, 0, 3, t // 2] = (
        True,
        True,
        True,
        True,
    )
    if few:  # no more rows than the path without packing takes
        q, keep = q[:, 3:5], keep[:, :, 3:5]
    mask = keep if kind == "bool" else np.where(keep, 0, -np.inf).astype(np.float32)
    y, want = _attention(q, k, v, isa, mask=mask), _reference(q, k, v, 0.125, mask, False, 0)
    assert np.isnan(want[0, -1]).all() == (kind == "add")
    _check(y, want)


@pytest.mark.parametrize("isa", isas())
def test_large_finite_masks_and_nan(isa: str) -> None:
    q, k, v = _random(1, 1, 16, 1, 64), _random(2, 1, 70, 1, 64), _random(3, 1, 70, 1, 64)
    mask = np.zeros((1, 1, 16, 70), np.float32)
    mask[..., 30:] = np.finfo(np.float32).min
    _check(_attention(q, k, v, isa, mask=mask), _reference(q, k, v, 0.125, mask, False, 0))
    q[0, 5, 0, 7] = np.nan
    _check(_attention(q, k, v, isa), _reference(q, k, v, 0.125, None, False, 0))


@pytest.mark.parametrize("isa", isas())
def test_packed_projections(isa: str) -> None:
    """q, k, v straight from [B, S, 3, H, D] and [B, S, H, 3, D] projections."""
    third = _random(1, 2, 33, 3, 4, 32)
    _check(
        _attention(third[:, :, 0], third[:, :, 1], third[:, :, 2], isa),
        _reference(third[:, :, 0], third[:, :, 1], third[:, :, 2], 0.125, None, False, 0),
    )
    inner = _random(2, 2, 33, 4, 3, 32)
    q, k, v = (inner[:, :, :, i] for i in range(3))
    _check(_attention(q, k, v, isa), _reference(q, k, v, 0.125, None, False, 0))


@pytest.mark.parametrize("isa", isas())
def test_empty(isa: str) -> None:
    empty = aligned(1)
    for axis in ("B", "S", "DV"):
        ints = {"B": 2, "H": 2, "KVH": 2, "S": 3, "T": 3, "D": 4, "DV": 4, axis: 0}
        assert (
            kernel_tasks(
                "attention", {"q": empty, "k": empty, "v": empty, "y": empty}, ints, isa=isa
            )
            == 0
        )
    y = _attention(_random(1, 1, 4, 2, 8), aligned((1, 0, 2, 8)), aligned((1, 0, 2, 8)), isa)
    np.testing.assert_array_equal(y, np.zeros_like(y))


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("kind", [2, 3])
@pytest.mark.parametrize("fill", [-1e4, -3.4028234663852886e38, -np.inf])
@pytest.mark.parametrize("shape", [(1, 5), (3, 33), (17, 70)])
def test_boolean_mask_writes_its_fill(
    isa: str, kind: int, fill: float, shape: tuple[int, int]
) -> None:
    s, t = shape
    rng = np.random.default_rng(s * t + kind)
    q, k, v = (aligned((1, n, 2, 16)) for n in (s, t, t))
    for x in (q, k, v):
        x[:] = rng.standard_normal(x.shape)
    keep = rng.random((1, 1, s, t)) < 0.7
    keep[0, 0, 0] = False  # a row that masks every key: softmax of equal fills, or NaN for -inf
    y = aligned((1, s, 2, 16))
    y.fill(np.nan)
    ints = {
        "B": 1,
        "H": 2,
        "KVH": 2,
        "S": s,
        "T": t,
        "D": 16,
        "DV": 16,
        "mask_kind": kind,
        "m_q": t,
        "m_k": 1,
    }
    for name, n in (("q", s), ("k", t), ("v", t), ("y", s)):
        ints |= {f"{name}_b": n * 32, f"{name}_s": 32, f"{name}_h": 16}
    mask = np.ascontiguousarray(keep if kind == 2 else ~keep)
    run_kernel(
        "attention",
        {"q": q, "k": k, "v": v, "mask": mask, "y": y},
        ints,
        {"scale": 0.25, "fill": fill},
        isa=isa,
    )
    scores = np.where(
        keep, 0.25 * np.einsum("bshd,bthd->bhst", q.astype(np.float64), k.astype(np.float64)), fill
    )
    with np.errstate(invalid="ignore"):
        e = np.exp(scores - scores.max(-1, keepdims=True))
        want = np.einsum("bhst,bthd->bshd", e / e.sum(-1, keepdims=True), v.astype(np.float64))
    _check(y, want)
