"""Cases of data movement: strided copies, fills, gathers, layout changes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np

from tests.support.cuda.case import Array, Case, Output, contiguous, plain, stored
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike, symbol

_BY_SIZE = {1: DType.U8, 2: DType.U16, 4: DType.U32, 8: DType.U64}


def _bits(rng: np.random.Generator, count: int, size: int) -> Array:
    # which is nobody's view
    return rng.integers(0, 256, count * size, np.uint8).view(f"u{size}").copy()


def _six(values: Sequence[DimLike], fill: DimLike) -> list[DimLike]:
    return [*[fill] * (6 - len(values)), *values]


def _reach(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Elements from the first one on."""
    return (
        sum(max(n - 1, 0) * max(s, 0) for n, s in zip(shape, strides, strict=True)) + 1
        if 0 not in shape
        else 1
    )


def _copy(
    rng: np.random.Generator,
    size: int,
    shape: Sequence[int],
    xs: Sequence[int],
    ys: Sequence[int],
    name: str,
    start: int = 0,
) -> Case:
    """start: elements of x before the first one."""
    reach = [_reach(shape, st) for st in (xs, ys)]
    x = _bits(rng, start + reach[0], size)[start:]
    want = (
        np.lib.stride_tricks.as_strided(x, shape, [s * size for s in xs])
        if 0 not in shape
        else np.zeros(shape, x.dtype)
    )
    dims = zip(_six(shape, 1), _six(xs, 0), _six(ys, 0), strict=True)
    ints: dict[str, DimLike] = {"elem": size}
    for k, (n, a, b) in enumerate(dims):
        ints |= {f"n{k}": n, f"x{k}": a, f"y{k}": b}
    out = Output(_BY_SIZE[size], reach[1], shape, ys, want, None)
    unaligned = frozenset({"x"} if start * size % 16 else ())
    return Case(
        f"copy {name} {size}B {'x'.join(map(str, shape))}",
        "copy",
        DType.F32,
        ints,
        {"x": x},
        {"y": out},
        unaligned=unaligned,
    )


def copy(rng: np.random.Generator) -> Iterator[Case]:
    for size in (1, 2, 4, 8):
        for shape in ((1,), (1009,), (64, 128), (3, 0, 5)):
            yield _copy(rng, size, shape, contiguous(shape), contiguous(shape), "run")
        for shape in ((64, 64), (65, 63), (2, 100, 31), (3, 17, 129), (130, 2, 20)):
            n = [*shape[:-2], shape[-1], shape[-2]]
            xs = contiguous(shape)
            transposed = [*xs[:-2], xs[-1], xs[-2]]
            yield _copy(rng, size, n, transposed, contiguous(n), "transpose")
        whole = (2, 3, 4, 5, 6, 7)
        xs = contiguous(whole)
        order = (4, 0, 5, 2, 1, 3)
        yield _copy(
            rng,
            size,
            [whole[k] for k in order],
            [xs[k] for k in order],
            contiguous([whole[k] for k in order]),
            "permute",
        )
        yield _copy(
            rng, size, (20, 4, 24), contiguous((20, 6, 48)), contiguous((20, 4, 32)), "slice"
        )
        yield _copy(rng, size, (5, 7, 33), (1, 0, 5), contiguous((5, 7, 33)), "expand")
        yield _copy(rng, size, (40, 3, 50), (1, 40, 120), contiguous((40, 3, 50)), "outer to inner")
        yield from _odd(rng, size)
    yield from _large(rng, 2)
    sides = (
        (1, 1021, 521),
        (1, 1021, 1187),
        (2, 373, 367),
        (2, 1021, 1187),
        (4, 373, 367),
        (8, 401, 331),
        (1, 24, 9001),
        (4, 9001, 12),
        (2, 15, 5003),
    )
    for size, rows, columns in sides:
        yield _copy(rng, size, (rows, columns), (1, rows), (columns, 1), "tiles")
    yield _copy(rng, 1, (107, 55, 15), (825, 1, 55), (825, 15, 1), "tiles")
    x = _bits(rng, 24 * 40, 2)
    n_, m_ = symbol("n"), symbol("m")
    ints: dict[str, DimLike] = {"elem": 2}
    for k, (d, a, b) in enumerate(
        zip(_six([n_, m_], 1), _six([1, n_], 0), _six([m_, 1], 0), strict=True)
    ):
        ints |= {f"n{k}": d, f"x{k}": a, f"y{k}": b}
    yield Case(
        "copy symbolic transpose",
        "copy",
        DType.F32,
        ints,
        {"x": x},
        {"y": plain(DType.U16, x.reshape(40, 24).T.copy(), None)},
        env={"n": 24, "m": 40},
    )


def _odd(rng: np.random.Generator, size: int) -> Iterator[Case]:
    """Copies whose rows start anywhere."""
    for start in (1, 3):
        yield _copy(rng, size, (1009,), (1,), (1,), f"run from {start}", start)
        yield _copy(rng, size, (33, 67), (101, 1), (67, 1), f"columns from {start}", start)
    yield _copy(rng, size, (33, 67), (67, 1), (101, 1), "into columns")
    yield _copy(rng, size, (5, 9, 3), (27, 3, 1), (40, 4, 1), "into narrow columns")
    yield _copy(rng, size, (33, 67), (71, 1), (101, 1), "columns into columns", 5)
    yield _copy(rng, size, (7, 131), (700, 3), (131, 1), "steps")
    yield _copy(rng, size, (3, 5, 131), (2000, 400, 2), (1000, 150, 1), "steps into columns")
    yield _copy(rng, size, (50, 7), (21, 3), (7, 1), "few steps")
    yield _copy(rng, size, (5, 131), (131, -1), (131, 1), "backwards", 130)
    yield _copy(rng, size, (5, 13), (13, -1), (20, 1), "few backwards", 12)
    yield _copy(rng, size, (9, 70), (1, 0), (70, 1), "last repeated")
    yield _copy(rng, size, (5, 1, 3, 31), (31, 0, 0, 1), contiguous((5, 1, 3, 31)), "tile")
    yield _copy(rng, size, (9, 70), (70, 1), (140, 2), "into steps")
    yield _copy(rng, size, (3, 70, 2), (140, 2, 1), (210, 1, 70), "into transposed")
    for whole, order in (
        ((3, 5, 7, 11, 19), (4, 2, 0, 3, 1)),
        ((6, 9, 20), (2, 1, 0)),
        ((2, 70, 5, 3), (0, 3, 2, 1)),
        ((40, 5, 6, 7), (2, 3, 1, 0)),
    ):
        xs = contiguous(whole)
        n = [whole[k] for k in order]
        yield _copy(
            rng, size, n, [xs[k] for k in order], contiguous(n), f"order {''.join(map(str, order))}"
        )


def _large(rng: np.random.Generator, size: int) -> Iterator[Case]:
    """What is not small (movement/copy.py)."""
    yield _copy(rng, size, (733, 719), (1, 733), (719, 1), "large transpose")
    yield _copy(
        rng,
        size,
        (11, 17, 19, 13, 13),
        (1, 143, 143 * 17 * 13, 11, 143 * 17),
        contiguous((11, 17, 19, 13, 13)),
        "large order",
    )
    yield _copy(
        rng,
        size,
        (27, 61, 13, 11),
        (61 * 143, 143, 1, 13),
        contiguous((27, 61, 13, 11)),
        "large order of small matrices",
    )
    yield _copy(
        rng,
        size,
        (31, 29, 53, 5),
        (5, 53 * 31 * 5, 31 * 5, 1),
        contiguous((31, 29, 53, 5)),
        "large order of rows",
    )
    yield _copy(
        rng,
        size,
        (29, 53, 31, 5),
        (5, 29 * 31 * 5, 29 * 5, 1),
        (53 * 160, 160, 5, 1),
        "large order of rows into columns",
    )
    yield _copy(
        rng,
        size,
        (2, 3, 101, 211),
        (1, 2, 211 * 6, 6),
        contiguous((2, 3, 101, 211)),
        "large order of two",
        3,
    )
    yield _copy(rng, size, (600_011,), (1,), (1,), "large run from 1", 1)
    yield _copy(rng, size, (1031, 517), (523, 1), (517, 1), "large columns from 3", 3)
    yield _copy(rng, size, (1031, 517), (517, 1), (523, 1), "large into columns")
    yield _copy(rng, size, (131, 4099), (9000, 2), (4099, 1), "large steps")
    yield _copy(rng, size, (50_021, 11), (44, 4), (11, 1), "large few steps")
    yield _copy(rng, size, (517, 3, 401), (401, 0, 1), contiguous((517, 3, 401)), "large tile")


def _copies(
    rng: np.random.Generator,
    size: int,
    width: int,
    parts: Sequence[tuple[Sequence[int], Sequence[int], int]],
    strides: Sequence[int],
    name: str,
) -> Case:
    """parts: shape, strides in x, first element of y; `width` elements of y have these strides."""
    ints: dict[str, DimLike] = {"elem": size}
    want = np.zeros(width, f"u{size}")
    operands = {}
    for k, (shape, xs, at) in enumerate(parts):
        start = sum((n - 1) * -min(s, 0) for n, s in zip(shape, xs, strict=True))
        x = operands[f"x{k}"] = _bits(rng, start + _reach(shape, xs), size)[start:]
        seen = np.lib.stride_tricks.as_strided(x, shape, [s * size for s in xs])
        np.lib.stride_tricks.as_strided(want[at:], shape, [s * size for s in strides])[:] = seen
        lead = 3 - len(shape)
        ints |= {f"p{k}_n{d}": n for d, n in enumerate([*[1] * lead, *shape])} | {
            f"p{k}_x{d}": s for d, s in enumerate([*[0] * lead, *xs])
        }
        ints |= {f"p{k}_y{d}": s for d, s in enumerate([*[0] * lead, *strides][:2])} | {
            f"p{k}_at": at
        }
    unaligned = frozenset(
        n for n, x in operands.items() if x.base is not None and (x.base.size - x.size) * size % 16
    )
    return Case(
        f"copies {name} {size}B",
        "copies",
        DType.F32,
        ints,
        operands,
        {"y": plain(_BY_SIZE[size], want, None)},
        unaligned=unaligned,
    )


def copies(rng: np.random.Generator) -> Iterator[Case]:
    for size in (1, 2, 4, 8):
        for rows, widths in (
            (21, (17, 31, 53)),
            (3, (1003, 3)),
            (1, (5, 300)),
            (50, (1, 1, 2)),
            (9, tuple(range(1, 17))),
            (5, (64, 32)),
        ):
            total = sum(widths)
            parts = [((rows, w), (w, 1), sum(widths[:k])) for k, w in enumerate(widths)]
            yield _copies(
                rng,
                size,
                rows * total,
                parts,
                (total, 1),
                f"{rows} rows of {'+'.join(map(str, widths))}",
            )
        # Two images of 5 x 9, mirrored around a border of 2 x 3.
        sides = [(5, 1, 2), (2, -1, 0), (2, -1, 7)], [(9, 1, 3), (3, -1, 0), (3, -1, 12)]
        parts3 = [
            ((2, h, w), (45, 9 * a, b), 15 * i + j) for h, a, i in sides[0] for w, b, j in sides[1]
        ]
        yield _copies(rng, size, 2 * 9 * 15, parts3, (135, 15, 1), "mirrored")
    for size, rows, widths in (
        (1, 2011, (2, 112, 16, 131)),
        (2, 131, (3, 250, 33, 247)),
        (4, 131, (3, 250, 33, 247)),
        (8, 131, (250, 33, 247)),
        (2, 2003, (640, 384)),
    ):
        parts = [((rows, w), (w, 1), sum(widths[:k])) for k, w in enumerate(widths)]
        yield _copies(
            rng,
            size,
            rows * sum(widths),
            parts,
            (sum(widths), 1),
            f"{rows} long rows of {'+'.join(map(str, widths))}",
        )
    for rows in (1009, 2003):
        large = [((rows, w), (w, 1), at) for w, at in ((523, 0), (3, 523))]
        yield _copies(rng, 2, rows * 526, large, (526, 1), f"{rows} large beside small")


def gather(rng: np.random.Generator) -> Iterator[Case]:
    for size in (1, 2, 4, 8):
        for it in (DType.I32, DType.I64):
            for outer, n, inner, count in (
                (1, 30, 64, 7),
                (2, 9, 1, 5),
                (3, 4, 17, 11),
                (2, 5, 8, 0),
                (1021, 33, 1, 7),
                (67, 40, 1, 300),
            ):
                x = _bits(rng, outer * n * inner, size).reshape(outer, n, inner)
                idx = rng.integers(-n, n, count).astype(np.int64 if it == DType.I64 else np.int32)
                ints = {
                    "elem": size,
                    "outer": outer,
                    "n": n,
                    "inner": inner,
                    "count": count,
                    "idx_dtype": int(it),
                }
                out = plain(_BY_SIZE[size], x[:, idx], None)
                yield Case(
                    f"gather {outer}x{n}x{inner} by {count} {size}B",
                    "gather",
                    DType.F32,
                    ints,
                    {"x": x, "idx": idx},
                    {"y": out},
                )
                each = rng.integers(-n, n, (outer, count, inner)).astype(idx.dtype)
                out = plain(_BY_SIZE[size], np.take_along_axis(x, each % n, 1), None)
                yield Case(
                    f"gather_elements {outer}x{n}x{inner} by {count} {size}B",
                    "gather_elements",
                    DType.F32,
                    ints,
                    {"x": x, "idx": each},
                    {"y": out},
                )
    # more words than a wave of threads, several of a row for a thread
    for inner, count in ((64, 20_011), (70, 17_011), (770, 1013), (768, 1301), (1400, 53)):
        x, idx = _bits(rng, 2 * 9 * inner, 2).reshape(2, 9, inner), rng.integers(-9, 9, count)
        ints = {"elem": 2, "outer": 2, "n": 9, "inner": inner, "count": count, "idx_dtype": 7}
        yield Case(
            f"gather words {inner}",
            "gather",
            DType.F32,
            ints,
            {"x": x, "idx": idx},
            {"y": plain(DType.U16, x[:, idx], None)},
        )
    x, idx = _bits(rng, 53 * 3 * 67, 4).reshape(53, 3, 67), rng.integers(-3, 3, (53, 79, 67))
    ints = {"elem": 4, "outer": 53, "n": 3, "inner": 67, "count": 79, "idx_dtype": 7}
    yield Case(
        "gather_elements near",
        "gather_elements",
        DType.F32,
        ints,
        {"x": x, "idx": idx},
        {"y": plain(DType.U32, np.take_along_axis(x, idx % 3, 1), None)},
    )
    for size, (outer, n, inner, count) in itertools.product(
        (1, 2, 8), ((53, 3, 67, 79), (1021, 31, 1, 33), (3, 5, 1021, 101))
    ):
        x, idx = (
            _bits(rng, outer * n * inner, size).reshape(outer, n, inner),
            rng.integers(-n - 1, n + 1, (outer, count, inner)),
        )
        ints = {
            "elem": size,
            "outer": outer,
            "n": n,
            "inner": inner,
            "count": count,
            "idx_dtype": 7,
        }
        want = np.where(
            abs(idx + 0.5) < n + 0.5, np.take_along_axis(x, idx % n, 1), np.zeros((), x.dtype)
        )
        out = plain(_BY_SIZE[size], want, None)
        yield Case(
            f"gather_elements many {outer}x{n}x{inner} {size}B",
            "gather_elements",
            DType.F32,
            ints,
            {"x": x, "idx": idx},
            {"y": out},
        )
    for size, inner, n, count in (
        (1, 127, 61, 301),
        (2, 67, 61, 301),
        (4, 29, 61, 3001),
        (4, 829, 61, 101),
        (8, 29, 61, 3001),
        (8, 101, 61, 1009),
        (8, 9999, 5, 40),
        (8, 110_208, 5, 9),
    ):  # rows of odd lengths by lanes, and long ones
        x, idx = (
            _bits(rng, 2 * n * inner, size).reshape(2, n, inner),
            rng.integers(-n - 1, n + 1, count),
        )
        ints = {"elem": size, "outer": 2, "n": n, "inner": inner, "count": count, "idx_dtype": 7}
        want = np.where((abs(idx + 0.5) < n + 0.5)[:, None], x[:, idx % n], np.zeros((), x.dtype))
        yield Case(
            f"gather rows {inner} {size}B",
            "gather",
            DType.F32,
            ints,
            {"x": x, "idx": idx},
            {"y": plain(_BY_SIZE[size], want, None)},
        )
    # pieces of 16 bytes, of which some rows are out of range
    for size, count in ((1, 4003), (2, 4003), (4, 4001), (8, 4001)):
        x, idx = _bits(rng, 2 * 9 * 67, size).reshape(2, 9, 67), rng.integers(-10, 10, count)
        ints = {"elem": size, "outer": 2, "n": 9, "inner": 67, "count": count, "idx_dtype": 7}
        want = np.where((abs(idx + 0.5) < 9.5)[:, None], x[:, idx % 9], np.zeros((), x.dtype))
        yield Case(
            f"gather pieces {size}B",
            "gather",
            DType.F32,
            ints,
            {"x": x, "idx": idx},
            {"y": plain(_BY_SIZE[size], want, None)},
        )
    x = _bits(rng, 40, 2).reshape(1, 5, 8)
    want = np.zeros((1, 3, 8), np.uint16)
    want[0, 1] = x[0, 4]
    ints = {"elem": 2, "outer": 1, "n": 5, "inner": 8, "count": 3, "idx_dtype": 7}
    yield Case(
        "gather out of range",
        "gather",
        DType.F32,
        ints,
        {"x": x, "idx": np.array([5, -1, -6])},
        {"y": plain(DType.U16, want, None)},
    )
    x, want = x.reshape(8, 5, 1), np.zeros((8, 3, 1), np.uint16)
    want[:, 1] = x[:, 4]
    ints = {**ints, "outer": 8, "inner": 1}
    yield Case(
        "gather elements of rows out of range",
        "gather",
        DType.F32,
        ints,
        {"x": x, "idx": np.array([5, -1, -6])},
        {"y": plain(DType.U16, want, None)},
    )


def small(rng: np.random.Generator) -> Iterator[Case]:
    for size in (1, 2, 4, 8):
        for count, v in ((1, 7), (1003, -2), (0, 1)):
            bits = np.full(count, v, f"i{size}").view(f"u{size}")
            yield Case(
                f"fill {count} x {size}B",
                "fill",
                DType.F32,
                {"elem": size, "count": count, "value": v},
                {},
                {"y": plain(_BY_SIZE[size], bits, None)},
            )
    for it, nt in ((DType.I64, np.int64), (DType.I32, np.int32)):
        ints: dict[str, DimLike] = {
            "count": 3,
            "dtype": int(it),
            **{f"v{k}": (5, symbol("n"), -7, 0, 0, 0, 0, 0)[k] for k in range(8)},
        }
        yield Case(
            f"store_ints {it.name}",
            "store_ints",
            DType.F32,
            ints,
            {},
            {"y": plain(it, np.array([5, 11, -7], nt), None)},
            env={"n": 11},
        )
    for it in (DType.I64, DType.I32, DType.F32):
        ints = {"count": 1000, "start": -3, "delta": 7, "dtype": int(it)}
        yield Case(
            f"range {it.name}",
            "range",
            DType.F32,
            ints,
            {},
            {"y": plain(it, stored(np.arange(1000) * 7 - 3, it), None)},
        )


def layout(rng: np.random.Generator) -> Iterator[Case]:
    for dtype, size in ((DType.F32, 4), (DType.F16, 2)):
        narrow = ((2, 3, 5, 7), (1, 16, 33, 2), (1, 17, 1, 1), (0, 8, 2, 2), (2, 1, 4, 4))
        for n, c, h, w in (
            *narrow,
            (1, 64, 9, 8),
            (3, 100, 3, 1),
            (2, 65, 8, 8),
            (2, 67, 65, 63),
            (1, 67, 61, 59),
        ):
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
            yield Case(
                f"nhwc_to_nchw {name}",
                "nhwc_to_nchw",
                dtype,
                sizes | at,
                {"x": packed},
                {"y": plain(_BY_SIZE[size], planar, None)},
            )
            wide = cs + 16
            out = Output(
                _BY_SIZE[size],
                max(n * h * w * wide, 1),
                planar.shape,
                [h * w * wide, 1, w * wide, wide],
                planar,
                None,
            )
            into = {"y_cs": wide, "y_rs": w * wide, "y_ns": h * w * wide}
            yield Case(
                f"copy_nhwc {name}",
                "copy_nhwc",
                dtype,
                sizes | at | into,
                {"x": packed},
                {"y": out},
            )
        # The operand points at pixel (0, 0): with a border only to the right of and below the
        # pixels, everything lies behind it.
        sizes = {
            "N": 2,
            "H": 3,
            "W": 4,
            "PT": 0,
            "PL": 0,
            "PB": 1,
            "PR": 1,
            "y_cs": 8,
            "y_rs": 40,
            "y_ns": 160,
        }
        right = Output(
            _BY_SIZE[size], 320, (2, 3, 8), (160, 40, 1), np.zeros((2, 3, 8), f"u{size}"), None
        )
        yield Case("zero_border", "zero_border", dtype, sizes, {}, {"y": _behind(right, 32)})


def pads(rng: np.random.Generator) -> Iterator[Case]:
    """Channels-last images of 2 x h x w x c, padded (or cropped) at the top, left, bottom and
    right.
    """
    modes = ("constant", "reflect", "edge", "wrap")
    for size, (mode, name) in itertools.product((1, 2, 4, 8), enumerate(modes)):
        for h, w, c, (t, left, b, r) in (
            (7, 9, 3, (1, 2, 3, 0)),
            (6, 8, 16, (2, 0, 1, 4)),
            (5, 7, 8, (0, -1, -2, 2)),
            (1, 40, 67, (0, 3, 0, 3)),
        ):
            x = _bits(rng, 2 * h * w * c, size).reshape(2, h, w, c)
            cut = x[:, max(-t, 0) : h + min(b, 0), max(-left, 0) : w + min(r, 0)]
            grown = ((0, 0), (max(t, 0), max(b, 0)), (max(left, 0), max(r, 0)), (0, 0))
            if mode in (1, 3) and min(t, left, b, r) < 0:
                continue
            if mode == 2 and min(b, left) < 0:
                continue  # what is cropped has no edge to repeat
            filled: dict[str, Any] = {"constant_values": 90} if mode == 0 else {}
            want: Array = np.pad(cut, grown, cast(Any, name), **filled)
            height, width = want.shape[1:3]
            rows = [
                (1, 1, 0, 0, 0),
                (2, 2, 0, h * w * c, height * width * c),
                (h, height, t, w * c, width * c),
                (w, width, left, c, c),
                (c, c, 0, 1, 1),
            ]
            ints: dict[str, DimLike] = {"elem": size, "mode": mode, "value": 90 if mode == 0 else 0}
            for k, row in enumerate(rows):
                ints |= {f"{d}{k}": v for d, v in zip("mnpxy", row, strict=True)}
            yield Case(
                f"pad {name} {h}x{w}x{c} {size}B",
                "pad",
                DType.F32,
                ints,
                {"x": x},
                {"y": plain(_BY_SIZE[size], want, None)},
            )


def _behind(o: Output, elements: int) -> Output:
    """The same output, its first element `elements` further on."""
    return Output(o.dtype, o.count, o.shape, o.strides, o.want, o.bound, elements)


FAMILIES = {
    "copy": copy,
    "copies": copies,
    "gather": gather,
    "small": small,
    "layout": layout,
    "pad": pads,
}
