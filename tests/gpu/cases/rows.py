"""Cases of the row families: softmax, norms, rotary embedding, reductions, argmax."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.support.cuda.case import (
    Array,
    Case,
    Output,
    contiguous,
    plain,
    quantised,
    rounding,
    stored,
    value,
)  # fmt: skip
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike, symbol

FLOATS = (DType.F32, DType.F16, DType.BF16)


def _pair(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: DType, scale: float = 1.0
) -> tuple[Array, Array]:
    """A random tensor as stored and in float64."""
    s = stored(rng.standard_normal(shape) * scale, dtype)
    return s, value(s, dtype)


def softmax(rng: np.random.Generator) -> Iterator[Case]:
    shapes = [
        (3, 1, 1),
        (5, 17, 1),
        (2, 128, 1),
        (7, 1000, 1),
        (3, 4096, 1),
        (2, 40000, 1),
        (3, 5, 7),
        (2, 64, 33),
        (0, 8, 1),
        (4, 1021, 1),
        (2, 20001, 3),
    ]
    shapes += [
        (900, 3, 1),
        (5, 40, 1),
        (11, 96, 1),
        (70, 5, 3),
        (1, 50021, 1),
        (37, 63, 1),
        (37, 197, 1),
        (70001, 5, 1),
    ]
    # a thread for each column, slabs of few columns
    shapes += [(5, 3, 143), (350, 13, 302), (2, 16, 132), (140, 321, 11), (133, 625, 2)]
    for dtype in FLOATS:
        for log in (0, 1):
            for outer, n, inner in shapes:
                x, v = _pair(rng, (outer, n, inner), dtype, 3.0)
                d = v - v.max(1, keepdims=True) if outer else v
                total = np.exp(d).sum(1, keepdims=True)
                want = d - np.log(total) if log else np.exp(d) / total
                bound = rounding(want, dtype, np.abs(d) + 1 if log else want * (np.abs(d) + 8))
                ints = {"outer": outer, "n": n, "inner": inner, "log": log}
                yield Case(
                    f"softmax {outer}x{n}x{inner} log={log}",
                    "softmax",
                    dtype,
                    ints,
                    {"x": x},
                    {"y": plain(dtype, want, bound)},
                )
    x, v = _pair(rng, (3, 100, 1), DType.F16)
    x[0, 5], x[1, :], x[2, 3] = np.nan, -np.inf, -np.inf
    v = value(x, DType.F16)
    with np.errstate(all="ignore"):
        e = np.exp(v - v.max(1, keepdims=True))
        want = e / e.sum(1, keepdims=True)
    free: dict[str, DimLike] = {"outer": symbol("outer"), "n": symbol("n"), "inner": 1, "log": 0}
    yield Case(
        "softmax NaN and -inf rows, symbolic",
        "softmax",
        DType.F16,
        free,
        {"x": x},
        {"y": plain(DType.F16, want, rounding(want, DType.F16, 4))},
        env={"outer": 3, "n": 100},
    )


def layernorm(rng: np.random.Generator) -> Iterator[Case]:
    shapes = [
        (3, 1),
        (5, 17),
        (4, 768),
        (2, 1024),
        (3, 3072),
        (2, 5000),
        (1, 40000),
        (6, 127),
        (0, 64),
        (5, 256),
        (3, 1031),
        (1, 33000),
        (2, 50021),
    ]
    # some lanes for a row, slabs, a warp
    shapes += [
        (9, 32),
        (270, 96),
        (300, 5),
        (4200, 33),
        (7003, 4),
        (37, 200),
        (2500, 255),
        (300, 511),
        (40, 801),
    ]
    for dtype in FLOATS:
        for k, (rows, n) in enumerate(shapes):
            present = [
                ("res", "gamma", "beta", "skip"),
                ("gamma", "beta"),
                ("xbias", "res", "gamma", "skip"),
                (),
            ][k % 4]
            rms, add = int(k % 3 == 1), int(k % 5 == 2)
            x, s = _pair(rng, (rows, n), dtype)
            operands = {"x": x + stored(np.array(2.0), dtype) if dtype != DType.BF16 else x}
            s = value(operands["x"], dtype)
            weights: dict[str, Array] = {}
            for name in present:
                if name == "skip":
                    continue
                operands[name], weights[name] = _pair(
                    rng, (rows, n) if name == "res" else (n,), dtype
                )
            size = np.abs(s) + np.abs(weights.get("res", 0.0)) + np.abs(weights.get("xbias", 0.0))
            s = s + weights.get("res", 0.0) + weights.get("xbias", 0.0)
            centred = s if rms else s - s.mean(1, keepdims=True) if rows else s
            variance = (centred**2).mean(1, keepdims=True) if rows else centred[:, :1]
            eps = 1e-5
            unit = centred / np.sqrt(variance + eps)
            gain = weights.get("gamma", np.ones(n)) + (add if "gamma" in weights else 0)
            want = unit * gain + (0.0 if rms else weights.get("beta", 0.0))
            error = (size + 1) / np.sqrt(variance + eps) * np.abs(gain) + np.abs(want) + 1
            outputs = {"y": plain(dtype, want, rounding(want, dtype, error, 32))}
            if "skip" in present:
                outputs["skip"] = plain(dtype, s, rounding(s, dtype, size))
            ints: dict[str, DimLike] = {"rows": rows, "N": n, "rms": rms, "gamma_add": add}
            made = Case(
                f"layernorm {rows}x{n} {'+'.join(present)} rms={rms}",
                "layernorm",
                dtype,
                ints,
                operands,
                outputs,
                {"eps": eps},
            )
            yield made
            yield quantised(made, k, kept=k % 4 < 2)
    x, s = _pair(rng, (5, 96), DType.F16)
    want = (s - s.mean(1, keepdims=True)) / np.sqrt(s.var(1, keepdims=True) + 1e-5)
    sizes: dict[str, DimLike] = {
        "rows": symbol("rows"),
        "N": symbol("width"),
        "rms": 0,
        "gamma_add": 0,
    }
    yield Case(
        "layernorm symbolic",
        "layernorm",
        DType.F16,
        sizes,
        {"x": x},
        {"y": plain(DType.F16, want, rounding(want, DType.F16, 4, 32))},
        {"eps": 1e-5},
        env={"rows": 5, "width": 96},
    )


def layernorm_sum(rng: np.random.Generator) -> Iterator[Case]:
    """Looked-up rows (one index from the end), rows broadcast over the outer axis, two tensors side
    by side along the inner one; symbolic sizes.
    """
    shapes = (
        (2, 5, 768, 1, np.int64),
        (1, 7, 17, 3, np.int32),
        (3, 4, 5000, 2, np.int64),
        (0, 4, 64, 2, np.int32),
        (9, 5, 72, 2, np.int32),
    )
    for dtype in FLOATS:
        for outer, inner, n, cut, index in shapes:
            table, vt = _pair(rng, (11, n), dtype)
            shared, vs = _pair(rng, (inner, n), dtype)
            left, vl = _pair(rng, (outer, cut, n), dtype)
            right, vr = _pair(rng, (outer, inner - cut, n), dtype)
            gamma, vg = _pair(rng, (n,), dtype)
            idx = rng.integers(0, 11, (outer, inner)).astype(index)
            idx[1:, 2] = -3
            s = vt[idx] + vs + np.concatenate([vl, vr], 1)
            size = np.abs(vt[idx]) + np.abs(vs) + np.abs(np.concatenate([vl, vr], 1))
            deviation = np.sqrt(s.var(-1, keepdims=True) + 1e-5)
            want = (s - s.mean(-1, keepdims=True)) / deviation * vg
            ints: dict[str, DimLike] = {
                "outer": symbol("outer"), "inner": inner, "N": n, "x0_o": inner, "x0_i": 1,
                "x0_ld": n, "x0_n": 11, "x0_hi": inner,
                "i0_dtype": int(DType.I64 if index is np.int64 else DType.I32), "x1_i": n,
                "x1_hi": inner, "x2_o": cut * n, "x2_i": n, "x2_hi": cut,
                "x3_o": (inner - cut) * n, "x3_i": n, "x3_lo": cut, "x3_hi": inner,
            }  # fmt: skip
            given = {"x0": table, "i0": idx, "x1": shared, "x2": left, "x3": right, "gamma": gamma}
            outputs = {
                "y": plain(
                    dtype,
                    want,
                    rounding(
                        want, dtype, (size + 1) / deviation * np.abs(vg) + np.abs(want) + 1, 32
                    ),
                ),
                "skip": plain(dtype, s, rounding(s, dtype, size)),
            }
            yield Case(
                f"layernorm_sum {outer}x{inner}x{n}",
                "layernorm_sum",
                dtype,
                ints,
                given,
                outputs,
                {"eps": 1e-5},
                env={"outer": outer},
            )


def groupnorm(rng: np.random.Generator) -> Iterator[Case]:
    for dtype in FLOATS:
        for b, c, g, h, w, act in (
            (2, 32, 8, 5, 7, 0),
            (1, 6, 6, 3, 1, 1),
            (3, 40, 4, 16, 16, 5),
            (1, 320, 32, 9, 8, 5),
            (1, 7, 1, 1, 1, 0),
            (2, 16, 2, 33, 31, 0),
            (1, 32, 8, 131, 127, 5),
            (2, 12, 4, 150, 101, 1),
            (1, 3, 1, 67, 173, 0),
        ):
            x, v = _pair(rng, (b, c, h, w), dtype)
            gamma, vg = _pair(rng, (c,), dtype)
            beta, vb = _pair(rng, (c,), dtype)
            grouped = v.reshape(b, g, -1)
            unit = (grouped - grouped.mean(2, keepdims=True)) / np.sqrt(
                grouped.var(2, keepdims=True) + 1e-5
            )
            want = unit.reshape(v.shape) * vg[:, None, None] + vb[:, None, None]
            with np.errstate(all="ignore"):
                want = (
                    want
                    if act == 0
                    else np.maximum(want, 0)
                    if act == 1
                    else want / (1 + np.exp(-want))
                )
            bound = rounding(want, dtype, np.abs(want) + 4, 32) * (2 if act == 5 else 1)
            floats = {"eps": 1e-5, "p0": 0.0, "p1": 0.0}
            operands = {"x": x, "gamma": gamma, "beta": beta}
            ints = {"B": b, "C": c, "G": g, "inner": h * w, "act": act}
            yield Case(
                f"groupnorm {b}x{c}/{g}x{h}x{w}",
                "groupnorm",
                dtype,
                ints,
                operands,
                {"y": plain(dtype, want, bound)},
                floats,
            )
            cs = -(-c // 8) * 8
            packed = np.full((b, h, w, cs), np.nan)
            packed[..., :c] = v.transpose(0, 2, 3, 1)
            strides = [h * w * cs, 1, w * cs, cs]
            out = Output(dtype, b * h * w * cs, want.shape, strides, want, bound)
            pitches = {
                f"{s}_{p}": q
                for s in "xy"
                for p, q in (("cs", cs), ("rs", w * cs), ("ns", h * w * cs))
            }
            image = {"N": b, "C": c, "G": g, "H": h, "W": w, **pitches, "act": act}
            yield Case(
                f"groupnorm_nhwc {b}x{c}/{g}x{h}x{w}",
                "groupnorm_nhwc",
                dtype,
                image,
                {**operands, "x": stored(packed, dtype)},
                {"y": out},
                floats,
            )


def rope(rng: np.random.Generator) -> Iterator[Case]:
    for dtype in FLOATS:
        for b, s, h, d, rot, interleaved, full in (
            (2, 5, 3, 64, 64, 0, 1),
            (1, 7, 2, 80, 32, 1, 0),
            (2, 3, 1, 17, 16, 0, 0),
            (1, 1, 4, 128, 128, 1, 1),
        ):
            x, v = _pair(rng, (b, h, s, d), dtype)
            cos, vc = _pair(rng, (s, rot if full else rot // 2), dtype)
            sin, vs = _pair(rng, (s, rot if full else rot // 2), dtype)
            half = rot // 2
            first, second = (
                (np.arange(half) * 2, np.arange(half) * 2 + 1)
                if interleaved
                else (np.arange(half), np.arange(half) + half)
            )
            c0, s0 = vc[:, :half], vs[:, :half]
            c1, s1 = (vc[:, half:], vs[:, half:]) if full else (c0, s0)
            want = v.copy()
            want[..., first] = v[..., first] * c0 - v[..., second] * s0
            want[..., second] = v[..., second] * c1 + v[..., first] * s1
            sx = contiguous(v.shape)
            ints = {
                "B": b,
                "S": s,
                "H": h,
                "D": d,
                "rot": rot,
                "x_b": sx[0],
                "x_h": sx[1],
                "x_s": sx[2],
                "y_b": sx[0],
                "y_h": d,
                "y_s": h * d,
                "c_b": 0,
                "c_s": cos.shape[1],
                "interleaved": interleaved,
                "full": full,
            }
            out = Output(
                dtype, v.size, want.shape, [sx[0], d, h * d, 1], want, rounding(want, dtype, 16)
            )
            yield Case(
                f"rope {b}x{s}x{h}x{d}/{rot} interleaved={interleaved} full={full}",
                "rope",
                dtype,
                ints,
                {"x": x, "cos": cos, "sin": sin},
                {"y": out},
            )


_REDUCE = ("sum", "mean", "max", "min", "prod", "l1", "l2", "sum_square", "log_sum", "log_sum_exp")


def _reduced(kind: int, v: Array) -> tuple[Array, Array]:
    """Reduction over axis 1 in float64, and the magnitude its error scales with."""
    name, count = _REDUCE[kind], v.shape[1]
    with np.errstate(all="ignore"):
        total = np.abs(v).sum(1)
        table = {
            "sum": lambda: (v.sum(1), total),
            "mean": lambda: (v.sum(1) / np.float64(count), total / max(count, 1)),
            "max": lambda: (v.max(1, initial=-np.inf), 0 * total),
            "min": lambda: (v.min(1, initial=np.inf), 0 * total),
            "prod": lambda: (v.prod(1), np.abs(v.prod(1)) * count), "l1": lambda: (total, total),
            "l2": lambda: (np.sqrt((v**2).sum(1)),) * 2,
            "sum_square": lambda: ((v**2).sum(1),) * 2,
            "log_sum": lambda: (np.log(v.sum(1)), 1 + np.abs(np.log(v.sum(1)))),
            "log_sum_exp": lambda: (np.log(np.exp(v).sum(1)), 4 + np.abs(np.log(np.exp(v).sum(1)))),
        }  # fmt: skip
        return table[name]()


_REDUCED = (
    (3, 17, 1), (2, 5000, 1), (1, 1, 1), (3, 40, 35), (2, 9, 3), (4, 256, 1), (1, 40009, 1),
    (1, 700, 40), (2, 300, 33), (1, 3, 17011),
    (3, 5, 143), (350, 11, 302), (140, 321, 11),  # a thread for each column, slabs of few columns
    # vectors wherever columns lie
    (3, 41, 133), (1, 9001, 70), (701, 45, 13), (301, 18, 32), (3, 3000, 7),
)  # fmt: skip


def reduce(rng: np.random.Generator) -> Iterator[Case]:
    for dtype in FLOATS:
        for kind in range(10):
            for outer, n, inner in _REDUCED:
                if kind == 4 and n > 300:
                    continue
                x, v = _pair(rng, (outer, n, inner), dtype)
                if kind == 8:
                    x, v = (
                        stored(np.abs(v) + 0.1, dtype),
                        value(stored(np.abs(v) + 0.1, dtype), dtype),
                    )
                want, magnitude = _reduced(kind, v)
                ints = {"kind": kind, "outer": outer, "n": n, "inner": inner, "dtype": int(dtype)}
                out = plain(dtype, want, rounding(want, dtype, magnitude, 16))
                yield Case(
                    f"reduce {_REDUCE[kind]} {outer}x{n}x{inner}",
                    "reduce",
                    dtype,
                    ints,
                    {"x": x},
                    {"y": out},
                )
    for kind in (0, 2, 3, 4):
        for it in (DType.I64, DType.I32):
            x = rng.integers(-9, 9, (3, 37, 5)).astype(stored(np.zeros(1), it).dtype)
            with np.errstate(all="ignore"):
                exact = (
                    x.sum(1, dtype=x.dtype),
                    None,
                    x.max(1),
                    x.min(1),
                    x.prod(1, dtype=x.dtype),
                )[kind]
            assert exact is not None
            ints = {"kind": kind, "outer": 3, "n": 37, "inner": 5, "dtype": int(it)}
            yield Case(
                f"reduce {_REDUCE[kind]} {it.name}",
                "reduce",
                DType.F32,
                ints,
                {"x": x},
                {"y": plain(it, exact, None)},
            )
    empty: dict[str, DimLike] = {"kind": 1, "outer": 2, "n": symbol("n"), "inner": 3, "dtype": 1}
    yield Case(
        "reduce mean of nothing",
        "reduce",
        DType.F32,
        empty,
        {"x": np.zeros(4, np.float32)},
        {"y": plain(DType.F32, np.full((2, 3), np.nan), 1.0)},
        env={"n": 0},
    )


_EXTREMES = (
    (3, 17, 1), (2, 3000, 1), (2, 40, 5), (1, 1, 1), (2, 40009, 1), (1, 700, 40), (3, 5, 143),
    (140, 321, 3), (3, 41, 133), (1, 9001, 70), (301, 80, 7), (3, 3000, 15),
)  # fmt: skip


def argmax(rng: np.random.Generator) -> Iterator[Case]:
    for dtype in (*FLOATS, DType.I64):
        for least in (0, 1):
            for last in (0, 1):
                for outer, n, inner in _EXTREMES:
                    v = rng.integers(-3, 4, (outer, n, inner)).astype(np.float64)
                    x = stored(v, dtype)
                    scan = (-v if least else v)[:, ::-1] if last else (-v if least else v)
                    at = scan.argmax(1)
                    want = (n - 1 - at if last else at).astype(np.int64)
                    ints = {
                        "outer": outer,
                        "n": n,
                        "inner": inner,
                        "min": least,
                        "last": last,
                        "dtype": int(dtype),
                    }
                    yield Case(
                        f"argmax {outer}x{n}x{inner} min={least} last={last}",
                        "argmax",
                        dtype if dtype in FLOATS else DType.F32,
                        ints,
                        {"x": x},
                        {"y": plain(DType.I64, want, None)},
                    )


def cumsum(rng: np.random.Generator) -> Iterator[Case]:
    shapes = (
        (3, 17, 1), (2, 3001, 1), (5, 40, 7), (1, 1, 1), (0, 8, 1), (2, 64, 1), (300, 9, 3),
        (1, 40009, 1), (3, 700, 40), (1, 5000, 3), (7, 260, 1),
        (1, 140003, 1), (2, 9001, 1), (2, 4093, 1), (3, 1024, 1), (530, 1100, 1),
        (5, 7, 70), (140, 9, 243), (3, 20, 45), (1, 5, 2117), (2, 6, 128),
    )  # fmt: skip
    for dtype in (*FLOATS, DType.I64, DType.I32):
        for k, (outer, n, inner) in enumerate(shapes):
            for exclusive, reverse in ((k & 1, k >> 1 & 1), (~k & 1, k & 1)):
                v = rng.integers(-3, 4, (outer, n, inner)).astype(np.float64)
                turned = v[:, ::-1] if reverse else v
                total = turned.cumsum(1) - (turned if exclusive else 0)
                want = total[:, ::-1] if reverse else total
                ints = {
                    "outer": outer,
                    "n": n,
                    "inner": inner,
                    "exclusive": exclusive,
                    "reverse": reverse,
                    "dtype": int(dtype),
                }
                y = (
                    plain(dtype, want, rounding(want, dtype, 0))
                    if dtype in FLOATS
                    else plain(
                        dtype, want.astype(np.int64 if dtype == DType.I64 else np.int32), None
                    )
                )
                family = dtype if dtype in FLOATS else DType.F32
                yield Case(
                    f"cumsum {dtype.name} {outer}x{n}x{inner} {exclusive}{reverse}",
                    "cumsum",
                    family,
                    ints,
                    {"x": stored(v, dtype)},
                    {"y": y},
                )


FAMILIES = {
    "softmax": softmax, "layernorm": layernorm, "layernorm_sum": layernorm_sum,
    "groupnorm": groupnorm, "rope": rope, "reduce": reduce, "argmax": argmax,
    "cumsum": cumsum,
}  # fmt: skip
