"""The convolution kernels against float64, over random odd shapes, pitches, epilogues and
instruction sets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pytest
from scipy.special import erf, expit

from tracea_onnx.ir.abi import ACTIVATIONS, DType
from tracea_onnx.plan.kernel_families import FAMILIES, packed_elements
from tracea_onnx.runtime.native_library import Operand, aligned, isas, kernel_tasks, run_kernel

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
EPS = float(np.finfo(np.float32).eps)
POISON = np.float32(np.nan)


@dataclass(frozen=True)
class Case:
    """One convolution.

    `x_pitch` etc. add channels to the least pitch; `border` surrounds y; `kind` is the kernel
    family.
    """

    kind: str = "conv2d"
    n: int = 1
    ic: int = 16
    h: int = 8
    w: int = 8
    oc: int = 16
    k: tuple[int, int] = (3, 3)
    s: tuple[int, int] = (1, 1)
    d: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (1, 1, 1, 1)  # top, left, bottom, right
    g: int = 1
    act: str = "none"
    p: tuple[float, float] = (0.0, 0.0)
    res_mode: int = 0
    dense: bool = False  # pitches without border or extra channels
    x_extra: int = 0
    y_extra: int = 0
    border: int = 1
    scaled: bool = False
    output_padding: tuple[int, int] = (0, 0)
    threads: int = 1

    @property
    def out(self) -> tuple[int, int]:
        (kh, kw), (sh, sw), (dh, dw), (t, le, b, r) = self.k, self.s, self.d, self.pads
        if self.kind == "deconv2d":
            return (
                (self.h - 1) * sh + (kh - 1) * dh + 1 - t - b + self.output_padding[0],
                (self.w - 1) * sw + (kw - 1) * dw + 1 - le - r + self.output_padding[1],
            )
        return (self.h + t + b - (kh - 1) * dh - 1) // sh + 1, (
            self.w + le + r - (kw - 1) * dw - 1
        ) // sw + 1


def round_up(n: int, m: int) -> int:
    return -(-n // m) * m


def pitch(channels: int, extra: int) -> int:
    """Elements per pixel: a multiple of 16 unless up to four channels lie dense."""
    return channels if channels <= 4 and not extra else round_up(channels, 16) + extra


def reference(case: Case, x: F64, w: F64) -> F64:
    """Convolution or its transpose by definition, one tap at a time. x is [N, IC, H, W]."""
    (kh, kw), (sh, sw), (dh, dw), (t, le, _, _) = case.k, case.s, case.d, case.pads
    oh, ow = case.out
    icg, ocg = case.ic // case.g, case.oc // case.g
    y = np.zeros((case.n, case.oc, oh, ow))
    xg = x.reshape(case.n, case.g, icg, case.h, case.w)
    if case.kind == "deconv2d":
        full = np.zeros(
            (
                case.n,
                case.g,
                ocg,
                (case.h - 1) * sh + (kh - 1) * dh + 1 + t + oh,
                (case.w - 1) * sw + (kw - 1) * dw + 1 + le + ow,
            )
        )
        wg = w.reshape(case.g, icg, ocg, kh, kw)
        for a in range(kh):
            for b in range(kw):
                part = np.einsum("ngihw,gio->ngohw", xg, wg[..., a, b], optimize=True)
                full[..., a * dh : a * dh + case.h * sh : sh, b * dw : b * dw + case.w * sw : sw][
                    ..., : case.h, : case.w
                ] += part
        return full.reshape(case.n, case.oc, *full.shape[3:])[:, :, t : t + oh, le : le + ow].copy()
    padded = np.zeros(
        (case.n, case.g, icg, t + case.h + kh * dh + oh * sh, le + case.w + kw * dw + ow * sw)
    )
    padded[..., t : t + case.h, le : le + case.w] = xg
    wg = w.reshape(case.g, ocg, icg, kh, kw)
    for a in range(kh):
        for b in range(kw):
            window = padded[..., a * dh : a * dh + oh * sh : sh, b * dw : b * dw + ow * sw : sw]
            y += np.einsum("ngihw,goi->ngohw", window, wg[..., a, b], optimize=True).reshape(
                y.shape
            )
    return y


def activate(act: str, v: F64, p0: float, p1: float) -> F64:
    """The activations of `abi.ACTIVATIONS` in float64."""
    functions: dict[str, Callable[[], F64]] = {
        "none": lambda: v, "relu": lambda: np.maximum(v, 0),
        "leaky_relu": lambda: np.where(v < 0, v * p0, v), "clip": lambda: np.clip(v, p0, p1),
        "sigmoid": lambda: expit(v), "silu": lambda: v * expit(v),
        "hard_sigmoid": lambda: np.clip(p0 * v + p1, 0, 1),
        "hard_swish": lambda: v * np.clip(v / 6 + 0.5, 0, 1), "tanh": lambda: np.tanh(v),
        "elu": lambda: np.where(v < 0, p0 * np.expm1(np.minimum(v, 0)), v),
        "gelu_erf": lambda: 0.5 * v * (1 + erf(v / np.sqrt(2))),
        "gelu_tanh": lambda: 0.5 * v * (1 + np.tanh(np.sqrt(2 / np.pi) * (v + 0.044715 * v**3))),
        "quick_gelu": lambda: v * expit(p0 * v), "mish": lambda: v * np.tanh(np.logaddexp(0, v)),
        "softplus": lambda: np.logaddexp(0, v), "exp": lambda: np.exp(v),
    }  # fmt: skip
    return np.asarray(functions[act](), np.float64)


@dataclass
class Buffer:
    """Channels-last memory of [N, H, W, C] inside a border: `data` is everything, `at` the element
    offset of the first pixel.
    """

    data: F32
    at: int
    cs: int
    rs: int
    ns: int

    def view(self, n: int, h: int, w: int, c: int) -> F32:
        flat = self.data.reshape(-1)[self.at :]
        return np.lib.stride_tricks.as_strided(
            flat, (n, h, w, c), (self.ns * 4, self.rs * 4, self.cs * 4, 4)
        )


def buffer(
    shape: tuple[int, int, int, int], border: tuple[int, int, int, int], cs: int, fill: np.float32
) -> Buffer:
    n, h, w, _ = shape
    t, le, b, r = border
    data = aligned(n * (h + t + b) * (w + le + r) * cs + 256)
    data[:] = fill
    rs = (w + le + r) * cs
    return Buffer(data, t * rs + le * cs, cs, rs, rs * (h + t + b))


def needed(case: Case) -> tuple[int, int, int, int]:
    """Border of x that the taps reach."""
    if case.kind == "deconv2d":
        return 0, 0, 0, 0
    t, le, _, _ = case.pads
    (oh, ow), (kh, kw) = case.out, case.k
    below = (oh - 1) * case.s[0] + (kh - 1) * case.d[0] - t - (case.h - 1)
    right = (ow - 1) * case.s[1] + (kw - 1) * case.d[1] - le - (case.w - 1)
    return t, le, max(0, below), max(0, right)


def make_input(case: Case, x: F32) -> Buffer:
    t, le, b, r = needed(case)
    cs = pitch(case.ic, 0 if case.dense else case.x_extra)
    if case.kind == "conv2d_wino" and case.dense:
        b, r = b + 1, r + 1  # a tile may read, not use, one row and column past the border
    if not case.dense:
        t, le, b, r = t + case.x_extra // 16, le + case.x_extra // 16, b + 1, r + 1
    buf = buffer((case.n, case.h, case.w, case.ic), (t, le, b, r), cs, POISON)
    zt, zl, zb, zr = needed(case)
    zero = replace_at(buf, -zt, -zl)
    # the border; pad channels and all beyond stay NaN
    zero.view(case.n, zt + case.h + zb, zl + case.w + zr, case.ic)[:] = 0
    buf.view(case.n, case.h, case.w, case.ic)[:] = x.transpose(0, 2, 3, 1)
    return buf


def replace_at(buf: Buffer, dh: int, dw: int) -> Buffer:
    return Buffer(buf.data, buf.at + dh * buf.rs + dw * buf.cs, buf.cs, buf.rs, buf.ns)


def pack(case: Case, w: F32, scale: F32 | None, isa: str, x_cs: int) -> npt.NDArray[Any]:
    ints = {
        "OC": case.oc,
        "IC": case.ic,
        "KH": case.k[0],
        "KW": case.k[1],
        "G": case.g,
        "x_cs": x_cs,
        "w_dtype": int(DType.F32),
    }
    family = f"pack_{case.kind}"
    keep = {
        "pack_conv2d": "OC IC KH KW G x_cs",
        "pack_conv2d_bf16": "OC IC KH KW G w_dtype",
        "pack_conv2d_wino": "OC IC",
        "pack_conv2d_dw": "OC KH KW",
        "pack_deconv2d": "OC IC KH KW G",
    }[family].split()
    dtype = np.uint16 if case.kind == "conv2d_bf16" else np.float32
    packed = aligned(packed_elements(family, **ints), dtype, slack=0)
    run_kernel(
        family, {"w": w, "scale": scale, "packed": packed}, {k: ints[k] for k in keep}, isa=isa
    )
    return packed


def pack_bias(case: Case, b: F32, scale: F32 | None, isa: str) -> F32:
    packed = aligned(packed_elements("pack_bias", OC=case.oc), slack=0)
    packed[:] = POISON
    run_kernel("pack_bias", {"b": b, "scale": scale, "packed": packed}, {"OC": case.oc}, isa=isa)
    return packed


@dataclass
class Problem:
    """Operands of a case and the float64 results it is judged by."""

    x: F32
    w: F32
    b: F32
    scale: F32 | None
    res: F32
    plain: F64  # convolution + bias
    magnitude: F64  # the same over absolute values


def problem(case: Case, seed: int) -> Problem:
    rng = np.random.default_rng(seed)

    def normal(*dims: int) -> F32:
        return rng.standard_normal(dims, dtype=np.float32)

    x = normal(case.n, case.ic, case.h, case.w)
    shape = (
        (case.ic, case.oc // case.g) if case.kind == "deconv2d" else (case.oc, case.ic // case.g)
    )
    w, b = normal(*shape, *case.k), normal(case.oc)
    scale = rng.uniform(0.5, 2, case.oc).astype(np.float32) if case.scaled else None
    factor = np.ones(case.oc) if scale is None else scale.astype(np.float64)
    plain = (
        reference(case, x.astype(np.float64), w.astype(np.float64))
        + b[:, None, None].astype(np.float64)
    ) * factor[:, None, None]
    magnitude = (
        reference(case, np.abs(x.astype(np.float64)), np.abs(w.astype(np.float64)))
        + np.abs(b)[:, None, None]
    ) * factor[:, None, None]
    return Problem(x, w, b, scale, normal(case.n, case.oc, *case.out), plain, magnitude)


def launch(
    case: Case,
    pr: Problem,
    isa: str,
    program: dict[str, Any] | None = None,
    extra: dict[str, Any] | None = None,
) -> F32:
    """Runs the case in poisoned buffers; checks that nothing but the output was written; returns y
    as [N, OC, OH, OW].
    """
    oh, ow = case.out
    x = make_input(case, pr.x)
    least = pitch(case.oc, 0)
    border = 0 if case.dense else case.border
    y = buffer(
        (case.n, oh, ow, case.oc),
        (border, border, border, border),
        pitch(case.oc, 0 if case.dense else case.y_extra),
        POISON,
    )
    r = buffer((case.n, oh, ow, case.oc), (0, 0, 0, 0), least, POISON)
    r.view(case.n, oh, ow, case.oc)[:] = pr.res.transpose(0, 2, 3, 1)
    sentinel = np.float32(-12345.0)
    y.data[:] = sentinel
    y.view(case.n, oh, ow, case.oc)[:] = POISON
    operands: dict[str, Any] = {
        "x": (x.data, x.at), "w": pack(case, pr.w, pr.scale, isa, x.cs),
        "bias": pack_bias(case, pr.b, pr.scale, isa),
        "res": (r.data, r.at) if case.res_mode else None, "y": (y.data, y.at),
    }  # fmt: skip
    shapes = (
        case.n,
        case.ic,
        case.h,
        case.w,
        case.oc,
        oh,
        ow,
        *case.k,
        *case.s,
        *case.d,
        *case.pads[:2],
        case.g,
    )
    pitches = (x.cs, x.rs, x.ns, y.cs, y.rs, y.ns, r.cs, r.rs, r.ns)
    values = (*shapes, *pitches, ACTIVATIONS.index(case.act), case.res_mode)
    ints = dict(zip(FAMILIES[case.kind].ints, values, strict=False))
    for name, value in (extra or {}).items():
        if name.endswith("_kind"):
            ints[name] = value
        else:
            operands[name] = (r.data, r.at) if isinstance(value, str) else value
    run_kernel(
        case.kind,
        operands,
        ints,
        {"p0": case.p[0], "p1": case.p[1]},
        program,
        isa=isa,
        threads=case.threads,
    )
    tasks = kernel_tasks(case.kind, operands, ints, {}, program, isa=isa, threads=case.threads)
    assert tasks >= 1 or 0 in (case.n, oh, ow, case.oc)
    got = y.view(case.n, oh, ow, case.oc).transpose(0, 3, 1, 2).copy()
    y.view(case.n, oh, ow, round_up(case.oc, 16) if y.cs >= 16 else case.oc)[:] = sentinel
    assert np.all(y.data == sentinel), "wrote outside its output"
    return got


def bound(case: Case, pr: Problem) -> F64:
    """2 eps (|x| * |w|).

    A Winograd tile mixes neighbouring pixels, so there the largest magnitude of the image counts.
    """
    magnitude = (
        pr.magnitude.max(axis=(2, 3), keepdims=True, initial=0) + np.zeros_like(pr.magnitude)
        if case.kind == "conv2d_wino"
        else pr.magnitude
    )
    return 2 * EPS * magnitude


def check(case: Case, seed: int, isa: str, pr: Problem | None = None) -> None:
    pr = problem(case, seed) if pr is None else pr
    got = launch(case, pr, isa)
    res = pr.res.astype(np.float64)
    v = pr.plain + (res if case.res_mode == 1 else 0)
    active = activate(case.act, v, *case.p)
    want = active + (res if case.res_mode == 2 else 0)
    slope = 1.01 * active if case.act == "exp" else 1.2
    tolerance = slope * bound(case, pr) + 2 * EPS * (
        np.abs(v) + np.abs(want) + np.abs(res) * (case.res_mode > 0)
    )
    if ACTIVATIONS.index(case.act) > ACTIVATIONS.index("clip"):
        tolerance = tolerance + 8 * EPS * (np.abs(active) + 0.1)
    assert got.shape == want.shape
    worst = np.max((np.abs(got - want) - tolerance), initial=-1.0)
    assert np.all(np.isfinite(got)) and worst <= 0, f"{case} off by {worst:.2e} beyond the bound"


CHANNELS = (1, 2, 3, 4, 5, 13, 16, 17, 31, 32, 33, 47, 64, 67)
T = TypeVar("T")


def random_case(kind: str, seed: int) -> Case:
    rng = np.random.default_rng([seed, len(kind)])

    def pick(*v: T) -> T:
        return v[int(rng.integers(len(v)))]

    act = pick("none", "none", "relu", "clip", "silu", "leaky_relu", "hard_swish")
    case = Case(
        kind=kind, n=pick(1, 1, 2, 3), h=pick(1, 3, 7, 8, 13, 17), w=pick(1, 2, 5, 7, 14, 15, 29)
    )
    case = replace(case, act=act, p=(-0.5, 1.5) if act == "clip" else (0.1, 0.0))
    case = replace(
        case,
        res_mode=pick(0, 0, 1, 2),
        dense=pick(False, False, True),
        x_extra=pick(0, 16, 32),
        y_extra=pick(0, 16, 48),
        border=pick(0, 1, 2),
    )
    case = replace(case, scaled=pick(False, True), threads=pick(1, 1, 3))
    if kind == "conv2d_wino":
        case = replace(
            case,
            ic=pick(*CHANNELS),
            oc=pick(*CHANNELS),
            pads=(pick(0, 1), pick(0, 1), pick(0, 1), pick(0, 1)),
        )
    elif kind == "conv2d_dw":
        c, k = pick(*CHANNELS), pick((3, 3), (3, 3), (5, 5), (7, 7), (2, 3), (1, 1), (4, 4))
        case = replace(
            case,
            ic=c,
            oc=c,
            g=c,
            k=k,
            s=pick((1, 1), (2, 2), (2, 1), (3, 3)),
            d=pick((1, 1), (1, 1), (2, 1), (2, 3)),
        )
        case = replace(case, pads=(pick(0, 1, 3), pick(0, 2), pick(0, 1, 2), pick(1, 2)))
    else:
        g = pick(1, 1, 1, 2, 3)
        case = replace(
            case,
            g=g,
            ic=g * pick(*CHANNELS),
            oc=g * pick(*CHANNELS),
            k=pick((1, 1), (3, 3), (3, 3), (1, 5), (2, 2), (4, 3), (5, 5)),
        )
        case = replace(
            case,
            s=pick((1, 1), (1, 1), (2, 2), (2, 1), (3, 2)),
            d=pick((1, 1), (1, 1), (2, 2), (3, 1)),
        )
        case = replace(case, pads=(pick(0, 1, 2), pick(0, 1), pick(0, 1, 3), pick(0, 2)))
        if kind == "deconv2d" and pick(False, False, True):
            case = replace(case, g=case.ic, oc=case.ic)
        if kind == "deconv2d":
            case = replace(
                case,
                h=min(case.h, 8),
                w=min(case.w, 9),
                output_padding=(pick(0, case.s[0] - 1), pick(0, case.s[1] - 1)),
            )
    if min(case.out) < 1:
        case = replace(case, h=case.h + 20, w=case.w + 20, pads=(1, 1, 1, 1))
    return case


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("kind", ["conv2d", "conv2d_wino", "conv2d_dw", "deconv2d"])
@pytest.mark.parametrize("block", range(4))
def test_random_configurations(kind: str, block: int, isa: str) -> None:
    for seed in range(block * 12, block * 12 + 12):
        check(random_case(kind, seed), seed, isa)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("act", ACTIVATIONS)
def test_activations(act: str, isa: str) -> None:
    p = {
        "leaky_relu": (0.2, 0.0),
        "clip": (-1.0, 2.0),
        "hard_sigmoid": (0.2, 0.5),
        "elu": (1.3, 0.0),
        "quick_gelu": (1.702, 0.0),
    }.get(act, (0.0, 0.0))
    for kind, oc in (("conv2d", 37), ("conv2d_wino", 20), ("conv2d_dw", 16), ("deconv2d", 3)):
        for mode in (0, 1, 2):
            k = (3, 3) if kind != "conv2d" else (1, 1)
            c = oc if kind == "conv2d_dw" else 5
            check(
                Case(
                    kind=kind,
                    ic=c,
                    oc=oc,
                    g=c if kind == "conv2d_dw" else 1,
                    h=5,
                    w=9,
                    k=k,
                    act=act,
                    p=p,
                    res_mode=mode,
                ),
                mode,
                isa,
            )


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize(
    "case",
    [
        # stem: contiguous rows of taps
        Case(ic=3, oc=64, h=31, w=33, k=(7, 7), s=(2, 2), pads=(3, 3, 3, 3), act="relu"),
        Case(ic=3, oc=32, h=33, w=33, k=(3, 3), s=(2, 2), pads=(0, 0, 1, 1), act="silu"),
        Case(
            ic=64,
            oc=96,
            h=14,
            w=14,
            k=(1, 1),
            pads=(0, 0, 0, 0),
            dense=True,
            res_mode=1,
            act="relu",
        ),
        Case(ic=70, oc=1, h=9, w=9, k=(1, 1), pads=(0, 0, 0, 0)),
        # more weights than input: panels are cut first
        Case(ic=600, oc=130, h=7, w=7, k=(3, 3), s=(2, 2), act="relu", threads=4),
        Case(ic=40, oc=40, h=3, w=3, g=10, k=(3, 3)),
        Case(ic=28, oc=28, h=4, w=4, g=7, k=(3, 3), threads=2),
        Case(kind="conv2d_wino", ic=300, oc=70, h=15, w=15, act="relu", res_mode=1, threads=2),
        Case(kind="conv2d_wino", ic=512, oc=40, h=7, w=7),
        # large blocks: a task each, several of one task, and of tasks that share them
        Case(kind="conv2d_wino", ic=400, oc=16, h=41, w=41, threads=2),
        Case(kind="conv2d_wino", ic=400, oc=20, h=21, w=19, act="silu"),
        Case(kind="conv2d_wino", ic=400, oc=512, h=20, w=20, threads=2),
        Case(kind="conv2d_dw", ic=1100, oc=1100, g=1100, h=6, w=15, act="hard_swish"),
        Case(kind="conv2d_dw", ic=96, oc=96, g=96, h=57, w=56, threads=3),
        Case(kind="deconv2d", ic=32, oc=16, h=16, w=16, k=(2, 2), s=(2, 2), pads=(0, 0, 0, 0)),
        # phases without a tap
        Case(
            kind="deconv2d",
            ic=6,
            oc=6,
            g=6,
            h=5,
            w=5,
            k=(2, 2),
            s=(3, 3),
            d=(2, 2),
            pads=(0, 0, 0, 0),
        ),
        # bilinear upsampling
        Case(
            kind="deconv2d",
            ic=21,
            oc=21,
            g=21,
            h=9,
            w=9,
            k=(4, 4),
            s=(2, 2),
            act="silu",
            res_mode=1,
        ),
        Case(kind="deconv2d", ic=4, oc=8, h=70, w=9, k=(4, 4), s=(2, 2), threads=4),
        # strides larger than the result: its pixels are counted, not the phases
        Case(kind="deconv2d", ic=5, oc=3, h=1, w=2, k=(4, 3), s=(9, 2), pads=(1, 0, 0, 1)),
        Case(kind="deconv2d", ic=5, oc=3, h=1, w=1, k=(3, 4), s=(10**9, 10**9 + 7)),
    ],
)
def test_chosen_configurations(case: Case, isa: str) -> None:
    check(case, 7, isa)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("kind", ["conv2d", "conv2d_wino", "conv2d_dw", "deconv2d"])
def test_nothing_to_do(kind: str, isa: str) -> None:
    check(Case(kind=kind, n=0, ic=16, oc=16, g=16 if kind == "conv2d_dw" else 1), 0, isa)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("kind", ["conv2d", "conv2d_wino", "conv2d_dw", "deconv2d"])
def test_nan_and_infinity_reach_exactly_their_outputs(kind: str, isa: str) -> None:
    case = Case(
        kind=kind,
        ic=16,
        oc=16,
        g=16 if kind == "conv2d_dw" else 1,
        h=9,
        w=11,
        k=(1, 1) if kind == "deconv2d" else (3, 3),
        act="relu",
    )
    if kind == "deconv2d":
        case = replace(case, pads=(0, 0, 0, 0))
    pr = problem(case, 3)
    pr.x[0, 4, 4, 5] = np.nan
    got = launch(case, pr, isa)
    hit = np.argwhere(np.isnan(got).any(axis=1))[:, 1:]
    # a Winograd tile spreads a NaN over its 2x2 outputs
    reach = {"conv2d_wino": 2, "deconv2d": 0}.get(kind, 1)
    assert len(hit) and np.all(np.abs(hit - [4, 5]) <= reach)
    assert np.isnan(got[:, :, 4, 5]).any()


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("kind", ["conv2d", "conv2d_wino", "conv2d_dw", "deconv2d"])
@pytest.mark.parametrize("oc", [3, 24, 50])
def test_epilogue_program(kind: str, oc: int, isa: str) -> None:
    """y = ((acc + full) * channel + row) * scalar: every way of reading an operand, in one
    program.
    """
    ic = oc if kind == "conv2d_dw" else 9
    case = Case(
        kind=kind,
        n=2,
        ic=ic,
        oc=oc,
        g=ic if kind == "conv2d_dw" else 1,
        h=6,
        w=9,
        s=(2, 1) if kind == "deconv2d" else (1, 1),
    )
    pr = problem(case, oc)
    oh, ow = case.out
    rng = np.random.default_rng(oc)
    channel, row, scalar = (
        rng.standard_normal(s).astype(np.float32) for s in ((oc,), (case.n * oh * ow,), (1,))
    )
    program = {
        "n_in": 5,
        "regs": 6,
        "out": 5,
        "code": [
            ["add", 5, 0, 1, 0, 0.0],
            ["mul", 5, 5, 2, 0, 0.0],
            ["add", 5, 5, 3, 0, 0.0],
            ["mul", 5, 5, 4, 0, 0.0],
        ],
    }
    extra = {
        "o0": "full",
        "o0_kind": 0,
        "o1": channel,
        "o1_kind": 1,
        "o2": row,
        "o2_kind": 2,
        "o3": scalar,
        "o3_kind": 3,
    }
    got = launch(case, pr, isa, program, extra)
    rows = row.astype(np.float64).reshape(case.n, 1, oh, ow)
    want = ((pr.plain + pr.res) * channel[:, None, None] + rows) * scalar[0]
    scale = np.abs(channel[:, None, None].astype(np.float64) * scalar[0])
    tolerance = (
        scale * (bound(case, pr) + 4 * EPS * (np.abs(pr.plain) + np.abs(pr.res)))
        + 4 * EPS * np.abs(want)
        + 4 * EPS * np.abs(rows * scalar[0])
    )
    assert np.all(np.abs(got - want) <= tolerance)


@pytest.mark.parametrize("isa", isas())
def test_fold_bn_and_bias(isa: str) -> None:
    rng = np.random.default_rng(1)
    c = 37
    gamma, beta, mean = (rng.standard_normal(c).astype(np.float32) for _ in range(3))
    var = rng.uniform(0.1, 3, c).astype(np.float32)
    scale, shift = np.full(c, POISON), np.full(c, POISON)
    run_kernel(
        "fold_bn",
        {"gamma": gamma, "beta": beta, "mean": mean, "var": var, "scale": scale, "shift": shift},
        {"C": c},
        {"eps": 1e-5},
        isa=isa,
    )
    exact = gamma.astype(np.float64) / np.sqrt(
        var.astype(np.float64) + np.float64(np.float32(1e-5))
    )
    np.testing.assert_allclose(scale, exact, rtol=EPS)
    np.testing.assert_allclose(shift, beta - mean * exact, rtol=4 * EPS, atol=EPS)
    b = rng.standard_normal(c).astype(np.float32)
    for bias in (None, b):
        packed = aligned(packed_elements("pack_bias", OC=c))
        packed[:] = POISON
        run_kernel(
            "pack_bias",
            {"b": bias, "scale": scale, "shift": shift, "packed": packed},
            {"OC": c},
            isa=isa,
        )
        np.testing.assert_allclose(
            packed[:c],
            (0 if bias is None else bias.astype(np.float64)) * scale + shift,
            rtol=2 * EPS,
        )
        assert np.all(packed[c:48] == 0)


@pytest.mark.parametrize("isa", isas())
def test_epilogue_at_the_ends_of_the_range(isa: str) -> None:
    ends = np.array(
        [
            -np.inf,
            -3e38,
            -1e9,
            -120.0,
            -88.0,
            -0.0,
            0.0,
            1e-30,
            88.0,
            120.0,
            1e9,
            3e38,
            np.inf,
            np.nan,
        ],
        np.float32,
    )
    x, y = aligned(ends.size), aligned((ends.size, 16))
    x[:] = ends
    w, bias = aligned(packed_elements("pack_conv2d", OC=16, IC=1, KH=1, KW=1, G=1)), aligned(32)
    w[:16] = 1
    ints = {
        "N": 1,
        "IC": 1,
        "IH": 1,
        "IW": ends.size,
        "OC": 16,
        "OH": 1,
        "OW": ends.size,
        "KH": 1,
        "KW": 1,
        "SH": 1,
        "SW": 1,
        "DH": 1,
        "DW": 1,
        "G": 1,
        "x_cs": 1,
        "x_rs": ends.size,
        "x_ns": ends.size,
        "y_cs": 16,
        "y_rs": 16 * ends.size,
        "y_ns": 16 * ends.size,
    }
    v = ends.astype(np.float64)
    with np.errstate(invalid="ignore"):
        wanted = {"sigmoid": expit(v), "silu": v * expit(v), "quick_gelu": v * expit(1.5 * v)}
    for act, want in wanted.items():
        run_kernel(
            "conv2d",
            {"x": x, "w": w, "bias": bias, "y": y},
            {**ints, "act": ACTIVATIONS.index(act)},
            {"p0": 1.5},
            isa=isa,
        )
        np.testing.assert_allclose(
            y, np.repeat(want[:, None], 16, 1), rtol=2e-5, atol=1e-36, err_msg=act
        )


@pytest.mark.parametrize("kind", ["conv2d", "conv2d_dw", "conv2d_wino"])
def test_a_launch_reads_the_number_of_its_variant(kind: str) -> None:
    """Tasks for two threads, with one for each and with eight."""
    sizes = {"N": 1, "IC": 32, "OC": 32, "IH": 65, "IW": 67, "OH": 65, "OW": 67, "KH": 3, "KW": 3}
    ones = dict.fromkeys(("SH", "SW", "DH", "DW", "PT", "PL"), 1)
    ints = {**sizes, **ones, "G": 32 if kind == "conv2d_dw" else 1}
    operands: dict[str, Operand] = dict.fromkeys(("x", "w", "bias", "y"), aligned(1))
    tasks = [
        kernel_tasks(kind, operands, ints, threads=2, variant=4 * split) for split in (0, 1, 2, 3)
    ]
    assert tasks[1:] == [2, 4, 16] and tasks[0] == 8
