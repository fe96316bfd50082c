"""One kernel as WGSL text: its operands, sizes and body put together, and its launch in a Plan.

A kernel has one uniform struct `p`: for each operand the bytes from where its binding begins to its
address (bindings begin at multiples of 256), and its sizes. Operands are read and written through
`load_<name>(i)` and `store_<name>(i, v)`, which know its element type; WGSL has no types of 8, 16
and 64 bits that every adapter has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tracea_onnx.codegen.backend import Plan
from tracea_onnx.codegen.kernel_request import NoKernel, Request
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import Dim, DimLike
from tracea_onnx.plan import kernel_families
from tracea_onnx.plan.builder import Ref
from tracea_onnx.support.data_classes import dataclass

from .functions import called

#: Threads of a workgroup: the most that every adapter has.
THREADS = 256
#: Workgroups along x; the others lie behind each other along y. Every adapter has 65,535 of each.
WIDE = 32768
#: Storage buffers that every adapter binds.
MOST_BUFFERS = 8
#: Bytes that a workgroup shares, of which every adapter has so many.
SHARED = 16384

#: Smaller types: what `load_<name>` makes of their elements.
_PARTS = {
    DType.I8: "i32", DType.I16: "i32", DType.U8: "u32", DType.BOOL: "u32", DType.U16: "u32"
}  # fmt: skip
#: Types whose elements are words of 32 bits.
_WORDS = {DType.F32: "f32", DType.I32: "i32", DType.U32: "u32"}
#: By bytes of an element: the type that a copy moves.
_BITS = {1: DType.U8, 2: DType.U16, 4: DType.U32, 8: DType.U64}


@dataclass(frozen=True)
class Launch:
    """A kernel with its grid and arguments, as the launch of a Plan (docs/webgpu.md)."""

    symbol: str
    source: str
    grid: tuple[DimLike, DimLike, DimLike]
    arguments: tuple[tuple[Any, ...], ...]
    scratch: tuple[DimLike, ...] = ()

    @property
    def signature(self) -> str:
        """r or w of each buffer it binds, in order."""
        return "".join("w" if a[0] == "e" else a[2] for a in self.arguments if a[0] in "ep")

    def record(self, plan: Plan, places: Mapping[str, Ref | None]) -> dict[str, Any]:
        return {
            "k": "webgpu", "cubin": plan.code(self.source), "symbol": self.symbol,
            "grid": [plan.expr(n) for n in self.grid],
            "args": [_argument(a, plan, places) for a in self.arguments],
        }  # fmt: skip


def _argument(a: tuple[Any, ...], plan: Plan, places: Mapping[str, Ref | None]) -> list[Any]:
    if a[0] == "p":
        ref = places[a[1]]
        assert ref is not None, a[1]
        return ["p", ref.buffer, plan.expr(ref.offset), a[2]]
    if a[0] == "i":
        return ["i", plan.expr(a[1])]
    return list(a)


def parameters(request: Request) -> dict[str, DimLike]:
    """Every integer parameter of the family; lowering omits those that are 0."""
    return {
        name: request.ints.get(name, 0) for name in kernel_families.FAMILIES[request.family].ints
    }


def static(d: DimLike, what: str) -> int:
    """`d` as a number; raises NoKernel when it is symbolic."""
    if isinstance(d, Dim):
        raise NoKernel(f"the WebGPU kernel needs a fixed {what}, not {d!r}")
    return int(d)


def float_text(value: float) -> str:
    """A finite f32 as WGSL."""
    return f"f32({value!r})"


class Shader:
    """Collects what a kernel for a request binds, then `launch`es it."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self._fields: list[tuple[str, str]] = []
        self._bindings: list[str] = []
        self._arguments: list[tuple[Any, ...]] = []
        self._functions: list[str] = []

    # --- what it is given ---------------------------------------------------------------------
    def has(self, operand: str) -> bool:
        """Whether the request has it."""
        return operand in self.request.operands

    def read(self, name: str, dtype: DType = DType.F32) -> None:
        """An operand that is read: `load_<name>(i)` is its element i; I64 and U64 are vec2<u32>,
        low word first, smaller types i32 or u32.
        """
        constant = name in self.request.constant
        self._bind(name, dtype, "r" if constant else "w")
        self._functions.append(_load(name, dtype))

    def write(self, name: str, dtype: DType = DType.F32) -> None:
        """An operand that is written: `store_<name>(i, v)`, v of the type that `read` gives."""
        self._bind(name, dtype, "w", atomic=dtype.size < 4)
        self._functions.append(_store(name, dtype))

    def _bind(self, name: str, dtype: DType, access: str, atomic: bool = False) -> None:
        element = _WORDS.get(dtype, "atomic<u32>" if atomic else "u32")
        mode = "read" if access == "r" else "read_write"
        self._bindings.append(f"var<storage, {mode}> in_{name}: array<{element}>;")
        self._arguments.append(("p", name, access))
        self._fields.append((f"{name}_at", "u32"))

    def size(self, name: str, value: DimLike) -> None:
        """A number that a run knows: `p.<name>`, an i32."""
        self._arguments.append(("i", value))
        self._fields.append((name, "i32"))

    def sizes(self, values: Mapping[str, DimLike]) -> None:
        """Several of them."""
        for name, value in values.items():
            self.size(name, value)

    def number(self, name: str, value: float) -> None:
        """`p.<name>`, an f32; it may be infinite, as constants of WGSL may not."""
        self._arguments.append(("f", float(value)))
        self._fields.append((name, "f32"))

    def fault(self) -> None:
        """`fault()` ends the run with an error, after all launches."""
        self._bindings.append("var<storage, read_write> fault_word: atomic<u32>;")
        self._arguments.append(("e",))
        self._functions.append("fn fault() { atomicStore(&fault_word, 1u); }\n")

    # --- what it does ---------------------------------------------------------------------------
    def launch(
        self,
        body: str,
        groups: DimLike,
        *,
        before: str = "",
        threads: int = THREADS,
        depth: DimLike = 1,
    ) -> Launch:
        """The kernel with that body, of so many workgroups of `threads`: its own is `group`, of a
        third axis of `depth` it is number `layer`; the thread is `thread`. before: functions and
        variables.
        """
        if len(self._bindings) > MOST_BUFFERS:
            raise NoKernel(
                f"a WebGPU kernel binds {MOST_BUFFERS} tensors on every adapter, "
                f"{self.request.family} has {len(self._bindings)} here"
            )
        self.size("groups", groups)
        members = " ".join(f"{name}: {kind}," for name, kind in self._fields)
        bound = "".join(
            f"@group(0) @binding({k + 1}) {text}\n" for k, text in enumerate(self._bindings)
        )
        functions = "".join(self._functions) + before
        source = (
            f"struct Sizes {{ {members} }}\n@group(0) @binding(0) var<uniform> p: Sizes;\n{bound}"
            f"{called(functions + body)}{functions}"
            f"@compute @workgroup_size({threads})\nfn main(@builtin(workgroup_id) place: "
            "vec3<u32>, @builtin(local_invocation_index) lane: u32) {\n"
            f"  let group = i32(place.y * {WIDE}u + place.x);\n"
            "  let thread = i32(lane);\n  let layer = i32(place.z);\n"
            f"  if (group >= p.groups) {{ return; }}\n{body}\n}}\n"
        )
        grid = (D.minimum(groups, WIDE), D.ceildiv(groups, WIDE), depth)
        return Launch(self.request.family, source, grid, tuple(self._arguments))

    def each(self, body: str, count: DimLike, before: str = "") -> Launch:
        """A thread for each of `count` elements, whose number is `i`."""
        self.size("count", count)
        text = f"  let i = group * {THREADS} + thread;\n  if (i >= p.count) {{ return; }}\n{body}"
        return self.launch(text, D.ceildiv(count, THREADS), before=before)


def raw(elem: DimLike) -> DType:
    """The type that copies elements of so many bytes."""
    return _BITS[static(elem, "size of elements")]


def _part(dtype: DType) -> tuple[str, int]:
    """Of a type smaller than a word, what `load_<name>` makes of it, and its bits."""
    if dtype not in _PARTS:
        raise NoKernel(f"the WebGPU backend has no elements of type {dtype.name}")
    return _PARTS[dtype], 8 * dtype.size


def _load(name: str, dtype: DType) -> str:
    head = f"fn load_{name}(i: i32) -> "
    if dtype in _WORDS:
        return f"{head}{_WORDS[dtype]} {{ return in_{name}[(p.{name}_at >> 2u) + u32(i)]; }}\n"
    if dtype in (DType.I64, DType.U64):
        return (
            f"{head}vec2<u32> {{ let k = (p.{name}_at >> 2u) + 2u * u32(i); "
            f"return vec2<u32>(in_{name}[k], in_{name}[k + 1u]); }}\n"
        )
    kind, bits = _part(dtype)
    word = f"in_{name}[k >> 2u]"
    value = (
        f"(i32({word} << ({32 - bits}u - 8u * (k & 3u))) >> {32 - bits}u)"
        if kind == "i32"
        else f"(({word} >> (8u * (k & 3u))) & {(1 << bits) - 1}u)"
    )
    return f"{head}{kind} {{ let k = p.{name}_at + {bits // 8}u * u32(i); return {value}; }}\n"


def _store(name: str, dtype: DType) -> str:
    head = f"fn store_{name}(i: i32, v: "
    if dtype in _WORDS:
        return f"{head}{_WORDS[dtype]}) {{ in_{name}[(p.{name}_at >> 2u) + u32(i)] = v; }}\n"
    if dtype in (DType.I64, DType.U64):
        return (
            f"{head}vec2<u32>) {{ let k = (p.{name}_at >> 2u) + 2u * u32(i); "
            f"in_{name}[k] = v.x; in_{name}[k + 1u] = v.y; }}\n"
        )
    kind, bits = _part(dtype)
    # neighbours in the same word are other threads'
    given = "bitcast<u32>(v)" if kind == "i32" else "v"
    mask = (1 << bits) - 1
    return (
        f"{head}{kind}) {{ "
        f"let k = p.{name}_at + {bits // 8}u * u32(i); let shift = 8u * (k & 3u); "
        f"atomicAnd(&in_{name}[k >> 2u], ~({mask}u << shift)); "
        f"atomicOr(&in_{name}[k >> 2u], ({given} & {mask}u) << shift); }}\n"
    )


def as_float(dtype: DType, value: str) -> str:
    """A loaded element as f32."""
    if dtype == DType.F32:
        return value
    return f"float_of_i64({value})" if dtype == DType.I64 else f"f32({value})"


def from_float(dtype: DType, value: str) -> str:
    """An f32 as what is stored: truncated to integers, as of numbers that do not fit in 64 bits
    nothing is said; not 0 to BOOL.
    """
    if dtype == DType.F32:
        return value
    if dtype == DType.BOOL:
        return f"select(0u, 1u, {value} != 0.0)"
    if dtype == DType.I64:
        return f"i64_of_float({value})"
    low = f"i64_of_float({value}).x"
    return low if dtype in (DType.U32, DType.U8, DType.U16) else f"bitcast<i32>({low})"
