"""Cases of caches: attention over as many keys as a tensor says, and new rows written into one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tests.gpu.cases.attention import Shape, bound_of, reference
from tests.support.cuda.case import Array, Case, plain, rounding, stored, value
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike, symbol

#: The cache's shape, and the keys of each row with its own.
SHAPES = (
    (Shape(2, 4, 2, 1, 37, 64, 64), [37, 5]), (Shape(1, 32, 8, 1, 1100, 64, 64), [1024]),
    (Shape(3, 6, 1, 1, 700, 128, 72), [1, 699, 333]), (Shape(2, 8, 8, 7, 300, 61, 61), [300, 7]),
    (Shape(1, 4, 2, 130, 150, 128, 128), [141]), (Shape(2, 3, 3, 40, 40, 256, 256), [40, 11]),
    (Shape(40, 12, 4, 1, 90, 80, 80), [k + 1 for k in range(40)]),
    (Shape(1, 16, 2, 1, 5000, 64, 64, cap=2.0), [4444]),
)  # fmt: skip


def attention(rng: np.random.Generator) -> Iterator[Case]:
    for (p, lens), dtype, wide in itertools.product(
        SHAPES, (DType.F32, DType.F16, DType.BF16), (0, 1)
    ):
        window = 0 if wide else p.t // 3
        shapes = {"q": (p.b, p.s, p.h, p.d), "k": (p.b, p.kv, p.t, p.d)}
        shapes["v"] = (*shapes["k"][:3], p.dv)
        data = {n: stored(rng.standard_normal(s), dtype) for n, s in shapes.items()}
        q, k, v = (value(data[n], dtype) for n in "qkv")
        made: list[tuple[Array, Array]] = []
        for b, n in enumerate(lens):
            past = n - p.s if wide else max(0, n - p.s)
            keys = n if wide else max(n, p.s)
            one = replace(p, b=1, t=keys, causal=True, past=past, clean=2)
            hidden = np.arange(keys) <= np.arange(p.s)[:, None] + past - (window or keys + 1)
            mask = np.where(hidden, -np.inf, 0.0)[None, None]
            rows = q[b : b + 1].transpose(0, 2, 1, 3)
            made.append(reference(one, rows, k[b : b + 1, :, :keys], v[b : b + 1, :, :keys], mask))
        want, size = (np.concatenate(x).transpose(0, 2, 1, 3) for x in zip(*made, strict=True))
        bound = bound_of(p, dtype, want, size)
        if not wide:  # of a shorter prompt's padding anything is right
            for b, n in enumerate(lens):
                bound[b, n:] = np.inf
        ints: dict[str, DimLike] = {
            "B": symbol("B"), "H": p.h, "KVH": p.kv, "S": symbol("S"), "T": symbol("T"),
            "D": p.d, "DV": p.dv, "causal": 1, "nan_to_zero": 2,
            "q_b": p.s * p.h * p.d, "q_s": p.h * p.d, "q_h": p.d,
            "k_b": p.kv * p.t * p.d, "k_s": p.d, "k_h": p.t * p.d,
            "v_b": p.kv * p.t * p.dv, "v_s": p.dv, "v_h": p.t * p.dv,
            "y_b": p.s * p.h * p.dv, "y_s": p.h * p.dv, "y_h": p.dv,
            "lens_dtype": int(DType.I64 if wide else DType.I32), "lens_add": 1 - wide,
            "clamp": 1 - wide, "window": window,
        }  # fmt: skip
        data["lens"] = np.array(lens, np.int64 if wide else np.int32) - (1 - wide)
        yield Case(
            f"cache {p.name} {'I64' if wide else 'I32'}",
            "attention",
            dtype,
            ints,
            data,
            {"y": plain(dtype, want, bound)},
            {"scale": p.d**-0.5, "softcap": p.cap},
            env={"B": p.b, "S": p.s, "T": p.t},
        )


def writing(rng: np.random.Generator) -> Iterator[Case]:
    kinds = {1: DType.U8, 2: DType.U16, 4: DType.U32, 8: DType.U64}
    for elem, d, (keep, circular) in itertools.product(
        (1, 2, 4, 8), (5, 64), ((0, 0), (1, 0), (1, 1))
    ):
        b, h, s, room, p = 3, 2, 4, 11, 11 if keep else 8
        past, x = (rng.integers(1, 99, n).astype(f"u{elem}") for n in ((b, h, p, d), (b, s, h, d)))
        at = [7, 0, 9 if circular else 5]
        want = np.zeros((b, h, room, d), past.dtype)
        for i, start in enumerate(at):
            want[i, :, : p if keep else start] = past[i, :, : p if keep else start]
            for j in range(s):
                want[i, :, (start + j) % room] = x[i, j]
        ints: dict[str, DimLike] = {
            "elem": elem, "B": b, "H": h, "S": s, "P": p, "T": room, "D": d, "x_b": s * h * d,
            "x_s": h * d, "x_h": d, "at_dtype": int(DType.I32), "at_add": -3, "keep": keep,
            "circular": circular,
        }  # fmt: skip
        yield Case(
            f"cache_write {elem}B {d} {keep}{circular}",
            "cache_write",
            DType.F32,
            ints,
            {"past": past, "x": x, "at": np.array(at, np.int32) + 3},
            {"y": plain(kinds[elem], want, None)},
        )


def turning(rng: np.random.Generator) -> Iterator[Case]:
    """Into new caches, by tables of tokens and of places."""
    h, kv, p = 6, 2, 37
    for dtype, (b, s, d, rot, interleaved) in itertools.product(
        (DType.F32, DType.F16, DType.BF16),
        ((1, 1, 64, 64, 0), (3, 4, 17, 8, 1), (2, 9, 128, 96, 0)),
    ):
        shapes: dict[str, tuple[int, ...]] = {
            "q": (b, s, h, d), "k": (b, s, kv, d), "v": (b, s, kv, d),
        }  # fmt: skip
        shapes |= dict.fromkeys(("past_k", "past_v"), (b, kv, p, d))
        starts, room, at = rng.integers(0, p + 1, b), p + s, np.arange(rot // 2)
        tables = (room, rot // 2) if b == 2 else (b, s, rot // 2)
        shapes |= dict.fromkeys(("cos", "sin"), tables)
        data = {n: stored(rng.standard_normal(x), dtype) for n, x in shapes.items()}
        exact = {n: value(x, dtype) for n, x in data.items()}
        first, second = (2 * at, 2 * at + 1) if interleaved else (at, at + rot // 2)
        rows = starts[:, None] + np.arange(s) if b == 2 else slice(None)
        cos, sin = (exact[n][rows][:, :, None] for n in ("cos", "sin"))
        for n in "qk":
            x, rotated = exact[n], exact[n].copy()
            rotated[..., first] = x[..., first] * cos - x[..., second] * sin
            rotated[..., second] = x[..., second] * cos + x[..., first] * sin
            exact[n] = rotated
        caches = {n: np.zeros((b, kv, room, d)) for n in "kv"}
        for n, i in itertools.product("kv", range(b)):
            caches[n][i, :, : starts[i]] = exact[f"past_{n}"][i, :, : starts[i]]
            caches[n][i, :, starts[i] : starts[i] + s] = exact[n][i].transpose(1, 0, 2)
        ints: dict[str, DimLike] = {
            "B": b, "S": symbol("S"), "H": h, "KVH": kv, "P": symbol("P"), "T": symbol("T"), "D": d,
            "rot": rot, "interleaved": interleaved, "c_b": s * rot // 2, "c_s": rot // 2,
            "places": room if b == 2 else 0, "at_dtype": int(DType.I64), "at_add": -2,
        }  # fmt: skip
        for n, heads in (("q", h), ("k", kv), ("v", kv)):
            ints |= {f"{n}_b": s * heads * d, f"{n}_s": heads * d, f"{n}_h": d}
        made = {"y": exact["q"], "keys": caches["k"], "values": caches["v"]}
        yield Case(
            f"rope_cache {b}x{s}x{d}/{rot} interleaved={interleaved}",
            "rope_cache",
            dtype,
            ints,
            {**data, "at": np.array(starts + 2, np.int64)},
            {n: plain(dtype, x, rounding(x, dtype, 16)) for n, x in made.items()},
            env={"S": s, "P": p, "T": room},
        )


FAMILIES = {"cached attention": attention, "cache turning": turning, "cache writing": writing}
