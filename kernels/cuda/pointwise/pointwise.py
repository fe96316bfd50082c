"""Pointwise programs, over strided tensors with broadcasting and over channels-last images."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from tracea_onnx.codegen.kernel_request import Kernel, NoKernel, Request
from tracea_onnx.compiler.lower.axes import merge_dims
from tracea_onnx.compiler.lower.epilogue_kinds import CHANNEL, CHANNEL_F32, FULL
from tracea_onnx.compiler.lower.value import contiguous
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike, factor
from tracea_onnx.support.data_classes import dataclass

from ..common.instantiate import constexprs, defines, instance, ints, longs, pointer, unsigned
from ..common.launch import blocks, known, parameters, reciprocal, static
from ..common.prelude import C_TYPES, stages_source

#: Least length of a side for tiles of 64 x 64; most bytes of a CTA's tiles.
_TILE_SIDE, _TILE_BYTES = 16, 40_000
#: Most misaligned elements that are computed one by one, up to _SINGLE per thread (twice as many
#: elements where rows are shorter than _SHORT).
_SMALL, _SHORT, _SINGLE = 1 << 18, 64, 2
#: Least length of rows of which few vectors cross an end; elements of a vector of 8-byte types, for
#: misaligned rows shorter than _WIDE_ROW.
_LONG, _WIDE, _WIDE_ROW = 2048, 4, 256


@dataclass(frozen=True)
class _Operand:
    """One tensor of the iteration space: name, element type, strides in elements."""

    name: str
    dtype: DType
    strides: tuple[DimLike, ...]

    @property
    def inner(self) -> int:
        """1 contiguous along the last dim, 0 constant along it, 2 anything else."""
        s = known(self.strides[-1])
        return s if s in (0, 1) else 2


@dataclass(frozen=True)
class _Space:
    """An iteration space and its operands; a vector has `v` elements."""

    n: Sequence[DimLike]
    inputs: Sequence[_Operand]
    out: _Operand
    v: int
    unaligned: frozenset[str]

    @property
    def operands(self) -> list[_Operand]:
        return [*self.inputs, self.out]

    def _is_run(self, o: _Operand) -> bool:
        s = o.strides
        return o.inner == 1 and all(
            a == D.mul(m, b) for a, m, b in zip(s, self.n[1:], s[1:], strict=False)
        )

    @property
    def run(self) -> bool:
        """Whether the result is contiguous."""
        return self._is_run(self.out)

    def units(self) -> DimLike:
        """Threads for `call`."""
        total = D.product(self.n)
        if self.out.inner != 1:
            return total
        pieces = D.add(D.ceildiv(total if self.run else self.n[-1], self.v), 1)
        wide = pieces if self.run else D.mul(D.product(self.n[:-1]), pieces)
        return D.mul(wide, D.minimum(total, 1))

    def small(self) -> DimLike:
        """Whether there is less to do than whole vectors are worth where they take more than one
        access.
        """
        return D.less(
            D.product(self.n), D.select(D.less(self.n[-1], _SHORT), 2 * _SMALL, _SMALL) + 1
        )

    def flows(self, o: _Operand) -> bool:
        """Whether vectors of an operand continue across the ends of rows."""
        return self.run and (known(self.n[-1]) or 0) < _LONG and self._is_run(o)

    @property
    def whole(self) -> bool | None:
        """Whether every operand has `v` elements side by side wherever it is read; None: that shows
        at run time.
        """
        if self.out.inner != 1 or self.v == 1:
            return True
        steps = [
            o.strides[d] for o in self.operands if o.inner == 1 for d in range(len(self.n) - 1)
        ] + ([self.n[-1]] if len(self.n) > 1 else [])
        if any(isinstance(s, int) and s % self.v for s in steps):
            return False
        sure = all(factor(s) % self.v == 0 for s in steps) and not any(
            o.name in self.unaligned for o in self.operands if o.inner == 1
        )
        return True if sure else None

    def tile_count(self, dim: int) -> DimLike:
        return D.product(
            [D.ceildiv(d, 64) if k in (dim, len(self.n) - 1) else d for k, d in enumerate(self.n)]
        )


def _kernel(
    request: Request, shape: Sequence[DimLike], inputs: Sequence[_Operand], out: _Operand
) -> list[Kernel]:
    program = request.program
    if program is None:
        raise NoKernel("a pointwise kernel without a program")
    operands = [*inputs, out]
    rows = merge_dims(shape, [o.strides for o in operands]) or [(1, [1] * len(operands))]
    n = [r[0] for r in rows]
    operands = [
        _Operand(o.name, o.dtype, tuple(r[1][k] for r in rows)) for k, o in enumerate(operands)
    ]
    inputs, out = operands[:-1], operands[-1]
    rank = len(rows)
    v = max(1, 16 // max(o.dtype.size for o in operands))
    functions, statements, fast = stages_source(
        program, [(o.dtype, o.name) for o in inputs], out.dtype, out.name
    )
    space = _Space(n, inputs, out, v, request.unaligned)
    ragged = space.whole is False and out.inner == 1
    if v == 2 and ragged and (known(n[-1]) or _WIDE_ROW) < _WIDE_ROW:
        v = _WIDE
        space = replace(space, v=v)
    transposed = _transposed_dim(space)
    # unused constants have fixed values, so that equal kernels have equal text
    whole, few, run = space.whole, known(space.small()), space.run
    if transposed is not None:
        whole, few, run, marked = None, None, True, transposed[1]
    elif whole:
        few, run, marked = few if v == 1 or out.inner != 1 else None, True, []
    else:
        marked = [o for o in inputs if space.flows(o)]
    grid = _grid(space, request) if transposed is None else space.tile_count(transposed[0])

    def listed(operands: Sequence[_Operand]) -> str:
        return " ".join(
            f"F({o.name}, {C_TYPES[o.dtype]}, {o.inner}, {str(o in marked).lower()})"
            for o in operands
        )

    names = ", ".join(f"{C_TYPES[o.dtype]}{'&' * (o is out)} {o.name}" for o in [out, *inputs])
    before = (
        defines({"INPUTS(F)": listed(inputs), "OUTPUT(F)": listed([out])})
        + constexprs(
            {
                "RANK": rank,
                "VECTOR": v,
                "VECTOR_ALIGNED": -1 if whole is None else int(whole),
                "FEW": -1 if few is None else few,
                "CONTIGUOUS": run,
                "TILED": 0 if transposed is None else transposed[0],
                "SINGLE": _SINGLE,
                "SMALL": _SMALL,
                "SHORT": _SHORT,
            }
        )
        + f"{functions}DEV void compute({names}) {{ {statements} }}\n"
    )
    pers = [*map(reciprocal, n[1:]), reciprocal(D.floordiv(n[-1], v))] if rank > 1 else []
    given = [pointer(f"{'' if o is out else 'const '}{C_TYPES[o.dtype]}", o.name) for o in operands]
    given += ints({f"n{d}": size for d, size in enumerate(n)})
    given += longs({f"s_{o.name}{d}": s for o in operands for d, s in enumerate(o.strides)})
    given += unsigned({f"per{k}": per for k, per in enumerate(pers)})
    filled = [f"{o.name}, {_braced(f's_{o.name}{d}' for d in range(rank))}" for o in operands]
    filled += [_braced(f"n{d}" for d in range(rank))]
    filled += [_braced(["0", *(f"per{k}" for k in range(rank - 1))])]
    filled += [f"per{rank - 1}" if pers else "0"]
    call = "pointwise" if transposed is None else "map_tiles"
    return [
        instance(
            request,
            "pointwise",
            "pointwise/pointwise",
            given,
            grid,
            256,
            f"pdl_launch_dependents();\n  {call}(Operands{_braced(filled)});\n  pdl_wait();",
            dtype=DType.F32,
            fast=fast,
            before=before,
        )
    ]


def _braced(values: Iterable[str]) -> str:
    return f"{{{', '.join(values)}}}"


def _grid(space: _Space, request: Request) -> DimLike:
    """CTAs of a grid-stride loop: not so few that some threads of the last turn have much to do
    that others have not; where elements are single, as many as have all that a thread takes at
    once, since finding places costs as much as moving what is there.
    """
    units, total = space.units(), D.product(space.n)
    many = blocks(units, 256, D.maximum(request.sms * 32, D.ceildiv(units, 1024)))
    return (
        many
        if space.whole and space.v > 1 and space.out.inner == 1
        else D.select(space.small(), blocks(total, 256 * _SINGLE, request.sms * 8), many)
    )


def _transposed_dim(space: _Space) -> tuple[int, list[_Operand]] | None:
    """The dim along which operands are contiguous that jump along the last one, when both are long
    enough for tiles, and those operands: as many as there is shared memory for.
    """
    last = len(space.n) - 1
    if known(space.small()) == 1:
        return None
    for d in range(last):
        transposed = [o for o in space.inputs if o.inner == 2 and known(o.strides[d]) == 1]
        if (
            transposed
            and space.out.inner == 1
            and all((size := known(space.n[k])) is None or size >= _TILE_SIDE for k in (d, last))
        ):
            while sum(64 * 65 * max(o.dtype.size, 2) for o in transposed) > _TILE_BYTES:
                transposed.pop()
            return d, transposed
    return None


def pointwise(request: Request) -> list[Kernel]:
    i = parameters(request)
    shape = [i[f"n{d}"] for d in range(6)]
    count = int(request.program["n_in"]) if request.program else 0

    def operand(name: str, strides: Sequence[DimLike]) -> _Operand:
        return _Operand(name, DType(static(i[f"{name}_dtype"], "element type")), tuple(strides))

    inputs = [operand(f"x{k}", [i[f"x{k}_{d}"] for d in range(6)]) for k in range(count)]
    return _kernel(request, shape, inputs, operand("y", contiguous(shape)))


def pointwise_nhwc(request: Request) -> list[Kernel]:
    i = parameters(request)
    count = int(request.program["n_in"]) if request.program else 0
    pitches = {"y": tuple(i[f"y_{p}"] for p in ("ns", "rs", "cs"))}
    inputs = []
    for k in range(count):
        kind, x = static(i[f"x{k}_kind"], "operand kind"), f"x{k}"
        if kind == FULL:
            pitches[x] = (i[f"{x}_ns"], i[f"{x}_rs"], i[f"{x}_cs"])
            strides: tuple[DimLike, ...] = (*pitches[x], 1)
        else:
            strides = (i[f"{x}_ns"], 0, 0, 1) if kind in (CHANNEL, CHANNEL_F32) else (0, 0, 0, 0)
        inputs.append(_Operand(x, DType.F32 if kind == CHANNEL_F32 else request.dtype, strides))
    channels, wide = i["C"], 16 // request.dtype.size
    if (
        isinstance(channels, int)
        and all(isinstance(p, int) and p % wide == 0 for s in pitches.values() for p in s)
        and len(pitches) == count + 1
    ):
        channels = -(-channels // wide) * wide  # pad channels may hold anything
    return _kernel(
        request,
        [i["N"], i["H"], i["W"], channels],
        inputs,
        _Operand("y", request.dtype, (*pitches["y"], 1)),
    )


FAMILIES = {"pointwise": pointwise, "pointwise_nhwc": pointwise_nhwc}
