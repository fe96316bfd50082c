"""Texts of the kernels' headers.

A header (`.cuh`) includes others by their places under `kernels/cuda`. What a kernel's generator
defines before it is there for other tools, too, between `#ifndef GENERATED` and
`#endif  // GENERATED`: one instance, with which a compiler reads the header by itself.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).resolve().parents[1]
_INCLUDE = re.compile(r'^ *#include "(.*)\.cuh"\n', re.MULTILINE)
_INSTANCE = re.compile(r"^#ifndef GENERATED\n.*?^#endif +// GENERATED\n", re.DOTALL | re.MULTILINE)


@cache
def text(name: str, *, instance: bool = False) -> str:
    """The header `kernels/cuda/<name>.cuh` as it is, without or with its instance."""
    found = (_FOLDER / f"{name}.cuh").read_text().replace("#pragma once\n", "")
    return found if instance else _INSTANCE.sub("", found)


@cache
def template(*names: str, instance: bool = False) -> str:
    """The headers, one after the other, with what they include in place; each once."""
    seen: set[str] = set()

    def expanded(name: str) -> str:
        if name in seen:
            return ""
        seen.add(name)
        return _INCLUDE.sub(lambda m: expanded(m[1]), text(name, instance=instance))

    return "\n".join(map(expanded, names))
