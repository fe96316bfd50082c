"""The partition compiler: from the graph ORT shows the provider to Plans (docs/plan-format.md,
"Compiler callback").

The same rules that rewrite a file run here, so a model that was never optimised fuses too.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tracea_onnx._version import __version__
from tracea_onnx.codegen.backend import Properties
from tracea_onnx.compiler import host_flags, partitioning, profitability, quantised_groups
from tracea_onnx.compiler.lower import COMPUTE, lower
from tracea_onnx.compiler.lower.context import Lowering, element_type
from tracea_onnx.compiler.lower.op import CONVOLUTIONS, Op, of_match, of_node, of_plain
from tracea_onnx.compiler.lower.ops.conv import needed_border
from tracea_onnx.compiler.lower.passes import (
    bf16_gemm,
    concat_in_place,
    conv_pool,
    gemm_nbits_norm,
    gemm_norm,
    pointwise_stages,
    quantised,
    sibling_gemms,
    summed_rows,
)
from tracea_onnx.compiler.lower.passes.focus_stem import reads_blocks
from tracea_onnx.compiler.lower.value import Dims, Unsupported, Value
from tracea_onnx.compiler.plan_cache import KEYED
from tracea_onnx.compiler.plan_writer import Writer, writer_of
from tracea_onnx.errors import TraceaError
from tracea_onnx.ir import dims as D
from tracea_onnx.ir import edit, messages
from tracea_onnx.ir.abi import KERNEL_FLOATS
from tracea_onnx.ir.contracts import DOMAIN, Match
from tracea_onnx.ir.dims import Dim, DimLike
from tracea_onnx.ir.graph import Graph, Node, request_array, tensor_bytes
from tracea_onnx.ir.op_traits import Trait, operators
from tracea_onnx.match import find, rule_set
from tracea_onnx.plan.builder import PlanBuilder, Ref, write_pack
from tracea_onnx.pricing.cost_model import price
from tracea_onnx.pricing.rates import Rates
from tracea_onnx.shapes.ranks import known_ranks
from tracea_onnx.support import discovery
from tracea_onnx.support.alike import Said, grouped
from tracea_onnx.support.data_classes import dataclass
from tracea_onnx.support.scoped_value import override

if TYPE_CHECKING:
    from onnx import ModelProto

PRODUCER = f"tracea-onnx {__version__}"
_HEAVY = operators(Trait.HEAVY)
#: So many sentences about nodes that are left go with a reply.
_SAID = 3


@dataclass
class Compiled:
    """Result of compiling a graph: one entry per partition, with its builder, and why the other
    nodes stay with ORT.
    """

    entries: list[tuple[list[Node], dict[str, Any], list[bytes]]] = field(default_factory=list)
    builders: list[PlanBuilder] = field(default_factory=list)
    refused: list[tuple[Node, str]] = field(default_factory=list)


def compile_model(request: bytes) -> tuple[bytes, list[str]]:
    """The pack for a request, and the large constants (`plan_cache.KEYED`) whose values it follows
    from.
    """
    model = messages.request(request)
    if edit.unreadable(model) or not edit.in_order(model.graph):
        return write_pack([], PRODUCER), []
    props = properties(model)
    graph = Graph(model, in_process=True)
    result = compile_for(graph, props, writer_of(props))
    pack = write_pack(
        [
            ([n.proto.doc_string for n in nodes], plan, blobs)
            for nodes, plan, blobs in result.entries
        ],
        PRODUCER,
        _left(result.refused),
    )
    read = [t for t in model.graph.initializer if graph.was_read(t.name)]
    return pack, [t.name for t in read if tensor_bytes(t) > KEYED]


def _left(refused: Sequence[tuple[Node, str]]) -> list[str]:
    """Sentences about operators that compute much, each once."""
    heavy = [Said(n.name, n.op, (why,)) for n, why in refused if n.op in _HEAVY]
    return [f"{head}: {first.lines[0]}" for head, first in grouped(heavy)][:_SAID]


def whole(request: bytes) -> ModelProto:
    """The request with the constants in it, which has no digest: it is no longer what ONNX Runtime
    holds.
    """
    from onnx import ModelProto, numpy_helper

    model: ModelProto = ModelProto.FromString(request)
    for tensor in model.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(request_array(tensor), tensor.name))
    for k in reversed(range(len(model.metadata_props))):
        if model.metadata_props[k].key == "digest":
            del model.metadata_props[k]
    return model


def properties(request: ModelProto) -> dict[str, str]:
    """Metadata of a compile request: backend, device, options."""
    return {
        p.key: p.value
        for p in request.metadata_props
        if isinstance(p.key, str) and isinstance(p.value, str)
    }


def compile_for(graph: Graph, props: Properties, writer: Writer) -> Compiled:
    """`compile_graph` of a request's graph, as the request wants it."""
    return compile_graph(
        graph,
        writer,
        everything=props.get("claim") == "all",
        body=props.get("body") == "1",
        trust=props.get("specs") == "trust",
    )


def compile_graph(
    graph: Graph,
    writer: Writer | None = None,
    *,
    everything: bool = False,
    body: bool = False,
    trust: bool = False,
) -> Compiled:
    """Choose fusions, find what can be lowered, group it, and lower each group. Without a writer
    the Plans are for the default backend. `everything` takes partitions that do not pay, too.

    `body`: the graph is a body of If, Loop or Scan, where ORT inlines fused functions whatever the
    provider claims: they are left to it. `trust`: run fused ops as their specs say. ONNX Runtime
    shows no bodies of functions, so a spec cannot be compared with what it stands for: without
    `trust` fused ops are left to ORT, which inlines their bodies, and the rules match those
    (docs/security.md).
    """
    writer = writer or writer_of({})
    graph.fuses_quantised = "gemm_int8" in writer.target.families
    chosen = choose(graph, writer.target.rates)
    ops = _ops(graph, chosen, trust)
    probe = _Probe(graph, ops, writer)
    on_device = body and not writer.on_host
    whole = (
        None
        if on_device and host_flags.left(graph, ops)
        else _whole(graph, ops, probe, writer, everything)
    )
    if whole is not None:
        return _compiled(ops, {}, {tuple(range(len(ops))): whole})
    split_nodes: set[int] = set()
    while True:
        reasons = dict(probe.reasons)
        if not everything:
            reasons |= quantised_groups.left_to_ort(graph, ops, reasons, writer.target)
        if on_device:
            reasons |= host_flags.left(graph, ops)
        if body:
            reasons |= {
                k: "ONNX Runtime inlines fused functions in the bodies of control flow"
                for k, op in enumerate(ops)
                if op.nodes[0].proto.domain == DOMAIN
            }
        groups = partitioning.groups(ops, [k not in reasons for k in range(len(ops))], graph)
        lost = [op for k, op in enumerate(ops) if k in reasons] + _unread(graph, ops, groups)
        failed = {id(n) for op in lost for n in op.nodes} & {id(n) for m in chosen for n in m.nodes}
        if not failed:
            break
        split_nodes |= failed
        chosen = [m for m in chosen if not any(id(n) in failed for n in m.nodes)]
        ops = _ops(graph, chosen, trust)
        probe = _Probe(graph, ops, writer)
    # by their ops: where one op turns out to fail, the groups that do not change are not lowered
    # again
    parts: dict[tuple[int, ...], _Part] = {}
    while True:
        supported = [k not in reasons for k in range(len(ops))]
        found = [
            tuple(members)
            for members in partitioning.groups(ops, supported, graph)
            if everything or not writer.on_host or _computes(ops, members)
        ]
        bad: list[_Failed] = []
        for members in found:
            if members not in parts:
                try:
                    parts[members] = _part(
                        graph, [ops[k] for k in members], probe, writer, everything, split_nodes
                    )
                except _Failed as e:
                    bad.append(e)
        if not bad:
            break
        for failed_late in bad:
            reasons[next(k for k, op in enumerate(ops) if op is failed_late.op)] = str(
                failed_late.reason
            )
    kept = {members: parts[members] for members in found}
    if not (everything or writer.on_host):
        kept = _where_values_lie(graph, ops, kept, body)
    return _compiled(ops, reasons, kept)


def _computes(ops: Sequence[Op], members: Iterable[int]) -> bool:
    """Whether a group has more than light nodes."""
    return any(ops[k].kind in COMPUTE for k in members)


def _where_values_lie(
    graph: Graph, ops: Sequence[Op], parts: Mapping[tuple[int, ...], _Part], body: bool
) -> dict[tuple[int, ...], _Part]:
    """On a device: light partitions of what lies there run there, too, since for ONNX Runtime it
    would be copied to the host. They read or make operands of other partitions, or floats that
    control flow gives its body.
    """
    kept: dict[tuple[int, ...], _Part] = {}
    light: dict[tuple[int, ...], _Part] = {}
    for members, part in parts.items():
        pays = part.builder is None or part.refusal is None
        (kept if pays and _computes(ops, members) else light)[members] = part

    def values(members: Iterable[int]) -> set[str]:
        names = [side for k in members for n in ops[k].nodes for side in (n.inputs, n.outputs)]
        return {v for side in names for v in side if v and not graph.is_const(v)}

    there = {
        v
        for v in values(range(len(ops)))
        if body
        and graph.producer(v) is None
        and graph.rank(v) != 0
        and graph.dtype(v) in KERNEL_FLOATS
    }
    for members, part in kept.items():
        if part.builder is not None and part.refusal is None:
            there |= values(members)
    waiting = list(light)
    while near := [m for m in waiting if not there.isdisjoint(values(m))]:
        for members in near:
            waiting.remove(members)
            part = light[members]
            kept[members] = _Part(part.builder, part.plan, None)
            if part.builder is not None:
                there |= values(members)
    kept |= {m: light[m] for m in waiting if _computes(ops, m)}
    return {m: kept[m] for m in parts if m in kept}


def _compiled(
    ops: Sequence[Op], reasons: Mapping[int, str], parts: Mapping[tuple[int, ...], _Part]
) -> Compiled:
    result = Compiled()
    result.refused = [(n, reasons[k]) for k, op in enumerate(ops) if k in reasons for n in op.nodes]
    for members, part in parts.items():
        nodes = [n for k in members for n in ops[k].nodes]
        if part.refusal is not None:
            result.refused += [(n, part.refusal) for n in nodes]
        elif part.builder is not None:
            result.entries.append(
                (
                    nodes,
                    {**part.plan, "name": f"partition{len(result.entries)}"},
                    part.builder.blobs,
                )
            )
            result.builders.append(part.builder)
    return result


def _whole(
    graph: Graph, ops: Sequence[Op], probe: _Probe, writer: Writer, everything: bool
) -> _Part | None:
    """All ops as one partition, without looking first which can be lowered: most models run whole.
    None where that fails, or may not be.
    """
    together = list(range(len(ops)))
    try:
        if (
            any(op.nodes[0].proto.domain == DOMAIN for op in ops)
            or not (everything or any(op.kind in COMPUTE for op in ops))
            or partitioning.groups(ops, [True] * len(ops), graph) != [together]
            or _unread(graph, ops, [together])
            or (not everything and quantised_groups.left_to_ort(graph, ops, (), writer.target))
        ):
            return None
        return _weighed(graph, ops, probe, writer, everything, lower)
    except MemoryError:
        raise
    except Exception:  # what looks at each op alone says which one it is
        return None


@dataclass(frozen=True)
class _Part:
    """One partition: a Plan, or why ONNX Runtime runs it; neither where nothing would run."""

    builder: PlanBuilder | None
    plan: dict[str, Any]
    refusal: str | None


def _part(
    graph: Graph,
    ops: Sequence[Op],
    known: Mapping[str, Value],
    writer: Writer,
    everything: bool,
    split_nodes: set[int],
) -> _Part:
    """Lowers a group of ops, and weighs it.

    Raises _Failed where one of them cannot be lowered in this company.
    """
    try:
        return _weighed(graph, ops, known, writer, everything, _lower, split_nodes)
    except (_Failed, TraceaError, MemoryError):
        raise
    except Exception as e:
        why = f"a partition at '{ops[0].nodes[0].name}' was not compiled ({type(e).__name__}: {e})"
        return _Part(None, {}, _fault(why))


def _weighed(
    graph: Graph,
    ops: Sequence[Op],
    known: Mapping[str, Value],
    writer: Writer,
    everything: bool,
    one: Callable[[Lowering, Op], None],
    split_nodes: Collection[int] = (),
) -> _Part:
    """Ops as a Plan, with why it would not pay. one: lowers an op."""
    builder = _lower_group(graph, ops, known, writer, one)
    plan = builder.to_json() if builder is not None else {}
    if builder is None or everything:
        return _Part(builder, plan, None)
    rates = writer.target.rates
    why = profitability.unprofitable_reason(graph, ops, plan, rates, split_nodes)
    return _Part(builder, plan, why)


def _unread(graph: Graph, ops: Sequence[Op], groups: Iterable[Sequence[int]]) -> list[Op]:
    """Fused ops with an operand that no node of their partition reads or makes (a value before a
    view that stayed outside): ORT would not pass it.
    """
    out: list[Op] = []
    for members in groups:
        seen = {name for k in members for n in ops[k].nodes for name in (*n.inputs, *n.outputs)}
        out += [
            ops[k]
            for k in members
            if any(i and i not in seen and not graph.is_const(i) for i in ops[k].inputs)
        ]
    return out


#: Fusions that are not made at present.
_left_out: ContextVar[frozenset[str]] = ContextVar("left out", default=frozenset())


def without(fusions: Iterable[str]) -> AbstractContextManager[None]:
    """Sessions that are made within the block compile without these fusions (`fusion`)."""
    return override(_left_out, frozenset(fusions))


def fusion(match: Match) -> str:
    """Text of a match: its rule, and the operators."""
    return f"{match.rule}: {' + '.join(n.op for n in match.nodes)}"


def choose(graph: Graph, rates: Rates) -> list[Match]:
    """The fusions the scheduler would make in this graph."""
    rules = {r.name: r.priority for r in rule_set.rules()}
    matches, _ = find.find(graph, failed=lambda e: _fault(e.what))
    if left_out := _left_out.get():
        matches = [m for m in matches if fusion(m) not in left_out]
    chosen, _ = discovery.module("scheduler", "priority").schedule(
        graph, [(m, price(graph, m, rates), rules[m.rule]) for m in matches]
    )
    return [m for m, _ in chosen]


def _ops(graph: Graph, chosen: Sequence[Any], trust: bool) -> list[Op]:
    taken = {id(n) for m in chosen for n in m.nodes}
    plain = [_plain(n, graph, trust) for n in graph.nodes if id(n) not in taken]
    return partitioning.topological([*(of_match(m) for m in chosen), *plain], graph)


def _plain(node: Node, graph: Graph, trust: bool) -> Op:
    """The op of a node alone; where that cannot be told, one that nothing lowers."""
    try:
        return of_node(node, graph, trust)
    except (TraceaError, MemoryError):
        raise
    except Exception as e:
        _fault(f"node '{node.name}' ({node.op}) was not read ({type(e).__name__}: {e})")
        return of_plain(node)


class _Probe(Mapping[str, Value]):
    """What lowering every op once, into a Plan that is thrown away, finds: the dims of every value.
    It is done where something asks for more than inputs of the graph.
    """

    def __init__(self, graph: Graph, ops: Sequence[Op], writer: Writer) -> None:
        self._ops = ops
        self._ctx = Lowering(graph, writer.plan("probe", True), writer.target)
        for name in graph.inputs:
            _foreign(self._ctx, name)
        self._given = dict(self._ctx.values)

    def __getitem__(self, name: str) -> Value:
        return self._given[name] if name in self._given else self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    @property
    def reasons(self) -> dict[int, str]:
        """Ops that cannot be lowered, and why."""
        return self._found[0]

    @property
    def _values(self) -> dict[str, Value]:
        return self._found[1]

    @cached_property
    def _found(self) -> tuple[dict[int, str], dict[str, Value]]:
        ctx = self._ctx
        found: dict[int, str] = {}
        for k, op in enumerate(self._ops):
            try:
                for name in op.inputs:
                    if (
                        name
                        and name not in ctx.values
                        and not ctx.graph.is_const(name)
                        and not _foreign(ctx, name)
                    ):
                        raise Unsupported(f"the type or rank of '{name}' is not known")
                _lower(ctx, op)
                if op.fused and op.nodes[0].proto.domain == DOMAIN:
                    _agrees(ctx.graph, op, ctx)
                for name in filter(ctx.values.__contains__, op.outputs):
                    if ctx.values[name].counted is not None:
                        del ctx.values[name]  # other partitions read it, with the size that it has
                        _foreign(ctx, name)
            except Unsupported as e:
                found[k] = str(e)
                for o in [o for n in op.nodes for o in n.outputs if o]:
                    ctx.values.pop(o, None)
                    _foreign(ctx, o)
        return found, ctx.values


def _agrees(graph: Graph, op: Op, ctx: Lowering) -> None:
    """Raise Unsupported where a fused op's description gives another type or shape than its body
    does, as far as that is known.
    """
    for name in op.outputs:
        made, shape, dtype = ctx.values.get(name), graph.shape(name), graph.dtype(name)
        if not name or made is None:
            continue
        sizes = zip(shape or (), made.shape, strict=False)
        differ = shape is not None and (
            len(shape) != made.rank
            or any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in sizes)
        )
        found = ctx.given_type(made)
        if differ or (dtype and dtype != int(found)):
            what = f"{found.name} [{', '.join(map(str, made.shape))}]"
            raise Unsupported(
                f"the description of the fused op is wrong: with it '{name}' is {what}, with its "
                "body another type or shape"
            )


def _lower(ctx: Lowering, op: Op) -> None:
    """Lower one op.

    Raises Unsupported, too, where the lowering itself is at fault: that costs the op, not the
    graph.
    """
    try:
        lower(ctx, op)
    except (Unsupported, TraceaError, MemoryError):
        raise
    except Exception as e:
        raise Unsupported(
            _fault(
                f"the lowering of {op.kind} '{op.nodes[0].name}' failed ({type(e).__name__}: {e})"
            )
        ) from None


class Fault(RuntimeWarning):
    """A defect of this package that cost nodes of a session: ONNX Runtime runs them."""


def _fault(what: str) -> str:
    """A line for the report, and the same as a warning for who runs the session."""
    warnings.warn(f"{what}; ONNX Runtime runs its nodes; report this", Fault, stacklevel=3)
    return f"internal error: {what}"


_RESHAPES = operators(Trait.RESHAPE) | {"Dropout"}


def _foreign(ctx: Lowering, name: str) -> bool:
    """Define a value the partition reads from outside, by the types ORT inferred, and by the rank
    that what reads it takes; False when its rank is unknown.
    """
    shape = ctx.graph.shape(name)
    if shape is None and (rank := ctx.graph.derived(known_ranks).get(name)) is not None:
        shape = (None,) * rank
    try:
        dtype = ctx.held(element_type(name, ctx.graph.dtype(name)))
    except Unsupported:
        return False
    if shape is None or any(isinstance(d, int) and d < 0 for d in shape):
        return False
    given = ctx.graph.symbols()
    dims = tuple(
        d if isinstance(d, int) else D.named(d, given) if d else D.symbol(f"{name}.{axis}")
        for axis, d in enumerate(shape)
    )
    ref = ctx.add_input(name, dtype, len(dims))
    for axis, d in enumerate(dims):
        if isinstance(d, Dim) and d.op == "sym":
            ctx.plan.define_symbol(d.name, len(ctx.plan.inputs) - 1, axis)
    # of a dim that is a sum of others
    for symbol in dict.fromkeys(s for d in dims for s in D.symbols(d)):
        if not ctx.plan.knows(symbol):
            _foreign(ctx, next(i for i in ctx.graph.inputs if symbol in (ctx.graph.shape(i) or ())))
    ctx.lies_at(ctx.define(name, dtype, dims), ref)
    return True


class _Failed(Exception):
    def __init__(self, op: Op, reason: Unsupported) -> None:
        self.op, self.reason = op, reason


def _lower_group(
    graph: Graph,
    ops: Sequence[Op],
    known: Mapping[str, Value],
    writer: Writer,
    one: Callable[[Lowering, Op], None],
) -> PlanBuilder | None:
    """One partition as a Plan; None when nothing would run. one: lowers an op."""
    made = [o for op in ops for n in op.nodes for o in n.outputs if o]
    inside = set(made)
    mine = {id(n) for op in ops for n in op.nodes}
    visible = {o for op in ops for o in op.outputs if o}
    outputs = [
        o
        for o in made
        if o in visible
        and (graph.is_output(o) or any(id(c) not in mine for c in graph.consumers(o)))
    ]
    read = list(
        dict.fromkeys(
            i for op in ops for i in op.inputs if i and i not in inside and not graph.is_const(i)
        )
    )
    plan = writer.plan("partition", False)
    ctx = Lowering(graph, plan, writer.target)
    ctx.concat_channels = {}
    _define_inputs(ctx, [known[i] for i in read])
    ctx.add_outputs(outputs)
    work = [(op, op) for op in ops]
    if writer.target.folds_norms:
        work = gemm_norm.with_residuals(graph, ops, outputs)
    _plan_storage(ctx, graph, [op for op, _ in work], known, outputs)
    if ctx.merges:  # products beside one another read the weights of all
        work.sort(key=lambda w: not quantised.of_constants(graph, w[0]))
    for op, given in work:
        try:
            one(ctx, op)
        except Unsupported as e:
            raise _Failed(given, e) from None
    try:
        ctx.finish()
    except Unsupported as e:
        raise _Failed(ops[-1], e) from None
    if plan.launches == 0:
        return None
    return plan


def _define_inputs(ctx: Lowering, values: Sequence[Value]) -> None:
    """Partition inputs with the dims the probe found. A dim whose symbols all stand alone somewhere
    is checked against its expression; any other becomes a symbol of its own. Symbolic shape vectors
    need no input at all.
    """
    alone = {
        d.name
        for v in values
        if v.ints is None
        for d in v.shape
        if isinstance(d, Dim) and d.op == "sym"
    }

    def local(d: DimLike) -> DimLike:
        return d if not isinstance(d, Dim) or alone.issuperset(D.symbols(d)) else D.symbol(repr(d))

    tensors = [
        v
        for v in values
        if v.ints is None
        or v.data is not None
        or not all(alone.issuperset(D.symbols(d)) for d in (*v.ints, *v.shape))
    ]
    shapes: dict[str, Dims] = {v.name: tuple(local(d) for d in v.shape) for v in values}
    places: dict[str, Ref] = {}
    checks: list[tuple[int, int, DimLike]] = []
    for v in tensors:
        dims = shapes[v.name]
        places[v.name] = ctx.add_input(v.name, v.dtype, v.rank)
        index = len(ctx.plan.inputs) - 1
        for axis, d in enumerate(dims):
            if isinstance(d, Dim) and d.op == "sym":
                ctx.plan.define_symbol(d.name, index, axis)
            else:
                checks.append((index, axis, d))
    for v in values:  # now that all symbols are known
        out = ctx.define(v.name, v.dtype, shapes[v.name])
        if v.name in places:
            ctx.lies_at(out, places[v.name])
        out.ints = None if out.view is not None else v.ints
    for index, axis, d in checks:
        ctx.plan.check(index, axis, d)


def _plan_storage(
    ctx: Lowering,
    graph: Graph,
    ops: Sequence[Op],
    known: Mapping[str, Value],
    outputs: Sequence[str],
) -> None:
    """Look ahead: borders that convolutions will read, outputs that are mere reshapes, and
    concatenations written in place.
    """
    for op in ops:
        if op.kind in CONVOLUTIONS:
            need = needed_border(op, graph)
            if need is not None and ctx.target.border:
                concat_in_place.widen(ctx, *need)
    if ctx.target.border:
        ctx.block_concats = {
            op.outputs[0]
            for op in ops
            if op.kind == "Concat"
            and op.outputs[0] not in outputs
            and _one_block_reader(op, ops, graph)
        }
    for op in ops:
        placed = ctx.is_given_storage(op.outputs[0])
        if op.kind in _RESHAPES and placed and op.input(0) not in outputs:
            ctx.alias[op.input(0)] = op.outputs[0]
    concat_in_place.place(ctx, ops, known, outputs)
    ctx.sole = quantised.sole_readers(ops, {*outputs, *ctx.alias})
    ctx.quantisers = quantised.quantisers(ops)
    read = {name for op in ops if op.kind not in ("Shape", "Size") for name in op.inputs}
    last = {o for op in ops for o in op.outputs if o and o not in read}
    ctx.unread, ctx.last = last.difference(outputs), last.intersection(outputs)
    if ctx.target.held:
        ctx.rounded_later = bf16_gemm.rounded_later(ctx, ops, outputs)
    if ctx.target.bf16:
        ctx.halved = bf16_gemm.stored(ctx, ops, {*outputs, *ctx.alias, *ctx.slots})
    if ctx.target.launch_bound:
        ctx.merges = sibling_gemms.find(ctx, graph, ops, known, outputs)
        ctx.gates = gemm_nbits_norm.gates(ctx, graph, ops, outputs)
        ctx.pooled = conv_pool.find(ops, outputs)
        ctx.deferrable = summed_rows.find(ops, outputs)
    if ctx.target.stages:
        ctx.staged = pointwise_stages.find(ops, {*outputs, *ctx.alias}, ctx.deferrable)
    if ctx.target.folds_norms:
        ctx.needs_row_stats = gemm_norm.find_candidates(ctx, ops, outputs)
        ctx.prenormed = gemm_nbits_norm.prenormed(ctx, graph, ops, outputs)


def _one_block_reader(concat: Op, ops: Sequence[Op], graph: Graph) -> bool:
    readers = [op for op in ops if concat.outputs[0] in op.inputs]
    return (
        len(readers) == 1
        and readers[0].kind in CONVOLUTIONS
        and reads_blocks(readers[0], concat.outputs[0], graph)
    )
