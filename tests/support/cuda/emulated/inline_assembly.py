"""Inline assembly of CUDA C++ as C++ for the host: every instruction of PTX becomes a call of a
function of `ptx.h`, by the table `_CALLS`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

#: C++ types of PTX's.
_TYPES = {
    "b8": "unsigned char", "u8": "unsigned char", "s8": "signed char",
    "b16": "unsigned short", "u16": "unsigned short", "s16": "short",
    "b32": "unsigned", "u32": "unsigned", "s32": "int", "f32": "float",
    "b64": "unsigned long long", "u64": "unsigned long long", "s64": "long long", "f64": "double",
    "pred": "bool",
}  # fmt: skip
#: Of the constraints of an asm statement's operands.
_CONSTRAINTS = {
    "r": "unsigned", "l": "unsigned long long", "h": "unsigned short", "f": "float", "d": "double",
    "n": "auto",
}  # fmt: skip
_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
#: Least and greatest value of types that conversions saturate to.
_RANGES = {
    "s8": "-128., 127.", "u8": "0., 255.", "s16": "-32768., 32767.", "u16": "0., 65535.",
    "s32": "-2147483648., 2147483647.", "u32": "0., 4294967295.",
}  # fmt: skip
_E = r"\.([bufs]\d+)"
_HOW = r"(?:\.(?!v\d|[bufs]\d)[\w:]+)*"  # caching, scopes, and how memory is ordered
_MMA = r"f16|bf16|tf32|s8|u8"
_BULK, _BYTES = r"cp\.async\.bulk", r"\.mbarrier::complete_tx::bytes"
_ALL = r"\.multicast::cluster"
#: Instructions, and the function that is called with the operands, or after "=" the value of the
#: first operand, where $0 is the next one. \1 is a group of the regular expression, @1 as a C++
#: type, #1 as a `Type` of `ptx.h`, ?1 as a comparison, ~1 the range of the type. The empty ones do
#: nothing here.
_CALLS: tuple[tuple[str, str], ...] = (
    (r"(?:fence|griddepcontrol|setmaxnreg|prefetch|membar)\..*", ""),
    (rf"ld(?:\.volatile)?\.shared(?:::\w+)?(?:\.v\d)?{_E}", "load_shared<@1>"),
    (rf"st(?:\.volatile)?\.shared(?:::\w+)?(?:\.v\d)?{_E}", "store_shared<@1>"),
    (rf"ld\.global{_HOW}(?:\.v\d)?{_E}", "load_global<@1>"),
    (rf"st\.global{_HOW}(?:\.v\d)?{_E}", "store_global<@1>"),
    (r"cp\.async\.c[ag]\.shared\.global(?:\.L2::\w+)?", "cp_async"),
    (r"cp\.async\.commit_group", "cp_async_commit"),
    (r"cp\.async\.wait_group", "cp_async_wait"),
    (r"cp\.async\.wait_all", "cp_async_wait_all"),
    (
        rf"mma\.sync\.aligned\.m16n8k(\d+)\.row\.col\.(f32|f16|s32)\.({_MMA})\.({_MMA})\.\2",
        r"mma<#3, #4, #2, \1>",
    ),
    (r"ldmatrix\.sync\.aligned\.m8n8\.x\d\.shared(?:::cta)?\.b16", "ldmatrix<false>"),
    (r"ldmatrix\.sync\.aligned\.m8n8\.x\d\.trans\.shared(?:::cta)?\.b16", "ldmatrix<true>"),
    (r"stmatrix\.sync\.aligned\.m8n8\.x\d\.shared(?:::cta)?\.b16", "stmatrix<false>"),
    (r"stmatrix\.sync\.aligned\.m8n8\.x\d\.trans\.shared(?:::cta)?\.b16", "stmatrix<true>"),
    (r"bar\.sync", "bar_sync"),
    (r"bar\.arrive", "bar_arrive"),
    (r"barrier\.cluster\.arrive(?:\.\w+)*", "emulated::cluster_arrive"),
    (r"barrier\.cluster\.wait(?:\.\w+)*", "emulated::cluster_wait"),
    (r"mbarrier\.init\.shared(?:::cta)?\.b64", "emulated::mbarrier_init"),
    (r"mbarrier\.arrive\.expect_tx(?:\.\w+)*\.shared(?:::\w+)?\.b64", "mbarrier_arrive_expect"),
    (r"mbarrier\.arrive(?:\.\w+)*\.shared(?:::\w+)?\.b64", "mbarrier_arrive"),
    (r"mbarrier\.expect_tx(?:\.\w+)*\.shared(?:::\w+)?\.b64", "mbarrier_expect"),
    (
        r"mbarrier\.try_wait\.parity(?:\.\w+)*\.shared(?:::cta)?\.b64",
        "=emulated::mbarrier_wait($0, $1)",
    ),
    (
        r"cp\.async\.mbarrier\.arrive\.noinc\.shared(?:::cta)?\.b64",
        "emulated::arrive_after_copies",
    ),
    (rf"{_BULK}\.tensor\.\dd\.shared::cluster\.global(?:\.tile)?{_BYTES}(?:{_ALL})?", "tma_load"),
    (
        rf"{_BULK}\.tensor\.\dd\.shared::cluster\.global\.im2col{_BYTES}(?:{_ALL})?",
        "tma_load_im2col",
    ),
    (rf"{_BULK}\.tensor\.\dd\.global\.shared::cta(?:\.tile)?\.bulk_group", "tma_store"),
    (rf"{_BULK}\.shared::cluster\.shared::cta{_BYTES}", "emulated::bulk_copy"),
    (rf"{_BULK}\.commit_group", "emulated::commit_stores"),
    (rf"{_BULK}\.wait_group(?:\.read)?", "emulated::wait_for_stores"),
    (rf"st\.async(?:\.weak)?\.shared::cluster{_BYTES}{_E}", "st_async"),
    (r"wgmma\.fence\.sync\.aligned", ""),
    (
        rf"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k(\d+)\.(f32|s32)\.({_MMA})\.({_MMA})",
        r"wgmma<#4, #5, #3, \1, \2>",
    ),
    (r"wgmma\.commit_group\.sync\.aligned", "emulated::commit_products"),
    (r"wgmma\.wait_group\.sync\.aligned", "emulated::wait_for_products"),
    (r"elect\.sync", "elect"),
    (r"mapa\.shared::cluster\.u32", "=emulated::address_in($0, $1)"),
    (r"mov\.[bufs]\d+", "mov"),
    (rf"setp\.(\w\w){_E}", "=(@2)($0) ?1 (@2)($1)"),
    (r"selp\.[bufs]\d+", "=$2 ? $0 : $1"),
    (r"add\.([ufs]\d+)", "=(@1)($0) + (@1)($1)"),
    (r"lop3\.b32", "=ptx::lop3($0, $1, $2, $3)"),
    (r"ex2\.approx(?:\.ftz)?\.f32", "=ptx::exact_exp2($0)"),
    (r"rcp\.approx(?:\.ftz)?\.f32", "=1.f / ($0)"),
    (r"tanh\.approx\.f32", "=ptx::exact_tanh($0)"),
    (r"min\.NaN\.f32", "=ptx::min_nan($0, $1)"),
    (r"max\.NaN\.f32", "=ptx::max_nan($0, $1)"),
    (r"max\.NaN\.(f16|bf16)x2", "=ptx::max_pair<#1>($0, $1)"),
    (r"add\.rn\.(f16|bf16)x2", "=ptx::fma_pair<#1>($0, ptx::one_pair<#1>(), $1)"),
    (r"fma\.rn\.(f16|bf16)x2", "=ptx::fma_pair<#1>($0, $1, $2)"),
    (r"cvt\.f32\.(f16|bf16)", "=ptx::from<#1>($0)"),
    (r"cvt\.rn\.(f16|bf16)\.f32", "=ptx::to<#1>($0)"),
    (r"cvt\.rn\.(f16|bf16)x2\.f32", "=ptx::to<#1>($1) | (unsigned)(ptx::to<#1>($0)) << 16"),
    (r"cvt\.rni(?:\.sat)?\.([su]\d+)\.f32", "=(@1)ptx::to_integer($0, true, ~1)"),
    (r"cvt\.rzi(?:\.sat)?\.([su]\d+)\.f32", "=(@1)ptx::to_integer($0, false, ~1)"),
    (r"cvt\.pack\.sat\.(s8|u8)\.s32\.b32", "=ptx::pack<@1>($0, $1, $2, ~1)"),
    (r"cvt\.rn\.f32\.([su]\d+)", "=float((@1)($0))"),
    (r"dp4a\.([su]32)\.([su]32)", "=ptx::dot<@1, @2>($0, $1, $2)"),
)  # fmt: skip
_SPECIAL = {"cluster_ctarank": "emulated::cluster_rank()", "laneid": "(threadIdx.x % 32)"}


class NoEmulation(Exception):
    """There is no host text of an instruction."""


@dataclass
class _Statement:
    """One asm statement: its operands by number, and what is declared in it."""

    number: int
    outputs: list[tuple[str, str]]  # type, expression
    inputs: list[tuple[str, str]]
    registers: set[str] = field(default_factory=set)

    def _register(self, name: str) -> str | None:
        """The lvalue of a name, if it is one."""
        if m := re.fullmatch(r"%(\d+)", name):
            k = int(m[1])
            return f"({self.outputs[k][1]})" if k < len(self.outputs) else None
        return f"ptx_{name.lstrip('%')}" if name in self.registers else None

    def value(self, text: str) -> str:
        text = text.strip()
        if m := re.fullmatch(r"%(\d+)", text):
            k = int(m[1])
            if k < len(self.outputs):
                return f"({self.outputs[k][0]})({self.outputs[k][1]})"
            return f"in{k - len(self.outputs)}"
        if register := self._register(text):
            return register
        if m := re.fullmatch(r"%%?(\w+)", text):
            if m[1] not in _SPECIAL:
                raise NoEmulation(f"there is no emulation of the register {text}")
            return _SPECIAL[m[1]]
        if m := re.fullmatch(r"0[fF]([0-9a-fA-F]{8})", text):
            return f"__uint_as_float(0x{m[1]}u)"
        if re.fullmatch(r"-?\w+", text):
            return text
        parts = re.split(r"([+])", text)
        if len(parts) == 3:
            return f"{self.value(parts[0])} + {self.value(parts[2])}"
        raise NoEmulation(f"there is no emulation of the operand {text}")

    def operands(self, text: str) -> list[str]:
        """As arguments of a call; the first one as what is set, where it can be."""
        found: list[str] = []
        for k, part in enumerate(_split(text, ",")):
            part = part.strip()
            if part.startswith("["):
                found += [self._argument(p.strip(), False) for p in _split(part[1:-1], ",")]
            elif "|" in part:
                found += [self._argument(p, k == 0) for p in part.split("|") if p.strip() != "_"]
            elif part != "_":
                found.append(self._argument(part, k == 0))
        return found

    def _argument(self, text: str, is_set: bool) -> str:
        if text.startswith("{"):
            names = [n.strip() for n in text[1:-1].split(",")]
            places = [self._register(n) for n in names]
            if is_set and all(places):
                return "{" + ", ".join(f"&{p}" for p in places) + "}"
            return "{" + ", ".join(map(self.value, names)) + "}"
        return (self._register(text) if is_set else None) or self.value(text)

    def line(self, text: str) -> str:
        """One instruction, with its guard."""
        if m := re.fullmatch(r"\.reg\s+\.(\w+)\s+(.*)", text, re.DOTALL):
            names = [n.strip() for n in m[2].split(",")]
            self.registers |= {*names}
            return f"{_TYPES[m[1]]} {', '.join('ptx_' + n.lstrip('%') for n in names)};"
        m = re.fullmatch(r"(?:@(!?)([\w%]+)\s+)?([\w.:]+)\s*(.*)", text, re.DOTALL)
        if m is None:
            raise NoEmulation(f"there is no emulation of {text}")
        guard = f"if ({m[1]}{self._register(m[2])}) " if m[2] else ""
        return guard + self._instruction(m[3], m[4]) + ";"

    def _instruction(self, name: str, operands: str) -> str:
        if name in ("bra", "bra.uni"):
            return f"goto {operands.strip()}"
        if name == "trap":
            return 'emulated::fail("trap")'
        known = ((re.fullmatch(pattern, name), called) for pattern, called in _CALLS)
        found = next(((m, called) for m, called in known if m is not None), None)
        if found is None:
            raise NoEmulation(f"there is no emulation of the instruction {name}")

        def group(g: re.Match[str]) -> str:
            text = found[0][int(g[2])]
            return {
                "\\": text,
                "@": _TYPES.get(text, text),
                "#": f"emulated::{text.upper()}",
                "?": _COMPARISONS.get(text, text),
                "~": _RANGES.get(text, text),
            }[g[1]]

        called = re.sub(r"([\\@#?~])(\d)", group, found[1])
        if not called:
            return ""
        given = self.operands(operands)
        if not called.startswith("="):
            space = "" if "::" in called.partition("<")[0] else "ptx::"
            return f"{space}{called}({', '.join(given)})"
        expression = re.sub(r"\$(\d)", lambda g: given[int(g[1]) + 1], called[1:])
        return f"{given[0]} = {expression}"


def _split(text: str, by: str) -> list[str]:
    """At `by` outside of brackets and strings."""
    parts, depth, start, k = [], 0, 0, 0
    while k < len(text):
        c = text[k]
        if c == '"':
            k = _string_end(text, k)
            continue
        depth += (c in "([{") - (c in ")]}")
        if c == by and not depth:
            parts.append(text[start:k])
            start = k + 1
        k += 1
    return [*parts, text[start:]] if text[start:].strip() or parts else []


def _string_end(text: str, k: int) -> int:
    """Behind the string literal that begins at k."""
    k += 1
    while text[k] != '"':
        k += 1 + (text[k] == "\\")
    return k + 1


def _strings(text: str) -> str:
    """The string that adjacent literals are."""
    return "".join(
        re.sub(r"\\(.)", lambda m: {"n": "\n", "t": "\t"}.get(m[1], m[1]), m[1])
        for m in re.finditer(r'"((?:[^"\\]|\\.)*)"', text)
    )


def _constrained(text: str) -> list[tuple[str, str]]:
    found = []
    for part in _split(text, ","):
        m = re.fullmatch(r'\s*"[=+&]*(\w)"\s*\((.*)\)\s*', part, re.DOTALL)
        if m is None or m[1] not in _CONSTRAINTS:
            raise NoEmulation(f"there is no emulation of the operand {part.strip()}")
        found.append((_CONSTRAINTS[m[1]], m[2]))
    return found


def _instructions(text: str) -> Iterator[str]:
    """Statements of PTX: braces of scopes, labels with their colon, instructions."""
    for piece in _split_statements(re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)):
        rest = piece.strip()
        while rest:
            if m := re.match(r"[{}]|[\w$]+:(?!:)", rest):
                yield m[0]
                rest = rest[m.end() :].strip()
            else:
                yield rest
                break


def _split_statements(text: str) -> list[str]:
    return text.replace("\n", " ").split(";")


def translated(text: str) -> str:
    """Preprocessed CUDA C++ with a block of C++ in place of every asm statement.

    Raises NoEmulation for what PTX the emulation lacks.
    """
    parts: list[str] = []
    end = 0
    for number, m in enumerate(re.finditer(r"\basm\b(?:\s+volatile)?\s*\(", text)):
        if m.start() < end:
            continue
        depth, k = 1, m.end()
        while depth:
            if text[k] == '"':
                k = _string_end(text, k)
                continue
            depth += (text[k] == "(") - (text[k] == ")")
            k += 1
        parts += [text[end : m.start()], _block(number, text[m.end() : k - 1])]
        end = k
    return "".join([*parts, text[end:]])


def _block(number: int, inside: str) -> str:
    template, *lists = _split(inside, ":")
    outputs, inputs = (_constrained(lists[k]) if len(lists) > k else [] for k in (0, 1))
    ptx = _strings(template).replace("%=", str(number))
    s = _Statement(number, outputs, inputs)
    bound = "".join(f"const {t} in{k} = ({t})({e}); " for k, (t, e) in enumerate(inputs))
    lines = [
        i if i in "{}" else f"{i};" if i.endswith(":") else s.line(i) for i in _instructions(ptx)
    ]
    if not any(line.strip(";") for line in lines):
        return "do {} while (0)"
    return f"do {{ {bound.replace('(auto)', '')}{' '.join(lines)} }} while (0)"
