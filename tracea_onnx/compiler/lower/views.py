"""Tensors under another shape or layout where they lie: what needs no copy."""

from __future__ import annotations

from tracea_onnx.compiler.lower.value import Dims, Nhwc, Value, View, contiguous
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.dims import DimLike


def reshape_view(view: View, old: Dims, new: Dims) -> View | None:
    """The same elements under `new` without a copy, when only dims of 1 differ or the storage is
    contiguous.
    """
    strides: list[DimLike] = []
    k = 0
    core = [(d, s) for d, s in zip(old, view.strides, strict=True) if d != 1]
    for d in new:
        if d == 1:
            strides.append(0)
            continue
        if k >= len(core) or not (core[k][0] is d or core[k][0] == d):
            return _split_view(view, old, new)
        strides.append(core[k][1])
        k += 1
    return View(view.ref, tuple(strides)) if k == len(core) else _split_view(view, old, new)


def _split_view(view: View, old: Dims, new: Dims) -> View | None:
    """A strided view stays one when leading dims agree and the last one is split or dims that chain
    are merged.
    """
    n = 0
    while n < min(len(old), len(new)) and (old[n] is new[n] or old[n] == new[n]):
        n += 1
    rest_old, rest_new = old[n:], new[n:]
    inner = contiguous(rest_old)
    unit = view.strides[-1] if view.strides else 1
    chained = [D.mul(s, unit) for s in inner]
    if not rest_old or not all(
        d == 1 or s is t or s == t
        for d, s, t in zip(rest_old, view.strides[n:], chained, strict=True)
    ):
        return regrouped(view, old, new)
    return View(view.ref, (*view.strides[:n], *(D.mul(s, unit) for s in contiguous(rest_new))))


def regrouped(view: View, old: Dims, new: Dims) -> View | None:
    """A strided view stays one when every dim is split or made of dims that chain (channels in
    groups, say).
    """
    left = [(d, s) for d, s in zip(old, view.strides, strict=True) if d != 1]
    strides: list[DimLike] = []
    k = 0
    while k < len(new):
        if new[k] == 1:
            strides.append(0)
            k += 1
            continue
        if not left:
            return None
        (size, unit), goal, end = left.pop(0), new[k], k + 1
        while not (size is goal or size == goal):
            if not isinstance(size, int) or not isinstance(goal, int):
                return None
            if size > goal and end < len(new):
                following = new[end]
                if not isinstance(following, int):
                    return None
                goal, end = goal * following, end + 1
            elif (
                size < goal
                and left
                and unit == D.mul(left[0][0], left[0][1])
                and isinstance(left[0][0], int)
            ):
                size, unit = size * left[0][0], left.pop(0)[1]
            else:
                return None
        strides += [D.mul(s, unit) for s in contiguous(new[k:end])]
        k = end
    return None if left else View(view.ref, tuple(strides))


def image_in(v: Value) -> Nhwc | None:
    """`v` where it lies, if its view has the channels of a pixel side by side (as of a matrix of
    tokens that was turned into an image).
    """
    if v.view is None or v.rank not in (3, 4):
        return None
    n, c, h, w = v.image()
    ns, step, rs, cs = (
        v.view.strides if v.rank == 4 else (*v.view.strides[:2], 0, v.view.strides[2])
    )
    cs = c if w == 1 else cs  # strides along dims of 1 say nothing
    rs = D.mul(w, cs) if h == 1 else rs
    ns = D.mul(h, rs) if n == 1 else ns
    return (
        Nhwc(v.view.ref, cs, rs, ns, (0, 0, 0, 0))
        if step == 1 and isinstance(cs, int) and isinstance(c, int) and cs >= c > 1
        else None
    )
