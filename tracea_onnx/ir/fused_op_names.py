"""What the functions of fused ops are called, and whether a call, its body and its name belong
together.

    Conv_1f2e3d4c5b6a7988        op, hash of spec and body; a `_` after it where the model has
                                 another function of that name
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tracea_onnx.errors import ModelError
from tracea_onnx.ir import edit
from tracea_onnx.ir.contracts import DOMAIN, SPEC_ATTRIBUTE
from tracea_onnx.ir.graph import subgraphs

if TYPE_CHECKING:
    from onnx import FunctionProto, ModelProto, NodeProto

#: Hex digits of the hash.
DIGITS = 16
_FORM = rf"(\w+)_([0-9a-f]{{{DIGITS}}})_*"
_NAME = re.compile(_FORM)
_NAMES_IN_TEXT = re.compile(rf"{re.escape(DOMAIN)}\.{_FORM.replace('+', '+?', 1)}\b")


def name(op: str, function: FunctionProto, spec: str, *, spelled: bool = False) -> str:
    """The name of a function whose body is that of `function` and whose calls carry `spec`. Names,
    notes and types inside that mean nothing to the result have no part in the hash, nor whether
    ONNX's domain is spelled out, which tools that rewrite a file change (spelled: it has, as in
    files before 0.2).
    """
    from onnx import FunctionProto

    op = re.sub(r"\W", "_", op)
    body = FunctionProto()
    body.CopyFrom(function)
    for field in ("name", "doc_string", "overload", "metadata_props", "value_info"):
        body.ClearField(field)
    for node in body.node:
        for field in ("name", "doc_string", "metadata_props"):
            node.ClearField(field)
    for node in () if spelled else edit.with_bodies(body.node):
        if not node.domain:
            node.ClearField("domain")
    parts = (op.encode(), spec.encode(), body.SerializeToString(deterministic=True))
    digest = hashlib.sha256(b"".join(len(p).to_bytes(8, "little") + p for p in parts))
    return f"{op}_{digest.hexdigest()[:DIGITS]}"


def op_of(function: str) -> str:
    """The op in a function's name; the whole name where it is not one of ours."""
    found = _NAME.fullmatch(function)
    return found[1] if found else function


def readable(text: str) -> str:
    """The text with fused ops called by their op alone."""
    return _NAMES_IN_TEXT.sub(r"the fused \1", text)


def spec_text(node: NodeProto) -> str | None:
    """The one `spec` attribute of a call as it stands; None where there is no such, or more than
    one.
    """
    texts = [a.s for a in node.attribute if a.name == SPEC_ATTRIBUTE]
    try:
        return bytes(texts[0]).decode() if len(texts) == 1 else None
    except UnicodeDecodeError:
        return None


def calls(model: ModelProto) -> Iterator[NodeProto]:
    """Every call of a fused op: in the graphs of the model, and in its functions."""
    yield from (n for g in edit.graphs(model) for n in g.node if n.domain == DOMAIN)
    stack: list[Sequence[NodeProto]] = [f.node for f in model.functions]
    while stack:
        for n in stack.pop():
            stack += [g.node for g in subgraphs(n)]
            if n.domain == DOMAIN:
                yield n


def check(model: ModelProto, where: str) -> None:
    """Raise ModelError unless each fused op calls a function of the name that its spec and the
    function's body make.

    This finds files of other versions and files that a tool has changed. Whoever changes one on
    purpose can write the name, too.
    """
    bodies: dict[str, list[FunctionProto]] = {}
    for f in model.functions:
        if f.domain == DOMAIN:
            bodies.setdefault(f.name, []).append(f)
    good: set[tuple[str, str]] = set()
    for n in calls(model):
        label, spec = f"{where}: fused op '{n.name or n.op_type}'", spec_text(n)
        if n.op_type not in bodies:
            raise ModelError(
                f"{label} calls {DOMAIN}::{n.op_type}, which the model does not define",
                "run optimize on the original model again",
            )
        if not _NAME.fullmatch(n.op_type):
            raise ModelError(
                f"{label} was not written by this version of tracea-onnx",
                "run optimize on the original model again, or tracea-onnx inline on this one",
            )
        if spec is None:
            raise ModelError(f"{label} has no description that can be read", _INLINE)
        if (n.op_type, spec) in good:
            continue
        op = op_of(n.op_type)
        if any(
            n.op_type.rstrip("_") not in (name(op, f, spec), name(op, f, spec, spelled=True))
            for f in bodies[n.op_type]
        ):
            raise ModelError(
                f"{label} has a description or a body that was changed after optimize wrote it",
                _INLINE,
            )
        good.add((n.op_type, spec))


_INLINE = "run tracea-onnx inline on it first, which keeps the bodies and drops the descriptions"
