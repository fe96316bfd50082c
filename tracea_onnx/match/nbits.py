"""GEMMs with constant weights of a few bits: MatMulNBits, or MatMul and Gemm that read
DequantizeLinear.
"""

from __future__ import annotations

from dataclasses import replace

from tracea_onnx.ir.contracts import Match
from tracea_onnx.ir.graph import Graph, Node
from tracea_onnx.ir.op_traits import Trait, operators
from tracea_onnx.ir.refusals import Refuse, Why
from tracea_onnx.match.attention import region
from tracea_onnx.match.epilogue import build_match, float_type, grow_epilogue
from tracea_onnx.match.gemm import Linear, linear_of, take_bias, take_reshapes
from tracea_onnx.match.once import once
from tracea_onnx.match.operator_specs import read
from tracea_onnx.match.spec_table import GemmNbitsSpec, GemmSpec

MATMUL_NBITS = "com.microsoft.MatMulNBits"
ANCHORS = operators(Trait.MATMUL) | {MATMUL_NBITS}
#: Bits of quantised element types, and whether they have a sign.
TYPES = {2: (8, False), 3: (8, True), 21: (4, False), 22: (4, True), 25: (2, False), 26: (2, True)}


@once
def match_nbits(graph: Graph, node: Node, *, rule: str) -> Match:
    """The GEMM (+ bias Add) (+ epilogue); refuses a MatMulNBits after which nothing fuses."""
    found, spec, roles = (
        _operator(graph, node) if node.op == MATMUL_NBITS else _dequantised(graph, node)
    )
    take_bias(graph, found)
    if node.op != MATMUL_NBITS:
        take_reshapes(graph, found)
        take_bias(graph, found)
    tail = grow_epilogue(graph, found.value)
    nodes = [*found.nodes, *tail.nodes]
    if len(nodes) == 1:
        raise Refuse(Why.NOTHING_FUSES, node, because=tail.stopped)
    given = [("x", found.x), *roles.items(), ("b", found.b), *tail.roles()]
    nodes = region(graph, nodes, [v for _, v in given])
    given += [(r, v) for r, v in found.shapes if graph.producer(v) not in nodes]
    return build_match(
        graph, rule, node, nodes, replace(spec, expr=tail.expr), given, [tail.output]
    )


def _operator(graph: Graph, node: Node) -> tuple[Linear, GemmNbitsSpec, dict[str, str]]:
    float_type(graph, node.input(0), node)
    spec, roles = read(graph, node, GemmNbitsSpec)
    x, b = roles.pop("x"), roles.pop("b", "")
    out = node.outputs[0]
    return Linear(node, x, "", b, GemmSpec(), out, [node], features=spec.N), spec, roles


def _dequantised(graph: Graph, node: Node) -> tuple[Linear, GemmNbitsSpec, dict[str, str]]:
    source = graph.producer(node.input(1))
    if source is None or source.op != "DequantizeLinear":
        raise Refuse(Why.WEIGHT_ONLY, node)
    data = graph.producer(node.input(0))
    if data is not None and data.op.endswith("DequantizeLinear"):
        raise Refuse(Why.QUANTIZED, node, source=data)
    found = linear_of(graph, node)
    w, kind, trans = source.input(0), graph.dtype(source.input(0)), bool(found.spec.trans_b)
    roles = dict(zip(("w", "scale", "zero"), (i for i in source.inputs), strict=False))
    roles = {r: v for r, v in roles.items() if v}
    shape, scales = graph.shape(w), graph.shape(source.input(1))
    if (
        kind not in TYPES
        or not found.plain
        or not all(graph.is_const(v) for v in roles.values())
        or shape is None
        or len(shape) != 2
        or scales is None
    ):
        raise Refuse(Why.WEIGHT_ONLY, node)
    k, n = (int(d or 0) for d in (reversed(shape) if trans else shape))
    axis, block = int(source.attr("axis", 1)) % 2, int(source.attr("block_size", 0))
    what = ""
    if block and (axis != trans or block % 16):
        what = f"blocks of {block} along axis {axis}"
    elif not block and len(scales) and scales != (1,) and axis == trans:
        what = "a scale for each term of a sum"
    if what:
        raise Refuse(Why.FEW_BITS, node, value=w, what=what)
    bits, signed = TYPES[kind]
    form = "nk" if trans else "kn"
    spec = GemmNbitsSpec(form=form, K=k, N=n, bits=bits, block=block, signed=signed)
    found.nodes.insert(0, source)
    return found, spec, roles
