"""What a body of control flow computes of ONNX Runtime's own counters and flags.

ONNX Runtime holds the number and the condition of a Loop's iteration on the host, and reads the
next condition there. On a device's session these would go to the device and back in every
iteration, each time with a wait for the device.
"""

from __future__ import annotations

from collections.abc import Sequence

from tracea_onnx.compiler.lower.op import Op, readers
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.graph import Graph

WHY = "ONNX Runtime holds the condition of a loop on the host"
_TYPES = (DType.BOOL, DType.I32, DType.I64)


def left(graph: Graph, ops: Sequence[Op]) -> dict[int, str]:
    """The ops, in topological order, that make flags which are results of the body of single flags
    and numbers which it is given, and nothing else.
    """
    known = {i for i in graph.inputs if _is_single(graph, i)}
    of_host: list[int] = []
    for k, op in enumerate(ops):
        if all(not i or i in known or graph.is_const(i) for n in op.nodes for i in n.inputs):
            of_host.append(k)
            known.update(o for o in op.outputs if o)
    read, place = readers(ops), {id(op): k for k, op in enumerate(ops)}
    kept: dict[int, str] = {}
    for k in reversed(of_host):
        followers = [place[id(r)] for o in ops[k].outputs if o for r in read.get(o, ())]
        results = [o for o in ops[k].outputs if graph.is_output(o)]
        if (
            all(f in kept for f in followers)
            and all(graph.dtype(o) == DType.BOOL for o in results)
            and (followers or results)
        ):
            kept[k] = WHY
    return kept


def _is_single(graph: Graph, name: str) -> bool:
    return graph.rank(name) == 0 and graph.dtype(name) in _TYPES
