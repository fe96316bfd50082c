"""Cases of regions of images, of windows whose taps are moved, and of determinants."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np

from tests.gpu.cases.image import FLOATS, channels_last, image
from tests.support.cuda.case import Array, Case, plain, rounding, stored, value
from tracea_onnx.ir.dims import DimLike


def _place(v: float, n: int) -> Array:
    """What each of n pixels counts at a place of their axis; nothing where it lies beyond the
    pixels around them.
    """
    weights = np.zeros(n)
    if -1 <= v <= n:
        low = min(int(max(v, 0.0)), n - 1)
        high = min(low + 1, n - 1)
        part = max(v, 0.0) - low if high > low else 0.0
        weights[low] += 1 - part
        weights[high] += part
    return weights


def _side(start: float, end: float, bins: int, half: int, ratio: int, scale: float) -> list[Array]:
    """The places of the samples of each bin along an axis."""
    first = start * scale - 0.5 * half
    size = end * scale - 0.5 * half - first
    size = size if half else max(size, 1.0)
    count = ratio or max(int(np.ceil(size / bins)), 0)
    return [
        first + (b + (np.arange(count) + 0.5) / max(count, 1)) * size / bins for b in range(bins)
    ]


def aligned_regions(
    x: Array, rois: Array, batch: Array, bins: tuple[int, int], half: int, ratio: int, scale: float,
    mode: int,
) -> Array:  # fmt: skip
    """RoiAlign in float64. The largest: of the weighted pixels, as ONNX's reference has it."""
    c, h, w = x.shape[1:]
    out = np.zeros((len(rois), c, *bins))
    for r, (left, top, right, bottom) in enumerate(rois):
        down = _side(top, bottom, bins[0], half, ratio, scale)
        across = _side(left, right, bins[1], half, ratio, scale)
        for i, j in itertools.product(range(bins[0]), range(bins[1])):
            seen = [
                np.outer(_place(v, h), _place(u, w)) for v in down[i] for u in across[j]
            ]  # of each sample, what pixels count
            if mode == 0:
                mean = sum(seen, np.zeros((h, w))) / max(len(seen), 1)
                out[r, :, i, j] = (x[batch[r]] * mean).sum((1, 2))
            elif seen:
                out[r, :, i, j] = np.max([_largest(x[batch[r]], s) for s in seen], 0)
    return out


def _largest(x: Array, weights: Array) -> Array:
    """Of the (up to four) pixels beside a place; a pixel without weight counts as 0."""
    used = weights != 0
    found = (x * weights)[:, used]
    most: Array = found.max(1, initial=-np.inf if used.sum() == 4 else 0.0)
    return most


def moved_windows(
    x: Array, offset: Array, mask: Array | None, kernel: tuple[int, int], strides: tuple[int, int],
    dilations: tuple[int, int], pads: tuple[int, int], groups: int, moved: int,
) -> Array:  # fmt: skip
    """[N, OH, OW, G, KH * KW, C / G]: what the windows of a DeformConv see, in float64."""
    n, c, h, w = x.shape
    oh, ow = offset.shape[2:]
    taps = kernel[0] * kernel[1]
    places = offset.reshape(n, moved, taps, 2, oh, ow)
    counted = np.ones((n, moved, taps, oh, ow)) if mask is None else mask.reshape(
        n, moved, taps, oh, ow
    )  # fmt: skip
    out = np.zeros((n, oh, ow, taps, c))
    share = c // moved
    for b, d, k, i, j in itertools.product(*map(range, (n, moved, taps, oh, ow))):
        v = i * strides[0] - pads[0] + k // kernel[1] * dilations[0] + places[b, d, k, 0, i, j]
        u = j * strides[1] - pads[1] + k % kernel[1] * dilations[1] + places[b, d, k, 1, i, j]
        part = slice(d * share, (d + 1) * share)
        down, across = (
            np.maximum(1 - np.abs(np.arange(size) - at), 0) for at, size in ((v, h), (u, w))
        )
        seen = np.einsum("chw,h,w->c", x[b, part], down, across)
        out[b, i, j, k, part] = seen * counted[b, d, k, i, j]
    return out.reshape(n, oh, ow, taps, groups, c // groups).transpose(0, 1, 2, 4, 3, 5)


_REGIONS = np.array(
    [[0, 0, 5, 5], [1.25, 2.5, 8.75, 6.5], [-2, -3, 3, 2], [5, 5, 4.5, 4], [20, 20, 30, 30],
     [0.5, 0.25, 0.75, 0.5]]
)  # fmt: skip


def regions(rng: np.random.Generator) -> Iterator[Case]:
    shapes = ((2, 5, 6, 7, 2, 3), (1, 16, 9, 8, 1, 1), (3, 1, 1, 1, 3, 2))
    for dtype, mode, half, ratio in itertools.product(FLOATS, range(2), range(2), (0, 1, 3)):
        for n, c, h, w, oh, ow in shapes:
            x, v, pitch = image(rng, n, c, h, w, dtype)
            rois, batch = stored(_REGIONS, dtype), np.arange(len(_REGIONS)) % n
            how = (half, ratio, 0.75)
            want = aligned_regions(v, value(rois, dtype), batch, (oh, ow), *how, mode)
            out, to = channels_last(want, dtype, rounding(want, dtype, np.abs(v).max() * 4, 64))
            ints: dict[str, DimLike] = {
                "mode": mode, "half": half, "ratio": ratio, "N": n, "C": c, "IH": h, "IW": w,
                "R": len(rois), "OH": oh, "OW": ow, **pitch, **to,
            }  # fmt: skip
            yield Case(
                f"roi_align {mode} {half} {ratio} {c}",
                "roi_align",
                dtype,
                ints,
                {"x": x, "rois": rois, "batch": batch.astype(np.int64)},
                {"y": out},
                {"scale": 0.75},
            )


def moved(rng: np.random.Generator) -> Iterator[Case]:
    forms = (
        (2, 6, 5, 7, (3, 2), (1, 2), (1, 1), (1, 0), 1, 1),
        (1, 32, 4, 6, (1, 1), (1, 1), (1, 1), (0, 0), 2, 1),
        (2, 12, 6, 5, (2, 3), (2, 1), (2, 2), (2, 3), 3, 2),
        (1, 7, 3, 3, (3, 3), (1, 1), (1, 1), (1, 1), 7, 1),
    )  # fmt: skip
    for dtype, masked, form in itertools.product(FLOATS, (False, True), forms):
        n, c, h, w, kernel, strides, dilations, pads, groups, offsets = form
        oh, ow = (
            (size + 2 * p - d * (k - 1) - 1) // s + 1
            for size, p, d, k, s in zip((h, w), pads, dilations, kernel, strides, strict=True)
        )
        taps = kernel[0] * kernel[1]
        x, v, pitch = image(rng, n, c, h, w, dtype)
        # exactly what every type holds
        offset = stored(
            np.round(rng.uniform(-2, 2, (n, 2 * offsets * taps, oh, ow)) * 16) / 16, dtype
        )
        mask = stored(rng.uniform(0, 1, (n, offsets * taps, oh, ow)), dtype)
        held = {"x": x, "offset": offset, **({"mask": mask} if masked else {})}
        want = moved_windows(
            v, value(offset, dtype), value(mask, dtype) if masked else None, kernel, strides,
            dilations, pads, groups, offsets,
        )  # fmt: skip
        ints: dict[str, DimLike] = {
            "N": n, "C": c, "IH": h, "IW": w, "OH": oh, "OW": ow, "KH": kernel[0], "KW": kernel[1],
            "SH": strides[0], "SW": strides[1], "DH": dilations[0], "DW": dilations[1],
            "PT": pads[0], "PL": pads[1], "G": groups, "DG": offsets, **pitch,
        }  # fmt: skip
        bound = rounding(want, dtype, np.abs(v).max() * 4, 64)
        out = {"y": plain(dtype, want, bound)}
        yield Case(f"deform {c} {groups} {masked}", "deform_columns", dtype, ints, held, out)


def determinants(rng: np.random.Generator) -> Iterator[Case]:
    for dtype, (count, n) in itertools.product(
        FLOATS, ((1, 1), (7, 2), (3, 5), (40, 3), (2, 33), (3, 0))
    ):
        # of standard normal elements a determinant's standard deviation is sqrt(n!): 1 here
        x = rng.standard_normal((count, n, n)) / np.exp(math.lgamma(n + 1) / (2 * max(n, 1)))
        x = stored(x, dtype)
        if n > 1:
            x[0, 1] = x[0, 0]  # singular
            x[-1, 0, 0] = 0
        v = value(x, dtype)
        want = np.linalg.det(v)
        bound = rounding(want, dtype, np.prod(np.linalg.norm(v, axis=-1), -1))
        ints: dict[str, DimLike] = {"count": count, "n": n}
        yield Case(
            f"determinant {count}x{n}",
            "determinant",
            dtype,
            ints,
            {"x": x},
            {"y": plain(dtype, want, bound)},
        )


FAMILIES = {"regions": regions, "moved": moved, "determinants": determinants}
