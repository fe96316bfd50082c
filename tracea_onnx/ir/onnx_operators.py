"""Schemas of ONNX's own operators. Up to some opset they come from a table (`python -m
tools.operators`), because importing onnx takes longer than compiling most models.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from onnx import defs

TABLE = Path(__file__).with_name("onnx_operators.json")


class Schema(NamedTuple):
    """One version of an operator. least, most: how many inputs it has. results: how many outputs at
    most. required: how many inputs, counted from the first, it cannot do without where they are
    among those given. optional_result: whether the first result is. kinds, defaults: of each
    attribute. needed: attributes that a node must have.
    """

    since: int
    least: int
    most: int
    results: int
    required: int
    optional_result: bool
    kinds: dict[str, int]
    defaults: dict[str, Any]
    needed: list[str]


@cache
def _table() -> tuple[int, dict[str, list[list[Any]]]]:
    """The newest opset in it, and the versions of each operator, oldest first."""
    found = json.loads(TABLE.read_bytes())
    return found["opset"], found["operators"]


def is_known(opset: int) -> bool:
    """Whether the table or the installed onnx has that opset."""
    if opset <= _table()[0]:
        return True
    from onnx import defs

    return opset <= int(defs.onnx_opset_version())


@cache
def schema(op: str, opset: int | None = None) -> Schema | None:
    """Of an operator at an opset, or the newest; None where ONNX has no such operator there."""
    newest, operators = _table()
    if opset is not None and opset > newest:
        return _installed(op, opset)
    found = [v for v in operators.get(op, ()) if opset is None or v[0] <= opset]
    return Schema(*found[-1]) if found else None


def _installed(op: str, opset: int) -> Schema | None:
    from onnx import defs

    try:
        return of(defs.get_schema(op, opset, ""))
    except (defs.SchemaError, TypeError):  # TypeError: no 32 bits hold the opset
        return None


def of(known: defs.OpSchema) -> Schema:
    """The `Schema` of onnx's own schema."""
    from onnx import AttributeProto, defs, helper

    optional = defs.OpSchema.FormalParameterOption.Optional
    # onnx's stubs lack the names of its enumerations
    kinds = {
        name: AttributeProto.AttributeType.Value(a.type.name)  # type: ignore[attr-defined]
        for name, a in sorted(known.attributes.items())
    }
    defaults = {
        name: _plain(helper.get_attribute_value(a.default_value))
        for name, a in sorted(known.attributes.items())
        if a.default_value.type != AttributeProto.UNDEFINED
    }
    return Schema(
        int(known.since_version),
        known.min_input,
        known.max_input,
        known.max_output,
        next((k for k, i in enumerate(known.inputs) if i.option == optional), known.max_input),
        bool(known.outputs) and known.outputs[0].option == optional,
        kinds,
        defaults,
        sorted(name for name, a in known.attributes.items() if a.required),
    )


def _plain(value: Any) -> Any:
    """As JSON has it."""
    if isinstance(value, bytes):
        return value.decode()
    return value if isinstance(value, int | float | str) else [_plain(v) for v in value]
