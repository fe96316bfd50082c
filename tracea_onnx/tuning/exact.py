"""Checks the results of a Plan's kernels against float64."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from ml_dtypes import bfloat16

from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import DType
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.ir.graph import Array, Graph, Node
from tracea_onnx.support.data_classes import dataclass
from tracea_onnx.verify import float64, verification

#: Seconds that a reference may take.
_SECONDS = 30.0
#: The largest difference of two kernels' results, relative to their largest value, that other
#: orders of summation explain.
_SAME = {DType.F32: 0.02, DType.F16: 0.25, DType.BF16: 0.5}
#: Of how many times its rounding a kernel may be away from float64, where the usual one is away by
#: its rounding. One rounding of each type, and of TF32.
_AS_FAR = 4.0
_EPS = {DType.F32: 2.0**-23, DType.F16: 2.0**-10, DType.BF16: 2.0**-7}
_TF32 = 2.0**-10


class Part(Protocol):
    """A Plan with data of its own (`measure.Part`)."""

    plan: Mapping[str, Any]
    inputs: Sequence[Array]


@dataclass(frozen=True)
class Reference:
    """results: of a Plan's outputs in float64, None where `why` says that they are not known.
    terms, sums: of the longest sum, and how many follow one another at most. tf32: whether products
    may be rounded to it.
    """

    results: Sequence[Array] | None
    why: str = ""
    terms: int = 1
    sums: int = 1
    tf32: bool = False

    def agrees(
        self, plan: Mapping[str, Any], usual: Sequence[Array], other: Sequence[Array]
    ) -> bool:
        """Whether other kernels' results are those of the usual ones but for the order of terms,
        and as near to float64.
        """
        exact: Sequence[Array | None] = self.results or [None] * len(other)
        return all(
            same(DType(spec["dtype"]), a, b)
            and (e is None or self._as_near(DType(spec["dtype"]), e, a, b))
            for spec, e, a, b in zip(plan["outputs"], exact, usual, other, strict=True)
        )

    def _as_near(self, kind: DType, exact: Array, usual: Array, other: Array) -> bool:
        if kind not in _EPS:
            return True
        a, b = (float64.wide(x, int(kind)) for x in (usual, other))
        if exact.shape != b.shape:
            return False
        known = np.isfinite(exact) & np.isfinite(a) & np.isfinite(b)
        apart = [float(np.abs(x - exact)[known].max(initial=0.0)) for x in (a, b)]
        bound = self._rounding(kind) * float(np.abs(exact[known]).max(initial=0.0))
        return apart[1] <= max(_AS_FAR * apart[0], bound)

    def _rounding(self, kind: DType) -> float:
        """Relative, as `verification.Bounds` has it: sums are formed in fp32."""
        if kind == DType.F32 and not self.tf32:
            return 2 * _EPS[kind] * math.sqrt(self.terms * self.sums)
        return 2 * max(_EPS[kind], _TF32 if self.tf32 else 0.0) * math.sqrt(self.sums)


def same(kind: DType, x: Array, y: Array) -> bool:
    """Whether two results of 16 or 32 bits are nearly equal; of other types they are."""
    if kind not in _SAME:
        return True
    u, v = ((t.view(bfloat16) if kind == DType.BF16 else t).astype(np.float64) for t in (x, y))
    finite = np.isfinite(u)
    most = _SAME[kind] * np.abs(u[finite]).max(initial=0.0)
    return np.array_equal(finite, np.isfinite(v)) and bool(
        np.abs(u[finite] - v[finite]).max(initial=0.0) <= most
    )


def dims(graph: Graph, name: str) -> list[DimLike]:
    """Of a value, as expressions of a compile request's symbols."""
    return [
        d
        if isinstance(d, int)
        else D.named(d, graph.symbols())
        if d
        else D.symbol(f"{name}.{axis}")
        for axis, d in enumerate(graph.shape(name) or ())
    ]


def reference(graph: Graph, part: Part, sizes: Mapping[str, int], tf32: bool = False) -> Reference:
    """Of a Plan of a compile request's graph, for inputs of these sizes."""
    given = [(i["name"], i["dtype"]) for i in part.plan["inputs"]]
    values = {
        name: float64.wide(x, dtype) for (name, dtype), x in zip(given, part.inputs, strict=True)
    }
    wanted = [o["name"] for o in part.plan["outputs"]]
    try:
        nodes = _needed(graph, wanted, values, sizes)
        sums = [n for n in nodes if n.op in verification.SUMS]
        terms = max((verification.terms(graph, n) for n in nodes), default=1)
        protos = [n.proto for n in nodes]
        opsets = {i.domain: i.version for i in graph.model.opset_import}
        results = float64.evaluate(protos, opsets, values, wanted, time.monotonic() + _SECONDS)
    except float64.Unknown as e:
        return Reference(None, str(e))
    return Reference(results, "", terms, len(sums) + 1, tf32)


def _needed(
    graph: Graph, wanted: Sequence[str], values: float64.Arrays, sizes: Mapping[str, int]
) -> list[Node]:
    """The nodes between `values` and what is wanted, in their order; constants, and shapes of
    values that are none of these, are added to `values`.
    """
    left, found = list(wanted), set[int]()
    while left:
        name = left.pop()
        maker = graph.producer(name)
        if not name or name in values or (maker is not None and maker.index in found):
            continue
        if graph.is_const(name):
            values[name] = float64.wide(graph.const(name))
        elif maker is None:
            raise float64.Unknown(f"'{name}' is no input of the Plan")
        elif maker.op == "Shape" and maker.input(0) not in values:
            values[name] = _shape(graph, maker, sizes)
        else:
            found.add(maker.index)
            left += maker.inputs
    return [n for n in graph.nodes if n.index in found]


def _shape(graph: Graph, node: Node, sizes: Mapping[str, int]) -> Array:
    name = node.input(0)
    shape = dims(graph, name)
    if graph.shape(name) is None or not sizes.keys() >= {s for d in shape for s in D.symbols(d)}:
        raise float64.Unknown(f"the shape of '{name}' is not known")
    part = slice(node.attr("start", 0), node.attr("end"))
    return np.array([D.evaluate(d, dict(sizes)) for d in shape][part], np.int64)
