"""Products of more matrices than a grid has places for along its second and third axis."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from itertools import zip_longest

from tracea_onnx import dims as D
from tracea_onnx.cuda import Argument, Kernel, Pointer, Request, TensorMap, Unfit
from tracea_onnx.cuda_source import known

#: Blocks of a grid along its second and third axis; matrices of each of the batches that more are divided into.
_MOST, _EACH = 65535, 1 << 15
#: Operands, and how their strides are called.
_OPERANDS = {"a": "a", "b": "b", "y": "y", "res": "r"}


def of(product: Callable[[Request], list[Kernel]]) -> Callable[[Request], list[Kernel]]:
    """`product` for any number of matrices: batches of batches, and one of what is left."""

    def divided(r: Request) -> list[Kernel]:
        b0, b1 = known(r.ints["B0"]) or 0, known(r.ints["B1"]) or 0
        if max(b0, b1) <= _MOST:
            return product(r)
        if b0 != 1 or b1 > _MOST * _EACH:
            raise Unfit(f"a product of {r.ints['B0']} x {r.ints['B1']} matrices, of which a launch takes {_MOST} along each axis")
        full, rest = divmod(b1, _EACH)
        steps = {s: D.mul(_EACH, r.ints.get(f"{s}_1", 0)) for s in _OPERANDS.values()}
        parts = [product(replace(r, ints={**r.ints, "B0": full, "B1": _EACH, **{f"{s}_0": step for s, step in steps.items()}}))]
        if rest:
            after = {o: D.product([full, steps[s], r.dtype.size]) for o, s in _OPERANDS.items()}
            parts.append([replace(k, args=tuple(_behind(a, after) for a in k.args)) for k in product(replace(r, ints={**r.ints, "B1": rest}))])
        kernels = [k for part in parts for k in part]
        scratch = tuple(reduce(D.maximum, sizes) for sizes in zip_longest(*(k.scratch for k in kernels), fillvalue=0))  # both have the same buffers
        return [replace(k, scratch=scratch) if k.scratch else k for k in kernels]

    return divided


def _behind(a: Argument, after: dict[str, D.DimLike]) -> Argument:
    if isinstance(a, TensorMap):
        return replace(a, pointer=Pointer(a.pointer.operand, D.add(a.pointer.offset, after.get(a.pointer.operand, 0))))
    return Pointer(a.operand, D.add(a.offset, after.get(a.operand, 0))) if isinstance(a, Pointer) else a
