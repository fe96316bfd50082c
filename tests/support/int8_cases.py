"""Products of 8-bit integers (`gemm_int8`, `conv2d_int8`, `conv2d_int8_dw`) with operands and what
exact integers and float64 say of the results, for any backend.

Scales are powers of two where results are compared bit by bit: then f32 is exact, and ties are
frequent. Outputs are filled with a pattern before each run, which must stay between the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from ml_dtypes import bfloat16
from scipy.special import erf

from tracea_onnx.ir.abi import ACTIVATIONS, DType
from tracea_onnx.plan.kernel_families import FAMILIES
from tracea_onnx.runtime.native_library import aligned

Array = npt.NDArray[Any]
NUMPY: dict[DType, np.dtype[Any]] = {
    DType.U8: np.dtype(np.uint8), DType.I8: np.dtype(np.int8), DType.F32: np.dtype(np.float32),
    DType.I32: np.dtype(np.int32), DType.F16: np.dtype(np.float16),
    DType.BF16: np.dtype(bfloat16),
}  # fmt: skip
U8, I8, F32, I32, F16, BF16 = (
    DType.U8, DType.I8, DType.F32, DType.I32, DType.F16, DType.BF16,
)  # fmt: skip
#: Activations without a special function.
_EXACT = ("none", "relu", "clip")
#: Half a unit in the last place of the floats of results, of 1.
ROUNDING = {F32: 0.0, F16: 2.0**-11, BF16: 2.0**-8}


def some_bytes(rng: np.random.Generator, dtype: DType, *shape: int) -> Array:
    info = np.iinfo(NUMPY[dtype])
    return rng.integers(info.min, info.max + 1, shape, dtype=NUMPY[dtype])


def _power(rng: np.random.Generator, low: int, high: int, *shape: int) -> Array:
    return np.exp2(rng.integers(low, high + 1, shape)).astype(np.float32)


@dataclass(frozen=True)
class Case:
    """Sizes as of the family (a product is a convolution of [1, 1, M, K]), types, and what else the
    launch has. w_scales, w_zeros: one for each column, else one. w_zero: "none", "same" or "each".
    """

    kind: str = "gemm_int8"
    n: int = 1
    h: int = 1
    w: int = 1
    ic: int = 1
    oc: int = 1
    k: tuple[int, int] = (1, 1)
    s: tuple[int, int] = (1, 1)
    d: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    g: int = 1
    x: DType = U8
    wt: DType = I8
    y: DType = U8
    x_zero: bool = True
    each_scale: bool = True
    w_zero: str = "none"
    bias: bool = True
    res: DType | None = None
    mode: int = 0
    middle: DType | None = None
    act: str = "none"
    exact: bool = True
    spread: int = 0  # added to pitches
    threads: int = 1

    @property
    def bits(self) -> bool:
        """Whether f32 holds all on the way to 8 bits exactly."""
        return self.exact and self.act in _EXACT

    @property
    def floats(self) -> DType:
        """What the launch's floats are."""
        return self.y if self.y in (F16, BF16) else F32

    @property
    def out(self) -> tuple[int, int]:
        """Height and width of the result."""
        return tuple(
            (size + self.pads[a] + self.pads[a + 2] - (self.k[a] - 1) * self.d[a] - 1)
            // self.s[a] + 1
            for a, size in enumerate((self.h, self.w))
        )  # type: ignore[return-value]  # fmt: skip


def gemm(m: int, n: int, k: int, **more: Any) -> Case:
    return Case("gemm_int8", w=m, ic=k, oc=n, **more)


def _sums(case: Case, x: Array, w: Array, x_zero: int, w_zero: Array) -> Array:
    """In int64, [N, OH, OW, OC]; w is [OC, IC / G, KH, KW]. They are summed in float64, which holds
    every sum of fewer than 2^53 / 255^2 products exactly, and which NumPy has a fast product of.
    """
    assert np.prod(w.shape[1:]) < 2**53 // 255**2
    (top, left, bottom, right), (oh, ow) = case.pads, case.out
    wide = np.pad(x.astype(np.float64) - x_zero, ((0, 0), (top, bottom), (left, right), (0, 0)))
    filters = w.astype(np.float64) - w_zero.astype(np.float64).reshape(-1, 1, 1, 1)
    out = np.zeros((case.n, oh, ow, case.oc), np.float64)
    icg, ocg = case.ic // case.g, case.oc // case.g
    for i in range(case.k[0]):
        for j in range(case.k[1]):
            a, b = i * case.d[0], j * case.d[1]
            seen = wide[
                :, a : a + (oh - 1) * case.s[0] + 1 : case.s[0],
                b : b + (ow - 1) * case.s[1] + 1 : case.s[1],
            ]  # fmt: skip
            for q in range(case.g):
                out[..., q * ocg : (q + 1) * ocg] += (
                    seen[..., q * icg : (q + 1) * icg] @ filters[q * ocg : (q + 1) * ocg, :, i, j].T
                )
    return out.astype(np.int64).astype(np.int32).astype(np.int64)


def _quantise(v: Array, scale: Array, zero: Array, dtype: DType) -> Array:
    info = np.iinfo(NUMPY[dtype])
    return np.asarray(np.clip(np.rint(v / float(scale[0])) + int(zero[0]), info.min, info.max))


def _activate(name: str, v: Array) -> Array:
    if name == "silu":
        with np.errstate(over="ignore"):
            return np.asarray(v / (1 + np.exp(-v)))
    if name == "gelu_erf":
        return np.asarray(v * 0.5 * (1 + erf(v / np.sqrt(2))))
    low, high = {"none": (-np.inf, np.inf), "relu": (0, np.inf), "clip": (-2, 3)}[name]
    return np.clip(v, low, high)


def _strided(shape: tuple[int, ...], pitch: int, dtype: DType, fill: int) -> tuple[Array, Array]:
    """A buffer of pixels `pitch` elements apart, and the view of `shape` of it."""
    rows = int(np.prod(shape[:-1]))
    buffer = aligned((rows, pitch), NUMPY[dtype])
    buffer.view(np.uint8).fill(fill)
    return buffer, buffer[:, : shape[-1]]


@dataclass(frozen=True)
class Problem:
    """A launch, but for `w`: weight is [OC, IC / G, KH, KW], y the place of the result (rows of
    `pitch` elements), want what becomes of it: in units of y's scale, where it has 8 bits.
    """

    case: Case
    ints: Mapping[str, int]
    floats: Mapping[str, float]
    operands: Mapping[str, Array | None]
    weight: Array
    y: Array
    want: Array
    sums: Array

    def results(self) -> tuple[Array, Array | float]:
        """What y must hold, and how far it may be off."""
        case = self.case
        if case.y == I32:
            return self.sums, 0.0
        if case.y in ROUNDING:
            slack = (1e-5 + ROUNDING[case.y]) * np.abs(self.want)
            if case.act not in _EXACT:  # as accurate as the type, of the largest value involved
                slack += ROUNDING[case.y] * np.abs(self.want).max(initial=0)
            return self.want, slack + (1e-6 if case.exact else 1e-5)
        y_scale, y_zero = self.operands["y_scale"], self.operands["y_zero"]
        assert y_scale is not None and y_zero is not None
        # one off is right only where f32 cannot tell on which side of a tie the value lies
        at = self.want / float(y_scale[0])
        tie = np.abs(at - np.floor(at) - 0.5) < 1e-4 * (1 + np.abs(at))
        return _quantise(self.want, y_scale, y_zero, case.y), 0.0 if case.bits else tie * 1.0

    def judge(self) -> None:
        """Raises AssertionError."""
        want, slack = self.results()
        columns = want.shape[-1]
        assert (self.y[:, columns:].view(np.uint8) == 0x5A).all(), "wrote past the row's end"
        off = np.abs(self.y[:, :columns].astype(np.float64).reshape(want.shape) - want)
        assert (off <= slack).all(), f"{int((off > slack).sum())} results are off by {off.max()}"


def problem(case: Case, seed: int = 0) -> Problem:
    """Random operands, and what they give."""
    rng = np.random.default_rng(seed)
    oh, ow = case.out
    x, w = (
        some_bytes(rng, case.x, case.n, case.h, case.w, case.ic),
        some_bytes(rng, case.wt, case.oc, case.ic // case.g, *case.k),
    )
    columns = case.oc if case.each_scale else 1
    x_zero = some_bytes(rng, case.x, 1) if case.x_zero else None
    w_zero = None
    if case.w_zero != "none":
        w_zero = some_bytes(rng, case.wt, case.oc if case.w_zero == "each" else 1)
    terms = max(case.ic // case.g * case.k[0] * case.k[1], 1)
    exponent = -int(np.ceil(np.log2(terms) / 2))
    scales = {
        "x_scale": _power(rng, -3, -3, 1),
        "w_scale": _power(rng, exponent - 9, exponent - 7, columns),
        "y_scale": _power(rng, -4, -3, 1), "r_scale": _power(rng, -5, -4, 1),
        "m_scale": _power(rng, -5, -4, 1),
    }  # fmt: skip
    if not case.exact:
        scales = {k: (v * rng.uniform(0.6, 1.4, v.shape)).astype(np.float32)
                  for k, v in scales.items()}  # fmt: skip
    bias = (rng.integers(-64, 64, case.oc) / 32).astype(np.float32) if case.bias else None
    y_zero = some_bytes(rng, case.y, 1) if case.y in (U8, I8) else None
    m_zero = None if case.middle is None else some_bytes(rng, case.middle, 1)
    r_zero = None
    if case.res is not None and case.res in (U8, I8):
        r_zero = some_bytes(rng, case.res, 1)

    sums = _sums(case, x, w, int(x_zero[0]) if x_zero is not None else 0,
                 w_zero if w_zero is not None else np.zeros(1, np.int64))  # fmt: skip
    v = sums * (np.float64(scales["x_scale"][0]) * scales["w_scale"].astype(np.float64))
    v = v + (bias if bias is not None else 0)
    if case.middle is not None:
        assert m_zero is not None
        v = (_quantise(v, scales["m_scale"], m_zero, case.middle) - int(m_zero[0])) * float(
            scales["m_scale"][0]
        )
    shape = (case.n, oh, ow, case.oc)
    res = r = None
    if case.res is not None:
        res, view = _strided(shape, case.oc + 2 * case.spread, case.res, 0)
        view[:] = (
            some_bytes(rng, case.res, *view.shape) if case.res in (U8, I8)
            else rng.integers(-99, 99, view.shape) / 8
        )  # fmt: skip
        r = view.astype(np.float64).reshape(shape)
        if r_zero is not None:
            r = (r - int(r_zero[0])) * float(scales["r_scale"][0])
    v = v + r if r is not None and case.mode == 1 else v
    v = _activate(case.act, v)
    v = v + r if r is not None and case.mode == 2 else v

    x_buffer, view = _strided(x.shape, case.ic + case.spread, case.x, 0xA5)
    view[:] = x.reshape(view.shape)
    y_buffer, _ = _strided(shape, case.oc + 3 * case.spread, case.y, 0x5A)
    operands = {
        "x": x_buffer, "x_zero": x_zero, "w_zero": w_zero, "bias": bias,
        "res": res, "r_zero": r_zero, "m_zero": m_zero, "y_zero": y_zero,
        **{k: scales[k] for k in ("x_scale", "w_scale", "y_scale")},
        "r_scale": scales["r_scale"] if r_zero is not None else None,
        "m_scale": scales["m_scale"] if case.middle is not None else None,
    }  # fmt: skip
    ints = {
        **sizes(case), "act": ACTIVATIONS.index(case.act), "res_mode": case.mode,
        "x_dtype": case.x, "w_dtype": case.wt, "y_dtype": case.y, "r_dtype": case.res or 0,
        "m_dtype": case.middle or 0, "w_scales": columns,
        "w_zeros": 1 if w_zero is None else len(w_zero),
    }  # fmt: skip
    floats = {"p0": -2.0, "p1": 3.0}
    return Problem(case, ints, floats, operands, w, y_buffer, v, sums)


#: Runs a family: its name, operands, integers, floats and program.
Run = Callable[
    [str, Mapping[str, Array | None], Mapping[str, int], Mapping[str, float], Any], object
]


def check(case: Case, run: Run, packed_size: Callable[..., int], seed: int = 0) -> None:
    """packed_size: bytes of what a packing family writes, by its name and parameters."""
    made = problem(case, seed)
    family, ints = packing(case)
    packed = aligned(packed_size(family, **ints), np.int8)
    run(family, {"w": made.weight, "packed": packed}, {**ints, "w_dtype": case.wt}, {}, None)
    operands = {**made.operands, "w": packed, "y": made.y}
    run(case.kind, operands, made.ints, made.floats, None)
    made.judge()


def sizes(case: Case) -> dict[str, int]:
    (oh, ow), x, y, r = (
        case.out, case.ic + case.spread, case.oc + 3 * case.spread, case.oc + 2 * case.spread,
    )  # fmt: skip
    if case.kind == "gemm_int8":
        return {"M": case.w, "N": case.oc, "K": case.ic, "ldx": x, "ldy": y, "ldr": r}
    values = (
        case.n, case.ic, case.h, case.w, case.oc, oh, ow, *case.k, *case.s, *case.d,
        *case.pads[:2], case.g, x, case.w * x, case.h * case.w * x, y, ow * y, oh * ow * y,
        r, ow * r, oh * ow * r,
    )  # fmt: skip
    return dict(zip(FAMILIES[case.kind].ints, values, strict=False))


def packing(case: Case) -> tuple[str, dict[str, int]]:
    """Family and parameters, but for the type, of packing [OC, IC / G, KH, KW]."""
    family = f"pack_{case.kind}"
    if case.kind == "gemm_int8":
        k = case.ic
        return family, {"K": k, "N": case.oc, "trans": 1, "ldw": k, "n0": 0, "N_total": case.oc}
    ints = {"OC": case.oc, "IC": case.ic, "KH": case.k[0], "KW": case.k[1], "G": case.g}
    return family, {n: ints[n] for n in FAMILIES[family].ints if n in ints}
