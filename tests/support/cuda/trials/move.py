"""Odd sizes of data movement, pooling and resizing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tests.support.cuda import runner as R
from tests.support.cuda.check import act_index
from tests.support.cuda.conv_shape import pitch
from tests.support.cuda.operands import channels_last, pack_gemm_request, packed_weight
from tests.support.cuda.trials.trial import Places, Tensors, Trial, random, result
from tracea_onnx.codegen.kernel_request import Request
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike

F16, BF16, F32 = DType.F16, DType.BF16, DType.F32
View = Callable[[Any], Any]


def _copy(
    dtype: DType, shape: Sequence[int], xs: Sequence[int], ys: Sequence[int], unaligned: str
) -> Request:
    lead = 6 - len(shape)
    ints: dict[str, DimLike] = {"elem": dtype.size}
    for letter, values, fill in (("n", shape, 1), ("x", xs, 0), ("y", ys, 0)):
        ints |= {f"{letter}{k}": v for k, v in enumerate([*[fill] * lead, *values])}
    return R.request("copy", F32, ints, operands=("x", "y"), unaligned=(unaligned,))


def _strides(x: Any) -> list[int]:
    return list(x.strides)


def view(what: str, dtype: DType, shape: tuple[int, ...], look: View) -> Trial:
    """A view of x, made contiguous."""
    seen = look(np.empty(shape, np.int8))
    r = _copy(dtype, seen.shape, _strides(seen), _strides(np.empty(seen.shape, np.int8)), "x")

    def ours(x: Tensors) -> tuple[Places, Any]:
        y = result(seen.shape, dtype)
        return [{"x": look(x["x"]), "y": y}], y

    def eager(x: Tensors) -> Any:
        t = R.torch()
        return t.empty(seen.shape, dtype=x["x"].dtype, device="cuda").copy_(look(x["x"]))

    return Trial(
        f"{what} {dtype.name} {'x'.join(map(str, shape))}",
        dtype,
        [r],
        lambda: {"x": random(*shape, dtype=dtype)},
        eager,
        ours,
    )


def concat(dtype: DType, rows: int, widths: Sequence[int]) -> Trial:
    """Parts side by side (a session has them written in place where their producers can)."""
    total, names = sum(widths), [f"x{k}" for k in range(len(widths))]
    ints: dict[str, DimLike] = {"elem": dtype.size}
    for k, w in enumerate(widths):
        ints |= {
            f"p{k}_{name}": v
            for name, v in (
                ("n0", 1),
                ("n1", rows),
                ("n2", w),
                ("x1", w),
                ("x2", 1),
                ("y1", total),
                ("at", sum(widths[:k])),
            )
        }
    r = R.request("copies", F32, ints, operands=(*names, "y"))

    def ours(x: Tensors) -> tuple[Places, Any]:
        y = result((rows, total), dtype)
        return [{**x, "y": y}], y

    def inputs() -> Tensors:
        return {n: random(rows, w, dtype=dtype) for n, w in zip(names, widths, strict=True)}

    return Trial(
        f"concat {dtype.name} {rows} rows of {'+'.join(map(str, widths))}",
        dtype,
        [r],
        inputs,
        lambda x: R.torch().cat(list(x.values()), 1),
        ours,
    )


def gather(dtype: DType, n: int, inner: int, count: int, *, each: bool = False) -> Trial:
    """Rows of a table; each: elements of a row of their own."""
    ints = {
        "elem": dtype.size,
        "outer": count if each else 1,
        "n": n,
        "inner": 1 if each else inner,
        "count": inner if each else count,
        "idx_dtype": int(DType.I64),
    }
    r = R.request("gather_elements" if each else "gather", F32, ints, operands=("x", "idx", "y"))

    def inputs() -> Tensors:
        t = R.torch()
        return {
            "x": random(*((count, n) if each else (n, inner)), dtype=dtype),
            "idx": t.randint(0, n, (count, inner) if each else (count,), device="cuda"),
        }

    def ours(x: Tensors) -> tuple[Places, Any]:
        y = result((count, inner), dtype)
        return [{**x, "y": y}], y

    def eager(x: Tensors) -> Any:
        return (
            R.torch().gather(x["x"], 1, x["idx"])
            if each
            else R.torch().index_select(x["x"], 0, x["idx"])
        )

    return Trial(
        f"gather{' elements' * each} {dtype.name} {count}x{inner} of {n}",
        dtype,
        [r],
        inputs,
        eager,
        ours,
    )


# --- images


def _pitches(side: str, h: int, w: int, c: int) -> dict[str, DimLike]:
    return {f"{side}_cs": pitch(c), f"{side}_rs": w * pitch(c), f"{side}_ns": h * w * pitch(c)}


def _image(n: int, c: int, h: int, w: int, dtype: DType) -> Callable[[], Tensors]:
    return lambda: {
        "x": random(n, c, h, w, dtype=dtype).contiguous(memory_format=R.torch().channels_last)
    }


def _into(n: int, c: int, h: int, w: int, dtype: DType) -> Callable[[Tensors], tuple[Places, Any]]:
    def ours(x: Tensors) -> tuple[Places, Any]:
        y = result((n, h, w, pitch(c)), dtype)
        return [{"x": channels_last(x["x"], pitch(c), dtype), "y": y}], y[..., :c].permute(
            0, 3, 1, 2
        )

    return ours


def pool(dtype: DType, mode: int, n: int, c: int, h: int, w: int, k: int, s: int, p: int) -> Trial:
    """mode: 0 largest, 2 mean with the border counted."""
    oh, ow = (h + 2 * p - k) // s + 1, (w + 2 * p - k) // s + 1
    ints = {
        "mode": mode,
        "N": n,
        "C": c,
        "IH": h,
        "IW": w,
        "OH": oh,
        "OW": ow,
        "KH": k,
        "KW": k,
        "SH": s,
        "SW": s,
        "DH": 1,
        "DW": 1,
    }
    r = R.request(
        "pool2d",
        dtype,
        ints
        | dict.fromkeys(("PT", "PL", "PB", "PR"), p)
        | _pitches("x", h, w, c)
        | _pitches("y", oh, ow, c),
        operands=("x", "y"),
    )

    def eager(x: Tensors) -> Any:
        f = R.torch().nn.functional
        return f.avg_pool2d(x["x"], k, s, p) if mode else f.max_pool2d(x["x"], k, s, p)

    name = f"{'average' if mode else 'max'} pool {dtype.name} {n}x{c}x{h}x{w} k{k} s{s} p{p}"
    return Trial(name, dtype, [r], _image(n, c, h, w, dtype), eager, _into(n, c, oh, ow, dtype))


def global_pool(dtype: DType, n: int, c: int, h: int, w: int) -> Trial:
    r = R.request(
        "global_pool",
        dtype,
        {"mode": 1, "N": n, "C": c, "H": h, "W": w, "y_ns": c, **_pitches("x", h, w, c)},
        operands=("x", "y"),
    )

    def ours(x: Tensors) -> tuple[Places, Any]:
        y = result((n, c), dtype)
        return [{"x": channels_last(x["x"], pitch(c), dtype), "y": y}], y

    return Trial(
        f"global mean {dtype.name} {n}x{c}x{h}x{w}",
        dtype,
        [r],
        _image(n, c, h, w, dtype),
        lambda x: x["x"].mean((2, 3)),
        ours,
    )


def slopes(dtype: DType, h: int, w: int) -> Callable[[Tensors], Any] | None:
    """Where a pixel of the result lies is computed in f32, in PyTorch as in ONNX Runtime: off by
    roundings of h and w, times what the image rises from one pixel to the next (float64 coordinates
    are what the reference has). In 16-bit types that is lost in the rounding of the result.
    """
    return (lambda x: (h + w) / 2 * x["x"].abs().max()) if dtype == DType.F32 else None


def _resized(n: int, c: int, h: int, w: int, oh: int, ow: int) -> dict[str, DimLike]:
    """Sizes and pitches of a resized image, by half-pixel coordinates."""
    sizes: dict[str, DimLike] = {"coord": 0, "N": n, "C": c, "IH": h, "IW": w, "OH": oh, "OW": ow}
    return {**sizes, **_pitches("x", h, w, c), **_pitches("y", oh, ow, c)}


def resize(dtype: DType, n: int, c: int, h: int, w: int, oh: int, ow: int) -> Trial:
    ints = {"mode": 1, **_resized(n, c, h, w, oh, ow)}
    r = R.request(
        "resize2d", dtype, ints, {"scale_h": oh / h, "scale_w": ow / w}, operands=("x", "y")
    )

    def eager(x: Tensors) -> Any:
        return R.torch().nn.functional.interpolate(x["x"], (oh, ow), mode="bilinear")

    name = f"resize {dtype.name} {n}x{c}x{h}x{w} to {oh}x{ow}"
    return Trial(
        name,
        dtype,
        [r],
        _image(n, c, h, w, dtype),
        eager,
        _into(n, c, oh, ow, dtype),
        2.0,
        size=slopes(dtype, h, w),
    )


def excite(dtype: DType, n: int, c: int, h: int, w: int, hidden: int) -> Trial:
    sizes = {
        "N": n,
        "C": c,
        "R": hidden,
        "H": h,
        "W": w,
        "act1": act_index("relu"),
        "act2": act_index("sigmoid"),
        **_pitches("x", h, w, c),
        **_pitches("y", h, w, c),
    }
    r = R.request(
        "squeeze_excite", dtype, sizes, operands=("x", "w1", "w2", "y"), constant=("w1", "w2")
    )
    place = _into(n, c, h, w, dtype)

    def inputs() -> Tensors:
        return _image(n, c, h, w, dtype)() | {
            "w1": random(hidden, c, dtype=dtype, scale=c**-0.5),
            "w2": random(hidden, c, dtype=dtype),
        }

    def ours(x: Tensors) -> tuple[Places, Any]:
        ((images,), y) = place(x)
        return [{**images, **{k: packed_weight(x[k], dtype, trans=True) for k in ("w1", "w2")}}], y

    def eager(x: Tensors) -> Any:
        f = R.torch().nn.functional
        hidden_ = f.relu(f.linear(x["x"].mean((2, 3)), x["w1"]))
        return x["x"] * f.linear(hidden_, x["w2"].T).sigmoid()[:, :, None, None]

    return Trial(
        f"squeeze-excite {dtype.name} {n}x{c}x{h}x{w} to {hidden}",
        dtype,
        [r],
        inputs,
        eager,
        ours,
        2.0,
        extra=[pack_gemm_request(hidden, c, dtype, True)],
    )


def trials() -> Iterator[Trial]:
    yield view("transpose", F16, (1021, 1031), lambda x: x.T)
    yield view("transpose", F32, (1021, 1031), lambda x: x.T)
    yield view("transpose", F16, (3, 4099), lambda x: x.T)
    yield view(
        "permute 4 2 0 3 1",
        F16,
        (7, 11, 13, 17, 19),
        lambda x: x.swapaxes(0, 4).swapaxes(1, 2).swapaxes(2, 4),
    )
    yield view("slice with steps", F16, (4099, 4093), lambda x: x[3::5, 2::3])
    yield view("columns", BF16, (1021, 1031), lambda x: x[7:1013, 11:1009])
    yield view("last axis in steps", F32, (131, 8191), lambda x: x[:, ::2])
    yield view("permute 0 3 1 2", BF16, (13, 53, 47, 67), lambda x: x.swapaxes(1, 3).swapaxes(2, 3))
    yield concat(F16, 1021, (17, 31, 53))
    yield concat(F32, 7, (100003, 3))
    yield concat(F16, 509, (1, 3, 5, 7, 11, 13, 17, 19))
    yield gather(F16, 50021, 67, 1013)
    yield gather(F32, 30011, 767, 131)
    yield gather(F16, 1031, 127, 509, each=True)
    yield pool(F16, 0, 3, 61, 113, 109, 3, 2, 1)
    yield pool(BF16, 2, 2, 67, 53, 47, 3, 2, 1)
    yield pool(F16, 0, 1, 7, 13, 11, 2, 2, 0)
    yield global_pool(F16, 3, 131, 53, 47)
    yield global_pool(F16, 1, 2053, 7, 7)
    yield resize(F16, 2, 61, 37, 41, 74, 83)
    yield excite(F16, 3, 131, 17, 19, 7)
