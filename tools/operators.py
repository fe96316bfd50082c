"""Writes what ONNX says of its operators, for `tracea_onnx/ir/onnx_operators.py`.

python -m tools.operators
"""

from __future__ import annotations

import json
import sys

from onnx import defs

from tracea_onnx.ir.onnx_operators import TABLE, Schema, of


def schemas() -> dict[str, list[Schema]]:
    """All versions of each operator of ONNX's own domain, oldest first."""
    found: dict[str, list[Schema]] = {}
    for known in defs.get_all_schemas_with_history():
        if known.domain == "":
            found.setdefault(known.name, []).append(of(known))
    return {name: sorted(found[name], key=lambda s: s.since) for name in sorted(found)}


def text() -> str:
    """What the file holds: one operator a line."""
    rows = [f"{json.dumps(name)}: {json.dumps(all_)}" for name, all_ in schemas().items()]
    lines = ",\n".join(rows)
    return f'{{"opset": {defs.onnx_opset_version()}, "operators": {{\n{lines}\n}}}}\n'


def main() -> int:
    TABLE.write_text(text(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
