"""Types, symbolic shapes and validity of a model, found without touching its weights.

Both work on a *skeleton*: the model with every large or external initializer turned into a graph
input of the same type.
"""

from __future__ import annotations

import re

import onnx
from onnx import GraphProto, ModelProto, TensorProto, ValueInfoProto, helper

from tracea_onnx.errors import ModelError
from tracea_onnx.ir.contracts import DOMAIN
from tracea_onnx.ir.edit import defined_names, graphs
from tracea_onnx.ir.graph import domain_of, opset_versions, subgraphs
from tracea_onnx.model_io.model_file import tensor_bytes
from tracea_onnx.shapes import contrib_functions

#: Initializers of at most this many bytes stay: shape inference reads shapes, axes and pads from
#: them.
_SMALL = 4096


def skeleton(model: ModelProto) -> ModelProto:
    """The model without its large initializers; they become inputs, so that every name stays
    defined.
    """
    out = ModelProto()
    for field, value in model.ListFields():
        if field.name != "graph":
            if field.is_repeated:
                getattr(out, field.name).extend(value)
            elif field.message_type is not None:
                getattr(out, field.name).CopyFrom(value)
            elif isinstance(
                value, (str, int)
            ):  # protobuf hands over as bytes what is no text, and takes it from nobody
                setattr(out, field.name, value)
    for field, value in model.graph.ListFields():
        if field.name == "initializer":
            continue
        if field.is_repeated:
            getattr(out.graph, field.name).extend(value)
        elif isinstance(value, str):
            setattr(out.graph, field.name, value)
    known = {i.name for i in out.graph.input}
    for t in model.graph.initializer:
        if t.data_location != TensorProto.EXTERNAL and tensor_bytes(t) <= _SMALL:
            out.graph.initializer.append(t)
        elif t.name not in known:
            out.graph.input.append(helper.make_tensor_value_info(t.name, t.data_type, list(t.dims)))
    return out


#: The `value_info` an exporter wrote, by name, over all graphs of a model.
Types = dict[str, list[ValueInfoProto]]


def user_types(model: ModelProto) -> Types:
    """The model's own `value_info`, before inference adds to it."""
    out: Types = {}
    for g in graphs(model):
        for v in g.value_info:
            own = ValueInfoProto()
            own.CopyFrom(v)
            out.setdefault(v.name, []).append(own)
    return out


def restore_types(model: ModelProto, typed: Types) -> None:
    """Keep just the exporter's entries, as they were: inferred types serve matching, and the
    runtime infers its own.

    A name that two bodies use for different values is left out where it has two types.
    """
    for g in graphs(model):
        alive = defined_names(g) - {i.name for i in g.input} - {o.name for o in g.output}
        del g.value_info[:]
        g.value_info.extend(
            vs[0] for name, vs in typed.items() if name in alive and all(v == vs[0] for v in vs)
        )


def infer(model: ModelProto, typed: Types) -> None:
    """Replace `value_info` of the main graph and of every body by what ONNX's shape inference
    finds, symbolic dims included.

    The exporter's entries are taken as given; what an earlier inference found is forgotten first,
    so that the result depends on the graph alone. Where inference fails on a part of the model,
    that part stays as it was.
    """
    restore_types(model, typed)
    bare = skeleton(model)
    bare.functions.extend(contrib_functions.functions(model))
    try:
        # Without data_prop: `shapes.symbolic` follows sizes farther than it does. onnx follows
        # every vector of known length, element by element and without a limit: one input of 2^40
        # elements would keep it busy for ever.
        found = onnx.shape_inference.infer_shapes(bare, check_type=False, strict_mode=False)
    except Exception:
        # A malformed corner (an operator the schema rejects) must not stop the rest: without
        # inferred shapes rules refuse more, that is all.
        return
    _copy_types(found.graph, model.graph)


def _copy_types(src: GraphProto, dst: GraphProto) -> None:
    del dst.value_info[:]
    names = {o.name for o in dst.output} | {i.name for i in dst.input}
    dst.value_info.extend(v for v in src.value_info if v.name not in names)
    for a, b in zip(src.node, dst.node, strict=True):
        for x, y in zip(subgraphs(a), subgraphs(b), strict=True):
            _copy_types(x, y)


#: Domains whose operators ONNX Runtime brings itself; ONNX's checker has no schemas for them.
RUNTIME_DOMAINS = frozenset(
    {
        "com.microsoft",
        "com.microsoft.nchwc",
        "com.ms.internal.nhwc",
        "com.microsoft.experimental",
        "ai.onnx.contrib",
        DOMAIN,
    }
)


def check(model: ModelProto, where: str, *, full: bool = False) -> None:
    """Raise ModelError unless ONNX's checker accepts the model and every operator is known.

    `full` infers shapes strictly, too.
    """
    _check_operators(model, where)
    try:
        onnx.checker.check_model(skeleton(model), full_check=full)
    except Exception as e:
        raise ModelError(
            f"{where} is not valid ONNX: {first_line(e)}",
            "export it again, or run onnx.checker.check_model on it",
        ) from None


#: "[ONNXRuntimeError] : 1 : FAIL : ", and "/src/core/model.cc:245 onnxruntime::Model::Model(...) "
#: within a message.
_STATUS = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ")
_SOURCE = re.compile(r"/\S+\.(?:cc|h|cpp):\d+ \S.*?\)(?: const)? (?=[\w'\"(])")


def first_line(e: BaseException) -> str:
    """The first line of an error's text, without the places in ONNX Runtime's sources it names,
    short enough for one line of output.
    """
    text = next((line.strip() for line in str(e).splitlines() if line.strip()), type(e).__name__)
    text = _STATUS.sub("", _SOURCE.sub("", text)).strip() or text
    return text if len(text) <= 300 else text[:297] + "..."


def _check_operators(model: ModelProto, where: str) -> None:
    opsets = opset_versions(model.opset_import)
    local = {(f.domain, f.name) for f in model.functions}
    stack = [model.graph.node, *(f.node for f in model.functions)]
    while stack:
        for n in stack.pop():
            stack += [g.node for g in subgraphs(n)]
            domain = domain_of(n.domain)
            if (n.domain, n.op_type) in local or domain in RUNTIME_DOMAINS - {DOMAIN}:
                continue
            name = f"{domain + '.' if domain else ''}{n.op_type}"
            if domain not in opsets:
                raise ModelError(
                    f"{where} uses operator {name} but imports no operator set '{domain}'",
                    "export it again",
                )
            if not onnx.defs.has(n.op_type, domain) and domain not in (
                "ai.onnx.ml",
                "ai.onnx.preview.training",
            ):
                fix = (
                    "give it as a model-local function: ONNX Runtime has no such operator"
                    if domain
                    else "check the exporter"
                )
                raise ModelError(
                    f"{where} uses the unknown operator {name} (node "
                    f"'{n.name or ''.join(n.output[:1])}')",
                    fix,
                )
