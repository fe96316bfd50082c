"""Cases of attention: head sizes, masks, causal, grouped heads, packed and permuted operands, odd
sizes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from tests.support.cuda.case import (
    ROUNDOFF,
    Array,
    Case,
    Output,
    quantised,
    rounding,
    stored,
    value,
)  # fmt: skip
from tests.support.cuda.launch_case import request_of
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike, symbol
from tracea_onnx.support import discovery


@dataclass(frozen=True)
class Shape:
    b: int
    h: int
    kv: int
    s: int
    t: int
    d: int
    dv: int
    causal: bool = False
    past: int = 0
    mask: int = 0
    broadcast: str = "bhqk"  # axes the mask really has
    fill: float = float("-inf")
    clean: int = False  # nan_to_zero
    packed: bool = False  # q, k and v in one [B, S, 3, H, D]
    scale: float = 0.0
    odd: bool = False  # pitches that allow no vector access
    wild: bool = False  # a few elements are infinite, NaN or as large as can be
    lost: bool = False  # two queries of a head are infinite and NaN
    cap: float = 0.0

    @property
    def name(self) -> str:
        flags = [k for k in ("causal", "packed", "odd", "wild", "lost") if getattr(self, k)]
        flags += [f"clean {int(self.clean)}"] * (self.clean > 0)
        mask = f" mask{self.mask}[{self.broadcast}]" if self.mask else ""
        cap = f" cap {self.cap:g}" if self.cap else ""
        return (
            f"attention {self.b}x{self.h}/{self.kv}x{self.s}x{self.t}x{self.d},{self.dv}{mask}"
            f"{cap} {' '.join(flags)}"
        )


SHAPES = (
    Shape(2, 3, 3, 64, 64, 64, 64), Shape(1, 2, 1, 17, 129, 64, 64, causal=True, past=112),
    Shape(1, 4, 2, 127, 65, 128, 128), Shape(2, 2, 2, 1, 300, 64, 64),
    Shape(1, 2, 2, 200, 200, 64, 64, causal=True), Shape(1, 1, 1, 129, 129, 128, 128, causal=True),
    Shape(1, 2, 2, 33, 47, 32, 32),
    Shape(1, 2, 1, 50, 70, 40, 40),
    Shape(1, 2, 2, 65, 66, 80, 80), Shape(1, 1, 1, 70, 90, 96, 96),
    Shape(1, 2, 2, 67, 131, 256, 256), Shape(1, 1, 1, 31, 97, 256, 256, causal=True, past=66),
    Shape(2, 2, 2, 40, 77, 64, 64, mask=1), Shape(2, 2, 2, 40, 77, 64, 64, mask=1, broadcast="bk"),
    Shape(2, 2, 1, 40, 77, 64, 64, mask=2, broadcast="bk"),
    Shape(2, 2, 2, 40, 40, 64, 64, mask=2, broadcast="qk", fill=-1e4),
    Shape(1, 2, 2, 40, 77, 128, 128, mask=3, broadcast="bhqk", clean=True),
    Shape(1, 2, 2, 40, 77, 64, 64, mask=3, broadcast="bhqk", causal=True, past=37),
    Shape(1, 2, 2, 64, 64, 64, 64, mask=1, broadcast="hqk", causal=True),
    Shape(2, 3, 3, 128, 128, 64, 64, packed=True), Shape(1, 2, 2, 13, 13, 40, 40, packed=True),
    Shape(1, 2, 1, 19, 23, 17, 13), Shape(1, 1, 1, 5, 3, 1, 1),
    Shape(1, 2, 2, 30, 40, 64, 64, odd=True), Shape(1, 1, 1, 20, 0, 64, 64),
    Shape(0, 2, 2, 8, 8, 64, 64), Shape(1, 1, 1, 40, 50, 64, 64, scale=-0.3),
    Shape(1, 2, 2, 40, 50, 64, 128), Shape(1, 2, 2, 40, 50, 128, 64),
    Shape(1, 1, 1, 70, 30, 64, 64, causal=True, past=-20), Shape(1, 8, 2, 3, 513, 128, 128),
    Shape(2, 2, 2, 257, 300, 64, 64, mask=1, broadcast="b1k"),
    Shape(1, 2, 2, 300, 260, 128, 128, mask=2, broadcast="qk", clean=True),
    Shape(1, 2, 2, 385, 385, 64, 64, causal=True),
    Shape(1, 1, 1, 256, 512, 128, 128, causal=True, past=256), Shape(1, 3, 3, 150, 352, 128, 128),
    Shape(9, 16, 8, 129, 65, 64, 64),
    # few rows: one head's, a group's, divided keys, keys that no row sees
    Shape(2, 7, 7, 1, 1031, 64, 64), Shape(2, 8, 2, 1, 700, 128, 128),
    Shape(1, 6, 2, 2, 333, 61, 61, mask=1, broadcast="bk"), Shape(1, 1, 1, 3, 0, 64, 64),
    Shape(3, 4, 4, 5, 1500, 80, 80, causal=True, past=1495),
    Shape(1, 3, 3, 7, 900, 200, 256, causal=True, past=-3),
    Shape(1, 4, 1, 2, 270, 33, 47, mask=2, odd=True),
    Shape(40, 16, 4, 1, 150, 64, 64, mask=1, broadcast="bk"),
    # of more keys than a cluster should read
    Shape(1, 2, 1, 1, 3300, 128, 128), Shape(2, 3, 3, 5, 6200, 64, 61, mask=1, broadcast="bk"),
    Shape(1, 2, 1, 2, 4000, 200, 256, causal=True, past=3990),
    # of more heads than a block has rows
    Shape(1, 16, 1, 1, 3000, 128, 128), Shape(2, 12, 1, 2, 4100, 128, 72, causal=True, past=4090),
    Shape(1, 20, 1, 1, 6000, 64, 40, mask=2, broadcast="bk", clean=True),
    Shape(3, 12, 1, 2, 333, 72, 61, causal=True, past=330, mask=1, broadcast="bk"),
    # whose f32 tiles are large
    Shape(1, 12, 6, 390, 515, 61, 61, causal=True, past=125),
    Shape(1, 8, 8, 515, 390, 128, 72, mask=1, broadcast="bk"), Shape(2, 3, 3, 450, 600, 200, 256),
    # heads and pitches that tensor copies cannot read, long heads
    Shape(1, 7, 7, 131, 131, 61, 61), Shape(1, 2, 1, 140, 200, 47, 33, mask=1),
    Shape(2, 3, 3, 70, 90, 100, 120, causal=True, past=20),
    Shape(30, 8, 8, 131, 140, 61, 61),
    Shape(1, 2, 2, 129, 150, 191, 191), Shape(1, 2, 2, 70, 260, 160, 256, causal=True, past=190),
    Shape(4, 12, 12, 300, 333, 96, 91),
    Shape(20, 9, 9, 150, 170, 256, 200),
    # rows of which there are too few for the device, of many keys
    Shape(1, 1, 1, 37, 2500, 64, 64), Shape(1, 2, 1, 20, 3000, 128, 128, causal=True, past=2980),
    Shape(1, 1, 1, 40, 1500, 256, 256, mask=2),
    Shape(1, 2, 2, 130, 2000, 64, 64, mask=1, broadcast="bk", causal=True, past=-60),
    Shape(1, 1, 1, 100, 2100, 61, 61, mask=1),
    # one row of each of many heads that share keys
    Shape(2, 71, 1, 1, 2039, 64, 64), Shape(7, 40, 8, 1, 1531, 128, 128),
    Shape(3, 64, 4, 1, 3001, 128, 72, causal=True, past=3000),
    Shape(1, 130, 2, 1, 1000, 64, 64, mask=1), Shape(3, 66, 2, 1, 1021, 64, 61),
    Shape(2, 36, 2, 1, 1500, 128, 128, mask=2, broadcast="bk", clean=True),
    Shape(2, 44, 4, 1, 1300, 80, 80, mask=3, broadcast="hk", fill=-1e4),
    # whose scores are capped
    Shape(1, 4, 2, 127, 65, 128, 128, cap=0.7), Shape(2, 8, 2, 1, 700, 128, 128, cap=2),
    Shape(1, 16, 1, 1, 3000, 128, 128, causal=True, past=2999, cap=50),
    Shape(1, 2, 2, 300, 260, 64, 72, mask=1, broadcast="qk", cap=1.5),
    Shape(40, 16, 16, 61, 61, 96, 96, causal=True, cap=1), Shape(1, 4, 4, 390, 515, 61, 61, cap=3),
    # f32 whose warps divide columns; one row of each head: a tile for each, two beside each other,
    # keys divided
    Shape(7, 7, 7, 130, 70, 240, 256), Shape(3, 6, 6, 100, 90, 256, 256),
    Shape(9, 15, 15, 1, 200, 40, 40), Shape(2, 3, 3, 1, 200, 64, 64),
    Shape(2, 6, 3, 1, 400, 80, 64),
    # whose keys flow to registers
    Shape(9, 28, 7, 1, 517, 40, 40), Shape(21, 6, 6, 1, 397, 72, 104),
    Shape(30, 10, 10, 1, 333, 64, 40, cap=2), Shape(20, 14, 14, 1, 257, 96, 96),
)  # fmt: skip
#: What is infinite must come out where products of f32 have it.
WILD = (
    Shape(1, 2, 2, 40, 50, 64, 64, wild=True), Shape(9, 16, 8, 129, 65, 64, 64, wild=True),
    Shape(1, 12, 6, 390, 515, 61, 61, mask=1, wild=True),
    Shape(1, 2, 1, 130, 2000, 64, 33, wild=True),
    Shape(1, 8, 8, 515, 390, 128, 72, mask=3, clean=True, wild=True),
    Shape(2, 3, 3, 450, 600, 200, 256, wild=True),
    Shape(1, 2, 2, 3, 700, 64, 64, wild=True), Shape(3, 6, 6, 100, 90, 256, 256, wild=True),
)  # fmt: skip
#: Rows whose scores are NaN, which nan_to_zero 1 clears: one problem at least for each kernel.
LOST = tuple(
    replace(p, lost=True, clean=clean)
    for clean in (1, 2)
    for p in (
        Shape(2, 3, 3, 64, 64, 64, 64),
        Shape(1, 2, 2, 40, 77, 64, 64, mask=1, broadcast="bhqk"),
        Shape(64, 4, 4, 128, 128, 128, 128, causal=True),
        Shape(1, 1, 1, 37, 2500, 64, 64),
        Shape(1, 16, 1, 1, 3000, 128, 128),
        Shape(9, 28, 7, 1, 517, 40, 40),
        Shape(2, 7, 7, 1, 1031, 64, 64),
        Shape(4, 16, 8, 300, 260, 72, 72, mask=2, broadcast="qk"),
    )
)


def _spoil(a: Array, operand: str) -> None:
    """Of [B, rows, heads, width]: one head of each problem has elements that are not finite,
    another's values are as large as can be.
    """
    rows, heads = a.shape[1:3]
    if operand == "q":
        a[:, rows // 2, 0, 0] = np.inf
        a[:, rows // 3, 0, -1] = np.nan
    elif operand == "k":
        a[:, rows // 2, 0, a.shape[3] // 2] = -np.inf
    else:
        a[:, rows // 3, 0, 3], a[:, rows // 2, 0, 3], a[:, -1, 0, 5] = np.inf, -np.inf, np.inf
        a[:, rows // 2, heads - 1, 7] = 3.4028e38


def _mask(
    rng: np.random.Generator, p: Shape, dtype: DType
) -> tuple[Array, Array, dict[str, DimLike]]:
    """The mask as stored, as what it does to scores (NaN where it writes the fill), and its
    strides.
    """
    sizes = {"b": p.b, "h": p.h, "q": p.s, "k": p.t}
    shape = [sizes[a] if a in p.broadcast else 1 for a in "bhqk"]
    if p.mask == 1:
        m = stored(
            np.where(
                rng.random(shape) < 0.2,
                -np.inf if dtype == DType.F32 else -1e4,
                rng.standard_normal(shape),
            ),
            dtype,
        )
        effect = value(m, dtype)
    else:
        keep = rng.random(shape) < 0.7
        if "q" in p.broadcast:
            keep[..., :1, :] = False  # a row without keys
        m = (keep if p.mask == 2 else ~keep).astype(np.uint8)
        effect = np.where(keep, 0.0, np.nan)
    strides: dict[str, DimLike] = {}
    step = 1
    for axis, n in zip("kqhb", reversed(shape), strict=True):
        strides[f"m_{axis}"] = step if n != 1 else 0
        step *= n
    return m, effect, strides


@np.errstate(all="ignore")
def reference(p: Shape, q: Array, k: Array, v: Array, effect: Array | None) -> tuple[Array, Array]:
    """Attention of [B, H, S, D] operands in float64, and the same of |v| (what rounding the weights
    errs relative to).
    """
    group = p.h // p.kv
    k, v = (np.repeat(a, group, 1) for a in (k, v))
    scores = (p.scale or p.d**-0.5) * (q @ k.swapaxes(2, 3))
    if p.cap:
        scores = p.cap * np.tanh(scores / p.cap)
    if effect is not None:
        scores = np.where(
            np.isnan(effect), p.fill, scores + np.nan_to_num(effect, nan=0.0, neginf=-np.inf)
        )
    seen = (
        np.arange(p.t)[None, :] <= np.arange(p.s)[:, None] + p.past
        if p.causal
        else np.ones((p.s, p.t), bool)
    )
    scores = np.where(seen, scores, -np.inf)
    top = scores.max(3, keepdims=True, initial=-np.inf)
    e = np.exp(scores - np.where(np.isinf(top), 0.0, top))
    total = e.sum(3, keepdims=True)
    weights = e / total
    nothing = 0.0 if p.clean or not p.mask else np.nan
    lost = np.isnan(weights).any(3, keepdims=True) & (total != 0)
    weights = np.where(total == 0, nothing, weights)
    out, size = weights @ v, weights @ np.abs(v)
    if p.clean == 1:
        out, size = np.where(lost, 0, out), np.where(lost, 0, size)
    if p.t == 0:
        out, size = np.full(out.shape, nothing), np.zeros(size.shape)
    return out, size


def bound_of(p: Shape, dtype: DType, want: Array, size: Array) -> Array:
    """What a kernel may err of `reference`'s results."""
    u = 0.0 if dtype == DType.F32 else ROUNDOFF[dtype]  # of weights that are stored
    bound: Array = (
        rounding(want, dtype, 0)
        + 2.02 * u * size
        + 2.0**-24 * (32 + 2 * p.d + 4 * p.cap) * (size + np.abs(want))
        + 1e-30
    )
    return bound


@np.errstate(all="ignore")
def attention_case(
    rng: np.random.Generator, p: Shape, dtype: DType, *, symbolic: bool = False
) -> Case:
    pad = 1 if p.odd else 0
    operands: dict[str, Array] = {}
    ints: dict[str, DimLike] = {
        "B": p.b,
        "H": p.h,
        "KVH": p.kv,
        "S": p.s,
        "T": p.t,
        "D": p.d,
        "DV": p.dv,
        "causal": int(p.causal),
        "past": p.past,
    }
    values: dict[str, Array] = {}
    if p.packed:
        whole = stored(rng.standard_normal((p.b, p.s, 3, p.h, p.d)), dtype)
        for j, name in enumerate("qkv"):
            operands[name] = whole.reshape(-1)[j * p.h * p.d :]
            values[name] = value(whole, dtype)[:, :, j].transpose(0, 2, 1, 3)
            ints |= {f"{name}_b": p.s * 3 * p.h * p.d, f"{name}_s": 3 * p.h * p.d, f"{name}_h": p.d}
    else:
        for name, heads, rows, width in (
            ("q", p.h, p.s, p.d),
            ("k", p.kv, p.t, p.d),
            ("v", p.kv, p.t, p.dv),
        ):
            numbers = rng.standard_normal((p.b, rows, heads, width + pad))
            if p.wild or (p.lost and name == "q"):
                _spoil(numbers, name)
            operands[name] = a = stored(numbers, dtype)
            values[name] = value(a, dtype)[..., :width].transpose(0, 2, 1, 3)
            ints |= {
                f"{name}_b": rows * heads * (width + pad),
                f"{name}_s": heads * (width + pad),
                f"{name}_h": width + pad,
            }
    effect = None
    if p.mask:
        operands["mask"], effect, strides = _mask(rng, p, dtype)
        ints |= strides | {"mask_kind": p.mask}
    ints["nan_to_zero"] = int(p.clean)
    want, size = reference(p, values["q"], values["k"], values["v"], effect)
    bound = bound_of(p, dtype, want, size)
    row = p.h * (p.dv + pad)
    ints |= {"y_b": p.s * row, "y_s": row, "y_h": p.dv + pad}
    out = Output(
        dtype, max(p.b * p.s * row, 1), want.shape, [p.s * row, p.dv + pad, row, 1], want, bound
    )
    env: dict[str, int] = {}
    if symbolic:
        env = {"B": p.b, "S": p.s, "T": p.t}
        ints |= {"B": symbol("B"), "S": symbol("S"), "T": symbol("T")}
    floats = {"scale": p.scale or p.d**-0.5, "fill": p.fill, "softcap": p.cap}
    return Case(
        p.name + (" symbolic" if symbolic else ""),
        "attention",
        dtype,
        ints,
        operands,
        {"y": out},
        floats,
        env=env,
    )


def forms(rng: np.random.Generator) -> Iterator[Case]:
    """Each kernel, the widest tiles of each form, on odd shapes with the masks they may have."""
    emitter = discovery.module("kernels", "cuda.attention.emit")
    problem = emitter.problem.problem
    f16, bf16, f32, shape = DType.F16, DType.BF16, DType.F32, Shape
    hopper = (
        ((4, 64), f16, shape(1, 2, 1, 257, 131, 64, 64, mask=1)),
        ((4, 64), f16, shape(2, 1, 1, 300, 77, 64, 64, mask=2, broadcast="bk")),
        ((4, 64), bf16, shape(1, 2, 2, 261, 197, 64, 64, causal=True, past=-64, mask=3,
            clean=True)), ((4, 80), f16, shape(1, 2, 2, 385, 197, 64, 64)),
        ((4, 96), f16, shape(1, 2, 1, 300, 301, 64, 64)),
        ((4, 96), bf16, shape(1, 1, 1, 523, 523, 40, 40, causal=True)),
        ((1, 64, 4), f16, shape(3, 7, 7, 67, 131, 64, 64)),
        ((1, 64, 4), f16, shape(2, 3, 3, 129, 129, 64, 64, causal=True, packed=True)),
        ((1, 80, 3), f16, shape(2, 2, 2, 40, 77, 64, 64, mask=1, broadcast="bk")),
        ((1, 128, 2), f16, shape(2, 4, 2, 131, 257, 64, 64, mask=2, broadcast="qk")),
        ((1, 128, 2), bf16, shape(2, 2, 2, 1, 300, 64, 64)),
        ((2, 128, 1, "INTRA_WG"), f16, shape(1, 4, 2, 257, 300, 128, 128)),
        ((2, 128, 1, "INTRA_WG"), f16, shape(1, 2, 2, 261, 259, 128, 128, mask=3, clean=True)),
        ((2, 112, 1, "INTRA_WG"), bf16, shape(1, 2, 2, 301, 301, 96, 96, causal=True)),
        ((1, 128, 1, "INTRA_WG"), f16, shape(2, 2, 2, 131, 197, 64, 128, mask=1)),
        ((1, 96, 1, "INTRA_WG"), f16, shape(1, 8, 2, 3, 513, 128, 128)),
        ((2, 128, 1, "PINGPONG"), f16, shape(1, 4, 2, 257, 300, 128, 128, causal=True)),
        ((2, 128, 1, "PINGPONG"), bf16, shape(1, 2, 2, 130, 259, 128, 128, mask=2)),
        ((1, 64, 2), f16, shape(2, 2, 2, 131, 197, 128, 128, mask=1, broadcast="bk")),
        ((1, 208, 1, "SINGLE_WG"), f16, shape(1, 2, 2, 197, 197, 64, 64)),
        ((1, 128, 1, "SINGLE_WG"), bf16, shape(2, 2, 1, 67, 300, 64, 64, mask=1, broadcast="bk")),
        ((1, 128, 1, "SINGLE_WG"), f16, shape(1, 2, 2, 131, 131, 128, 72)),
        ((2, 128, 1, "SPLIT_CTA"), f16, shape(1, 3, 3, 257, 513, 64, 64, causal=True, past=256)),
        ((2, 64, 1, "SPLIT_CTA"), f16, shape(2, 2, 2, 67, 131, 64, 40, mask=1)),
        ((4, 64), f16, shape(1, 2, 1, 257, 131, 61, 61)),
        ((1, 64, 4), bf16, shape(2, 3, 3, 131, 129, 47, 33, mask=1, broadcast="bk")),
        ((2, 64, 1, "INTRA_WG"), f16, shape(1, 2, 2, 133, 150, 191, 256)),
        ((1, 64, 1, "SINGLE_WG"), bf16, shape(1, 2, 1, 70, 150, 256, 200, causal=True, past=80)),
        ((1, 64, 1, "SINGLE_WG", 4), f16, shape(1, 2, 1, 67, 300, 64, 61, mask=1, broadcast="bk")),
        ((1, 128, 1, "SINGLE_WG", 8), bf16,
            shape(1, 2, 2, 40, 700, 128, 128, causal=True, past=600)),
        ((1, 64, 2, "SINGLE_WG", 1, 0, True), f16,
            shape(1, 2, 2, 20, 700, 64, 61, causal=True, past=680)),
        ((1, 64, 1, "SINGLE_WG", 1, 0, True), bf16, shape(1, 12, 2, 1, 600, 256, 200, mask=1)),
        ((1, 64, 2), f16, shape(1, 2, 1, 131, 203, 96, 96, mask=1, cap=2.0)),
        ((2, 112, 1, "PINGPONG"), bf16, shape(2, 2, 2, 131, 160, 128, 128, mask=3)),
        ((1, 128, 1, "SINGLE_WG", 2), f16, shape(2, 10, 2, 1, 300, 128, 128)),
        ((1, 64, 1, "SINGLE_WG", 8), bf16, shape(1, 71, 1, 1, 600, 64, 64, mask=2)),
    )  # fmt: skip
    for form, dtype, p in hopper:
        case = attention_case(rng, p, dtype)
        tile = emitter.fa3.config(problem(emitter.select.as_rows(request_of(case))), *form)
        assert tile is not None, form
        made = replace(case, name=f"{case.name} {tile}", tile=tile)
        yield made
        yield quantised(made, p.b + p.h)
    large, split = emitter.simt.SimtConfig, emitter.simt.Tf32Config
    spread, group = partial(emitter.DecodeConfig, "simt"), emitter.select.decode.mma_config()
    threads = (
        (spread(4, 1, True), f16, shape(1, 8, 2, 1, 700, 128, 128)),
        (spread(4, 1, True), f32, shape(1, 2, 1, 3, 300, 61, 64, mask=1, broadcast="bk")),
        (spread(2, 1, True), bf16, shape(1, 2, 2, 2, 500, 200, 256, causal=True, past=490)),
        (spread(4, 1), f16, shape(1, 12, 1, 1, 300, 64, 64)),
        (group, f16, shape(1, 16, 1, 1, 700, 128, 128)),
        (group, bf16, shape(2, 6, 2, 3, 1031, 72, 40, causal=True, past=1000, mask=1)),
        (group, f16, shape(1, 20, 1, 1, 300, 64, 64, mask=2, broadcast="bk", clean=True)),
        (large(8, 8, 1), f32, shape(1, 2, 1, 131, 150, 61, 61, mask=1)),
        (large(8, 4, 2), f32, shape(1, 2, 1, 130, 300, 128, 72, causal=True, past=170)),
        (large(4, 8, 4), f32, shape(1, 2, 2, 67, 520, 64, 64, mask=2, broadcast="bk")),
        (large(4, 4, 2), f32, shape(1, 1, 1, 70, 200, 256, 200)),
        (split(4, 64, 1), f32, shape(1, 2, 1, 131, 150, 61, 61, mask=1)),
        (split(8, 64, 2), f32, shape(1, 2, 1, 130, 300, 128, 72, causal=True, past=170)),
        (split(4, 64, 4), f32, shape(1, 2, 2, 67, 520, 64, 64, mask=2, broadcast="bk")),
        (split(8, 32, 2), f32, shape(1, 1, 1, 70, 200, 256, 200)),
        (split(4, 32, 1), f32, shape(1, 2, 2, 67, 130, 200, 130, wild=True)),
        (split(4, 64, 2, 2), f32, shape(1, 2, 1, 67, 260, 200, 130, causal=True, past=193)),
        (split(4, 64, 8), f32, shape(1, 2, 1, 40, 600, 17, 33, odd=True, wild=True)),
    )  # fmt: skip
    for chosen, dtype, p in threads:
        case = attention_case(rng, p, dtype)
        made = replace(case, name=f"{case.name} {chosen}", tile=chosen)
        yield made
        if chosen is group:
            yield quantised(made, p.s)
    plain = (
        (f16, shape(1, 2, 2, 30, 47, 64, 64, odd=True, mask=1)),
        (bf16, shape(1, 2, 2, 67, 131, 256, 256, causal=True, past=64)),
        (f16, shape(1, 2, 1, 19, 23, 17, 13)),
        (f16, shape(1, 3, 3, 1, 131, 61, 61, mask=2, broadcast="bk")),
        (f32, shape(2, 2, 1, 40, 77, 64, 64, mask=2, broadcast="bk")),
        (f32, shape(1, 2, 2, 67, 41, 130, 20, causal=True)), (f32, shape(1, 1, 1, 5, 3, 1, 1)),
        (f16, shape(2, 6, 2, 1, 700, 61, 61, mask=1, broadcast="bk")),
        (bf16, shape(1, 4, 1, 2, 300, 256, 256, causal=True, past=250)),
        (f32, shape(1, 2, 2, 3, 300, 72, 72)), (f32, shape(1, 2, 1, 37, 131, 61, 61, mask=2)),
    )  # fmt: skip
    for dtype, p in plain:
        yield attention_case(rng, p, dtype)


#: Makers that share the cases of one type: references take longer than kernels.
_PARTS = 4


def attention(rng: np.random.Generator, dtype: DType, part: int) -> Iterator[Case]:
    for k, p in enumerate(SHAPES):
        if k % _PARTS == part:
            yield attention_case(rng, p, dtype, symbolic=k % 7 == 0 and p.b > 0)


def lost(rng: np.random.Generator, dtype: DType) -> Iterator[Case]:
    for p in LOST:
        yield attention_case(rng, p, dtype)


def wild(rng: np.random.Generator) -> Iterator[Case]:
    for p in WILD:
        yield attention_case(rng, p, DType.F32)


FAMILIES = {
    **{
        f"{dtype.name} {part}": partial(attention, dtype=dtype, part=part)
        for dtype in (DType.F32, DType.F16, DType.BF16)
        for part in range(_PARTS)
    },
    **{
        f"lost {dtype.name}": partial(lost, dtype=dtype)
        for dtype in (DType.F32, DType.F16, DType.BF16)
    },
    "wild": wild,
    "forms": forms,
}
