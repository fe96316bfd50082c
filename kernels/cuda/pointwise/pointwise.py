"""CUDA kernels for pointwise programs, over plain layouts with broadcasting and over channels-last
images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tracea_onnx.codegen.kernel_request import (
    Argument,
    Int32,
    Int64,
    Kernel,
    Pointer,
    Request,
    Unfit,
)
from tracea_onnx.compiler.lower.axes import merge_dims
from tracea_onnx.compiler.lower.epilogue_kinds import CHANNEL, CHANNEL_F32, FULL
from tracea_onnx.compiler.lower.value import contiguous
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike, factor

from ..common.launch import blocks, known, overlapped, parameters, reciprocal, static
from ..common.prelude import C_TYPES, prelude, stages_source
from ..common.templates import template

#: Shorter sides than this are not worth a 64 x 64 tile; bytes that tiles of a block may have.
_TILE_SIDE, _TILE_BYTES = 16, 40_000
#: Up to as many elements, where they do not lie in whole vectors, a thread makes up to _SINGLE
#: single ones; where rows are shorter than _SHORT, up to twice as many.
_SMALL, _SHORT, _SINGLE = 1 << 18, 64, 2
#: Elements of rows of which few vectors cross an end; vectors of eight-byte elements where rows do
#: not consist of them and are shorter than so many.
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
    """An iteration space and what is computed in it: `compute` makes element j of the result from
    those of the operands, `v` of them at a time.
    """

    n: Sequence[DimLike]
    inputs: Sequence[_Operand]
    out: _Operand
    v: int
    compute: str
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
        """Whether the result is one run."""
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

    def runs(self) -> str:
        """Text of functions that take the space a run of the result at a time."""
        rank, last, out = len(self.n), len(self.n) - 1, self.out
        at = ", ".join(f"at_{o.name} = 0" for o in self.operands)
        steps = "".join(
            f"        at_{o.name}[k] += i64(c) * o.s_{o.name}[d];\n" for o in self.operands
        )
        have = " ".join(f"places.have(at_{o.name}[k]);" for o in self.operands)
        fetch = "".join(
            f"      got_{o.name}[k] = fetch<V, {o.inner}>(o.{o.name} + at_{o.name}[k], o.s_{o.name}[{last}]);\n"
            for o in self.inputs
        )
        got = "".join(f"    Vec<{C_TYPES[o.dtype]}, V> got_{o.name}[U];\n" for o in self.inputs)
        those = "".join(
            f"      const Vec<{C_TYPES[o.dtype]}, V>& v_{o.name} = got_{o.name}[k];\n"
            for o in self.inputs
        )
        compute = f"""    Vec<{C_TYPES[out.dtype]}, V> result;
#pragma unroll
    for (int j = 0; j < V; j++) {{ {self.compute} }}
"""
        text = f"""// V elements of the result at a time, where every operand has them side by side at such a multiple; U times as many of a thread are under
// way together.
template <int V, int U, class I> DEV void each(const Operands& o, I first, I end) {{
  const I step = I(gridDim.x) * blockDim.x;
  for (I u = first + I(blockIdx.x) * blockDim.x + threadIdx.x; u < end; u += U * step) {{
    i64 {", ".join(f"at_{o.name}[U]" for o in self.operands)};
    Places places;
#pragma unroll
    for (int k = 0; k < U; k++) {{
      if (k && u + k * step >= end) continue;
      I rest = u + k * step;
      {" = ".join(f"at_{o.name}[k]" for o in self.operands)} = 0;
#pragma unroll
      for (int d = {last}; d >= 0; d--) {{
        const bool wide = d == {last} && V > 1;
        const I n = wide ? I(o.n[d]) / V : I(o.n[d]), q = d ? quotient(rest, n, wide ? o.per_wide : o.per[d]) : 0, c = (rest - q * n) * (wide ? V : 1);
        rest = q;
{steps}      }}
      {have}
    }}
    places.wait();
{got}#pragma unroll
    for (int k = 0; k < U; k++) {{
      if (k && u + k * step >= end) continue;
{fetch}    }}
#pragma unroll
    for (int k = 0; k < U; k++) {{
      if (k && u + k * step >= end) continue;
{those}{compute}      store<V>(o.{out.name} + at_{out.name}[k], result);
    }}
  }}
}}
"""
        if self.whole:
            return text
        long = (known(self.n[-1]) or 0) >= _LONG
        # vectors of these go on where a row ends
        flowing = [o for o in self.inputs if self.run and not long and self._is_run(o)]
        others = [o for o in self.inputs if o not in flowing]
        runs = "".join(
            f"    Ahead<V, {o.inner}, {C_TYPES[o.dtype]}> r_{o.name};\n    Vec<{C_TYPES[o.dtype]}, V> v_{o.name};\n"
            for o in self.inputs
        )

        def lines(indent: int, text: str, of: Sequence[_Operand]) -> str:
            return "".join(f"{' ' * indent}{text.replace('@', o.name)}\n" for o in of)

        read, get = f"r_@.read(o.@ + at_@, o.s_@[{last}]);", "v_@ = r_@.get();"
        carry = "".join(
            f" at_{o.name} += o.s_{o.name}[d - 1] - o.n[d] * o.s_{o.name}[d];" for o in others
        )
        crossing = f"""#pragma unroll
      for (int j = 0; j < V; j++) {{
{lines(8, "v_@.v[j] = o.@[at_@];", others)}        if (j < lo || j + 1 >= hi) continue;
{lines(8, f"at_@ += o.s_@[{last}];", others)}        c[{last}]++;
#pragma unroll
        for (int d = {last}; d > 0; d--) {{
          if (c[d] < o.n[d]) break;
         {carry}
          c[d] = 0, c[d - 1]++;
        }}
      }}
"""
        partial = f"""#pragma unroll
      for (int j = 0; j < V; j++) {{
        const int k = min(max(j, lo), hi - 1) - lo;
{lines(8, "v_@.v[j] = o.@[at_@ + k];", flowing)}      }}
"""
        whole = f"""    wait_with({", ".join(f"at_{o.name}" for o in self.inputs)}{", " if self.inputs else ""}c[{last}]);
    const bool full = lo <= 0 && hi >= V;
{runs}    if (full) {{
{lines(6, read, flowing)}    }} else {{
{partial if flowing else ""}    }}
    if (full && c[{last}] + V <= o.n[{last}]) {{
{lines(6, read, others)}{lines(6, get, others)}    }} else {{
{crossing if others else ""}    }}
    if (full) {{
{lines(6, get, flowing)}    }}
"""
        starts = "".join(
            f"      at_{o.name} += c[d] * o.s_{o.name}[d];\n"
            for o in (self.inputs if self.run else self.operands)
        )
        if self.run:
            head = f"""    const int lo = u ? 0 : before, hi = int(min(total + before - u * V, u32(V)));
    u32 rest = u * V + lo - before;
    i64 {", ".join(f"at_{o.name} = 0" for o in self.inputs)};
    int c[{rank}];
#pragma unroll
    for (int d = {last}; d >= 0; d--) {{
      const u32 q = d ? quotient(rest, o.n[d], o.per[d]) : 0;
      c[d] = int(rest - q * o.n[d]);
      rest = q;
{starts}    }}
"""
            loop = f"""  const int before = past<V>(o.{out.name});
  for (u32 u = blockIdx.x * blockDim.x + threadIdx.x; u * V < total + before; u += gridDim.x * blockDim.x) {{
"""
            to = f"o.{out.name} + i64(u) * V - before"
        else:
            head = f"""    u32 rest = u / pieces;
    const int k = int(u - rest * pieces);
    i64 {at};
    int c[{rank}];
#pragma unroll
    for (int d = {last - 1}; d >= 0; d--) {{
      const u32 q = d ? quotient(rest, o.n[d], o.per[d]) : 0;
      c[d] = int(rest - q * o.n[d]);
      rest = q;
{starts}    }}
    const int first = k * V - past<V>(o.{out.name} + at_{out.name}), lo = max(-first, 0), hi = o.n[{last}] - first;
    if (hi <= 0) continue;
    c[{last}] = first + lo;
{"".join(f"    at_{o.name} += c[{last}] * o.s_{o.name}[{last}];{chr(10)}" for o in self.inputs)}"""
            loop = f"""  const u32 pieces = (o.n[{last}] + V - 1) / V + 1;
  for (u32 u = blockIdx.x * blockDim.x + threadIdx.x; u < total / o.n[{last}] * pieces; u += gridDim.x * blockDim.x) {{
"""
            to = f"o.{out.name} + at_{out.name} + first"
        return (
            text
            + f"""// The same whatever lies where: {"the result is one run" if self.run else "rows of the result are runs"},
// of which a thread makes V elements from a multiple of their bytes on.
template <int V> DEV void each_ragged(const Operands& o, u32 total) {{
{loop}{head}{whole}{compute}    store_part<V>({to}, result, lo, hi);
  }}
}}
"""
        )

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

    def call(self) -> str:
        rank, v = len(self.n), self.v
        small = f"total <= (o.n[{rank - 1}] < {_SHORT} ? {2 * _SMALL} : {_SMALL})"
        total = f"  const u64 total = {' * '.join(f'u64(o.n[{d}])' for d in range(rank))};\n  if (total >> 31) {{\n    each<1, 1, u64>(o, 0, total);\n  }} else "
        few, single = known(self.small()), f"each<1, {_SINGLE}, u32>(o, 0, u32(total))"
        ragged = {
            0: f"each_ragged<{v}>(o, u32(total))",
            1: single,
            None: f"if ({small}) {single};\n    else each_ragged<{v}>(o, u32(total))",
        }[few]
        if self.out.inner != 1 or v == 1:
            return (
                total
                + f"{{\n    each<1, {1 if few == 0 else _SINGLE}, u32>(o, 0, u32(total));\n  }}"
            )
        if self.whole is False:
            return total + f"{{\n    {ragged};\n  }}"
        beside = [o for o in self.operands if o.inner == 1]
        whole = [f"aligned(o.{o.name}, {v * o.dtype.size})" for o in beside]
        whole += [f"o.s_{o.name}[{d}] % {v} == 0" for o in beside for d in range(rank - 1)]
        whole += [f"o.n[{rank - 1}] % {v} == 0"] if rank > 1 else []
        tail = (
            f"\n    if (u32(total) % {v}) each<1, 1, u32>(o, u32(total) / {v} * {v}, u32(total));"
            if rank == 1
            else ""
        )
        other = "each<1, 1, u32>(o, 0, u32(total))" if self.whole else ragged
        return (
            total
            + f"""if ({" && ".join(whole)}) {{
    each<{v}, 1, u32>(o, 0, u32(total) / {v});{tail}
  }} else {{
    {other};
  }}"""
        )

    def tile_count(self, dim: int) -> DimLike:
        return D.product(
            [D.ceildiv(d, 64) if k in (dim, len(self.n) - 1) else d for k, d in enumerate(self.n)]
        )

    def tiles(self, dim: int, turned: Sequence[_Operand]) -> str:
        """Text of a function that takes a tile of 64 x 64 elements, along `dim` and the last one,
        in a block: `turned` go through shared memory.
        """
        last, out = len(self.n) - 1, self.out
        outer = [d for d in range(last - 1, -1, -1) if d != dim]
        text = f"""DEV void each_tile(const Operands& o) {{
  const u32 across = (o.n[{last}] + 63) / 64, down = (o.n[{dim}] + 63) / 64;
  const int c0 = int(blockIdx.x % across) * 64, r0 = int(blockIdx.x / across % down) * 64, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int columns = min(o.n[{last}] - c0, 64), rows = min(o.n[{dim}] - r0, 64);
  u32 rest = blockIdx.x / across / down;
"""
        for o in self.operands:
            text += f"  i64 at_{o.name} = r0 * o.s_{o.name}[{dim}] + c0 * o.s_{o.name}[{last}];\n"
        for d in outer:
            text += (
                "  {\n"
                f"    const u32 q = quotient(rest, o.n[{d}], o.per[{d}]), c = rest - q * o.n[{d}];\n    rest = q;\n"
            )
            text += (
                "".join(f"    at_{o.name} += c * o.s_{o.name}[{d}];\n" for o in self.operands)
                + "  }\n"
            )
        text += f"  wait_with({', '.join(f'at_{o.name}' for o in self.operands)});\n"
        for o in self.inputs:
            ctype = C_TYPES[o.dtype]
            text += f"  {ctype} t_{o.name}[8][2];\n"
            if o in turned:
                text += f"  __shared__ {ctype} tile_{o.name}[64 * TILE_PITCH<{ctype}>];\n"
            steps = (last, dim) if o in turned else (dim, last)
            limits = ("columns", "rows") if o in turned else ("rows", "columns")
            text += f"  read_tile(o.{o.name} + at_{o.name}, o.s_{o.name}[{steps[0]}], o.s_{o.name}[{steps[1]}], {limits[0]}, {limits[1]}, t_{o.name});\n"
        text += (
            "".join(f"  keep_tile(tile_{o.name}, t_{o.name});\n" for o in turned)
            + "  __syncthreads();\n"
        )
        text += "#pragma unroll\n  for (int k = 0; k < 8; k++) {\n    const int r = k * 8 + warp;\n    if (r >= rows) break;\n"
        for o in self.inputs:
            picks = [
                f"tile_{o.name}[(lane + {32 * j}) * TILE_PITCH<{C_TYPES[o.dtype]}> + r]"
                if o in turned
                else f"t_{o.name}[k][{j}]"
                for j in range(2)
            ]
            text += (
                f"    const Vec<{C_TYPES[o.dtype]}, 2> v_{o.name} = {{{{{', '.join(picks)}}}}};\n"
            )
        text += f"""    Vec<{C_TYPES[out.dtype]}, 2> result;
#pragma unroll
    for (int j = 0; j < 2; j++) {{ {self.compute} }}
    {C_TYPES[out.dtype]}* to = o.{out.name} + at_{out.name} + r * o.s_{out.name}[{dim}];
    if (lane < columns) to[lane] = result.v[0];
    if (lane + 32 < columns) to[lane + 32] = result.v[1];
  }}
}}
"""
        return text


def _kernel(
    request: Request, shape: Sequence[DimLike], inputs: Sequence[_Operand], out: _Operand
) -> list[Kernel]:
    program = request.program
    if program is None:
        raise Unfit("a pointwise kernel without a program")
    operands = [*inputs, out]
    rows = merge_dims(shape, [o.strides for o in operands]) or [(1, [1] * len(operands))]
    n = [r[0] for r in rows]
    operands = [
        _Operand(o.name, o.dtype, tuple(r[1][k] for r in rows)) for k, o in enumerate(operands)
    ]
    inputs, out = operands[:-1], operands[-1]
    rank = len(rows)
    v = max(1, 16 // max(o.dtype.size for o in operands))
    functions, compute, fast = stages_source(
        program, [(o.dtype, f"v_{o.name}.v[j]") for o in inputs], out.dtype, "result.v[j]"
    )
    space = _Space(n, inputs, out, v, compute, request.unaligned)
    if (
        v == 2
        and space.whole is False
        and space.out.inner == 1
        and (known(n[-1]) or _WIDE_ROW) < _WIDE_ROW
    ):
        v = _WIDE
        space = replace(space, v=v)
    turned = _turned_dim(space)
    if turned is None:
        text, call, grid = space.runs(), space.call(), (_grid(space, request), 1, 1)
    else:
        text, call, grid = (
            space.tiles(*turned),
            "  each_tile(o);",
            (space.tile_count(turned[0]), 1, 1),
        )
    fields = "".join(
        f"  {'' if o is out else 'const '}{C_TYPES[o.dtype]}* {o.name}; i64 s_{o.name}[{rank}];\n"
        for o in operands
    )
    signature = [f"{'' if o is out else 'const '}{C_TYPES[o.dtype]}* {o.name}" for o in operands]
    signature += [f"int n{d}" for d in range(rank)] + [
        f"i64 s_{o.name}{d}" for o in operands for d in range(rank)
    ]
    pers = [*map(reciprocal, n[1:]), reciprocal(D.floordiv(n[-1], v))] if rank > 1 else []
    signature += [f"u32 per{k}" for k in range(len(pers))]
    quotients = f"{{{', '.join(['0', *(f'per{k}' for k in range(rank - 1))])}}}, {f'per{rank - 1}' if pers else '0'}"
    filled = ", ".join(
        f"{o.name}, {{{', '.join(f's_{o.name}{d}' for d in range(rank))}}}" for o in operands
    )
    source = f"""{prelude(DType.F32, fast=fast)}{template("common/base", "common/vector_io", "pointwise/pointwise")}{functions}
struct Operands {{
{fields}  int n[{rank}];
  u32 per[{rank}], per_wide;  // what `quotient` takes beside n, and beside the last one in vectors
}};
{text}extern "C" __global__ void __launch_bounds__(256) pointwise({", ".join(signature)}) {{
  next_may_start();
  const Operands o{{{filled}, {{{", ".join(f"n{d}" for d in range(rank))}}}, {quotients}}};
{call}
  wait_for_previous();
}}
"""
    args: tuple[Argument, ...] = (
        *(Pointer(o.name) for o in operands),
        *map(Int32, n),
        *(Int64(s) for o in operands for s in o.strides),
        *map(Int32, pers),
    )
    return [Kernel(source, "pointwise", grid, 256, args, pdl=overlapped(request))]


def _grid(space: _Space, request: Request) -> DimLike:
    """Blocks of a grid-stride loop: not so few that some threads of the last turn have much to do
    that others have not; where elements are single, as many as have all that a thread takes at
    once, since finding places costs as much as moving what is there."""
    units, total = space.units(), D.product(space.n)
    many = blocks(units, 256, D.maximum(request.sms * 32, D.ceildiv(units, 1024)))
    return (
        many
        if space.whole and space.v > 1 and space.out.inner == 1
        else D.select(space.small(), blocks(total, 256 * _SINGLE, request.sms * 8), many)
    )


def _turned_dim(space: _Space) -> tuple[int, list[_Operand]] | None:
    """The dim along which operands are contiguous that jump along the last one, when both are long
    enough for tiles, and those operands: as many as there is shared memory for."""
    last = len(space.n) - 1
    if known(space.small()) == 1:
        return None
    for d in range(last):
        turned = [o for o in space.inputs if o.inner == 2 and known(o.strides[d]) == 1]
        if (
            turned
            and space.out.inner == 1
            and all((size := known(space.n[k])) is None or size >= _TILE_SIDE for k in (d, last))
        ):
            while sum(64 * 65 * max(o.dtype.size, 2) for o in turned) > _TILE_BYTES:
                turned.pop()
            return d, turned
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
