"""`--precision fp16|bf16`: an fp32 model computes in the narrower type where that is safe.

    x ─ Conv ─ Relu ─ MatMul ─ y   becomes   x ─ Cast ─ Conv ─ Relu ─ MatMul ─ Cast ─ y

with narrow weights; inputs and outputs stay as they were.

Convolutions, GEMMs and attention are narrow, and what follows them stays so while the operator is
harmless. Everything else stays fp32 between casts: reductions, powers, exponentials, quantisation,
control flow, whatever a constant beyond the narrow type's range takes part in, and what the
operator set does not define for the type. Norms and softmax take narrow
values and accumulate in fp32: as operators by their definition, as fused ops because their bodies
are fp32 between casts. (ONNX Runtime's own converter knows neither functions nor bf16 nor weights
outside the file, and lets go of values beyond the range.)

ONNX Runtime's CPU provider computes next to nothing in bf16. So that the file runs there, too,
every fused op is fp32 between casts inside its body, lone GEMMs and norms become fused ops for
that, and of plain operators only movement is bf16.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, helper

from tracea_onnx.canonicalize import canonical_form
from tracea_onnx.ir import edit, fused_op_names
from tracea_onnx.ir.contracts import DOMAIN
from tracea_onnx.ir.graph import Graph, Node, constant_node_value
from tracea_onnx.ir.narrow_floats import BF16, FP16, FloatFormat, Weights
from tracea_onnx.ir.op_traits import Trait, kinds, operators
from tracea_onnx.match.spec_table import MASKS
from tracea_onnx.rewrite import fused_calls, single_nodes
from tracea_onnx.shapes.onnx_inference import Types

_ALLOW, _INFER, _DENY = kinds(Trait.SEED), kinds(Trait.NARROW), kinds(Trait.STEEP)
_NARROW_BODIES, _BF16_PLAIN = kinds(Trait.NARROW_BODY), kinds(Trait.ORT_BF16)
_CLEAR = operators(Trait.SHAPE_ONLY)
_MASKS = frozenset(MASKS)
#: The first operator set whose Cast and Max are as they are written here, and which has the type.
_OLDEST = {FP16: 8, BF16: 13}
#: Of BatchNormalization, which stay fp32: variances may leave the narrow range, and a shift has
#: more digits than what it is added to.
_STATISTICS = frozenset({"bn_scale", "bn_bias", "bn_mean", "bn_var"})


class Placement(Enum):
    """How one node is computed."""

    NARROW = 0
    WIDE = 1
    INDIFFERENT = 2


class Copy(NamedTuple):
    """A narrow copy of a node: the node, one of its results, and that of the copy."""

    node: str
    wide: str
    narrow: str


@dataclass
class Narrowed:
    """What became narrow, by node name; what could have but stays fp32, with the reason; constants
    that were clamped to the range. copies: where nodes became narrow beside themselves.
    """

    kind: FloatFormat
    nodes: list[str] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)
    clamped: list[str] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)

    def to_json(self) -> dict[str, object]:
        """JSON of the report."""
        return {
            "type": self.kind.name,
            "nodes": self.nodes,
            "kept": self.kept,
            "clamped": self.clamped,
        }


def narrow(
    model: ModelProto,
    kind: FloatFormat,
    typed: Types,
    *,
    folder: Path | None = None,
    wide: Collection[str] = (),
    beside: bool = False,
) -> Narrowed:
    """Bring a canonical model that holds inferred types to `kind`, in place; nodes named in `wide`
    stay fp32. `typed` is kept true.

    beside: the model stays fp32, and gets a narrow copy of each node that would become narrow,
    which nothing reads. A model in which nothing worth a cast is fp32 stays as it is.
    """
    done = Narrowed(kind)
    if kind is BF16:
        single_nodes.outline(model, folder)
    bodies = _Bodies(model, kind, done)
    taken = edit.all_names(model)
    for view in canonical_form.views(model, folder):
        proto = view.proto
        forms = _forms(view, kind, wide, done, {})
        if Placement.NARROW not in forms.values():
            continue
        named = {name for n in proto.node for name in edit.captured_names(n)} | {
            o.name for o in proto.output
        }
        writer = _Writer(view, kind, Weights(view, kind, done.clamped), bodies, named, taken)
        writer.copies = done.copies if beside else None
        writer.run(forms)
        edit.replace_nodes(proto, writer.nodes)
        proto.initializer.extend(writer.weights.made)
        for v in [v for name in writer.retyped for v in typed.get(name, ())]:
            v.type.tensor_type.elem_type = kind.type
        if not beside:
            edit.drop_dead(proto, edit.protected_names(model, proto))
        edit.drop_value_info(proto)
        done.nodes += [n.name for n in view.nodes if forms[n.index] is Placement.NARROW]
    # A body that names no type is its own twin.
    known = {f.name for f in model.functions if f.domain == DOMAIN}
    model.functions.extend(f for f in bodies.made.values() if f.name not in known)
    fused_calls.drop_uncalled(model)
    return done


# --- what is narrow -------------------------------------------------------------------------------
def _kind_of(n: Node) -> str:
    spec = fused_calls.read_spec(n.proto)
    return n.op if spec is None else f":{spec.op}"


def _forms(
    g: Graph, kind: FloatFormat, wide: Collection[str], done: Narrowed, given: Mapping[str, bool]
) -> dict[int, Placement]:
    """The form of each node. `given` says which of the graph's inputs are narrow."""
    narrow_values = {name for name, is_narrow in given.items() if is_narrow}
    forms: dict[int, Placement] = {}
    for n in g.nodes:
        op, floats = _kind_of(n), [i for i in n.inputs if i and g.dtype(i) == TensorProto.FLOAT]
        forms[n.index] = Placement.INDIFFERENT if op in _CLEAR else Placement.WIDE
        table = op == "Gather" and g.is_const(n.input(0)) and (g.rank(n.input(0)) or 0) >= 2
        seed = op in _ALLOW or table
        if not floats or not (seed or op in _INFER):
            narrow_values |= {o for o in n.outputs if g.dtype(o) == kind.type}
            continue
        if not seed and not any(i in narrow_values for i in floats):
            continue
        reason = _unfit(g, n, op, kind, seed) or (
            "the result would leave its bounds" if n.name in wide else ""
        )
        if reason:
            if seed:
                done.kept[n.name] = reason
            continue
        forms[n.index] = Placement.NARROW
        narrow_values |= set(n.outputs)
    return forms


def _unfit(g: Graph, n: Node, op: str, kind: FloatFormat, seed: bool) -> str:
    """Why a node cannot be narrow, or ""."""
    if any(m is not None and m.op == "DequantizeLinear" for m in map(g.producer, n.inputs)):
        return "it is a quantised operator, which runs faster as it is"
    if any(
        g.dtype(o) not in (TensorProto.FLOAT, TensorProto.BOOL, TensorProto.INT64)
        for o in n.outputs
        if o
    ):
        return "the type of its result is not known"
    if g.opset() < _OLDEST[kind]:
        return (
            f"operator set {g.opset()} is too old for {kind.name}: re-export with opset "
            f"{_OLDEST[kind]} or later"
        )
    if kind is BF16 and not op.startswith(":") and op not in _BF16_PLAIN:
        return f"ONNX Runtime's CPU provider has no {n.op} for {kind.name}"
    if op == "BatchNormalization" and (g.opset() < 15 or n.attr("training_mode", 0)):
        return f"operator set {g.opset()} wants its statistics in {kind.name}, too"
    if not op.startswith(":") and not all(
        _allowed(g, n, k, kind, output)
        for output in (False, True)
        for k in range(_arity(n, output))
    ):
        return f"operator set {g.opset()} does not define {n.op} for {kind.name}"
    wide = _wide_operands(n)
    beyond = next(
        (
            i
            for k, i in enumerate(n.inputs)
            if i and not seed and k not in wide and _beyond(g, i, kind)
        ),
        None,
    )
    steep = next((op for op in _ends(g, n) if op in _DENY), "")
    if steep:
        return f"the result of {steep} may leave the range of {kind.name} or lose its digits there"
    if beyond is not None or (op == ":pointwise" and _literals_beyond(g, n, kind)):
        return f"constants beyond the range of {kind.name} take part in it"
    return ""


def _wide_operands(n: Node) -> frozenset[int]:
    """Operands that stay fp32 where the node is narrow."""
    spec = fused_calls.read_spec(n.proto)
    if spec is None:
        return frozenset(range(1, 5)) if n.op == "BatchNormalization" else frozenset()
    return frozenset(
        k for k, role in enumerate(spec.roles) if role in _STATISTICS and spec.op == "batchnorm"
    )


def _ends(g: Graph, n: Node) -> list[str]:
    """The operators that form the results of a fused op."""
    body = next(
        (f for f in g.model.functions if f.domain == DOMAIN and f.name == n.proto.op_type), None
    )
    return (
        [] if body is None else [m.op_type for m in body.node if set(m.output) & set(body.output)]
    )


def _arity(n: Node, output: bool) -> int:
    return len(n.outputs) if output else len(n.inputs)


def _allowed(g: Graph, n: Node, k: int, kind: FloatFormat, output: bool) -> bool:
    """Whether operand k of an operator may be narrow, or is not fp32 at all.

    An input that must be fp32 (scales of Resize) stays so.
    """
    name = (n.outputs if output else n.inputs)[k]
    if not name or g.dtype(name) != TensorProto.FLOAT:
        return True
    return takes(g, n, k, kind, output) or (not output and k > 0)


def takes(g: Graph, n: Node, k: int, kind: FloatFormat, output: bool = False) -> bool:
    """Whether the operator set lets operand k of the node have the narrow type."""
    try:
        schema = onnx.defs.get_schema(n.proto.op_type, g.opset(), n.proto.domain)
    except Exception:  # onnx.defs.SchemaError: not an operator of ONNX
        return False
    formals = schema.outputs if output else schema.inputs
    formal = formals[min(k, len(formals) - 1)]
    types = next(
        (
            c.allowed_type_strs
            for c in schema.type_constraints
            if c.type_param_str == formal.type_str
        ),
        [formal.type_str],
    )
    return kind.text in types


def _beyond(g: Graph, name: str, kind: FloatFormat) -> bool:
    shape = g.shape(name)
    if g.dtype(name) != TensorProto.FLOAT or not g.is_const(name) or shape is None:
        return False
    value = g.const(name)
    return value is not None and kind.beyond(value)


def _literals_beyond(g: Graph, n: Node, kind: FloatFormat) -> bool:
    body = next(
        (f for f in g.model.functions if f.domain == DOMAIN and f.name == n.proto.op_type), None
    )
    constants = (m for m in body.node if m.op_type == "Constant") if body is not None else ()
    return any(
        v is not None and v.dtype == np.float32 and kind.beyond(v)
        for v in map(constant_node_value, constants)
    )


# --- rewriting ------------------------------------------------------------------------------------
class _Writer:
    """Writes the nodes of one graph anew.

    Every fp32 value may exist twice: under `wide` and under `narrow` names.
    """

    def __init__(
        self,
        g: Graph,
        kind: FloatFormat,
        weights: Weights,
        bodies: _Bodies,
        named: Collection[str],
        taken: set[str],
        *,
        inside: bool = False,
    ) -> None:
        self.g, self.kind, self.weights, self.bodies, self.inside = g, kind, weights, bodies, inside
        #: Values that must exist under their own name: fp32 in a graph, narrow at the end of a body
        #: (`inside`).
        self.named = frozenset(named)
        self.nodes: list[NodeProto] = []
        self.retyped: set[str] = set()
        #: Where narrow nodes are to be copies beside the fp32 ones.
        self.copies: list[Copy] | None = None
        self._wide: dict[str, str] = {}
        self._narrow: dict[str, str] = {}
        self._taken = taken  # one set for all graphs of a model
        self._names = {n.name for n in g.nodes}

    def give(self, name: str) -> None:
        """An input that is narrow."""
        self._narrow[name] = name

    def run(self, forms: Mapping[int, Placement]) -> None:
        for n in self.g.nodes:
            form, node = forms[n.index], NodeProto()
            node.CopyFrom(n.proto)
            call = (
                self.bodies.call(self.g, n)
                if form is Placement.NARROW and n.proto.domain == DOMAIN
                else None
            )
            if call is not None:
                node.op_type = call.name
            for k, name in enumerate(n.inputs):
                if name and self.g.dtype(name) == TensorProto.FLOAT:
                    node.input[k] = self._operand(n, k, name, form, call)
            if form is Placement.NARROW and self.copies is not None:
                self._copy(n, node, self.copies)
                continue
            self.nodes.append(node)
            for k, name in enumerate(n.outputs):
                if name and self.g.dtype(name) == TensorProto.FLOAT:
                    self._result(node, k, name, form)

    def _copy(self, n: Node, node: NodeProto, copies: list[Copy]) -> None:
        """The node as it was, and the narrow one beside it."""
        self.nodes += [n.proto, node]
        node.name = edit.unique(f"{n.name}/{self.kind.name}", self._names)
        for k, name in enumerate(n.outputs):
            if name:
                node.output[k] = edit.unique(f"{name}/{self.kind.name}", self._taken)
                if self.g.dtype(name) == TensorProto.FLOAT:
                    copies.append(Copy(n.name, name, node.output[k]))

    def _operand(self, n: Node, k: int, name: str, form: Placement, call: _Body | None) -> str:
        if form is Placement.INDIFFERENT:
            return self._wide.get(name) or self._narrow.get(name) or name
        to_narrow = form is Placement.NARROW and (
            k in call.narrow
            if call is not None
            else k not in _wide_operands(n) and takes(self.g, n, k, self.kind)
        )
        clip = call is not None and k in call.masks
        return self.narrow(name, clip=clip) if to_narrow else self.wide(name)

    def _result(self, node: NodeProto, k: int, name: str, form: Placement) -> None:
        mine, other = (
            (self._narrow, self._wide) if form is Placement.NARROW else (self._wide, self._narrow)
        )
        mine[name] = name
        if name not in self.named or (form is Placement.NARROW) == self.inside:
            if form is Placement.NARROW:
                self.retyped.add(name)
            return
        # The name belongs to the other type: a cast makes it.
        mine[name] = node.output[k] = edit.unique(
            f"{name}/{self.kind.name if form is Placement.NARROW else 'float'}", self._taken
        )
        other[name] = name
        self._cast(
            mine[name], name, TensorProto.FLOAT if form is Placement.NARROW else self.kind.type
        )

    def narrow(self, name: str, *, clip: bool = False) -> str:
        if name not in self._narrow:
            made = self.weights.narrow(name, self._taken)
            if made is None:
                made = edit.unique(f"{name}/{self.kind.name}", self._taken)
                source = (
                    self._clip(self.wide(name))
                    if clip and self.kind.largest is not None
                    else self.wide(name)
                )
                self._cast(source, made, self.kind.type)
            elif made in self.weights.literals:
                self.nodes.append(self.weights.literals[made])
            self._narrow[name] = made
        return self._narrow[name]

    def wide(self, name: str) -> str:
        if name not in self._wide:
            if name not in self._narrow or self.copies is not None:
                return name  # an input, a constant, or a value of a graph around this one
            self._wide[name] = edit.unique(f"{name}/float", self._taken)
            self._cast(self._narrow[name], self._wide[name], TensorProto.FLOAT)
        return self._wide[name]

    def _cast(self, source: str, target: str, to: int) -> None:
        name = edit.unique(f"Cast_{target}", self._names)
        self.nodes.append(helper.make_node("Cast", [source], [target], name=name, to=to))

    def _clip(self, source: str) -> str:
        """An additive mask of -3.4e38 must not become -inf: a row that masks everything would turn
        to NaN.
        """
        low, out = (
            edit.unique(f"{source}/lowest", self._taken),
            edit.unique(f"{source}/clipped", self._taken),
        )
        self.weights.add_scalar(low, -float(self.kind.largest or 0.0))
        self.nodes.append(
            helper.make_node(
                "Max", [source, low], [out], name=edit.unique(f"Max_{out}", self._names)
            )
        )
        return out


@dataclass(frozen=True)
class _Body:
    """A narrow twin of a fused op's function: its name, and which operands are narrow (and which of
    those are additive masks).
    """

    name: str
    narrow: frozenset[int]
    masks: frozenset[int]


class _Bodies:
    """Narrow twins of the functions of fused ops, made when a call needs them."""

    def __init__(self, model: ModelProto, kind: FloatFormat, done: Narrowed) -> None:
        self._functions = {f.name: f for f in model.functions if f.domain == DOMAIN}
        self._model, self._kind, self._done = model, kind, done
        self._known: dict[tuple[str, tuple[object, ...]], _Body] = {}
        self.made: dict[str, FunctionProto] = {}

    def call(self, g: Graph, n: Node) -> _Body:
        """The twin for a call with these operands; their ranks decide no more than their types
        do.
        """
        types = tuple((g.dtype(i), g.rank(i)) if i else None for i in n.inputs)
        found = self._known.get((n.proto.op_type, types))
        if found is None:
            found = self._known[n.proto.op_type, types] = self._make(g, n)
        return found

    def _make(self, g: Graph, n: Node) -> _Body:
        f, kind, op, spec = (
            self._functions[n.proto.op_type],
            self._kind,
            _kind_of(n),
            fused_calls.read_spec(n.proto),
        )
        inside = self._view(g, n, f)
        floats = {
            formal
            for formal, actual in zip(f.input, n.inputs, strict=False)
            if actual and g.dtype(actual) == TensorProto.FLOAT
        }
        given = dict.fromkeys(floats, True)
        if op in _NARROW_BODIES and kind is not BF16:
            forms = _forms(inside, kind, (), Narrowed(kind), given)
            # What only fp32 nodes read (the statistics of a BatchNormalization) comes as fp32.
            given = {
                v: any(forms[c.index] is Placement.NARROW for c in inside.consumers(v))
                for v in floats
            }
        else:
            forms = {
                m.index: Placement.INDIFFERENT if m.op in _CLEAR else Placement.WIDE
                for m in inside.nodes
            }
            given |= {formal: False for k, formal in enumerate(f.input) if k in _wide_operands(n)}
        writer = _Writer(
            inside,
            kind,
            Weights(inside, kind, self._done.clamped),
            self,
            f.output,
            edit.all_names(inside.model),
            inside=True,
        )
        for v, is_narrow in given.items():
            if is_narrow:
                writer.give(v)
        writer.run(forms)
        twin = FunctionProto()
        twin.CopyFrom(f)
        del twin.node[:]
        twin.node.extend(writer.weights.scalars())
        twin.node.extend(writer.nodes)
        for m in twin.node:
            m.ClearField("name")
        _square(twin)
        _drop_unread(twin)
        twin.name = fused_op_names.name(
            fused_op_names.op_of(f.name), twin, fused_op_names.spec_text(n.proto) or ""
        )
        self.made[twin.name] = twin
        at = [k for k, formal in enumerate(f.input) if given.get(formal)]
        masks = [
            k for k in at if spec is not None and k < len(spec.roles) and spec.roles[k] in _MASKS
        ]
        return _Body(twin.name, frozenset(at), frozenset(masks))

    def _view(self, g: Graph, n: Node, f: FunctionProto) -> Graph:
        """The body as a graph of its own, with the types its operands have in this call."""
        inputs = [
            helper.make_tensor_value_info(formal, g.dtype(i) or 0, g.shape(i))
            for formal, i in zip(f.input, n.inputs, strict=False)
            if i
        ]
        outputs = [
            helper.make_tensor_value_info(formal, g.dtype(o) or TensorProto.FLOAT, None)
            for formal, o in zip(f.output, n.outputs, strict=False)
        ]
        graph = helper.make_graph(list(f.node), "body", inputs, outputs)
        model = helper.make_model(graph, opset_imports=[*f.opset_import], ir_version=10)
        with contextlib.suppress(Exception):  # what is not known stays fp32
            model = onnx.shape_inference.infer_shapes(model)
        return Graph(model)


def _square(f: FunctionProto) -> None:
    """Pow(x, 2) becomes Mul(x, x). From opset 17 on ONNX Runtime's own fusion of a layer norm takes
    away the Cast before one spelled with Pow, and then refuses its fp16 input beside fp32
    weights.
    """
    literals = {
        n.output[0]: constant_node_value(n) for n in f.node if n.op_type == "Constant" and n.output
    }
    for n in f.node:
        square = n.op_type == "Pow" and not n.domain and len(n.input) == 2
        exponent = literals.get(n.input[1]) if square else None
        if exponent is not None and np.all(exponent == 2):
            n.op_type = "Mul"
            n.input[1] = n.input[0]


def _drop_unread(f: FunctionProto) -> None:
    """Literals whose narrow twin is read instead go."""
    graph = GraphProto()
    graph.node.extend(f.node)
    graph.output.extend(helper.make_empty_tensor_value_info(o) for o in f.output)
    edit.drop_dead(graph, ())
    del f.node[:]
    f.node.extend(graph.node)
