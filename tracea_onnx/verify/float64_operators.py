"""Operators for ONNX's reference implementation, where its own are slow, or not what ONNX and ONNX
Runtime compute.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun
from onnx.reference.ops import op_loop


class OneHot(OpRun):
    """The evaluator's own OneHot does not take a depth of shape [1], which the operator allows."""

    def _run(self, indices: Any, depth: Any, values: Any, axis: int = -1) -> tuple[Any]:
        size = int(np.reshape(depth, -1)[0])
        hot = np.mod(np.asarray(indices, np.int64), size)[..., None] == np.arange(size)
        return (np.where(np.moveaxis(hot, -1, axis), values[1], values[0]),)


class ImageScaler(OpRun):
    """An operator of the first ONNX versions that ONNX Runtime still runs: scale * x + bias of each
    channel.
    """

    def _run(self, x: Any, bias: Any = None, scale: float = 1.0) -> tuple[Any]:
        return (x * scale + np.asarray(bias, np.float64).reshape(1, -1, 1, 1),)


class Crop(OpRun):
    """An operator of the first ONNX versions that ONNX Runtime still runs: border is left, top,
    right, bottom; scale is height, width.
    """

    def _run(self, x: Any, border: Any = None, scale: Any = None) -> tuple[Any]:
        left, top, right, bottom = (int(v) for v in border)
        height, width = x.shape[2], x.shape[3]
        end = (
            (top + int(scale[0]), left + int(scale[1]))
            if scale
            else (height - bottom, width - right)
        )
        return (x[:, :, top : end[0], left : end[1]],)


class Affine(OpRun):
    """An operator of the first ONNX versions that ONNX Runtime still runs: alpha * x + beta."""

    def _run(self, x: Any, alpha: float = 1.0, beta: float = 0.0) -> tuple[Any]:
        return (alpha * x + beta,)


class Loop(op_loop.Loop):
    """The evaluator's own Loop joins the results of the iterations along the first axis instead of
    a new one, and knows no loop of no iterations.
    """

    def _run(
        self,
        M: Any,
        cond: Any,
        *carried: Any,
        context: Any = None,
        body: Any = None,
        attributes: Any = None,
        bindings: Any = None,
    ) -> tuple[Any, ...]:
        names, state, at = body.input_names, list(carried), 0
        scanned: list[list[Any]] = [[] for _ in range(self.K)]
        go = cond is None or bool(cond)
        while go and (M is None or at < M):
            given: list[Any] = [np.array(at, np.int64), np.array(go), *state]
            values = {**(context or {}), **dict(zip(names, given, strict=True))}
            first, *rest = body.run(
                None,
                values,
                attributes=attributes,
                **({} if bindings is None else {"_bindings": bindings}),
            )
            go, state, at = bool(first), rest[: self.N], at + 1
            for rows, row in zip(scanned, rest[self.N :], strict=True):
                rows.append(row)
        return (*state, *(np.stack(rows) if rows else np.empty((0,)) for rows in scanned))


class Conv(OpRun):
    """The evaluator's own Conv takes seconds for what BLAS does in milliseconds."""

    def _run(
        self, x: Any, w: Any, b: Any = None, auto_pad: Any = None, dilations: Any = None,
        group: int = 1, kernel_shape: Any = None, pads: Any = None, strides: Any = None,
    ) -> tuple[Any]:  # fmt: skip
        rank = x.ndim - 2
        steps, gaps = strides or [1] * rank, dilations or [1] * rank
        spans = [(k - 1) * g + 1 for k, g in zip(w.shape[2:], gaps, strict=True)]
        pads = pads or [0] * (2 * rank)
        if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
            total = [
                max((-(-n // s) - 1) * s + k - n, 0)
                for n, s, k in zip(x.shape[2:], steps, spans, strict=True)
            ]
            less, more = [t // 2 for t in total], [t - t // 2 for t in total]
            pads = less + more if auto_pad == "SAME_UPPER" else more + less
        edges = list(zip(pads[:rank], pads[rank:], strict=True))
        x = np.pad(x, [(0, 0), (0, 0), *edges])
        out = [(n - k) // s + 1 for n, k, s in zip(x.shape[2:], spans, steps, strict=True)]
        n, each = x.shape[0], int(np.prod(out))
        filters = w.reshape(group, -1, *w.shape[1:])
        y = np.zeros((n, group, filters.shape[1], each))
        for at in product(*map(range, w.shape[2:])):
            taken = tuple(
                slice(k * g, k * g + s * (m - 1) + 1, s)
                for k, g, s, m in zip(at, gaps, steps, out, strict=True)
            )
            rows = x[(slice(None), slice(None), *taken)].reshape(n, group, -1, each)
            y += filters[(slice(None),) * 3 + at] @ rows
        y = y.reshape(n, -1, *out)
        return (y if b is None else y + b.reshape(-1, *[1] * rank),)


class ConvTranspose(OpRun):
    """The evaluator's own ConvTranspose takes one output channel of each group."""

    def _run(
        self, x: Any, w: Any, b: Any = None, auto_pad: Any = None, dilations: Any = None,
        group: int = 1, kernel_shape: Any = None, output_padding: Any = None,
        output_shape: Any = None, pads: Any = None, strides: Any = None,
    ) -> tuple[Any]:  # fmt: skip
        rank = x.ndim - 2
        steps, gaps, more = (
            v or [d] * rank for v, d in ((strides, 1), (dilations, 1), (output_padding, 0))
        )
        kernel = w.shape[2:]
        whole = [
            s * (n - 1) + o + (k - 1) * g + 1
            for n, s, o, k, g in zip(x.shape[2:], steps, more, kernel, gaps, strict=True)
        ]
        same = str(auto_pad).startswith("SAME")
        asked = output_shape or (
            [n * s for n, s in zip(x.shape[2:], steps, strict=True)] if same else None
        )
        if asked:
            total = [max(n - a, 0) for n, a in zip(whole, asked, strict=True)]
            begin = [t // 2 if auto_pad == "SAME_UPPER" else t - t // 2 for t in total]
            pads = [*begin, *(t - p for t, p in zip(total, begin, strict=True))]
        pads = pads or [0] * (2 * rank)
        y = np.zeros((x.shape[0], group, w.shape[1], *whole))
        parts, weights = (
            x.reshape(x.shape[0], group, -1, *x.shape[2:]),
            w.reshape(group, -1, *w.shape[1:]),
        )
        for at in product(*map(range, kernel)):
            to = tuple(
                slice(k * g, k * g + s * (n - 1) + 1, s)
                for k, g, s, n in zip(at, gaps, steps, x.shape[2:], strict=True)
            )
            y[(slice(None),) * 3 + to] += np.einsum(
                "ngi...,gio->ngo...", parts, weights[(slice(None),) * 3 + at]
            )
        y = y.reshape(x.shape[0], -1, *whole)[
            (slice(None),) * 2
            + tuple(
                slice(p, n - q) for p, n, q in zip(pads[:rank], whole, pads[rank:], strict=True)
            )
        ]
        return (y if b is None else y + b.reshape(-1, *[1] * rank),)


class GatherElements(OpRun):
    """The evaluator's own GatherElements takes no axis from the end, nor indices fewer than the
    data.
    """

    def _run(self, data: Any, indices: Any, axis: int = 0) -> tuple[Any]:
        axis %= data.ndim
        part = data[
            tuple(slice(None) if k == axis else slice(n) for k, n in enumerate(indices.shape))
        ]
        return (np.take_along_axis(part, indices.astype(np.int64) % data.shape[axis], axis),)


class MeanVarianceNormalization(OpRun):
    """The evaluator's own MeanVarianceNormalization is a function with float32 constants."""

    def _run(self, x: Any, axes: Sequence[int] = (0, 2, 3)) -> tuple[Any]:
        over = tuple(axes)
        return ((x - x.mean(over, keepdims=True)) / (x.std(over, keepdims=True) + 1e-9),)


class Softsign(OpRun):
    """The evaluator's own Softsign takes no scalar."""

    def _run(self, x: Any) -> tuple[Any]:
        return (np.asarray(x / (1 + np.abs(x))),)


class Resize(OpRun):
    """ONNX Runtime's places are of float32; the evaluator's own Resize has others beside a half,
    and where the scales are not the ratios of the sizes.
    """

    def _run(
        self, x: Any, roi: Any = None, scales: Any = None, sizes: Any = None, antialias: int = 0,
        axes: Any = None,
        coordinate_transformation_mode: str = "half_pixel", cubic_coeff_a: float = -0.75,
        exclude_outside: int = 0, extrapolation_value: float = 0.0,
        keep_aspect_ratio_policy: str = "stretch", mode: str = "nearest",
        nearest_mode: str = "round_prefer_floor",
    ) -> tuple[Any]:  # fmt: skip
        coord = coordinate_transformation_mode
        known = (
            "half_pixel",
            "asymmetric",
            "align_corners",
            "pytorch_half_pixel",
            "half_pixel_symmetric",
        )
        if antialias or axes or keep_aspect_ratio_policy != "stretch" or coord not in known:
            raise NotImplementedError(
                f"Resize with antialias, axes, an aspect policy or coordinates '{coord}'"
            )
        f = np.float32
        if scales is not None and np.size(scales):
            ratios = [f(s) for s in scales]
            sizes = [int(f(n) * s) for n, s in zip(x.shape, ratios, strict=True)]
        else:
            ratios = [f(n) / f(m) for n, m in zip(sizes, x.shape, strict=True)]
        if tuple(sizes) == x.shape:
            return (x,)
        y = x
        for axis, (n, m, scale) in enumerate(zip(x.shape, map(int, sizes), ratios, strict=True)):
            if scale != 1:
                y = np.moveaxis(
                    np.tensordot(
                        _taps(
                            n,
                            m,
                            scale,
                            coord,
                            mode,
                            nearest_mode,
                            cubic_coeff_a,
                            bool(exclude_outside),
                        ),
                        y,
                        (1, axis),
                    ),
                    0,
                    axis,
                )
        return (y,)


def _taps(
    n: int, m: int, scale: Any, coord: str, mode: str, nearest: str, a: float, exclude: bool
) -> Any:
    """Weight of each of n positions in each of m results."""
    f, at = np.float32, np.arange(m, dtype=np.float32)
    if coord == "asymmetric":
        place = at / scale
    elif coord == "align_corners":
        place = at * f(n - 1) / f(m - 1) if m > 1 else at * f(0)
    elif coord == "half_pixel_symmetric":
        if mode == "nearest" and f(m) != scale * f(n):  # which pixel is a matter of rounding
            raise NotImplementedError("the nearest of symmetric coordinates between whole sizes")
        place = f(n) / f(2) * (f(1) - f(m) / (scale * f(n))) + (at + f(0.5)) / scale - f(0.5)
    else:
        place = (at + f(0.5)) / scale - f(0.5) if m > 1 or coord == "half_pixel" else at * f(0)
    out = np.zeros((m, n))
    if mode == "linear":
        place = np.clip(place, 0, n - 1)
    low = np.floor(place).astype(np.int64)
    t = (place - low).astype(np.float64)
    if mode == "nearest":
        # ONNX Runtime takes a place within 1e-6 of a half for one.
        up = {
            "floor": t < 0,
            "ceil": t > 0,
            "round_prefer_ceil": t - 0.5 >= -1e-6,
            "round_prefer_floor": t - 0.5 > 1e-6,
        }[nearest]
        out[np.arange(m), np.clip(low + up, 0, n - 1)] = 1
        return out
    if mode == "linear":
        parts = {0: 1 - t, 1: t}
    else:
        # Keys' cubic within 1 of its centre, and within 2
        near, far = ([a + 2, -(a + 3), 0, 1], [a, -5 * a, 8 * a, -4 * a])
        parts = {
            -1: np.polyval(far, t + 1),
            0: np.polyval(near, t),
            1: np.polyval(near, 1 - t),
            2: np.polyval(far, 2 - t),
        }
    for offset, weight in parts.items():
        inside = (low + offset >= 0) & (low + offset < n)
        np.add.at(
            out,
            (np.arange(m), np.clip(low + offset, 0, n - 1)),
            weight * (inside if exclude else 1),
        )
    return out / out.sum(1, keepdims=True) if exclude else out


#: Operators that compute in another way than the evaluator's own.
OPERATORS: tuple[type[Any], ...] = (
    OneHot, ImageScaler, Crop, Affine, Loop, Conv, ConvTranspose, GatherElements,
    MeanVarianceNormalization, Softsign, Resize,
)  # fmt: skip
