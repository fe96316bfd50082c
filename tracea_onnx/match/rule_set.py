"""Every fusion rule there is."""

from __future__ import annotations

from functools import cache

from tracea_onnx.ir.contracts import Rule
from tracea_onnx.support import discovery


@cache
def rules() -> tuple[Rule, ...]:
    """Every rule, sorted by name."""
    found: list[Rule] = []
    for name in discovery.names("fusion_rules"):
        m = discovery.module("fusion_rules", name)
        found += [m.RULE] if hasattr(m, "RULE") else list(m.RULES)
    return tuple(sorted(found, key=lambda r: r.name))
