"""Weight-only quantisation, in standard ONNX: constant weights of MatMul and Gemm come from
DequantizeLinear, as int8 or int4, and rows of tables that Gather takes are int8 with a scale each.

A block of terms of a column (or all of them) has one scale; there are no zero points.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from tracea_onnx.errors import UsageError
from tracea_onnx.ir import edit
from tracea_onnx.ir.graph import Graph, Node
from tracea_onnx.ir.op_traits import Trait, operators
from tracea_onnx.rewrite.mixed_precision import Copy
from tracea_onnx.support.data_classes import dataclass

Array = npt.NDArray[Any]
#: Bits of the formats, and terms that share a scale where nothing is said; 0: all of a column.
FORMATS = {"int8": (8, 0), "int4": (4, 32)}
_MATMULS = operators(Trait.MATMUL)
#: Weights of fewer elements stay as they are.
_LEAST = 1024
_BLOCKS_OPSET, _COLUMNS_OPSET, _INT4_IR = 21, 13, 10


@dataclass(frozen=True)
class Format:
    """int8 or int4, in blocks of so many terms (0: whole columns)."""

    name: str
    block: int

    @property
    def bits(self) -> int:
        """Of a weight."""
        return FORMATS[self.name][0]


def format_of(name: str, block: int | None) -> Format:
    """Raises UsageError for what is none."""
    if name not in FORMATS:
        raise UsageError(f"weights '{name}' are unknown", f"choose from {', '.join(FORMATS)}")
    block = FORMATS[name][1] if block is None else block
    if block < 0 or block % 16:
        raise UsageError(f"a block of {block} weights", "give a multiple of 16, or 0 for columns")
    return Format(name, block)


def quantise(
    model: ModelProto,
    form: Format,
    *,
    folder: Path | None,
    wide: Collection[str] = (),
    beside: bool = False,
) -> tuple[list[str], list[Copy]]:
    """Quantise weights of the main graph in place: names of the nodes that read them, but for those
    in `wide`. beside: such nodes stay, and copies of them read quantised weights.

    Raises UsageError where the model's opset has no such weights.
    """
    graph = Graph(model, folder=folder)
    least = _BLOCKS_OPSET if form.block or form.bits < 8 else _COLUMNS_OPSET
    if graph.opset() < least:
        raise UsageError(
            f"weights of {form.name} in {'blocks' if form.block else 'columns'} need opset {least};"
            f" the model's is {graph.opset()}",
            "convert it (onnx.version_converter); --weights int8 --block 0 needs opset 13",
        )
    names, copies, nodes = edit.Names(model), [], []
    quantised: list[str] = []
    for n in graph.nodes:
        w = _weight(graph, n)
        if w is None or n.name in wide:
            nodes.append(n.proto)
            continue
        out = n.outputs[0]
        narrow = names.new(f"{out}/{form.name}") if beside else out
        made, stored = (_table if n.op == "Gather" else _product)(n, w, form, narrow, names)
        nodes += [n.proto, *made] if beside else made
        model.graph.initializer.extend(stored)
        quantised.append(n.name)
        copies += [Copy(n.name, out, narrow)] if beside else []
    edit.replace_nodes(model.graph, nodes)
    edit.drop_dead(model.graph, edit.protected_names(model, model.graph))
    if form.bits < 8 and quantised:
        model.ir_version = max(model.ir_version, _INT4_IR)
    return quantised, copies


def _weight(graph: Graph, n: Node) -> Array | None:
    """The matrix that the node reads, where it can be quantised."""
    name = n.input(1) if n.op in _MATMULS else n.input(0) if n.op == "Gather" else ""
    shape = graph.shape(name) if name else None
    if (
        not name
        or graph.dtype(name) != TensorProto.FLOAT
        or not graph.is_const(name)
        or shape is None
        or len(shape) != 2
        or int(shape[0] or 0) * int(shape[1] or 0) < _LEAST
        or (n.op == "Gather" and int(n.attr("axis", 0)) % 2)
    ):
        return None
    w = graph.const(name)
    return w if w is not None and bool(np.isfinite(w).all()) else None


def rounded(w: Array, bits: int, block: int) -> tuple[Array, Array]:
    """Values [k, n] and scales [blocks, n] of w [k, n]: in each block of a column the value of the
    largest magnitude becomes the least number of the type.
    """
    k, n = w.shape
    least, block = -(1 << (bits - 1)), block or max(k, 1)
    blocks = np.pad(w, [(0, -k % block), (0, 0)]).reshape(-1, block, n)
    at = np.abs(blocks).argmax(1)[:, None]
    scale = (np.take_along_axis(blocks, at, 1) / np.float32(least)).astype(np.float32)
    # a subnormal scale would divide by what is no number of so many digits
    scale = np.where(np.abs(scale) < np.finfo(np.float32).tiny, np.float32(1), scale)
    values = np.clip(np.rint(blocks / scale), least, -least - 1).astype(np.int8)
    return values.reshape(-1, n)[:k], scale[:, 0]


def _stored(name: str, values: Array, bits: int) -> TensorProto:
    if bits == 8:
        return numpy_helper.from_array(np.ascontiguousarray(values), name)
    flat = np.append(values.reshape(-1) & 15, np.zeros(values.size % 2, np.int8)).astype(np.uint8)
    raw = (flat[::2] | flat[1::2] << 4).tobytes()
    return TensorProto(name=name, dims=values.shape, data_type=TensorProto.INT4, raw_data=raw)


def _product(
    n: Node, w: Array, form: Format, out: str, names: edit.Names
) -> tuple[list[NodeProto], list[TensorProto]]:
    axis = 1 if n.attr("transB", 0) else 0
    values, scales = rounded(w.T if axis else w, form.bits, form.block)
    values, scales = (values.T, scales.T) if axis else (values, scales)
    given = [names.new(f"{n.input(1)}/{part}") for part in (form.name, "scale", "wide")]
    attrs: dict[str, Any] = {"axis": axis, "block_size": form.block}
    if not form.block:
        scales, attrs = scales.reshape(-1), {"axis": 1 - axis}
    stored = [_stored(given[0], values, form.bits)]
    stored += [numpy_helper.from_array(np.ascontiguousarray(scales), given[1])]
    wide = helper.make_node("DequantizeLinear", given[:2], given[2:], given[2], **attrs)
    return [wide, _reading(n, 1, given[2], out)], stored


def _reading(n: Node, k: int, value: str, out: str) -> NodeProto:
    """The node with another input k and result."""
    made = NodeProto()
    made.CopyFrom(n.proto)
    made.input[k], made.output[0] = value, out
    if out != n.outputs[0]:
        made.name = out
    return made


def _table(
    n: Node, w: Array, form: Format, out: str, names: edit.Names
) -> tuple[list[NodeProto], list[TensorProto]]:
    """Gather takes no four bits, and DequantizeLinear before it would make the whole table."""
    values, scales = rounded(w.T, 8, 0)
    table, scale, row, wide, factor = (
        names.new(f"{out}/{part}") for part in ("table", "scale", "row", "wide", "factor")
    )
    stored = [_stored(table, values.T, 8)]
    stored += [numpy_helper.from_array(np.ascontiguousarray(scales.T), scale)]
    return [
        _reading(n, 0, table, row),
        helper.make_node("Cast", [row], [wide], wide, to=TensorProto.FLOAT),
        _reading(n, 0, scale, factor),
        helper.make_node("Mul", [wide, factor], [out], out),
    ], stored
