"""Batched matmul of more matrices than grid axes y and z allow."""

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

#: Most CTAs along grid axes y and z; matrices per inner batch where a batch axis exceeds that; most
#: indices of the other batch axis, each of which then has launches of its own.
_GRID_LIMIT, _PER_LAUNCH, _SEPARATE = 65535, 1 << 15, 16
#: Names of the strides' prefixes by operand.
_OPERANDS = {"a": "a", "b": "b", "y": "y", "res": "r"}


def of(emit: Callable[[Request], list[Kernel]]) -> Callable[[Request], list[Kernel]]:
    """`emit` for any number of matrices B0 x B1: a long batch axis becomes batches of _PER_LAUNCH
    matrices and one batch of the rest.

    Of a symbolic number of matrices both forms are emitted, and the number selects one at run time.
    Where neither batch axis is at most _SEPARATE, a run with more matrices than a grid allows fails
    with one line.
    """

    def batched(r: Request) -> list[Kernel]:
        counts = [known(r.ints[axis]) for axis in ("B0", "B1")]
        if max(n or 0 for n in counts) > _GRID_LIMIT:
            return _parts(emit, r, counts)
        kernels = emit(r)
        fits = D.product(
            [D.sub(1, _over(g)) for g in {g: None for k in kernels for g in k.grid[1:]}]
        )
        if fits == 1 or not any(n is not None and n <= _SEPARATE for n in counts):
            return kernels
        parts = _parts(emit, r, counts)
        return parts if fits == 0 else dispatch([(fits, kernels), (D.sub(1, fits), parts)])

    return batched


def _over(count: D.DimLike) -> D.DimLike:
    """1 if `count` CTAs exceed the limit of grid axes y and z, else 0; a boundary of the ranges of
    a symbol.
    """
    more = D.less(_GRID_LIMIT, count)
    return more if (number := known(more)) is None else number


def _parts(
    emit: Callable[[Request], list[Kernel]], r: Request, counts: list[int | None]
) -> list[Kernel]:
    many = 1 if counts[1] is None or counts[1] > _GRID_LIMIT else 0
    separate, count = counts[1 - many], r.ints[f"B{many}"]
    if separate is None or separate > _SEPARATE or (counts[many] or 0) > _GRID_LIMIT * _PER_LAUNCH:
        raise NoKernel(
            f"MatMul of {r.ints['B0']} x {r.ints['B1']} matrices: a launch takes {_GRID_LIMIT} "
            "along each axis"
        )
    full, rest = D.floordiv(count, _PER_LAUNCH), D.mod(count, _PER_LAUNCH)
    one = {s: r.ints.get(f"{s}_{many}", 0) for s in _OPERANDS.values()}
    steps = {s: D.mul(_PER_LAUNCH, step) for s, step in one.items()}
    names = {
        **{f"{s}_0": step for s, step in steps.items()},
        **{f"{s}_1": step for s, step in one.items()},
    }
    shapes: list[dict[str, D.DimLike]] = [
        {"B0": full, "B1": _PER_LAUNCH},
        *([{"B0": 1, "B1": rest}] if rest != 0 else []),
    ]
    # kernels of each shape, by the set of unaligned operands
    made: dict[frozenset[str], list[list[Kernel]]] = {}
    kernels: list[Kernel] = []
    for k in range(separate):
        first = {
            o: D.product([k, r.ints.get(f"{s}_{1 - many}", 0), r.dtype.size])
            for o, s in _OPERANDS.items()
        }
        anywhere = r.unaligned | {o for o in first if multiple_of(first[o]) % 16}
        if anywhere not in made:
            made[anywhere] = [
                emit(replace(r, unaligned=anywhere, ints={**r.ints, **names, **shape}))
                for shape in shapes
            ]
        whole, *left = made[anywhere]
        after = {
            o: D.add(first[o], D.product([full, steps[s], r.dtype.size]))
            for o, s in _OPERANDS.items()
        }
        # The runtime also checks the addresses of launches with empty grids: offset 0 keeps these
        # within their buffers.
        kernels += [
            _moved(kernel, {o: D.select(D.less(0, full), at, 0) for o, at in first.items()})
            for kernel in whole
        ]
        kernels += [
            _moved(kernel, {o: D.select(D.less(0, rest), at, 0) for o, at in after.items()})
            for part in left
            for kernel in part
        ]
    # launches of one request share their scratch buffers
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
