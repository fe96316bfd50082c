"""The CPU backend: its kernels are compiled into the native library, which picks those of the
machine's instruction set. This module also writes their translation units, one per instruction set
and template.

A template is a header `kernels/cpu/<name>.h`, or `<name>/<name>.h` with others beside it; `common/`
has what templates share. It is compiled once per instruction set with `TRACEA_W` (floats per
vector) and `TRACEA_NS` (namespace) defined, and ends with `table_<name>`, a null-terminated list of
its kernels. `kernels/cpu/gen_<name>.py`, when it exists, has `source(isa, width) -> str`: generated
register tiles included before the template.

    python kernels/cpu.py --out build/dev/generated

is what CMake runs; files that did not change keep their time stamp.
"""

from __future__ import annotations

import importlib.util
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from tracea_onnx.codegen import kernel_choice
from tracea_onnx.codegen.backend import Backend, Probe, Properties
from tracea_onnx.codegen.kernel_request import Request
from tracea_onnx.codegen.target import Target
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import ACTIVATIONS, OPCODE, DType
from tracea_onnx.ir.dims import Dim, DimLike
from tracea_onnx.plan.extents import (
    MOST_REPEATS,
    WIDTHS,
    extents,
    limits,
    repeats,
    results,
    types,
    written,
)
from tracea_onnx.plan.kernel_families import FAMILIES, PROJECTED_STEPS, Family, packed_elements
from tracea_onnx.pricing.rates import Rates
from tracea_onnx.runtime import host_device
from tracea_onnx.runtime.device_caps import Caps, HostCaps
from tracea_onnx.support.check import Check, attempt
from tracea_onnx.support.data_classes import dataclass

TEMPLATES = Path(__file__).resolve().parent / "cpu"
#: One AVX-512 core: 118 GFLOP/s fp32 peak and 22 GB/s of DRAM measured; between nodes values mostly
#: live in L2, hence the higher rate.
_RATES = Rates(90.0, 30.0, 0.7, "measured on one Zen 4 core; 0.7 us a node in ONNX Runtime 1.31")
#: Instruction sets of 8-bit GEMMs by which all quantised networks that were measured take less
#: time than with ONNX Runtime. With avx512vnni some take more, on Emerald Rapids and Zen 4.
FASTER_INTEGERS = frozenset({"avx512amx"})
#: How many multiply-adds of bfloat16 an instruction set does in the time of one of fp32. Those of
#: AVX512_BF16 alone take up to twice the time on Emerald Rapids; on Zen 4 nobody measured them.
BF16_RATES = {"avx512amx": 16.0}
_WITHOUT = frozenset({
    "attention_quantised", "conv_pool", "conv_pool_int8", "copies", "deconv2d_dw", "fold_norm",
    "gemm_nbits_norm", "gemm_norm", "global_mean_int8", "layernorm_quantised",
    "pack_gemm_nbits_part", "quantise_image", "recurrent", "rope_cache", "squeeze_excite",
})  # fmt: skip
#: What kernels can do in several ways: parameters and their values, the first of which counts where
#: nothing was measured. block: how much is kept in L2, as a multiple. split: tasks for each thread.
#: order: whether the other dimension is cut among tasks first.
VARIANTS: Mapping[str, Mapping[str, Sequence[float]]] = {
    "conv2d": {"block": (1.0, 0.5, 2.0, 4.0), "split": (4, 1, 2, 8), "order": (0, 1)},
    "conv2d_wino": {"block": (1.0, 0.5, 2.0, 4.0), "split": (4, 1, 2, 8), "order": (0, 1)},
    "conv2d_dw": {"block": (1.0, 0.5, 2.0, 4.0), "split": (4, 1, 2, 8)},
    "gemm": {"block": (1.0, 0.5, 2.0, 4.0), "split": (4, 1, 2, 8)},
    "matmul": {"block": (1.0, 0.5, 2.0, 4.0), "split": (4, 1, 2, 8)},
}
#: Kernels that another one may stand in for, with weights packed in another way: that takes less
#: room, and more arithmetic.
SUBSTITUTES = {"conv2d_wino": "conv2d"}


def variants(family: str) -> int:
    """How many variants a kernel has."""
    return prod(map(len, VARIANTS.get(family, {}).values()))


@cache
def _names(family: str) -> tuple[str, ...]:
    """Of the variants, in the order of their numbers."""
    parameters = VARIANTS.get(family, {})
    values = product(*reversed(list(parameters.values())))
    return tuple(
        f"{family}({', '.join(f'{p}={v}' for p, v in zip(parameters, reversed(one), strict=True))})"
        for one in values
    )


def _number(names: Sequence[str], name: str | None) -> int:
    """0 for a name that none has."""
    return names.index(name) if name in names else 0


class Cpu(Backend):
    """The host: kernels for fp32, compiled into the native library."""

    name = "cpu"
    host = True

    @property
    def families(self) -> frozenset[str]:
        """All but those that only GPUs have kernels for."""
        return frozenset(FAMILIES) - _WITHOUT

    def probe(self) -> Probe:
        return Probe((platform.machine(),))

    def caps(self, properties: Properties | None) -> HostCaps | None:
        """A session says what its kernels of 8-bit and of bfloat16 GEMMs need."""
        if not properties or "int8" not in properties:
            return None
        rounds = properties.get("bf16") == "1"
        return HostCaps(properties["int8"], properties.get("bf16_isa", ""), rounds)

    def target(self, caps: Caps | None) -> Target:
        return Target(
            _RATES,
            self.families,
            frozenset({DType.F32}),
            border=True,
            pitch_multiple=0,
            launch_bound=False,
            ieee=True,
            faster_integers=isinstance(caps, HostCaps) and caps.int8 in FASTER_INTEGERS,
            bf16=BF16_RATES.get(caps.bf16, 0.0) if isinstance(caps, HostCaps) else 0.0,
            rounds=isinstance(caps, HostCaps) and caps.rounds,
            held=frozenset({DType.BF16}),
        )

    def configs(self, request: Request, device: Any) -> Mapping[str, float]:
        """None has a price. On one thread nothing is split. A substitute has its first ones."""
        names = _names(request.family)
        if device.threads == 1 and request.family in VARIANTS:
            names = names[: len(VARIANTS[request.family]["block"])]
        other = SUBSTITUTES.get(request.family)
        if other and not request.symbols:
            names += _names(other)[: len(VARIANTS[other]["block"])]
        return dict.fromkeys(names, 1.0)

    def substitute(self, request: Request) -> str:
        name = None if request.symbols else kernel_choice.recorded(request)
        other = SUBSTITUTES.get(request.family, "")
        return other if name in _names(other) else ""

    def variant(self, request: Request) -> DimLike:
        names = _names(self.substitute(request) or request.family)
        if not request.symbols:
            return _number(names, kernel_choice.recorded(request))
        return sum(
            (
                D.mul(use, _number(names, kernel_choice.recorded(known)))
                for use, known in kernel_choice.tuned_shapes(request)
            ),
            start=0,
        )

    def memory(self, request: Request) -> int:
        """Filters, where they are packed in several ways. Scratch of a thread is small."""
        if request.family not in SUBSTITUTES:
            return 0
        packing = f"pack_{self.substitute(request) or request.family}"
        sizes = {n: int(request.ints[n]) for n in FAMILIES[packing].ints}
        return DType.F32.size * packed_elements(packing, **sizes)

    def device(self, properties: Properties) -> Any:
        """A session says its instruction set and threads."""
        threads = properties.get("threads", "")
        if not threads.isdecimal():
            return None
        return host_device.device(properties.get("isa", ""), int(threads))

    @property
    def harness(self) -> Any:
        from tracea_onnx.runtime import cpu_harness

        return cpu_harness

    def checks(self) -> Iterable[Check]:
        from tracea_onnx.runtime.native_library import best_isa

        fix = "reinstall tracea-onnx for this kind of machine"
        return [attempt("instruction set", best_isa, fix)]


BACKEND = Cpu()


@dataclass(frozen=True)
class Isa:
    """An instruction set: floats per vector, compiler flags, and the condition on the running
    machine.

    `under`: it is that one with more, for the templates `only`. `lacks`: templates that a machine
    takes from the next one.
    """

    name: str
    width: int
    flags: tuple[str, ...]
    machine: str  # "x86_64", or "" for every machine
    under: str = ""
    only: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()

    @property
    def features(self) -> tuple[str, ...]:
        """Macros by which templates ask what it has: TRACEA_AVX512VNNI, ..."""
        named = (f.removeprefix("-m").replace("-", "_").upper() for f in self.flags)
        return tuple(f"TRACEA_{n}" for n in named)

    @property
    def known_as(self) -> str:
        """The name under which its kernels are found."""
        return self.under or self.name

    def builds(self, template: str) -> bool:
        """Whether the template is compiled for it."""
        return template not in self.lacks and (not self.under or template in self.only)


#: Kernels never throw or allocate; fused multiply-add wherever it exists, IEEE semantics otherwise.
FLAGS = (
    "-fno-exceptions",
    "-fno-rtti",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
)

_AVX2 = ("-mavx2", "-mfma", "-mf16c")
_AVX512 = ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", *_AVX2)
_VNNI = (*_AVX512, "-mavx512vnni")
#: Best first: dispatch takes the first one the machine has.
ISAS = (
    Isa(
        "avx512amx",
        16,
        (*_VNNI, "-mavx512bf16", "-mamx-tile", "-mamx-int8", "-mamx-bf16"),
        "x86_64",
        under="avx512",
        only=("bf16", "int8"),
    ),
    Isa("avx512vnni", 16, _VNNI, "x86_64", under="avx512", only=("int8",)),
    Isa("avx512bf16", 16, (*_AVX512, "-mavx512bf16"), "x86_64", under="avx512", only=("bf16",)),
    # without VNNI 8-bit GEMMs are as fast in 32 bytes; without AVX512_BF16 those of bfloat16 are
    # slower than those of floats
    Isa("avx512", 16, _AVX512, "x86_64", lacks=("bf16", "int8")),
    Isa("avx2vnni", 8, (*_AVX2, "-mavxvnni"), "x86_64", under="avx2", only=("int8",)),
    Isa("avx2", 8, _AVX2, "x86_64"),
    Isa("base", 4, (), ""),
)


def isas(machine: str) -> tuple[Isa, ...]:
    """Instruction sets that are built for a processor family (`x86_64`, `aarch64`, ...)."""
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(machine.lower(), machine.lower())
    return tuple(i for i in ISAS if i.machine in ("", machine))


def templates() -> tuple[str, ...]:
    """Names of the kernel templates, sorted."""
    folders = (p for p in TEMPLATES.glob("*/*.h") if p.stem == p.parent.name)
    return tuple(sorted(p.stem for p in (*TEMPLATES.glob("*.h"), *folders)))


def _camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def _op(name: str) -> str:
    return f"kOp{_camel(name)}"


def _enum(name: str, values: tuple[str, ...]) -> str:
    return f"enum {name} : int {{ {', '.join(values)} }};" if values else ""


def _family(name: str, family: Family) -> str:
    operands = tuple(o.rstrip("?") for o in family.operands)
    parts = (
        _enum("Operand", operands),
        _enum("Int", family.ints),
        _enum("Float", family.floats),
        (
            f"constexpr int kOperands = {len(operands)}, kInts = {len(family.ints)}, kFloats = "
            f"{len(family.floats)};"
        ),
        _variant(VARIANTS.get(name, {})),
    )
    return f"namespace {name} {{ {' '.join(p for p in parts if p)} }}"


def _variant(parameters: Mapping[str, Sequence[float]]) -> str:
    """The C++ that finds the values that the number of a variant stands for, which lies behind the
    integers.
    """
    if not parameters:
        return ""
    types = {
        p: "double" if isinstance(values[0], float) else "int64_t"
        for p, values in parameters.items()
    }
    tables, reads, below = [], [], 1
    for p, values in parameters.items():
        tables.append(f"static const {types[p]} {p}[] = {{{', '.join(map(str, values))}}};")
        reads.append(f"{p}[i[kInts] / {below} % {len(values)}]")
        below *= len(values)
    fields = " ".join(f"{kind} {p};" for p, kind in types.items())
    return (
        f"struct Variant {{ {fields} }}; "
        f"static inline Variant variant(const int64_t* i) {{ {' '.join(tables)} "
        f"return {{{', '.join(reads)}}}; }}"
    )


def opcodes_header() -> str:
    """C++ header with the implementation of each opcode, for vectors and for int64."""
    floats = (f"  OP{o.arity}({_op(o.name)}, {o.cpu})" for o in OPCODE.values() if o.cpu)
    ints = (f"  OP({_op(o.name)}, {o.int_cpu})" for o in OPCODE.values() if o.int_cpu)
    return "\n".join(
        [
            "// Generated by kernels/cpu.py from tracea_onnx/ir/abi.py.",
            "#pragma once",
            " \\\n".join(["#define TRACEA_FLOAT_OPS(OP1, OP2, OP3)", *floats]),
            " \\\n".join(["#define TRACEA_INT_OPS(OP)", *ints]),
            "",
        ]
    )


def families_header() -> str:
    """C++ twin of `kernel_families.FAMILIES` and `ops`: `fam::conv2d::x`, `fam::conv2d::IC`,
    `kOpLeakyRelu`, and the table the loader validates plans with.
    """
    rows = []
    for name, f in FAMILIES.items():
        optional = sum(1 << k for k, o in enumerate(f.operands) if o.endswith("?"))
        rows.append(
            f'  {{"{name}", {len(f.operands)}, {len(f.ints)}, {len(f.floats)}, '
            f"{str(f.program).lower()}, {optional}u, {variants(name)}}},"
        )
    arity = ", ".join(str(o.arity) for o in OPCODE.values())
    return "\n".join(
        [
            (
                "// Generated by kernels/cpu.py from tracea_onnx/plan/kernel_families.py and "
                "tracea_onnx/ir/abi.py."
            ),
            "#pragma once",
            '#include "cpu/kernel.h"',
            "namespace tracea {",
            f"enum OpCode : int32_t {{ {', '.join(map(_op, OPCODE))}, kOpCount }};",
            "// How many of the registers a, b, c an opcode reads.",
            f"constexpr unsigned char kOpArity[] = {{{arity}}};",
            "// Activation of a fused epilogue; its parameters are launch floats 0 and 1.",
            f"enum Act : int64_t {{ {', '.join('k' + _camel(a) for a in ACTIVATIONS)} }};",
            "namespace fam {",
            *(_family(n, f) for n, f in FAMILIES.items()),
            f"constexpr int kProjectedSteps = {PROJECTED_STEPS};",
            "}  // namespace fam",
            "// `optional` has bit k set when operand k may be absent.",
            (
                "struct FamilyInfo { const char* name; int operands, ints, floats; bool program; "
                "unsigned optional; int64_t variants; };"
            ),
            "constexpr FamilyInfo kFamilies[] = {",
            *rows,
            "};",
            "}  // namespace tracea",
            "",
        ]
    )


def _cpp(e: DimLike, made: dict[Dim, str], lines: list[str]) -> str:
    """The C++ of an expression; its parts go to `lines` as variables, each once."""
    if isinstance(e, int):
        return f"Wide({e}LL)"
    if e.op == "sym":
        return e.name
    if e not in made:
        a = [_cpp(x, made, lines) for x in e.args]
        text = {
            "add": "{0} + {1}", "sub": "{0} - {1}", "mul": "times({0}, {1})",
            "floordiv": "floor_div({0}, {1})", "mod": "{0} - floor_div({0}, {1}) * {1}",
            "max": "{0} > {1} ? {0} : {1}", "min": "{0} < {1} ? {0} : {1}",
            "eq": "Wide({0} == {1})", "lt": "Wide({0} < {1})",
        }.get(e.op, "{0} != 0 ? {1} : {2}").format(*a)  # fmt: skip
        made[e] = f"e{len(made)}"
        lines.append(f"  const Wide {made[e]} = {text};")
    return made[e]


#: Bytes of the widest element.
_WIDEST = 8


def _each(extent: tuple[DimLike, DimLike]) -> int:
    """Bytes that divide the addresses of all elements: at most the widest element."""
    return min(_WIDEST, *map(D.multiple_of, extent))


def _sizes(name: str, family: Family, there: dict[str, Dim]) -> Iterator[tuple[str, int, str, int]]:
    """Parameters that say what an element is, their values, and the operands whose elements then
    have more than one byte, with how many.
    """
    known = types(name)
    symbols = {n: D.symbol(n) for n in family.ints}
    for n in family.ints:
        values = (
            (2, 4, 8) if n == "elem" else (1,) if n == "mask_kind"
            else sorted(known.get(n, {int(t) for t in DType})) if n.endswith("dtype") else ()
        )  # fmt: skip
        for value in values:
            found = extents(name, {**symbols, n: value}, there, 4, border=True)
            yield from ((n, value, o, _each(e)) for o, e in found.items() if _each(e) > 1)


def _extent_function(name: str, family: Family) -> str:
    """C++ that refuses parameters a kernel cannot take, and writes what each operand may touch."""
    ranges, multiples = limits(name)
    at = {n: k for k, n in enumerate(family.ints)}
    operands = [o.rstrip("?") for o in family.operands]
    lines = [
        f'  if (i[{at[n]}] < {lo}LL || i[{at[n]}] > {hi}LL) return "{n}";'
        for n, (lo, hi) in ranges.items()
    ]
    lines += [
        f'  if ({" && ".join(f"i[{at[n]}] != {t}" for t in sorted(allowed))}) return "{n}";'
        for n, allowed in types(name).items()
    ]
    lines += [f'  if (i[{at[a]}] % i[{at[b]}]) return "{a}";' for a, b in multiples]
    lines += [f'  if (8 % i[{at[n]}]) return "{n}";' for n in WIDTHS if n in at]
    symbols = {n: D.symbol(f"Wide(i[{k}])") for n, k in at.items()}
    there = {o: D.symbol(f"Wide(present >> {k} & 1)") for k, o in enumerate(operands)}
    found = extents(name, symbols, there, 4, border=True)
    sizes: dict[str, list[tuple[str, int, int]]] = {}
    for n, value, o, size in _sizes(name, family, there):
        sizes.setdefault(o, []).append((n, value, size))
    made: dict[Dim, str] = {}
    for k, o in enumerate(operands):
        if o in found:
            low, high = (_cpp(e, made, lines) for e in found[o])
            each = str(_each(found[o]))
            for n, value, size in sizes.get(o, ()) if each == "1" else ():
                each = f"i[{at[n]}] == {value} ? {size} : {each}"
            lines.append(f"  out[{k}] = {{{low}, {high}, {each}}};")
    often = _cpp(repeats(name, symbols, there), made, lines)
    lines.append(f"  *repeats = {often};")
    head = (
        f"static const char* extents_{name}(const int64_t* i, unsigned present, Extent* out, "
        "Wide* repeats) {"
    )
    return "\n".join(
        [head, "  (void)i, (void)present, (void)out;", *lines, "  return nullptr;", "}"]
    )


def _program_operands(f: Family) -> tuple[int, int]:
    """Where a program's inputs lie among the operands: `o0`, ... behind the accumulator, or `x0`,
    ...
    """
    names = [o.rstrip("?") for o in f.operands]
    for first, before in (("o0", 1), ("x0", 0)):
        if f.program and first in names:
            return names.index(first), before
    return -1, 0


def _bits(name: str, operands: frozenset[str]) -> str:
    return f"{sum(1 << k for k, o in enumerate(FAMILIES[name].names) if o in operands):#x}"


def extents_header() -> str:
    """C++ twin of `extents.extents` for the CPU's kernels."""
    operands = map(_program_operands, FAMILIES.values())
    program_operands = [f"{{{first}, {before}}}" for first, before in operands]
    return "\n".join(
        [
            "// Generated by kernels/cpu.py from tracea_onnx/plan/extents.py.",
            "#pragma once",
            '#include "families.h"',
            "namespace tracea {",
            (
                "using Wide = __int128;  // parameters and products are bounded, so that no sum of "
                "them overflows"
            ),
            (
                "struct Extent { Wide low, high; int each; };  // bytes from an operand's address: "
                "the first it may touch, and the first it may not; what divides addresses of "
                "its elements"
            ),
            "inline int bits(Wide v) {",
            "  const unsigned __int128 u = v < 0 ? -(unsigned __int128)(v) : v;",
            "  const uint64_t high = uint64_t(u >> 64), low = uint64_t(u);",
            "  return high ? 128 - __builtin_clzll(high) : low ? 64 - __builtin_clzll(low) : 0;",
            "}",
            "inline Wide times(Wide a, Wide b) {  // 2^120 where it is more",
            "  if (bits(a) + bits(b) <= 120) return a * b;",
            "  return (a < 0) == (b < 0) ? Wide(1) << 120 : -(Wide(1) << 120);",
            "}",
            "inline Wide floor_div(Wide a, Wide b) { return b <= 0 ? 0 : a / b - (a % b < 0); }",
            *(_extent_function(n, f) for n, f in FAMILIES.items()),
            (
                "// In the order of kFamilies: the name of a parameter that the kernel cannot "
                "take, "
                "or null. `present`: bit k is set when operand k is there."
            ),
            (
                "using ExtentFunction = const char* (*)(const int64_t* i, unsigned present, "
                "Extent* out, Wide* repeats);"
            ),
            f"constexpr int64_t kMostRepeats = {MOST_REPEATS};",
            "// In the order of kFamilies, bit k for operand k: operands of which one has",
            "// elements, or else a launch has nothing to do; all that it writes.",
            *(
                f"constexpr unsigned {name}[] = {{{', '.join(_bits(n, of(n)) for n in FAMILIES)}}};"
                for name, of in (("kResults", results), ("kWritten", written))
            ),
            (
                "constexpr ExtentFunction kExtents[] = "
                f"{{{', '.join(f'extents_{n}' for n in FAMILIES)}}};"
            ),
            f"constexpr int kMostOperands = {max(len(f.operands) for f in FAMILIES.values())};",
            (
                "// Operands that a program reads, in the order of kFamilies: the operand of its "
                "first input, and how many inputs come before that one"
            ),
            "// (the accumulator of an epilogue); first < 0: the family takes no program.",
            "struct ProgramOperands { int first, before; };",
            f"constexpr ProgramOperands kProgramOperands[] = {{{', '.join(program_operands)}}};",
            "}  // namespace tracea",
            "",
        ]
    )


def _generated_tiles(name: str, isa: Isa) -> str:
    path = TEMPLATES / f"gen_{name}.py"
    if not path.is_file():
        return ""
    spec = importlib.util.spec_from_file_location(f"gen_{name}", path)
    if spec is None or spec.loader is None:
        raise ImportError(str(path))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return str(module.source(isa.name, isa.width))


def _unit(name: str, isa: Isa, tiles: bool) -> str:
    include = f'#include "gen_{name}_{isa.name}.h"\n' if tiles else ""
    path = f"{name}/{name}.h" if (TEMPLATES / name).is_dir() else f"{name}.h"
    features = "".join(f"#define {f} 1\n" for f in isa.features)
    return (
        f"// Generated by kernels/cpu.py.\n#define TRACEA_W {isa.width}\n"
        f"#define TRACEA_NS {isa.name}\n{features}"
        f'#include "families.h"\n{include}#include "{path}"\n'
        f"namespace tracea {{ extern const Kernel* const* const kernels_{name}_{isa.name}; "
        f"const Kernel* const* const kernels_{name}_{isa.name} = {isa.name}::table_{name}; }}\n"
    )


def _registry(names: tuple[str, ...], sets: tuple[Isa, ...]) -> str:
    lines = ["// Generated by kernels/cpu.py.", '#include "cpu/registry.h"', "namespace tracea {"]
    lines += [
        f"extern const Kernel* const* const kernels_{n}_{i.name};"
        for i in sets
        for n in names
        if i.builds(n)
    ]
    for i in sets:
        built = "".join(f"&kernels_{n}_{i.name}, " for n in names if i.builds(n))
        lines.append(
            f"static const Kernel* const* const* const list_{i.name}[] = {{{built}nullptr}};"
        )
    lines.append("const IsaKernels kIsaKernels[] = {")
    lines += [f'  {{"{i.known_as}", "{i.name}", list_{i.name}}},' for i in sets]
    lines += ["  {nullptr, nullptr, nullptr}};", "}  // namespace tracea", ""]
    return "\n".join(lines)


def _write(path: Path, text: str) -> None:
    if not path.is_file() or path.read_text() != text:
        path.write_text(text)


_EMULATED = ("-O1", "-fexpensive-optimizations")


def _emulated(flags: tuple[str, ...], header: str) -> tuple[str, ...]:
    """Flags under which intrinsics that AVX2 lacks are what a header defines: in time, and with
    fused multiply-adds.
    """
    beyond = any(f.startswith(("-mavx512", "-mavxvnni", "-mamx")) for f in flags)
    return (*_EMULATED, "-include", header, *_AVX2) if header and beyond else flags


def write_sources(
    out: Path, machine: str, *, only: str = "", isa: str = "", emulate: str = ""
) -> list[tuple[Path, tuple[str, ...]]]:
    """Write every generated file to `out`; returns the translation units with the flags of their
    instruction set.

    `only` keeps one template, `isa` one instruction set (comma-separated lists are accepted); ""
    keeps all. `emulate`: a header that defines the intrinsics of AVX-512, for machines without it.
    """
    out.mkdir(parents=True, exist_ok=True)
    names = tuple(n for n in templates() if not only or n in only.split(","))
    wanted = set(isa.split(",")) if isa else set()
    sets = tuple(i for i in isas(machine) if not isa or i.known_as in wanted)
    found = {i.known_as for i in sets}
    if (only and len(names) != len(only.split(","))) or wanted - found:
        known = ", ".join(templates()), ", ".join({i.known_as: None for i in isas(machine)})
        raise SystemExit(
            f"unknown template or instruction set; templates: {known[0]}; "
            f"instruction sets: {known[1]}"
        )
    _write(out / "families.h", families_header())
    _write(out / "opcodes.h", opcodes_header())
    _write(out / "extents.h", extents_header())
    units: list[tuple[Path, tuple[str, ...]]] = []
    for name in names:
        for i in sets:
            if not i.builds(name):
                continue
            tiles = _generated_tiles(name, i)
            if tiles:
                _write(out / f"gen_{name}_{i.name}.h", tiles)
            unit = out / f"{name}_{i.name}.cc"
            _write(unit, _unit(name, i, bool(tiles)))
            units.append((unit, _emulated(i.flags, emulate)))
    _write(out / "registry_tables.cc", _registry(names, sets))
    cmake = [
        f'set_source_files_properties("{u.as_posix()}" PROPERTIES COMPILE_OPTIONS '
        f'"{";".join((*FLAGS, *f))}")'
        for u, f in units
    ]
    listed = "".join(f'\n  "{u.as_posix()}"' for u, _ in units)
    _write(out / "units.cmake", "\n".join([f"set(TRACEA_UNITS{listed})", *cmake, ""]))
    return units


if __name__ == "__main__":
    import argparse

    parser = argparse.ArgumentParser(
        description="Write the CPU kernel library's translation units."
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--machine", default=platform.machine())
    parser.add_argument("--only", default="", help="comma-separated template names")
    parser.add_argument("--isa", default="", help="comma-separated instruction sets")
    parser.add_argument("--emulate", default="", help="header that defines AVX-512's intrinsics")
    args = parser.parse_args()
    write_sources(args.out, args.machine, only=args.only, isa=args.isa, emulate=args.emulate)
