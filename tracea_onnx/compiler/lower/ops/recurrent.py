"""LSTM, GRU and RNN: a kernel runs the steps. It also projects the inputs where the backend has one
that does; else a GEMM projects those of all steps.
"""

from __future__ import annotations

from tracea_onnx.compiler.lower.context import Lowering
from tracea_onnx.compiler.lower.op import Op
from tracea_onnx.compiler.lower.ops.gemm import matmul
from tracea_onnx.compiler.lower.value import Dims, Unsupported, Value, View, contiguous
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import ACTIVATIONS, DType
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.plan.builder import Ref
from tracea_onnx.plan.kernel_families import PROJECTED_STEPS, packed_elements
from tracea_onnx.shapes.operators import result
from tracea_onnx.support.data_classes import dataclass


@dataclass(frozen=True)
class _Activation:
    """One that ONNX names: its number among the kernels' and its parameters where none are
    given.
    """

    name: str
    defaults: tuple[float, ...] = ()


_ACTIVATIONS = {
    "relu": _Activation("relu"), "tanh": _Activation("tanh"), "sigmoid": _Activation("sigmoid"),
    "softplus": _Activation("softplus"), "elu": _Activation("elu", (1.0,)),
    "leakyrelu": _Activation("leaky_relu", (0.01,)),
    "hardsigmoid": _Activation("hard_sigmoid", (0.2, 0.5)),
}  # fmt: skip


@dataclass(frozen=True)
class _Cell:
    """Gates of an operator, in the order of its weights, and the activations of a direction."""

    gates: int
    activations: tuple[str, ...]


_CELLS = {
    "LSTM": _Cell(4, ("Sigmoid", "Tanh", "Tanh")),
    "GRU": _Cell(3, ("Sigmoid", "Tanh")),
    "RNN": _Cell(1, ("Tanh",)),
}
_DIRECTIONS = {"forward": (1, 0), "reverse": (1, 1), "bidirectional": (2, 0)}
#: Activation and its two parameters.
_Chosen = tuple[int, float, float]


def _activations(op: Op, cell: _Cell, directions: int) -> list[_Chosen]:
    """Those of one direction: an activation that has parameters takes the next ones of
    `activation_alpha` and `activation_beta`. RNN's are two by default, in one direction, too.
    """
    count = len(cell.activations) * directions
    given = (op.attr("activations") or cell.activations * directions)[:count]
    parameters = [iter(op.attr(f"activation_{k}") or ()) for k in ("alpha", "beta")]
    chosen: list[_Chosen] = []
    for name in given:
        known = _ACTIVATIONS.get(name.lower())
        if known is None:
            raise Unsupported(f"no kernel has the activation {name} of {op.kind} '{op.label}'")
        values = [
            float(next(rest, default))
            for rest, default in zip(parameters, known.defaults, strict=False)
        ]
        p0, p1 = (*values, 0.0, 0.0)[:2]
        chosen.append((ACTIVATIONS.index(known.name), p0, p1))
    each = len(cell.activations)
    if len(chosen) != count or chosen[:each] * directions != chosen:
        raise Unsupported(
            f"the activations of {op.kind} '{op.label}' are not {each}, the same for each direction"
        )
    return chosen[:each]


def _flag(op: Op, name: str) -> int:
    return int(bool(op.attr(name, 0)))


@dataclass(frozen=True)
class _Layer:
    """An operator whose operands fit one another. rows: of W and R of one direction."""

    op: Op
    cell: _Cell
    x: Value
    w: Value
    r: Value
    steps: DimLike
    batch: DimLike
    directions: int
    reverse: int
    inputs: DimLike
    hidden: int

    @property
    def rows(self) -> int:
        return self.cell.gates * self.hidden

    @property
    def batch_first(self) -> int:
        return _flag(self.op, "layout")

    @property
    def before(self) -> int:
        return _flag(self.op, "linear_before_reset")

    def strides(self, width: DimLike) -> tuple[DimLike, DimLike]:
        """Elements from step to step, and from row to row of the batch, of rows of `width`."""
        if self.batch_first:
            return width, D.mul(self.steps, width)
        return D.mul(self.batch, width), width


def recurrent(ctx: Lowering, op: Op) -> None:
    """LSTM, GRU, RNN in any direction and layout, with or without lengths of sequences."""
    whole = "recurrent_layer" in ctx.target.families
    ctx.available("recurrent_layer" if whole else "recurrent", op.kind)
    layer = _read(ctx, op)
    chosen = _activations(op, layer.cell, layer.directions)
    operands = _given(ctx, layer) if whole else _projected(ctx, layer)
    for role, k in (("lens", 4), ("h", 5), ("c", 6), ("peephole", 7)):
        if op.input(k):
            operands[role] = ctx.plain(ctx.value(op.input(k)))
    floats = {"clip": float(op.attr("clip", 0.0))}
    ints = _places(layer, layer.inputs if whole else layer.directions * layer.rows)
    for letter, (act, p0, p1) in zip("fgh", chosen, strict=False):
        ints[f"act_{letter}"] = act
        floats |= {f"{letter}0": p0, f"{letter}1": p1}
    if whole:
        ints["I"] = layer.inputs
    else:
        ints["bias_d"] = 2 * layer.rows
    made = {"state": _state(ctx, layer, whole)}
    for k, role in enumerate(("y", "y_h", "y_c")):
        if k < len(op.outputs) and op.outputs[k]:
            out = ctx.define(op.outputs[k], layer.x.dtype, result(ctx, op, k))
            made[role] = ctx.new_plain(out)
    family = "recurrent_layer" if whole else "recurrent"
    ctx.plan.launch(family, operands, made, ints, floats, whole=False, dtype=layer.x.dtype)


def _read(ctx: Lowering, op: Op) -> _Layer:
    """Raises Unsupported where operands do not fit one another."""
    cell, named = _CELLS[op.kind], f"{op.kind} '{op.label}'"
    direction = op.attr("direction", "forward")
    if direction not in _DIRECTIONS:
        raise Unsupported(f"{named} has the direction '{direction}'")
    directions, reverse = _DIRECTIONS[direction]
    x, w, r = (ctx.value(n) for n in op.inputs[:3])
    for v, name in ((x, "the input"), (w, "W"), (r, "R")):
        ctx.require(v, f"{name} of {named}")
        if v.rank != 3 or v.dtype != x.dtype:
            raise Unsupported(f"{name} of {named} has rank {v.rank} and type {v.dtype.name}")
    batch_first = _flag(op, "layout")
    steps, batch = (x.shape[1], x.shape[0]) if batch_first else (x.shape[0], x.shape[1])
    hidden = r.shape[2]
    if not isinstance(hidden, int) or hidden < 1 or op.attr("hidden_size", hidden) != hidden:
        raise Unsupported(f"R of {named} is for {hidden} units; its hidden_size must be that")
    layer = _Layer(op, cell, x, w, r, steps, batch, directions, reverse, w.shape[2], hidden)
    rows = layer.rows
    state: Dims = (batch, directions, hidden) if batch_first else (directions, batch, hidden)
    asked: list[tuple[int, str, Dims]] = [
        (1, "W", (directions, rows, x.shape[2])), (2, "R", (directions, rows, hidden)),
        (3, "B", (directions, 2 * rows)), (4, "sequence_lens", (batch,)),
        (5, "initial_h", state), (6, "initial_c", state), (7, "P", (directions, 3 * hidden)),
    ]  # fmt: skip
    for k, what, dims in asked:
        if op.input(k):
            _has(ctx, ctx.value(op.input(k)), dims, x.dtype if k != 4 else DType.I32, what, named)
    return layer


def _has(ctx: Lowering, v: Value, dims: Dims, dtype: DType, what: str, named: str) -> None:
    if v.rank != len(dims) or v.dtype != dtype:
        raise Unsupported(f"{what} of {named} has rank {v.rank} and type {v.dtype.name}")
    for axis, (a, b) in enumerate(zip(v.shape, dims, strict=True)):
        ctx.same(a, b, f"axis {axis} of {what} of {named} and what its other operands ask of it")


def _given(ctx: Lowering, layer: _Layer) -> dict[str, Ref | None]:
    """Operands of a kernel that also projects the inputs."""
    if not isinstance(layer.inputs, int) or layer.inputs < 1:
        raise Unsupported(f"W of {layer.op.kind} '{layer.op.label}' is for {layer.inputs} inputs")
    bias = ctx.optional(layer.op.input(3))
    return {
        "x": ctx.plain(layer.x), "w": _packed(ctx, layer, layer.w, layer.inputs),
        "r": _packed(ctx, layer, layer.r, layer.hidden),
        "bias": None if bias is None else ctx.plain(bias),
    }  # fmt: skip


def _projected(ctx: Lowering, layer: _Layer) -> dict[str, Ref | None]:
    """Operands of a kernel that takes the inputs of all steps as a GEMM has projected them."""
    bias = ctx.optional(layer.op.input(3))
    x = ctx.plain(_projection(ctx, layer))
    size = layer.x.dtype.size
    return {
        "x": x, "r": _packed(ctx, layer, layer.r, layer.hidden),
        "bias": None if bias is None else ctx.plain(bias).at(layer.rows * size),
    }  # fmt: skip


def _packed(ctx: Lowering, layer: _Layer, weights: Value, terms: int) -> Ref:
    gates = layer.cell.gates
    first = 2 if layer.op.kind == "GRU" and not layer.before else gates
    packing = {
        "D": layer.directions, "H": layer.hidden, "K": terms, "G": gates, "first": first,
    }  # fmt: skip
    packed = ctx.plan.arena(weights.dtype.size * packed_elements("pack_recurrent", **packing))
    ctx.plan.launch("pack_recurrent", {"r": ctx.plain(weights)}, {"packed": packed}, packing,
                    dtype=weights.dtype)  # fmt: skip
    return packed


def _state(ctx: Lowering, layer: _Layer, whole: bool) -> Ref | None:
    """Room for what a kernel keeps."""
    gates = layer.cell.gates if whole else 0
    rows = D.mul(layer.batch, 4 + PROJECTED_STEPS * gates) + gates
    floats = D.mul(D.mul(rows, -(-layer.hidden // 32) * 32), layer.directions)
    return ctx.plan.arena(D.mul(floats, 4))


def _places(layer: _Layer, width: DimLike) -> dict[str, DimLike]:
    """Integers of the launch: sizes, and where rows lie; those of x have `width` elements."""
    op, hidden, directions = layer.op, layer.hidden, layer.directions
    (x_t, x_b), each = layer.strides(width), directions * hidden
    y_t, y_b = layer.strides(each)
    places: dict[str, DimLike] = (
        {"y_t": y_t, "y_b": y_b, "y_d": hidden, "h_b": each, "h_d": hidden}
        if layer.batch_first
        else {"y_t": y_t, "y_b": hidden, "y_d": D.mul(layer.batch, hidden), "h_b": hidden,
              "h_d": D.mul(layer.batch, hidden)}
    )  # fmt: skip
    return {
        "T": layer.steps, "B": layer.batch, "D": directions, "H": hidden, "G": layer.cell.gates,
        "before": layer.before, "coupled": _flag(op, "input_forget"), "reverse": layer.reverse,
        "x_t": x_t, "x_b": x_b, **places,
    }  # fmt: skip


def _projection(ctx: Lowering, layer: _Layer) -> Value:
    """The inputs of all steps times W [directions * gates * units, inputs], plus its bias."""
    op, w, columns = layer.op, layer.w, layer.directions * layer.rows
    name = op.outputs[0] or next(o for o in op.outputs if o)
    flat = ctx.define(f"{name}\0w", w.dtype, (columns, w.shape[2]))
    flat.view, flat.prepared = View(ctx.plain(w), contiguous(flat.shape)), w.is_constant
    bias = ctx.optional(op.input(3))
    if bias is not None:
        halves = ctx.define(f"{name}\0halves", bias.dtype, w.shape[:2])
        halves.view = View(ctx.plain(bias), (bias.shape[1], 1))
        row = ctx.define(f"{name}\0b", bias.dtype, (columns,))
        row.view, row.prepared = View(ctx.plain(halves), (1,)), bias.is_constant
        bias = row
    return matmul(ctx, layer.x, flat, bias, True, f"{name}\0projection")


OPS = dict.fromkeys(_CELLS, recurrent)
