"""Canonical form: constants are initializers, nothing constant is computed, nothing is computed
twice or for nobody.

    Constant, Identity(initializer), Transpose(W)   ->  initializer
    Identity, inference Dropout, no-op Cast/Reshape/Transpose/Slice  ->  their input
    Transpose, pointwise, inverse Transpose         ->  pointwise         (its constants transposed)
    two equal nodes or initializers                 ->  one
    If with a constant condition, or with one       ->  the branch it takes
        branch alone that runs without an error
    initializer that is also an input               ->  initializer
                                                        (IR >= 4: a caller could override it)

The results of the model stay bit-identical. Input and output names, metadata, doc strings,
annotations and the user's own functions stay as they are. A second pass changes nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from tracea_onnx.canonicalize import (
    constant_folding,
    constant_ifs,
    identities,
    reshape_targets,
    sink_transposes,
)
from tracea_onnx.ir import edit
from tracea_onnx.ir.graph import Graph, constant_tensor, external_info, subgraphs, written
from tracea_onnx.model_io import external
from tracea_onnx.shapes.onnx_inference import Types, infer, user_types
from tracea_onnx.shapes.ranks import Decided, decided_ifs

_ROUNDS = 12
#: From this IR version on an initializer that is also an input is a default the caller may
#: override.
_OVERRIDABLE_IR = 4


def canonicalise(
    model: ModelProto,
    *,
    folder: Path | None = None,
    typed: Types | None = None,
    keep_initializer_inputs: bool = False,
    budget: constant_folding.Budget | None = None,
    notes: list[str] | None = None,
) -> ModelProto:
    """Bring `model` into canonical form, in place, and return it with inferred types in
    `value_info`.

    `folder` is where external data lies; `typed` is the exporter's own `value_info`, for a model
    that holds inferred entries already. `notes` receives a sentence for each change a user should
    know of. Raises ModelError for a cyclic graph.
    """
    notes = notes if notes is not None else []
    typed = user_types(model) if typed is None else typed
    for g in edit.graphs(model):
        edit.sort_nodes(g, "the graph")
        edit.name_nodes(g)
    if model.training_info:
        notes.append("the model carries training information and was left as it is")
        infer(model, typed)
        return model
    if not keep_initializer_inputs or model.ir_version < _OVERRIDABLE_IR:
        _freeze_initializer_inputs(model, notes)
    names = edit.Names(model)
    for _ in range(_ROUNDS):
        infer(model, typed)
        decided = decided_ifs(Graph(model, folder=folder))
        limits = budget or constant_folding.Budget()
        if not _pass(model, model.graph, None, folder, limits, names, decided):
            return model
    infer(model, typed)
    return model


def views(model: ModelProto, folder: Path | None) -> Iterator[Graph]:
    """A view of each graph, outer before inner, which sees the constants of the graphs around it.

    The graph may be rewritten before the next one is asked for.
    """

    def visit(graph: GraphProto, around: Graph | None) -> Iterator[Graph]:
        yield Graph(model, graph, folder=folder, outer=around)
        bodies = _bodies(graph)
        here = Graph(model, graph, folder=folder, outer=around) if bodies else None
        for body in bodies:
            yield from visit(body, here)

    return visit(model.graph, None)


def views_inner_first(model: ModelProto, folder: Path | None) -> Iterator[Graph]:
    """`views` from the last to the first."""

    def visit(graph: GraphProto, around: Graph | None) -> Iterator[Graph]:
        bodies = _bodies(graph)
        here = Graph(model, graph, folder=folder, outer=around) if bodies else None
        for body in reversed(bodies):
            yield from visit(body, here)
        yield Graph(model, graph, folder=folder, outer=around)

    return visit(model.graph, None)


def _bodies(graph: GraphProto) -> list[GraphProto]:
    return [body for n in graph.node for body in subgraphs(n)]


def _freeze_initializer_inputs(model: ModelProto, notes: list[str]) -> None:
    """Make initializers that are also inputs constants; before IR 4 they are so by definition."""
    by_rule = model.ir_version < _OVERRIDABLE_IR
    # before, an initializer had to be an input, too
    model.ir_version = max(model.ir_version, _OVERRIDABLE_IR)
    stored = {t.name for t in model.graph.initializer}
    both = [i.name for i in model.graph.input if i.name in stored]
    for k in range(len(model.graph.input) - 1, -1, -1):
        if model.graph.input[k].name in stored:
            del model.graph.input[k]
    if both and not by_rule:
        notes.append(
            f"{len(both)} initializers were also inputs and are now constants "
            "(--keep-initializer-inputs leaves them)"
        )


def _pass(
    model: ModelProto,
    graph: GraphProto,
    around: Graph | None,
    folder: Path | None,
    budget: constant_folding.Budget,
    names: edit.Names,
    decided: Decided,
) -> int:
    """One round over a graph that lies in `around`, and then over the bodies in it; returns how
    much changed.
    """

    def now() -> Graph:
        return Graph(model, graph, folder=folder, outer=around)

    protected = edit.protected_names(model, graph)
    changed = _constants(graph, protected)
    changed += constant_ifs.fold_constant_ifs(now(), names, decided)
    changed += identities.remove_no_ops(now(), protected)
    changed += constant_folding.fold(model, now(), protected, budget)
    changed += reshape_targets.fold_targets(now(), protected, model.graph, names)
    changed += sink_transposes.sink(now(), protected, names)
    changed += _merge_initializers(graph, protected, folder) + _merge_nodes(graph, protected)
    changed += edit.drop_dead(graph, protected)
    edit.drop_value_info(graph)
    bodies = _bodies(graph)
    here = now() if bodies else None
    return changed + sum(
        _pass(model, body, here, folder, budget, names, decided) for body in bodies
    )


# --- constants ------------------------------------------------------------------------------------
def _constants(graph: GraphProto, protected: set[str]) -> int:
    """Constant nodes become initializers."""
    gone: set[int] = set()
    for k, n in enumerate(graph.node):
        if written(n) != "Constant" or not any(n.output[:1]) or n.output[0] in protected:
            continue
        tensor = constant_tensor(n)
        if tensor is not None:
            tensor.name = n.output[0]
            graph.initializer.append(tensor)
            gone.add(k)
    edit.keep_nodes(graph, set(range(len(graph.node))) - gone)
    return len(gone)


# --- duplicates -----------------------------------------------------------------------------------
def _merge_initializers(graph: GraphProto, protected: set[str], folder: Path | None) -> int:
    """Initializers with the same type, dims and bits become one.

    Bits, not values: -0.0 and 0.0 differ, NaN equals itself.
    """
    inner = edit.body_names(graph)
    alike: dict[bytes, list[TensorProto]] = {}
    for t in graph.initializer:
        if t.name not in protected and t.name not in inner:
            alike.setdefault(_sample(t, folder), []).append(t)
    new: dict[str, str] = {}
    for group in alike.values():
        first: dict[bytes, str] = {}
        for t in group if len(group) > 1 else ():
            kept = first.setdefault(_contents(t, folder), t.name)
            if kept != t.name:
                new[t.name] = kept
    edit.rename_uses(graph.node, new)
    return len(new)


_SAMPLE = 256


def _sample(t: TensorProto, folder: Path | None) -> bytes:
    """Something cheap that equal tensors share: reading every weight only to find that no two are
    equal would be the slowest step.
    """
    raw = external.stored(t, folder)
    ends = b"" if raw is None else bytes(raw[:_SAMPLE]) + bytes(raw[-_SAMPLE:])
    return repr((t.data_type, tuple(t.dims), raw is None)).encode() + ends


def _contents(t: TensorProto, folder: Path | None) -> bytes:
    """A digest of everything but the tensor's name and notes."""
    raw = external.stored(t, folder)
    if raw is not None:
        return hashlib.sha256(raw).digest()
    if t.data_location == TensorProto.EXTERNAL:
        return repr(sorted(external_info(t).items())).encode()
    bare = TensorProto()
    bare.CopyFrom(t)
    for field in ("name", "doc_string", "metadata_props"):
        if field in TensorProto.DESCRIPTOR.fields_by_name:
            bare.ClearField(field)
    return hashlib.sha256(bare.SerializeToString(deterministic=True)).digest()


def _merge_nodes(graph: GraphProto, protected: set[str]) -> int:
    """Pure nodes with the same operator, inputs and attributes become one (common-subexpression
    elimination).
    """
    inner = edit.body_names(graph)
    first: dict[bytes, NodeProto] = {}
    new: dict[str, str] = {}
    gone: set[int] = set()
    for k, n in enumerate(graph.node):
        for i, name in enumerate(n.input):
            if name in new:
                n.input[i] = new[name]
        # Quantisation pairs belong to their consumer: ONNX Runtime wants one for each.
        if (
            not constant_folding.is_pure(n)
            or n.op_type in ("Constant", "QuantizeLinear", "DequantizeLinear")
            or not n.input
        ):
            continue
        kept = first.setdefault(_node_key(n), n)
        if kept is n:
            continue
        if any(o in protected or o in inner for o in n.output) or any(
            o in inner for o in kept.output
        ):
            continue
        if any(bool(a) < bool(b) for a, b in zip(kept.output, n.output, strict=False)) or len(
            n.output
        ) > len(kept.output):
            continue
        new |= {b: a for a, b in zip(kept.output, n.output, strict=False) if b}
        gone.add(k)
    if gone:
        edit.rename_uses(graph.node, new)
        edit.keep_nodes(graph, set(range(len(graph.node))) - gone)
    return len(gone)


def _node_key(n: NodeProto) -> bytes:
    attributes = sorted(a.SerializeToString(deterministic=True) for a in n.attribute)
    return repr(
        (
            n.domain,
            n.op_type,
            n.overload if "overload" in NodeProto.DESCRIPTOR.fields_by_name else "",
            list(n.input),
            attributes,
        )
    ).encode()
