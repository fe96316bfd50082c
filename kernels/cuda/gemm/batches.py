"""Products of more matrices than a grid has places for along its second and third axis."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from itertools import zip_longest

from tracea_onnx.codegen.kernel_request import (
    Argument,
    Kernel,
    NoKernel,
    Pointer,
    Request,
    TensorMap,
)
from tracea_onnx.codegen.size_ranges import dispatch
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.dims import multiple_of

from ..common.launch import known

#: Blocks of a grid along its second and third axis; matrices of each of the batches that more are
#: divided into; batches of the other axis that are launched apart.
_MOST, _EACH, _APART = 65535, 1 << 15, 16
#: Operands, and how their strides are called.
_OPERANDS = {"a": "a", "b": "b", "y": "y", "res": "r"}


def of(product: Callable[[Request], list[Kernel]]) -> Callable[[Request], list[Kernel]]:
    """`product` for any number of matrices: batches of batches, and one of what is left.

    A symbolic number of them has both where they differ: what is launched is decided when the
    number is known. Where neither axis is a small number, a run of more matrices than a grid has
    places for fails in one line."""

    def divided(r: Request) -> list[Kernel]:
        counts = [known(r.ints[axis]) for axis in ("B0", "B1")]
        if max(n or 0 for n in counts) > _MOST:
            return _parts(product, r, counts)
        kernels = product(r)
        fits = D.product(
            [D.sub(1, _over(g)) for g in {g: None for k in kernels for g in k.grid[1:]}]
        )
        if fits == 1 or not any(n is not None and n <= _APART for n in counts):
            return kernels
        parts = _parts(product, r, counts)
        return parts if fits == 0 else dispatch([(fits, kernels), (D.sub(1, fits), parts)])

    return divided


def _over(blocks: D.DimLike) -> D.DimLike:
    """1 where a grid has no places for so many along its second or third axis, else 0; ranges of a
    symbol end where that changes.
    """
    more = D.less(_MOST, blocks)
    return more if (number := known(more)) is None else number


def _parts(
    product: Callable[[Request], list[Kernel]], r: Request, counts: list[int | None]
) -> list[Kernel]:
    many = 1 if counts[1] is None or counts[1] > _MOST else 0
    apart, count = counts[1 - many], r.ints[f"B{many}"]
    if apart is None or apart > _APART or (counts[many] or 0) > _MOST * _EACH:
        raise NoKernel(
            f"a product of {r.ints['B0']} x {r.ints['B1']} matrices, of which a launch takes {_MOST} along each axis"
        )
    full, rest = D.floordiv(count, _EACH), D.mod(count, _EACH)
    one = {s: r.ints.get(f"{s}_{many}", 0) for s in _OPERANDS.values()}
    steps = {s: D.mul(_EACH, step) for s, step in one.items()}
    names = {
        **{f"{s}_0": step for s, step in steps.items()},
        **{f"{s}_1": step for s, step in one.items()},
    }
    shapes: list[dict[str, D.DimLike]] = [
        {"B0": full, "B1": _EACH},
        *([{"B0": 1, "B1": rest}] if rest != 0 else []),
    ]
    # of the shapes, by the operands that may begin anywhere
    made: dict[frozenset[str], list[list[Kernel]]] = {}
    kernels: list[Kernel] = []
    for k in range(apart):
        first = {
            o: D.product([k, r.ints.get(f"{s}_{1 - many}", 0), r.dtype.size])
            for o, s in _OPERANDS.items()
        }
        anywhere = r.unaligned | {o for o in first if multiple_of(first[o]) % 16}
        if anywhere not in made:
            made[anywhere] = [
                product(replace(r, unaligned=anywhere, ints={**r.ints, **names, **shape}))
                for shape in shapes
            ]
        whole, *left = made[anywhere]
        after = {
            o: D.add(first[o], D.product([full, steps[s], r.dtype.size]))
            for o, s in _OPERANDS.items()
        }
        # A run looks at the places of launches that have nothing to do as well, and these may lie
        # behind their buffers.
        kernels += [
            _moved(kernel, {o: D.select(D.less(0, full), at, 0) for o, at in first.items()})
            for kernel in whole
        ]
        kernels += [
            _moved(kernel, {o: D.select(D.less(0, rest), at, 0) for o, at in after.items()})
            for part in left
            for kernel in part
        ]
    # all have the same buffers
    scratch = tuple(
        reduce(D.maximum, sizes)
        for sizes in zip_longest(*(k.scratch for k in kernels), fillvalue=0)
    )
    return [replace(k, scratch=scratch) if k.scratch else k for k in kernels]


def _moved(kernel: Kernel, by: dict[str, D.DimLike]) -> Kernel:
    return replace(kernel, args=tuple(_behind(a, by) for a in kernel.args))


def _behind(a: Argument, after: dict[str, D.DimLike]) -> Argument:
    if isinstance(a, TensorMap):
        return replace(
            a,
            pointer=Pointer(
                a.pointer.operand, D.add(a.pointer.offset, after.get(a.pointer.operand, 0))
            ),
        )
    return (
        Pointer(a.operand, D.add(a.offset, after.get(a.operand, 0)))
        if isinstance(a, Pointer)
        else a
    )
