"""An fp16 model whose every result is rounded to fp16, on a runtime that would leave that out.

    y = MatMul(a, b)   ->   y = Cast<fp16>(MatMul(Cast<float>(a), Cast<float>(b)))

ONNX Runtime's CPU provider computes most operators in fp32 and drops the casts between them: values
beyond fp16's range survive there, and become infinite on a machine that computes in fp16. Casts
that stand in the file are kept.
"""

from __future__ import annotations

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper

from tracea_onnx.ir import edit
from tracea_onnx.ir.graph import domain_of, subgraphs
from tracea_onnx.ir.op_traits import Trait, operators
from tracea_onnx.model_io import model_file
from tracea_onnx.rewrite.inline import inline
from tracea_onnx.shapes import onnx_inference

_EXACT = operators(Trait.EXACT)


def insert_fp16_casts(source: model_file.Source) -> model_file.Source:
    """A copy of the model, without fused ops, in which every rounding is explicit."""
    out = model_file.Source(ModelProto(), source.folder, source.path)
    out.model.CopyFrom(source.model)
    inline(out.model)
    onnx_inference.infer(out.model, onnx_inference.user_types(out.model))
    taken = edit.all_names(out.model)
    for g in edit.graphs(out.model):
        _round_graph(g, taken)
    return out


def _round_graph(graph: GraphProto, taken: set[str]) -> None:
    half = {
        v.name
        for v in (*graph.value_info, *graph.input, *graph.output)
        if v.type.tensor_type.elem_type == TensorProto.FLOAT16
    }
    half |= {t.name for t in graph.initializer if t.data_type == TensorProto.FLOAT16}
    nodes: list[NodeProto] = []
    for n in graph.node:
        if (
            domain_of(n.domain)
            or n.op_type in _EXACT
            or not any(o in half for o in n.output)
            or any(True for _ in subgraphs(n))
        ):
            nodes.append(n)
            continue
        node = NodeProto()
        node.CopyFrom(n)
        after = []
        for k, name in enumerate(n.input):
            if name in half:
                node.input[k] = edit.unique(f"{name}/wide", taken)
                nodes.append(
                    helper.make_node("Cast", [name], [node.input[k]], to=TensorProto.FLOAT)
                )
        for k, name in enumerate(n.output):
            if name in half:
                node.output[k] = edit.unique(f"{name}/exact", taken)
                after.append(
                    helper.make_node("Cast", [node.output[k]], [name], to=TensorProto.FLOAT16)
                )
        nodes += [node, *after]
    edit.replace_nodes(graph, nodes)
