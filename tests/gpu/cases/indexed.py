"""Cases of elements found by indices, triangles, labels as rows, the largest of rows; of images
sampled at places of a grid, and of responses of channels.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from tests.gpu.cases.image import FLOATS, channels_last, image
from tests.support.cuda.case import Array, Case, contiguous, plain, rounding, stored, value
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike

_BY_SIZE = {1: DType.U8, 2: DType.U16, 4: DType.U32, 8: DType.U64}


def _five(n: Sequence[int], s: Sequence[int], m: Sequence[int]) -> dict[str, DimLike]:
    rows = (("n", n, 1), ("s", s, 0), ("m", m, 1))
    return {
        f"{letter}{k}": d
        for letter, values, fill in rows
        for k, d in enumerate([*[fill] * (5 - len(values)), *values])
    }


def _bits(rng: np.random.Generator, shape: Sequence[int], size: int) -> Array:
    return rng.integers(0, 256, (*shape, size), np.uint8).view(f"u{size}")[..., 0].copy()


def indexed(rng: np.random.Generator) -> Iterator[Case]:
    for size, kind, axis in itertools.product((1, 2, 4, 8), (np.int32, np.int64), range(3)):
        dtype = 7 if kind is np.int64 else 6
        x = _bits(rng, (7, 9, 11), size)
        where = tuple(slice(None) if k == axis else slice(n - 2) for k, n in enumerate(x.shape))
        idx = rng.integers(
            -x.shape[axis],
            x.shape[axis],
            [5 if k == axis else n - 2 for k, n in enumerate(x.shape)],
        ).astype(kind)
        want = np.take_along_axis(x[where], idx % x.shape[axis], axis)
        ints = {"elem": size, "idx_dtype": dtype, "axis": axis + 2}
        gathered = ints | _five(idx.shape, contiguous(x.shape), x.shape)
        yield Case(
            f"gather_along {axis} {size}B",
            "gather_along",
            DType.F32,
            gathered,
            {"x": x, "idx": idx},
            {"y": plain(_BY_SIZE[size], want, None)},
        )
        order = np.argsort(rng.standard_normal(x.shape), axis).astype(kind)
        want = np.zeros_like(x)
        np.put_along_axis(want, order, x, axis)
        scattered = ints | _five(x.shape, contiguous(x.shape), x.shape)
        yield Case(
            f"scatter_along {axis} {size}B",
            "scatter_along",
            DType.F32,
            scattered,
            {"idx": order, "u": x},
            {"y": plain(_BY_SIZE[size], want, None)},
        )
        places = rng.permutation(63)
        tuples = np.stack((places // 9 - 7 * (places % 2), places % 9), 1).astype(kind)
        want = np.zeros_like(x)
        want.reshape(63, 11)[places] = x.reshape(63, 11)
        rows: dict[str, DimLike] = {
            "elem": size,
            "idx_dtype": dtype,
            "k": 2,
            "count": 63,
            "inner": 11,
        }
        rows |= {
            f"{letter}{k}": d
            for letter, values in (("s", (99, 11, 0, 0, 0)), ("m", (7, 9, 1, 1, 1)))
            for k, d in enumerate(values)
        }
        yield Case(
            f"scatter_tuples {size}B",
            "scatter_tuples",
            DType.F32,
            rows,
            {"idx": tuples, "u": x},
            {"y": plain(_BY_SIZE[size], want, None)},
        )
        # batch_dims = 1
        pairs = np.stack([rng.integers(-n, n, (7, 5)) for n in (9, 11)], 2).astype(kind)
        rows = {
            "elem": size,
            "idx_dtype": dtype,
            "k": 2,
            "count": 35,
            "inner": 1,
            "each": 5,
            "step": 99,
            "s0": 11,
            "s1": 1,
            "m0": 9,
            "m1": 11,
        }
        want = x[np.arange(7)[:, None], pairs[..., 0], pairs[..., 1]]
        yield Case(
            f"gather_tuples {size}B",
            "gather_tuples",
            DType.F32,
            rows,
            {"x": x, "idx": pairs},
            {"y": plain(_BY_SIZE[size], want, None)},
        )
        labels = rng.integers(-9, 10, (5, 13)).astype(kind)
        values = _bits(rng, (2,), size)
        moved = np.moveaxis(
            values[
                ((labels % 7)[..., None] == np.arange(7)) & (abs(labels + 0.5) < 7.5)[..., None] * 1
            ],
            -1,
            1,
        )
        hot: dict[str, DimLike] = {
            "elem": size,
            "idx_dtype": dtype,
            "outer": 5,
            "depth": 7,
            "inner": 13,
        }
        yield Case(
            f"one_hot {size}B",
            "one_hot",
            DType.F32,
            hot,
            {"idx": labels, "values": values},
            {"y": plain(_BY_SIZE[size], moved, None)},
        )
    for size, upper, diagonal in itertools.product((1, 8), (0, 1), (-2, 0, 3)):
        x = _bits(rng, (3, 7, 10), size)
        ints = {
            "elem": size,
            "outer": 3,
            "rows": 7,
            "columns": 10,
            "diagonal": diagonal,
            "upper": upper,
        }
        out = plain(_BY_SIZE[size], (np.triu if upper else np.tril)(x, diagonal), None)
        yield Case(
            f"triangle {upper} {diagonal} {size}B",
            "triangle",
            DType.F32,
            ints,
            {"x": x},
            {"y": out},
        )


def topk(rng: np.random.Generator) -> Iterator[Case]:
    shapes = (
        (5, 64, 1, 6), (301, 128, 1, 8), (2, 7, 3, 7), (3, 1, 1, 1), (0, 9, 1, 2), (17, 1000, 1, 5),
        (3, 1031, 1, 100), (2, 2047, 5, 2047), (2, 8400, 1, 300),
        (1, 8192, 1, 8192), (2, 24577, 1, 1), (1, 100003, 1, 300), (2, 70000, 3, 33),
        (1, 40000, 1, 5000), (9, 18, 1, 2), (4, 33, 2, 3),
    )  # fmt: skip
    for dtype, (k, (outer, n, inner, count)) in itertools.product(
        (*FLOATS, DType.I32), enumerate(shapes)
    ):
        v = (
            rng.integers(-9, 9, (outer, n, inner))
            if k % 3 == 0
            else rng.standard_normal((outer, n, inner)) * 1000
        )
        x = stored(v.astype(np.float64), dtype)
        seen = value(x, dtype)
        want = np.argsort(-seen if k % 2 else seen, 1, kind="stable")[:, :count]
        ints = {
            "outer": outer,
            "n": n,
            "inner": inner,
            "k": count,
            "largest": k % 2,
            "dtype": int(dtype),
        }
        out = {
            "y": plain(
                dtype,
                np.take_along_axis(seen if dtype in FLOATS else x, want, 1),
                0.0 if dtype in FLOATS else None,
            ),
            "at": plain(DType.I64, want, None),
        }
        yield Case(
            f"topk {count} of {outer}x{n}x{inner}",
            "topk",
            dtype if dtype in FLOATS else DType.F32,
            ints,
            {"x": x},
            out,
        )


def _reflected(v: Array, n: int, corners: int) -> Array:
    low, high = (0.0, n - 1.0) if corners else (-0.5, n - 0.5)
    past = np.where(v < low, low - v, v - high)
    turns, rest = np.floor(past / (high - low)), past % (high - low)
    return np.where(
        (v >= low) & (v <= high),
        v,
        np.where((v < low) == (turns % 2 == 0), low + rest, high - rest),
    )


def _sampled(g: Array, n: int, mode: int, pad: int, corners: int) -> Array:
    """What each position of an axis contributes at each place."""
    at = (g + 1) / 2 * (n - 1) if corners else ((g + 1) * n - 1) / 2
    at = np.rint(at) if mode == 0 else at
    at = (
        np.clip(at, 0, n - 1)
        if pad == 1 and mode < 2
        else _reflected(at, n, corners)
        if pad == 2
        else at
    )
    out = np.zeros((*g.shape, n))
    low = np.floor(at) if mode else at
    for k in range(-(mode == 2), 1 + mode):
        d, a = abs(at - (low + k)), -0.75
        cubic = np.where(
            d <= 1, (a + 2) * d**3 - (a + 3) * d**2 + 1, a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a
        )
        weight = (np.ones_like(d), 1 - d, cubic)[mode]
        pixel = _reflected(low + k, n, corners) if pad == 2 else low + k
        inside = np.clip(pixel.astype(np.int64), 0, n - 1)
        weight = np.where((pixel >= 0) & (pixel <= n - 1) | (pad > 0), weight, 0)
        np.add.at(out, (*np.indices(g.shape), inside), weight)
    return out


def sampled(rng: np.random.Generator) -> Iterator[Case]:
    for dtype, mode, pad, corners in itertools.product(FLOATS, range(3), range(3), range(2)):
        for n, c, h, w, oh, ow in ((2, 5, 6, 7, 4, 9), (1, 16, 3, 4, 7, 3)):
            x, v, pitch = image(rng, n, c, h, w, dtype)
            for kind in (DType.F32, dtype)[: 2 if dtype == DType.F32 and mode else 1]:
                # exactly what float32 computes with, and on no edge
                places = np.round(rng.uniform(-2.4, 2.4, (n, oh, ow, 2)) * 64) / 64 + 1 / 256
                grid = stored(places, kind)
                across, down = (
                    _sampled(value(grid, kind)[..., k], size, mode, pad, corners)
                    for k, size in enumerate((w, h))
                )
                want = np.einsum("nchw,npqh,npqw->ncpq", v, down, across)
                out, to = channels_last(want, dtype, rounding(want, dtype, np.abs(v).max() * 4, 64))
                ints = {
                    "mode": mode,
                    "pad": pad,
                    "corners": corners,
                    "grid_dtype": int(kind),
                    "N": n,
                    "C": c,
                    "IH": h,
                    "IW": w,
                    "OH": oh,
                    "OW": ow,
                    **pitch,
                    **to,
                }
                yield Case(
                    f"grid_sample {mode} {pad} {corners} {c}",
                    "grid_sample",
                    dtype,
                    ints,
                    {"x": x, "grid": grid},
                    {"y": out},
                )
    for dtype, size, c in itertools.product(FLOATS, (1, 3, 5), (5, 32)):
        x, v, pitch = image(rng, 2, c, 5, 3, dtype)
        around = np.pad(v**2, ((0, 0), (size // 2, size // 2), (0, 0), (0, 0)))
        want = v / (1.5 + 0.3 / size * sum(around[:, k : k + c] for k in range(size))) ** 0.75
        out, to = channels_last(want, dtype, rounding(want, dtype, np.abs(want), 64))
        sizes: dict[str, DimLike] = {"size": size, "N": 2, "C": c, "H": 5, "W": 3, **pitch, **to}
        yield Case(
            f"lrn {size} {c}",
            "lrn",
            dtype,
            sizes,
            {"x": x},
            {"y": out},
            {"alpha": 0.3, "beta": 0.75, "bias": 1.5},
        )


FAMILIES = {"indexed": indexed, "topk": topk, "sampled": sampled}
