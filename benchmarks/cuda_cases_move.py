"""Cases of data movement: strided copies, fills, gathers, layout changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from benchmarks.cuda_case import Array, Case, Output, contiguous, plain, stored
from tracea_onnx.dims import DimLike, symbol
from tracea_onnx.ops import DType

_BY_SIZE = {1: DType.U8, 2: DType.U16, 4: DType.U32, 8: DType.U64}


def _bits(rng: np.random.Generator, count: int, size: int) -> Array:
    return rng.integers(0, 256, count * size, np.uint8).view(f"u{size}")


def _six(values: Sequence[DimLike], fill: DimLike) -> list[DimLike]:
    return [*[fill] * (6 - len(values)), *values]


def _copy(rng: np.random.Generator, size: int, shape: Sequence[int], xs: Sequence[int], ys: Sequence[int], name: str) -> Case:
    reach = [sum(max(n - 1, 0) * s for n, s in zip(shape, st, strict=True)) + 1 if 0 not in shape else 1 for st in (xs, ys)]
    x = _bits(rng, reach[0], size)
    want = np.lib.stride_tricks.as_strided(x, shape, [s * size for s in xs]) if 0 not in shape else np.zeros(shape, x.dtype)
    dims = zip(_six(shape, 1), _six(xs, 0), _six(ys, 0), strict=True)
    ints: dict[str, DimLike] = {"elem": size}
    for k, (n, a, b) in enumerate(dims):
        ints |= {f"n{k}": n, f"x{k}": a, f"y{k}": b}
    out = Output(_BY_SIZE[size], reach[1], shape, ys, want, None)
    return Case(f"copy {name} {size}B {'x'.join(map(str, shape))}", "copy", DType.F32, ints, {"x": x}, {"y": out})


def copy(rng: np.random.Generator) -> Iterator[Case]:
    for size in (1, 2, 4, 8):
        for shape in ((1,), (1009,), (64, 128), (3, 0, 5)):
            yield _copy(rng, size, shape, contiguous(shape), contiguous(shape), "run")
        for shape in ((64, 64), (65, 63), (2, 100, 31), (3, 17, 129), (130, 2, 20)):
            n = [*shape[:-2], shape[-1], shape[-2]]
            xs = contiguous(shape)
            turned = [*xs[:-2], xs[-1], xs[-2]]
            yield _copy(rng, size, n, turned, contiguous(n), "transpose")
        whole = (2, 3, 4, 5, 6, 7)
        xs = contiguous(whole)
        order = (4, 0, 5, 2, 1, 3)
        yield _copy(rng, size, [whole[k] for k in order], [xs[k] for k in order], contiguous([whole[k] for k in order]), "permute")
        yield _copy(rng, size, (20, 4, 24), contiguous((20, 6, 48)), contiguous((20, 4, 32)), "slice")
        yield _copy(rng, size, (5, 7, 33), (1, 0, 5), contiguous((5, 7, 33)), "expand")
        yield _copy(rng, size, (40, 3, 50), (1, 40, 120), contiguous((40, 3, 50)), "outer to inner")
    x = _bits(rng, 24 * 40, 2)
    n_, m_ = symbol("n"), symbol("m")
    ints: dict[str, DimLike] = {"elem": 2}
    for k, (d, a, b) in enumerate(zip(_six([n_, m_], 1), _six([1, n_], 0), _six([m_, 1], 0), strict=True)):
        ints |= {f"n{k}": d, f"x{k}": a, f"y{k}": b}
    yield Case("copy symbolic transpose", "copy", DType.F32, ints, {"x": x}, {"y": plain(DType.U16, x.reshape(40, 24).T.copy(), None)}, env={"n": 24, "m": 40})


def gather(rng: np.random.Generator) -> Iterator[Case]:
    for size in (1, 2, 4, 8):
        for it in (DType.I32, DType.I64):
            for outer, n, inner, count in ((1, 30, 64, 7), (2, 9, 1, 5), (3, 4, 17, 11), (2, 5, 8, 0)):
                x = _bits(rng, outer * n * inner, size).reshape(outer, n, inner)
                idx = rng.integers(-n, n, count).astype(np.int64 if it == DType.I64 else np.int32)
                ints = {"elem": size, "outer": outer, "n": n, "inner": inner, "count": count, "idx_dtype": int(it)}
                out = plain(_BY_SIZE[size], x[:, idx], None)
                yield Case(f"gather {outer}x{n}x{inner} by {count} {size}B", "gather", DType.F32, ints, {"x": x, "idx": idx}, {"y": out})
                each = rng.integers(-n, n, (outer, count, inner)).astype(idx.dtype)
                out = plain(_BY_SIZE[size], np.take_along_axis(x, each % n, 1), None)
                yield Case(f"gather_elements {outer}x{n}x{inner} by {count} {size}B", "gather_elements", DType.F32, ints, {"x": x, "idx": each}, {"y": out})
    x = _bits(rng, 40, 2).reshape(1, 5, 8)
    want = np.zeros((1, 3, 8), np.uint16)
    want[0, 1] = x[0, 4]
    ints = {"elem": 2, "outer": 1, "n": 5, "inner": 8, "count": 3, "idx_dtype": 7}
    yield Case("gather out of range", "gather", DType.F32, ints, {"x": x, "idx": np.array([5, -1, -6])}, {"y": plain(DType.U16, want, None)})


def small(rng: np.random.Generator) -> Iterator[Case]:
    for size in (1, 2, 4, 8):
        for count, v in ((1, 7), (1003, -2), (0, 1)):
            bits = np.full(count, v, f"i{size}").view(f"u{size}")
            yield Case(f"fill {count} x {size}B", "fill", DType.F32, {"elem": size, "count": count, "value": v}, {}, {"y": plain(_BY_SIZE[size], bits, None)})
    for it, nt in ((DType.I64, np.int64), (DType.I32, np.int32)):
        ints: dict[str, DimLike] = {"count": 3, "dtype": int(it), **{f"v{k}": (5, symbol("n"), -7, 0, 0, 0, 0, 0)[k] for k in range(8)}}
        yield Case(f"store_ints {it.name}", "store_ints", DType.F32, ints, {}, {"y": plain(it, np.array([5, 11, -7], nt), None)}, env={"n": 11})
    for it in (DType.I64, DType.I32, DType.F32):
        ints = {"count": 1000, "start": -3, "delta": 7, "dtype": int(it)}
        yield Case(f"range {it.name}", "range", DType.F32, ints, {}, {"y": plain(it, stored(np.arange(1000) * 7 - 3, it), None)})


def layout(rng: np.random.Generator) -> Iterator[Case]:
    for dtype, size in ((DType.F32, 4), (DType.F16, 2)):
        for n, c, h, w in ((2, 3, 5, 7), (1, 64, 9, 8), (3, 100, 3, 1), (2, 65, 8, 8), (1, 16, 33, 2), (1, 17, 1, 1), (0, 8, 2, 2), (2, 1, 4, 4)):
            cs = -(-c // 8) * 8
            planar = _bits(rng, n * c * h * w, size).reshape(n, c, h, w)
            packed = _bits(rng, n * h * w * cs, size).reshape(n, h, w, cs)
            packed[..., :c] = planar.transpose(0, 2, 3, 1)
            sizes = {"N": n, "C": c, "H": h, "W": w}
            name = f"{n}x{c}x{h}x{w}"
            count, strides = max(packed.size, 1), [h * w * cs, 1, w * cs, cs]
            to = {"y_cs": cs, "y_rs": w * cs, "y_ns": h * w * cs}
            yield Case(
                f"nchw_to_nhwc {name}",
                "nchw_to_nhwc",
                dtype,
                sizes | to,
                {"x": planar},
                {"y": Output(_BY_SIZE[size], count, planar.shape, strides, planar, None)},
            )
            at = {k.replace("y", "x"): v for k, v in to.items()}
            yield Case(f"nhwc_to_nchw {name}", "nhwc_to_nchw", dtype, sizes | at, {"x": packed}, {"y": plain(_BY_SIZE[size], planar, None)})
            wide = cs + 16
            out = Output(_BY_SIZE[size], max(n * h * w * wide, 1), planar.shape, [h * w * wide, 1, w * wide, wide], planar, None)
            into = {"y_cs": wide, "y_rs": w * wide, "y_ns": h * w * wide}
            yield Case(f"copy_nhwc {name}", "copy_nhwc", dtype, sizes | at | into, {"x": packed}, {"y": out})
        # The operand points at pixel (0, 0): with a border only to the right of and below the pixels, everything lies behind it.
        sizes = {"N": 2, "H": 3, "W": 4, "PT": 0, "PL": 0, "PB": 1, "PR": 1, "y_cs": 8, "y_rs": 40, "y_ns": 160}
        right = Output(_BY_SIZE[size], 320, (2, 3, 8), (160, 40, 1), np.zeros((2, 3, 8), f"u{size}"), None)
        yield Case("zero_border", "zero_border", dtype, sizes, {}, {"y": _behind(right, 32)})


def _behind(o: Output, elements: int) -> Output:
    """The same output, its first element `elements` further on."""
    return Output(o.dtype, o.count, o.shape, o.strides, o.want, o.bound, elements)


FAMILIES = {"copy": copy, "gather": gather, "small": small, "layout": layout}
