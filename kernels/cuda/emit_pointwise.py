"""CUDA kernels for pointwise programs, over plain layouts with broadcasting and over channels-last images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tracea_onnx import dims as D
from tracea_onnx.cuda import Argument, Int32, Int64, Kernel, Pointer, Request, Unfit
from tracea_onnx.cuda_source import blocks, known, overlapped, parameters, static, template
from tracea_onnx.cuda_text import C_TYPES, prelude, program_source
from tracea_onnx.dims import DimLike
from tracea_onnx.lower.context import merge_dims
from tracea_onnx.lower.epilogue_kinds import CHANNEL, FULL
from tracea_onnx.lower.value import contiguous
from tracea_onnx.ops import DType

_NARROW = (DType.F16, DType.BF16)


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


def _read(dtype: DType, integer: bool, value: str) -> str:
    if dtype == DType.BOOL:
        return f"({value} ? 1 : 0)"
    if integer:
        return f"i64(to_float({value}))" if dtype in _NARROW else f"i64({value})"
    return f"to_float({value})"


def _write(dtype: DType, integer: bool, to: str, value: str) -> str:
    """Statement storing the program's result; floats become integers through i64, so that a value out of range wraps."""
    if dtype == DType.BOOL:
        return f"{to} = {value} != 0;"
    if dtype in (DType.F32, *_NARROW):
        return f"from_float({to}, float({value}));"
    ctype = C_TYPES[dtype]
    return f"{to} = ({ctype})({value});" if integer or dtype == DType.F64 else f"{to} = ({ctype})(i64)({value});"


def _kernel(request: Request, shape: Sequence[DimLike], inputs: Sequence[_Operand], out: _Operand) -> list[Kernel]:
    program = request.program
    if program is None:
        raise Unfit("a pointwise kernel without a program")
    operands = [*inputs, out]
    rows = merge_dims(shape, [o.strides for o in operands]) or [(1, [1] * len(operands))]
    n = [r[0] for r in rows]
    operands = [_Operand(o.name, o.dtype, tuple(r[1][k] for r in rows)) for k, o in enumerate(operands)]
    inputs, out = operands[:-1], operands[-1]
    rank, integer = len(rows), bool(program["type"])
    widest = max(o.dtype.size for o in operands)
    v = max(1, 16 // widest)
    fast = out.dtype in _NARROW
    fields = "".join(f"  {'' if o is out else 'const '}{C_TYPES[o.dtype]}* {o.name}; i64 s_{o.name}[{rank}];\n" for o in operands)
    steps = "".join(f"      at_{o.name} += i64(c) * o.s_{o.name}[d];\n" for o in operands)
    fetch = "".join(
        f"    const Vec<{C_TYPES[o.dtype]}, V> v_{o.name} = fetch<V, {o.inner}>(o.{o.name} + at_{o.name}, o.s_{o.name}[{rank - 1}]);\n" for o in inputs
    )
    values = ", ".join(_read(o.dtype, integer, f"v_{o.name}.v[j]") for o in inputs)
    whole = [f"aligned({o.name}, {v * o.dtype.size})" for o in operands if o.inner == 1]
    whole += [f"s_{o.name}{d} % {v} == 0" for o in operands if o.inner == 1 for d in range(rank - 1)]
    whole += ["false"] if out.inner != 1 or v == 1 else [f"n{rank - 1} % {v} == 0"] if rank > 1 else []
    signature = [f"{'' if o is out else 'const '}{C_TYPES[o.dtype]}* {o.name}" for o in operands]
    signature += [f"int n{d}" for d in range(rank)] + [f"i64 s_{o.name}{d}" for o in operands for d in range(rank)]
    filled = ", ".join(f"{o.name}, {{{', '.join(f's_{o.name}{d}' for d in range(rank))}}}" for o in operands)
    source = f"""{prelude(DType.F32, fast=fast)}{template("base", "pointwise")}{program_source(program)}
struct Operands {{
{fields}  int n[{rank}];
}};
template <int V, class I> DEV void each(const Operands& o, I first, I end) {{
  for (I u = first + I(blockIdx.x) * blockDim.x + threadIdx.x; u < end; u += I(gridDim.x) * blockDim.x) {{
    I rest = u;
    i64 {", ".join(f"at_{o.name} = 0" for o in operands)};
#pragma unroll
    for (int d = {rank - 1}; d >= 0; d--) {{
      const I n = d == {rank - 1} ? I(o.n[d]) / V : I(o.n[d]), q = d ? rest / n : 0, c = (rest - q * n) * (d == {rank - 1} ? V : 1);
      rest = q;
{steps}    }}
{fetch}    Vec<{C_TYPES[out.dtype]}, V> result;
#pragma unroll
    for (int j = 0; j < V; j++) {{ {_write(out.dtype, integer, "result.v[j]", f"program({values})")} }}
    store<V>(o.{out.name} + at_{out.name}, result);
  }}
}}
extern "C" __global__ void __launch_bounds__(256) pointwise({", ".join(signature)}) {{
  after_previous();
  const Operands o{{{filled}, {{{", ".join(f"n{d}" for d in range(rank))}}}}};
  const u64 total = {" * ".join(f"u64(n{d})" for d in range(rank))};
  const bool whole = {" && ".join(whole)};
  if (total >> 31) {{
    each<1, u64>(o, 0, total);
    return;
  }}
  if (whole) each<{v}, u32>(o, 0, u32(total) / {v});
  {"if (!whole || u32(total) % " + str(v) + ") " if rank == 1 else "else "}each<1, u32>(o, whole ? u32(total) / {v} * {v} : 0, u32(total));
}}
"""
    total = D.product(n)
    units = D.ceildiv(total, v) if out.inner == 1 else total
    args: tuple[Argument, ...] = (*(Pointer(o.name) for o in operands), *map(Int32, n), *(Int64(s) for o in operands for s in o.strides))
    return [Kernel(source, "pointwise", (blocks(units, 256, request.sms * 16), 1, 1), 256, args, pdl=overlapped(request))]


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
            strides = (i[f"{x}_ns"], 0, 0, 1) if kind == CHANNEL else (0, 0, 0, 0)
        inputs.append(_Operand(x, request.dtype, strides))
    channels, wide = i["C"], 16 // request.dtype.size
    if isinstance(channels, int) and all(isinstance(p, int) and p % wide == 0 for s in pitches.values() for p in s) and len(pitches) == count + 1:
        channels = -(-channels // wide) * wide  # pad channels may hold anything
    return _kernel(request, [i["N"], i["H"], i["W"], channels], inputs, _Operand("y", request.dtype, (*pitches["y"], 1)))


FAMILIES = {"pointwise": pointwise, "pointwise_nhwc": pointwise_nhwc}
