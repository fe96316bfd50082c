"""Control flow of a kernel's PTX: whether every block of threads waits for the kernels before
it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

_WAIT = "griddepcontrol.wait"
#: What differs between the threads of a block.
_THREAD = re.compile(r"%tid\.|%laneid|%warpid|elect\.sync")
_REGISTER = re.compile(r"%\w+")
#: A block with registers of its own (of inline assembly), whose names may be those of others
#: outside.
_SCOPE = re.compile(r"\{\s*(\.reg\b(?:[^{}]|\{[^{}]*\})*)\}")
_LABEL = re.compile(r"^([$\w]+):\s*")


@dataclass
class _Block:
    statements: list[str] = field(default_factory=list)
    next: list[int] = field(default_factory=list)
    divides: bool = False  # threads of one block of threads may go on at either successor


def every_block_waits(ptx: str, symbol: str) -> bool:
    """Whether some thread of each block of threads executes griddepcontrol.wait before the block
    has ended, whatever its place in the grid and its arguments are.

    A branch on what threads differ in counts as taken both ways within a block, so one of them has
    to wait; any other branch, and any loop, has to wait either way. Where a condition is of threads
    and of the block's place at once, this is not seen.
    """
    blocks = _blocks(ptx, symbol)
    after = [_reached(blocks, k) for k in range(len(blocks))]
    waits = [True] * len(blocks)  # loops that never end need not wait
    changed = True
    while changed:
        changed = False
        for k, b in enumerate(blocks):
            ways = [waits[n] for n in b.next]
            either = b.divides and k not in after[k]
            now = any(_WAIT in s for s in b.statements) or (
                bool(ways) and (any(ways) if either else all(ways))
            )
            changed |= now != waits[k]
            waits[k] = now
    return waits[0]


def _blocks(ptx: str, symbol: str) -> list[_Block]:
    statements = list(_statements(ptx, symbol))
    varying = _varying(statements)
    labels: dict[str, int] = {}
    blocks = [_Block()]
    ends: list[tuple[_Block, str]] = []
    tables: dict[str, list[str]] = {}
    for s in statements:
        while label := _LABEL.match(s):
            labels[label[1]] = len(blocks)
            blocks.append(_Block())
            s = s[label.end() :]
        if s.startswith(".branchtargets"):
            tables[next(n for n, k in labels.items() if k == len(blocks) - 1)] = re.findall(
                r"[$\w]+", s.removeprefix(".branchtargets")
            )
            continue
        blocks[-1].statements.append(s)
        if re.search(r"\b(bra|brx|ret|exit|trap)\b", s):
            ends.append((blocks[-1], s))
            blocks.append(_Block())
    for k, b in enumerate(blocks):
        end = next((s for block, s in ends if block is b), "")
        if "brx" in end:
            b.next = [labels[t] for t in tables[re.findall(r"[$\w]+", end)[-1]]]
        elif "bra" in end:
            b.next = [labels[re.findall(r"[$\w]+", end)[-1]]]
        if (end.startswith("@") or not end) and k + 1 < len(blocks):
            b.next.append(k + 1)
        b.divides = bool(end) and any(r in varying for r in _REGISTER.findall(end))
    return blocks


def _statements(ptx: str, symbol: str) -> Iterable[str]:
    """Those of the kernel, each with the labels before it."""
    text = re.sub(r"//[^\n]*", "", ptx)
    start = text.index("{", text.index(")", text.index(f".entry {symbol}(")))
    depth, end = 0, start
    for end in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if not depth:
            break
    for s in _SCOPE.sub(_renamed, text[start + 1 : end]).split(";"):
        yield re.sub(r"\s+", " ", re.sub(r"^[\s{}]+|(?<=:)[\s{}]+(?=[@$\w.])", " ", s)).strip()


def _renamed(scope: re.Match[str]) -> str:
    """The statements of a block, with names of their own for its registers."""
    text = scope[1]
    for declared in re.findall(r"\.reg\s+\.\w+\s+([^;]+);", text):
        for name in re.findall(r"%?\w+", declared):
            text = re.sub(
                rf"(?<![%\w]){re.escape(name)}(?!\w)",
                f"%own{scope.start()}_{name.lstrip('%')}",
                text,
            )
    return text


def _varying(statements: Iterable[str]) -> set[str]:
    """Registers that hold different values in different threads of a block, whatever is executed in
    between.
    """
    reads: dict[str, set[str]] = {}
    found: set[str] = set()
    for s in statements:
        s = re.sub(r"^([$\w]+:\s*)+", "", s)
        guard = re.match(r"@!?(%?\w+)\s+", s)
        operands = re.sub(r"^(@!?%?\w+\s+)?[\w.:]+\s*", "", s)
        if operands.startswith("["):  # an address: the instruction sets no register
            continue
        first, _, rest = operands.partition("}" if operands.startswith("{") else ",")
        sources = {*_REGISTER.findall(rest), *([guard[1]] if guard else [])}
        for to in _REGISTER.findall(first):
            reads.setdefault(to, set()).update(sources)
            if _THREAD.search(s):
                found.add(to)
    changed = True
    while changed:
        more = {to for to, sources in reads.items() if to not in found and sources & found}
        found |= more
        changed = bool(more)
    return found


def _reached(blocks: list[_Block], start: int) -> set[int]:
    """Blocks of statements that control can come to from this one."""
    seen: set[int] = set()
    ahead = list(blocks[start].next)
    while ahead:
        k = ahead.pop()
        if k not in seen:
            seen.add(k)
            ahead += blocks[k].next
    return seen
