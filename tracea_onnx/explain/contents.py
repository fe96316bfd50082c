"""What is in a model: interface, weights, operators, fused ops and where each came from."""

from __future__ import annotations

from collections import Counter
from typing import Any

from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from tracea_onnx.ir import edit, fused_op_names
from tracea_onnx.ir.contracts import DOMAIN
from tracea_onnx.ir.graph import type_name, written
from tracea_onnx.model_io import model_file
from tracea_onnx.rewrite import fused_calls
from tracea_onnx.support.tables import Table, lines


def inspect(source: model_file.Source) -> dict[str, Any]:
    """The model's contents as JSON values."""
    model = source.model
    stored = {t.name for t in model.graph.initializer}
    nodes = [n for g in edit.graphs(model) for n in g.node]
    return {
        "model": str(source.path or model.graph.name),
        "producer": f"{model.producer_name} {model.producer_version}".strip(),
        "ir_version": model.ir_version,
        "opsets": {o.domain or "ai.onnx": o.version for o in model.opset_import},
        "metadata": {e.key: e.value for e in model.metadata_props},
        "inputs": [_value(i) for i in model.graph.input if i.name not in stored],
        "outputs": [_value(o) for o in model.graph.output],
        "weights": {
            "tensors": sum(1 for _ in model_file.tensors(model)),
            "bytes": sum(model_file.tensor_bytes(t) for t in model_file.tensors(model)),
            "external": sorted(_locations(model)),
        },
        "nodes": len(nodes),
        "operators": dict(
            sorted(Counter(_operator(n) for n in nodes).items(), key=lambda kv: (-kv[1], kv[0]))
        ),
        "fused": [_call(n) for n in nodes if n.domain == DOMAIN],
    }


def _operator(n: NodeProto) -> str:
    if n.domain == DOMAIN:
        return f"{DOMAIN}.{fused_op_names.op_of(n.op_type)}"
    return written(n)


def _value(v: ValueInfoProto) -> dict[str, Any]:
    t = v.type.tensor_type
    if not v.type.HasField("tensor_type"):
        return {"name": v.name, "type": v.type.WhichOneof("value") or "unknown", "shape": None}
    shape = (
        [d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in t.shape.dim]
        if t.HasField("shape")
        else None
    )
    return {"name": v.name, "type": type_name(t.elem_type), "shape": shape}


def _locations(model: ModelProto) -> set[str]:
    return {
        e.value
        for t in model_file.tensors(model)
        if t.data_location == TensorProto.EXTERNAL
        for e in t.external_data
        if e.key == "location"
    }


def _call(n: NodeProto) -> dict[str, Any]:
    known = {e.key: e.value for e in n.metadata_props}
    spec = fused_calls.read_spec(n)
    return {
        "name": n.name,
        "rule": known.get(fused_calls.METADATA_RULE, ""),
        "function": f"{n.domain}::{n.op_type}",
        "nodes": fused_calls.read_nodes(known.get(fused_calls.METADATA_NODES, "")),
        "inputs": list(n.input),
        "outputs": list(n.output),
        "spec": {}
        if spec is None
        else {"op": spec.op, "roles": list(spec.roles), "attrs": dict(spec.attrs)},
        "attributes": [a.name for a in n.attribute if helper.get_attribute_value(a) is not None],
    }


def text(found: dict[str, Any], *, everything: bool = False) -> list[str]:
    """Lines for people; `everything` lists each fused op with the nodes it replaced."""
    out: list[str | Table] = [
        f"{found['model']}  IR {found['ir_version']}  "
        + ", ".join(f"{d} {v}" for d, v in found["opsets"].items())
    ]
    if found["producer"]:
        out.append(f"made by {found['producer']}")
    for kind in ("inputs", "outputs"):
        out += [f"{kind[:-1]:<7} {v['name']}  {v['type']}{_shape(v['shape'])}" for v in found[kind]]
    w = found["weights"]
    out.append(
        f"weights {w['tensors']} tensors, {w['bytes'] / 2**20:.1f} MiB"
        + (f" in {', '.join(w['external'])}" if w["external"] else "")
    )
    out.append([("operator", "nodes"), *((k, str(v)) for k, v in found["operators"].items())])
    if found["fused"]:
        count = Counter(f["rule"] for f in found["fused"])
        replaced = {
            rule: sum(len(f["nodes"]) for f in found["fused"] if f["rule"] == rule)
            for rule in count
        }
        rows = [(r, str(count[r]), str(replaced[r])) for r in sorted(count)]
        out.append([("rule", "fused ops", "from nodes"), *rows])
        if everything:
            out.append("")
            for f in found["fused"]:
                out += [f"{f['name']}  {f['function']}", f"    from {', '.join(f['nodes'])}"]
    return lines(out)


def _shape(shape: list[int | str | None] | None) -> str:
    return (
        "" if shape is None else "[" + ", ".join("?" if d is None else str(d) for d in shape) + "]"
    )
