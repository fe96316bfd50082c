"""Cases over channels-last images (pooling, resizing) and of pointwise programs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from tests.support.cuda.case import (
    ROUNDOFF,
    Array,
    Case,
    Output,
    contiguous,
    plain,
    rounding,
    stored,
    value,
)
from tracea_onnx.ir.abi import ACTIVATIONS, F32_OPCODES, I64_OPCODES, OPCODE, OPCODES, DType
from tracea_onnx.ir.activations import evaluate
from tracea_onnx.ir.dims import DimLike, symbol
from tracea_onnx.ir.expr import Expr, Instr
from tracea_onnx.ir.expr_program import compile_program
from tracea_onnx.plan.kernel_families import weight_pitch

FLOATS = (DType.F32, DType.F16, DType.BF16)


def image(
    rng: np.random.Generator, n: int, c: int, h: int, w: int, dtype: DType, gap: int = 0
) -> tuple[Array, Array, dict[str, DimLike]]:
    """A channels-last image with NaN in its pad channels and in `gap` pixels after each row, its
    values as [N, C, H, W], its pitches.
    """
    cs = -(-c // 8) * 8
    packed = np.full((n, h, w + gap, cs), np.nan)
    packed[:, :, :w, :c] = rng.standard_normal((n, h, w, c))
    s = stored(packed, dtype)
    return (
        s,
        value(s, dtype)[:, :, :w, :c].transpose(0, 3, 1, 2),
        {"x_cs": cs, "x_rs": (w + gap) * cs, "x_ns": h * (w + gap) * cs},
    )


def channels_last(want: Array, dtype: DType, bound: Array) -> tuple[Output, dict[str, DimLike]]:
    n, c, h, w = want.shape
    cs = -(-c // 8) * 8
    return Output(
        dtype, max(n * h * w * cs, 1), want.shape, [h * w * cs, 1, w * cs, cs], want, bound
    ), {"y_cs": cs, "y_rs": w * cs, "y_ns": h * w * cs}


_POOLS = (
    (2, 64, 15, 13, 3, 3, 2, 2, 1, 1, (1, 1, 1, 1)), (1, 5, 7, 7, 2, 2, 2, 2, 1, 1, (0, 0, 0, 0)),
    (1, 16, 9, 11, 3, 2, 1, 2, 2, 2, (2, 1, 1, 0)),
    (2, 24, 1, 17, 1, 5, 1, 3, 1, 1, (0, 2, 0, 2)), (1, 8, 5, 5, 5, 5, 1, 1, 1, 1, (4, 4, 4, 4)),
    (0, 8, 5, 5, 2, 2, 1, 1, 1, 1, (0, 0, 0, 0)),
    (16, 64, 60, 58, 3, 3, 2, 2, 1, 1, (1, 1, 1, 1)),
    (4, 70, 61, 63, 3, 2, 1, 1, 2, 1, (2, 1, 0, 1)),
)  # fmt: skip


def pool(rng: np.random.Generator) -> Iterator[Case]:
    for dtype, mode, p in itertools.product(FLOATS, (0, 1, 2), _POOLS):
        n, c, h, w, kh, kw, sh, sw, dh, dw, (pt, pl, pb, pr) = p
        x, v, pitch = image(rng, n, c, h, w, dtype)
        oh, ow = (
            (h + pt + pb - dh * (kh - 1) - 1) // sh + 1,
            (w + pl + pr - dw * (kw - 1) - 1) // sw + 1,
        )
        empty = -np.inf if mode == 0 else 0.0
        padded = np.full((n, c, h + pt + pb, w + pl + pr), empty)
        padded[:, :, pt : pt + h, pl : pl + w] = v
        inside = np.zeros(padded.shape[2:])
        inside[pt : pt + h, pl : pl + w] = 1
        taps = [(i * dh, j * dw) for i in range(kh) for j in range(kw)]

        def windows(
            a: Array, i: int, j: int, oh: int = oh, ow: int = ow, sh: int = sh, sw: int = sw
        ) -> Array:
            return a[..., i : i + (oh - 1) * sh + 1 : sh, j : j + (ow - 1) * sw + 1 : sw]

        parts = np.stack([windows(padded, *t) for t in taps])
        counts = sum(windows(inside, *t) for t in taps)
        with np.errstate(all="ignore"):
            want = (
                parts.max(0)
                if mode == 0
                else np.where(counts > 0, parts.sum(0) / counts, 0.0)
                if mode == 1
                else parts.sum(0) / len(taps)
            )
        out, to = channels_last(want, dtype, rounding(want, dtype, 0 if mode == 0 else 4))
        ints = {"mode": mode, "N": n, "C": c, "IH": h, "IW": w, "OH": oh, "OW": ow, "KH": kh,
            "KW": kw, "SH": sh, "SW": sw, "DH": dh, "DW": dw,
                "PT": pt, "PL": pl, "PB": pb, "PR": pr, **pitch, **to}  # fmt: skip
        yield Case(
            f"pool2d mode={mode} {n}x{c}x{h}x{w} {kh}x{kw}",
            "pool2d",
            dtype,
            ints,
            {"x": x},
            {"y": out},
        )
    images = (
        (2, 64, 7, 7),
        (1, 5, 3, 1),
        (3, 100, 33, 37),
        (1, 1280, 7, 7),
        (1, 17, 64, 40),
        (70, 40, 5, 9),
        (9, 520, 3, 40),
        (1, 64, 70, 71),
        (1, 24, 97, 50),
    )
    for dtype, mode, (n, c, h, w) in itertools.product(FLOATS, (0, 1), images):
        x, v, pitch = image(rng, n, c, h, w, dtype)
        want = v.max((2, 3)) if mode == 0 else v.mean((2, 3))
        out = plain(dtype, want, rounding(want, dtype, 4))
        sizes = {"mode": mode, "N": n, "C": c, "H": h, "W": w, **pitch, "y_ns": c}
        yield Case(
            f"global_pool mode={mode} {n}x{c}x{h}x{w}",
            "global_pool",
            dtype,
            sizes,
            {"x": x},
            {"y": out},
        )


def _source(coord: int, at: Array, size: int, out: int, scale: float) -> Array:
    f = np.float32
    s, a = f(scale), at.astype(f)
    if coord == 1:
        return a / s
    if coord == 2:
        return a * f(size - 1) / f(out - 1) if out > 1 else a * 0
    return (a + f(0.5)) / s - f(0.5) if coord == 0 or out > 1 else a * 0


def _nearest(rounding: int, place: Array, scale: float, size: int) -> Array:
    """As ONNX Runtime, which takes a place within 1e-6 of a half for one."""
    below = np.floor(place)
    past = place - below - np.float32(0.5)
    up = (
        past > 1e-6
        if rounding == 0
        else past >= -1e-6
        if rounding == 3
        else (place > below) & (rounding == 2 or (rounding == 4 and scale < 1))
    )
    places: Array = np.clip(below + up, 0, size - 1).astype(int)
    return places


def _cubic(at: Array, size: int, a: float = -0.75) -> Array:
    """What each input position contributes to each output position."""
    out = np.zeros((len(at), size))
    for row, s in zip(out, at.astype(np.float64), strict=True):
        low = int(np.floor(s))
        for k in range(low - 1, low + 3):
            d = abs(s - k)
            row[min(max(k, 0), size - 1)] += (
                (a + 2) * d**3 - (a + 3) * d**2 + 1
                if d <= 1
                else a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a
            )
    return out


def resize(rng: np.random.Generator) -> Iterator[Case]:
    sizes = ((2, 8, 4, 5, 8, 10), (1, 5, 7, 6, 3, 13), (1, 16, 1, 3, 1, 1))
    for dtype, mode, coord, (n, c, h, w, oh, ow) in itertools.product(
        FLOATS, (0, 1, 2), range(4), sizes
    ):
        for rounding_mode in range(5) if mode == 0 else (0,):
            x, v, pitch = image(rng, n, c, h, w, dtype)
            scales = (oh / h, ow / w)
            sh, sw = (
                _source(coord, np.arange(oh), h, oh, scales[0]),
                _source(coord, np.arange(ow), w, ow, scales[1]),
            )
            if mode == 0:
                rows, columns = (
                    _nearest(rounding_mode, s, scale, size)
                    for s, scale, size in ((sh, scales[0], h), (sw, scales[1], w))
                )
                want = v[:, :, rows][..., columns]
            elif mode == 2:
                want = np.einsum("nchw,yh,xw->ncyx", v, _cubic(sh, h), _cubic(sw, w))
            else:
                sh, sw = np.clip(sh, 0, h - 1), np.clip(sw, 0, w - 1)
                r, q = sh.astype(int), sw.astype(int)
                a, b = (sh - r)[:, None].astype(np.float64), (sw - q).astype(np.float64)
                r1, q1 = np.minimum(r + 1, h - 1), np.minimum(q + 1, w - 1)
                want = (1 - a) * ((1 - b) * v[:, :, r][..., q] + b * v[:, :, r][..., q1]) + a * (
                    (1 - b) * v[:, :, r1][..., q] + b * v[:, :, r1][..., q1]
                )
            out, to = channels_last(want, dtype, rounding(want, dtype, 8))
            ints = {
                "coord": coord,
                "N": n,
                "C": c,
                "IH": h,
                "IW": w,
                "OH": oh,
                "OW": ow,
                **pitch,
                **to,
            }
            ints |= {} if mode == 2 else {"mode": mode, "rounding": rounding_mode}
            floats = {"scale_h": scales[0], "scale_w": scales[1]} | (
                {"a": -0.75} if mode == 2 else {}
            )
            family = "resize_cubic" if mode == 2 else "resize2d"
            name = f"{family} mode={mode} coord={coord} rounding={rounding_mode} {h}x{w}->{oh}x{ow}"
            yield Case(name, family, dtype, ints, {"x": x}, {"y": out}, floats)
            if (h, coord) == (4, 0):  # scales of the sizes
                yield Case(
                    f"{name} sizes",
                    family,
                    dtype,
                    ints,
                    {"x": x},
                    {"y": out},
                    floats | {"scale_h": 0.0, "scale_w": 0.0},
                )


# --- pointwise
_CHAIN = Expr(
    2,
    (
        Instr("add", (0, 1)),
        Instr("gelu_erf", (2,)),
        Instr("const", (), 0.5),
        Instr("fma", (3, 4, 0)),
    ),
    5,
)
_SHAPES: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((64, 256), (64, 256)), ((1009,), (1009,)), ((3, 5, 7), (7,)), ((4, 33, 16), (33, 1)),
    ((2, 3, 4, 8), (2, 1, 4, 1)), ((5, 1), (1, 24)), ((1,), (1,)),
    ((0, 4), (4,)), ((2, 8, 1, 6, 1, 24), (1, 1, 3, 6, 5, 1)),
)  # fmt: skip


def _broadcast(shape: tuple[int, ...], out: tuple[int, ...]) -> list[int]:
    return [0] * (len(out) - len(shape)) + [
        s if d != 1 else 0 for d, s in zip(shape, contiguous(shape), strict=True)
    ]


def _pointwise(
    name: str,
    expr: Expr,
    operands: list[tuple[Array, DType]],
    want: Array,
    dtype: DType,
    bound: Array | None,
    transposed: bool = False,
) -> Case:
    integer = want.dtype.kind in "iu" and all(
        d in (DType.I64, DType.I32, DType.BOOL) for _, d in operands
    )
    ints: dict[str, DimLike] = {"y_dtype": int(dtype)}
    ints |= {f"n{k}": d for k, d in enumerate([*[1] * (6 - want.ndim), *want.shape])}
    for k, (a, d) in enumerate(operands):
        strides = _broadcast(a.shape, want.shape)
        ints |= {
            f"x{k}_dtype": int(d),
            **{f"x{k}_{j}": s for j, s in enumerate([*[0] * (6 - want.ndim), *strides])},
        }
        if transposed and k == 0:  # the first operand lies transposed in memory
            ints |= {"x0_4": 1, "x0_5": want.shape[0]}
    stored_operands = {
        f"x{k}": np.ascontiguousarray(a.T) if transposed and k == 0 else a
        for k, (a, _) in enumerate(operands)
    }
    program = compile_program(expr, type="i64" if integer else "f32")
    return Case(
        name,
        "pointwise",
        DType.F32,
        ints,
        stored_operands,
        {"y": plain(dtype, want, bound)},
        program=program,
    )


def _bound(want: Array, dtype: DType, magnitude: Array) -> Array:
    """Rounding of the result, f32 steps of its operands, and the approximate functions that 16-bit
    results allow.
    """
    return rounding(want, dtype, magnitude, 32) + (
        2.0 * ROUNDOFF[dtype] * magnitude if dtype != DType.F32 else 0
    )


def pointwise(rng: np.random.Generator) -> Iterator[Case]:
    for dtype in FLOATS:
        for a, b in _SHAPES:
            x, y = stored(rng.standard_normal(a), dtype), stored(rng.standard_normal(b), dtype)
            vx, vy = value(x, dtype), value(y, dtype)
            want = np.asarray(evaluate(_CHAIN, [vx, vy]))
            yield _pointwise(
                f"pointwise {a} {b}",
                _CHAIN,
                [(x, dtype), (y, dtype)],
                want,
                dtype,
                _bound(want, dtype, 1 + np.abs(vx) + np.abs(vy)),
            )
        x, y = stored(rng.standard_normal((40, 48)), dtype), stored(rng.standard_normal(48), dtype)
        want = np.asarray(evaluate(_CHAIN, [value(x, dtype), value(y, dtype)]))
        yield _pointwise(
            "pointwise transposed operand",
            _CHAIN,
            [(x, dtype), (y, dtype)],
            want,
            dtype,
            _bound(want, dtype, 4 + 0 * want),
            transposed=True,
        )
        yield from _layouts(rng, dtype)
        yield from _opcodes(rng, dtype)
        yield from _images(rng, dtype)
    yield from _conversions(rng)
    yield from _integers(rng)
    yield from _staged(rng)


def _staged(rng: np.random.Generator) -> Iterator[Case]:
    """Integers compared, made a bucket by way of f32, and chosen by whether they are less: every
    stage has a type of its own.
    """
    less, gap = (
        compile_program(Expr(2, (Instr(op, (0, 1)),), 2), type="i64") for op in ("lt", "sub")
    )
    root = compile_program(Expr(1, (Instr("abs", (0,)), Instr("sqrt", (1,))), 2), type="f32")
    where = compile_program(Expr(3, (Instr("where", (0, 1, 2)),), 3), type="f32")
    stages = [
        {"program": less, "dtype": int(DType.BOOL), "from": [0, 1]},
        {"program": gap, "dtype": int(DType.I32), "from": [0, 1]},
        {"program": root, "dtype": int(DType.I64), "from": [4]},
        {"program": where, "dtype": int(DType.F16), "from": [3, 2, 5]},
    ]  # fmt: skip
    for rows, columns in ((7, 9), (300, 64), (1, 1003)):
        a, b, c = (
            rng.integers(-50, 50, (rows, 1)),
            rng.integers(-50, 50, (1, columns)),
            stored(rng.standard_normal((rows, columns)), DType.F16),
        )
        want = np.where(
            a < b, c.astype(np.float64), np.trunc(np.sqrt(np.abs(a - b).astype(np.float32)))
        )
        operands = [(a, DType.I64), (b, DType.I64), (c, DType.F16)]
        one = _pointwise(
            f"pointwise stages {rows}x{columns}",
            _arity_expression("where"),
            operands,
            want,
            DType.F16,
            rounding(want, DType.F16, 0),
        )
        yield replace(one, program={"n_in": 3, "stages": stages})


#: Shape, and per operand its first element and strides.
_LAYOUTS: tuple[tuple[str, tuple[int, ...], tuple[tuple[int, tuple[int, ...]], ...]], ...] = (
    ("columns", (9, 101), ((5, (131, 1)), (0, (101, 1)))),
    ("columns of both", (3, 5, 37), ((3, (400, 53, 1)), (1, (0, 41, 1)))),
    ("run from an odd place", (1009,), ((1, (1,)), (0, (1,)))),
    ("steps", (20, 71), ((0, (300, 3)), (2, (0, 1)))),
    ("backwards", (5, 33), ((32, (33, -1)), (0, (1, 0)))),
    ("short rows", (7, 9, 3), ((0, (27, 3, 1)), (0, (1, 0, 9)))),
    ("constant along rows", (11, 67), ((0, (1, 0)), (0, (67, 1)))),
    ("transposed", (67, 131), ((0, (1, 67)), (0, (131, 1)))),
    ("both transposed", (33, 65), ((0, (1, 40)), (1, (1, 33)))),
    ("transposed and repeated", (2, 70, 3, 17), ((0, (0, 1, 1190, 70)), (0, (17, 0, 0, 1)))),
    ("transposed and jumping", (20, 3, 66), ((0, (1, 1320, 20)), (0, (3, 1, 60)))),
    # What is not small (pointwise/pointwise.py).
    ("large columns", (521, 517), ((5, (531, 1)), (0, (517, 1)))),
    ("large, two steps at a time", (3, 307, 389), ((1, (307 * 800, 800, 2)), (0, (0, 389, 1)))),
    ("large transposed", (521, 517), ((0, (1, 521)), (0, (517, 1)))),
)  # fmt: skip


def _layouts(rng: np.random.Generator, dtype: DType) -> Iterator[Case]:
    """Operands that lie in any order, at any address."""
    program = compile_program(_CHAIN, type="f32")
    for name, shape, operands in _LAYOUTS:
        ints: dict[str, DimLike] = {
            "y_dtype": int(dtype),
            **{f"n{k}": d for k, d in enumerate([*[1] * (6 - len(shape)), *shape])},
        }
        held, seen = {}, []
        for k, (start, strides) in enumerate(operands):
            reach = sum((n - 1) * max(s, 0) for n, s in zip(shape, strides, strict=True)) + 1
            x = held[f"x{k}"] = stored(rng.standard_normal(start + reach), dtype)[start:]
            seen.append(
                value(
                    np.lib.stride_tricks.as_strided(x, shape, [s * x.itemsize for s in strides]),
                    dtype,
                )
            )
            ints |= {
                f"x{k}_dtype": int(dtype),
                **{f"x{k}_{d}": s for d, s in enumerate([*[0] * (6 - len(shape)), *strides])},
            }
        want = np.asarray(evaluate(_CHAIN, seen))
        out = plain(dtype, want, _bound(want, dtype, 1 + np.abs(seen[0]) + np.abs(seen[1])))
        unaligned = frozenset(
            f"x{k}" for k, (start, _) in enumerate(operands) if start * dtype.size % 16
        )
        yield Case(
            f"pointwise {name}",
            "pointwise",
            DType.F32,
            ints,
            held,
            {"y": out},
            program=program,
            unaligned=unaligned,
        )


def _opcodes(rng: np.random.Generator, dtype: DType) -> Iterator[Case]:
    """Every opcode alone."""
    positive = {"sqrt", "rsqrt", "log", "pow", "reciprocal", "div", "mod", "fmod", "celu"}
    for op in (o for o in OPCODES if o in F32_OPCODES - {"const", "copy"}):
        v = [rng.standard_normal(500) for _ in range(3)]
        if op in positive:
            v = [np.abs(a) + 0.1 for a in v]
        if op in ("asin", "acos"):
            v[0] = np.clip(v[0], -0.95, 0.95)
        if op in ("clip", "hard_sigmoid"):
            v[1], v[2] = -np.abs(v[1]), np.abs(v[2])
        if op in ("isnan", "isinf"):
            v[0][::3], v[0][1::7] = np.nan, -np.inf
        if op in ("eq", "and", "or", "xor", "not", "where"):
            v = [np.round(a) for a in v]
        x = [stored(a, dtype) for a in v]
        e = _arity_expression(op)
        with np.errstate(all="ignore"):
            want = np.asarray(evaluate(e, [value(a, dtype) for a in x[: e.n_in]]), np.float64)
        if op in ("mod", "fmod"):
            # the quotient's rounding decides
            near = np.abs(want - np.round(want / value(x[1], dtype)) * value(x[1], dtype)) < 1e-3
            x = [np.where(near, stored(np.ones(500), dtype), a) for a in x]
            want = np.where(near, 0.0, want)
        magnitude = (
            2 + np.abs(want) + sum(np.abs(np.nan_to_num(value(a, dtype))) for a in x[: e.n_in])
        )
        yield _pointwise(
            f"pointwise {op}",
            e,
            [(a, dtype) for a in x[: e.n_in]],
            want,
            dtype,
            _bound(want, dtype, magnitude),
        )


def _arity_expression(op: str) -> Expr:
    n = OPCODE[op].arity
    return Expr(n, (Instr(op, tuple(range(n))),), n)


def _images(rng: np.random.Generator, dtype: DType) -> Iterator[Case]:
    for n, c, h, w in ((2, 64, 5, 6), (1, 20, 3, 3), (3, 7, 4, 1), (1, 8, 1, 1)):
        x, v, pitch = image(rng, n, c, h, w, dtype)
        for other in ("full", "channel", "gate", "scalar"):
            ints: dict[str, DimLike] = {
                "N": symbol("N"),
                "C": c,
                "H": h,
                "W": w,
                "x0_kind": 0,
                **{k.replace("x_", "x0_"): p for k, p in pitch.items()},
            }
            if other == "full":
                y, u, more = image(rng, n, c, h, w, dtype)
                ints |= {"x1_kind": 0, **{k.replace("x_", "x1_"): p for k, p in more.items()}}
            else:
                y = stored(
                    rng.standard_normal(
                        {"channel": (1, c, 1, 1), "gate": (n, c, 1, 1), "scalar": (1, 1, 1, 1)}[
                            other
                        ]
                    ),
                    dtype,
                )
                u = value(y, dtype)
                ints |= {
                    "x1_kind": 3 if other == "scalar" else 1,
                    "x1_ns": c if other == "gate" else 0,
                }
            want = np.asarray(evaluate(_CHAIN, [v, u]))
            out, to = channels_last(want, dtype, _bound(want, dtype, 1 + np.abs(v) + np.abs(u)))
            program = compile_program(_CHAIN, type="f32")
            yield Case(
                f"pointwise_nhwc {other} {n}x{c}x{h}x{w}",
                "pointwise_nhwc",
                dtype,
                ints | to,
                {"x0": x, "x1": y},
                {"y": out},
                program=program,
                env={"N": n},
            )


def _conversions(rng: np.random.Generator) -> Iterator[Case]:
    """Casts between every pair the compiler emits."""
    types = (*FLOATS, DType.I64, DType.I32, DType.U8, DType.I8, DType.BOOL)
    for a, b in itertools.product(types, types):
        v = (
            rng.integers(0, 2, 203).astype(float)
            if a == DType.BOOL
            else rng.integers(0 if DType.U8 in (a, b) else -100, 100, 203)
            + (0.25 if a in FLOATS else 0.0)
        )
        x = stored(v, a)
        held: Array = value(x, a)
        want: Array = (
            held.astype(np.float64)
            if b in FLOATS
            else (held != 0).astype(np.uint8)
            if b == DType.BOOL
            else np.trunc(held).astype(stored(np.zeros(1), b).dtype)
        )
        yield _pointwise(
            f"pointwise {a.name} to {b.name}",
            Expr(1, (), 0),
            [(x, a)],
            want,
            b,
            rounding(want, b, 0) if b in FLOATS else None,
        )


def _integers(rng: np.random.Generator) -> Iterator[Case]:
    exact: dict[str, Any] = {
        "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": lambda a,
        b: np.trunc(a / b).astype(np.int64), "min": np.minimum, "max": np.maximum,
        "neg": np.negative, "abs": np.abs, "sign": np.sign, "mod": np.mod, "fmod": np.fmod,
        "eq": np.equal, "lt": np.less, "le": np.less_equal,
        "and": np.logical_and, "or": np.logical_or, "not": np.logical_not, "xor": np.logical_xor,
        "where": lambda a, b, c: np.where(a != 0, b, c),
        "square": np.square, "bit_and": np.bitwise_and, "bit_or": np.bitwise_or,
        "bit_xor": np.bitwise_xor, "bit_not": np.invert,
        "shift_left": lambda a, b: np.where(b < 64, a << np.minimum(b, 63), 0),
        "shift_right": lambda a, b: np.where(b < 64, a >> np.minimum(b, 63), 0),
    }  # fmt: skip
    for op in sorted(I64_OPCODES - {"const", "copy"}):
        e = _arity_expression(op)
        v = [rng.integers(-50, 50, 301) for _ in range(e.n_in)]
        if op in ("div", "mod", "fmod"):
            v[1] = np.where(v[1] == 0, 7, v[1])
        if op.startswith("shift"):
            v = [np.abs(v[0]), np.abs(v[1]) * 2]
        want = np.asarray(exact[op](*v)).astype(np.int64)
        yield _pointwise(
            f"pointwise i64 {op}", e, [(a, DType.I64) for a in v], want, DType.I64, None
        )
    a, b = rng.integers(-50, 50, (7, 9)).astype(np.int32), rng.integers(0, 2, 9).astype(np.uint8)
    want = (a * b).astype(np.int32)
    yield _pointwise(
        "pointwise i32 by bool",
        Expr(2, (Instr("mul", (0, 1)),), 2),
        [(a, DType.I32), (b, DType.BOOL)],
        want,
        DType.I32,
        None,
    )


#: n, channels, hidden channels, height, width, activations and their parameters.
_EXCITES = (
    (2, 32, 8, 33, 31, ("silu", 0.0, 0.0), ("sigmoid", 0.0, 0.0)),
    (3, 96, 4, 20, 24, ("relu", 0.0, 0.0), ("hard_sigmoid", 0.2, 0.5)),
    (1, 144, 6, 56, 56, ("silu", 0.0, 0.0), ("sigmoid", 0.0, 0.0)),
    (2, 1152, 48, 7, 7, ("silu", 0.0, 0.0), ("sigmoid", 0.0, 0.0)),
    (1, 5, 3, 2, 3, ("relu", 0.0, 0.0), ("sigmoid", 0.0, 0.0)),
    (2, 83, 17, 5, 1, ("hard_swish", 0.0, 0.0), ("none", 0.0, 0.0)),
    (5, 672, 168, 14, 14, ("relu", 0.0, 0.0), ("hard_sigmoid", 1 / 6, 0.5)),
    (1, 2048, 128, 3, 3, ("relu", 0.0, 0.0), ("sigmoid", 0.0, 0.0)),
    (0, 32, 8, 4, 4, ("relu", 0.0, 0.0), ("sigmoid", 0.0, 0.0)),
    (1, 24, 6, 112, 112, ("relu", 0.0, 0.0), ("sigmoid", 0.0, 0.0)),
    (35, 480, 120, 7, 5, ("relu", 0.0, 0.0), ("hard_sigmoid", 1 / 6, 0.5)),
    (41, 48, 6, 30, 31, ("silu", 0.0, 0.0), ("sigmoid", 0.0, 0.0)),
    (150, 208, 13, 6, 6, ("relu", 0.0, 0.0), ("sigmoid", 0.0, 0.0)),
    (1, 144, 6, 161, 150, ("silu", 0.0, 0.0), ("sigmoid", 0.0, 0.0)),
    (37, 960, 240, 3, 3, ("relu", 0.0, 0.0), ("hard_sigmoid", 1 / 6, 0.5)),
    (33, 96, 4, 40, 40, ("silu", 0.0, 0.0), ("sigmoid", 0.0, 0.0)),
)  # fmt: skip


def squeeze_excite(rng: np.random.Generator) -> Iterator[Case]:
    """Some with a symbolic batch or height, and with pixels between the rows that do not belong to
    the image.
    """
    for dtype, (k, form), (biased, early) in itertools.product(
        FLOATS, enumerate(_EXCITES), ((True, False), (True, True), (False, True))
    ):
        n, c, r, h, w, first, second = form
        x, v, pitch = image(rng, n, c, h, w, dtype, k % 3 // 2)
        weights = [np.zeros((r, weight_pitch(c, dtype.size))) for _ in range(2)]
        for packed in weights:
            packed[:, :c] = rng.standard_normal((r, c)) / np.sqrt(c)
        kept = [stored(a, dtype) for a in weights]
        w1, w2 = (value(a, dtype)[:, :c] for a in kept)
        b1, b2 = (stored(rng.standard_normal(-(-k // 32) * 32), DType.F32) for k in (r, c))
        zero = 1.0 if biased else 0.0

        def act(a: Array, form: tuple[str, float, float]) -> Array:
            return a if form[0] == "none" else _activation(form, a)

        hidden = act(v.mean((2, 3)) @ w1.T + zero * value(b1, DType.F32)[:r], first)
        gate = act(hidden @ w2 + zero * value(b2, DType.F32)[:c], second)
        want = v * gate[:, :, None, None]
        magnitude = np.abs(v) * (1 + np.abs(hidden) @ np.abs(w2) + np.abs(gate))[:, :, None, None]
        bound = rounding(want, dtype, magnitude, 32.0) + (
            0.0 if dtype == DType.F32 else 2.0**-11
        ) * np.abs(v)
        out, to = channels_last(want, dtype, bound)
        sizes: dict[str, DimLike] = {
            "N": symbol("N") if k % 2 else n,
            "C": c,
            "R": r,
            "H": symbol("H") if k % 4 == 1 else h,
            "W": w,
        }
        ints = {
            **sizes,
            **pitch,
            **to,
            "act1": ACTIVATIONS.index(first[0]),
            "act2": ACTIVATIONS.index(second[0]),
        }
        floats = {"p0": first[1], "p1": first[2], "q0": second[1], "q1": second[2]}
        operands = {
            "x": x,
            "w1": kept[0],
            "w2": kept[1],
            **({"b1": b1, "b2": b2} if biased else {}),
        }
        name = (
            f"squeeze_excite {n}x{c}x{h}x{w} to {r}{'' if biased else ' no bias'}"
            f"{' early' if early else ''}"
        )
        constant = frozenset(operands.keys() - {"x"}) if early else frozenset()
        yield Case(
            name,
            "squeeze_excite",
            dtype,
            ints,
            operands,
            {"y": out},
            floats,
            env={"N": n, "H": h},
            constant=constant,
        )


def _activation(form: tuple[str, float, float], x: Array) -> Array:
    """A built-in activation in float64."""
    name, *parameters = form
    used = parameters if name == "hard_sigmoid" else []
    code = (*(Instr("const", (), p) for p in used), Instr(name, (0, *range(1, 1 + len(used)))))
    return evaluate(Expr(1, code, len(code)), [x])


FAMILIES = {
    "squeeze_excite": squeeze_excite,
    "pool": pool,
    "resize": resize,
    "pointwise": pointwise,
}
