"""Sentences that differ in names alone are shown once, with the first names and a count."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tracea_onnx.support.data_classes import dataclass

#: So many are still shown one by one.
_FEW = 2


@dataclass(frozen=True)
class Said:
    """Sentences about `name`; `kind` is its operator or rule."""

    name: str
    kind: str
    lines: tuple[str, ...]


def grouped(said: Sequence[Said], *, everything: bool = False) -> list[tuple[str, Said]]:
    """Each group's head, `name (kind)` or `name (kind) and 7 more like it`, with its first member,
    in order of these. With `everything` each is a group of its own.
    """
    groups: dict[object, list[Said]] = {}
    for k, s in enumerate(said):
        # sentences quote names
        shape = tuple(re.sub(r"'[^']*'", "''", line) for line in s.lines)
        groups.setdefault(k if everything else (s.kind, shape), []).append(s)
    out = list[tuple[str, Said]]()
    for members in groups.values():
        if len(members) <= _FEW:
            out += [(f"{s.name} ({s.kind})", s) for s in members]
        else:
            first = members[0]
            out.append((f"{first.name} ({first.kind}) and {len(members) - 1} more like it", first))
    return out
