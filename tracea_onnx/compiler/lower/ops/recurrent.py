"""LSTM, GRU and RNN: a product projects the inputs of all steps, and a kernel runs the steps."""

from __future__ import annotations

from tracea_onnx.compiler.lower.context import Lowering
from tracea_onnx.compiler.lower.op import Op
from tracea_onnx.compiler.lower.ops.gemm import product
from tracea_onnx.compiler.lower.value import Dims, Unsupported, Value, View, contiguous
from tracea_onnx.ir import dims as D
from tracea_onnx.ir.abi import ACTIVATIONS, DType
from tracea_onnx.ir.dims import DimLike
from tracea_onnx.plan.builder import Ref
from tracea_onnx.plan.kernel_families import MEETING, packed_elements
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


def recurrent(ctx: Lowering, op: Op) -> None:
    """LSTM, GRU, RNN in any direction and layout, with or without lengths of sequences."""
    ctx.available("recurrent", op.kind)
    cell, named = _CELLS[op.kind], f"{op.kind} '{op.label}'"
    direction = op.attr("direction", "forward")
    if direction not in _DIRECTIONS:
        raise Unsupported(f"{named} has the direction '{direction}'")
    directions, reverse = _DIRECTIONS[direction]
    chosen = _activations(op, cell, directions)
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
    rows = cell.gates * hidden
    state: Dims = (batch, directions, hidden) if batch_first else (directions, batch, hidden)
    asked: list[tuple[int, str, Dims]] = [
        (1, "W", (directions, rows, x.shape[2])), (2, "R", (directions, rows, hidden)),
        (3, "B", (directions, 2 * rows)), (4, "sequence_lens", (batch,)),
        (5, "initial_h", state), (6, "initial_c", state), (7, "P", (directions, 3 * hidden)),
    ]  # fmt: skip
    for k, what, dims in asked:
        if op.input(k):
            _has(ctx, ctx.value(op.input(k)), dims, x.dtype if k != 4 else DType.I32, what, named)
    projected = _projection(ctx, op, x, w, directions * rows)
    bias = ctx.optional(op.input(3))
    before = _flag(op, "linear_before_reset")
    first = 2 if op.kind == "GRU" and not before else cell.gates
    packing = {"D": directions, "H": hidden, "G": cell.gates, "first": first}
    size = x.dtype.size
    packed = ctx.plan.arena(size * packed_elements("pack_recurrent", **packing))
    ctx.plan.launch("pack_recurrent", {"r": ctx.plain(r)}, {"packed": packed}, packing,
                    dtype=x.dtype)  # fmt: skip
    units = -(-hidden // 32) * 32
    kept = ctx.plan.arena(D.mul(D.mul(D.mul(batch, 4 * units) + MEETING, directions), 4))
    ctx.plan.launch("fill", {}, {"y": kept}, {"elem": 4, "count": directions * MEETING},
                    whole=False)  # fmt: skip
    operands: dict[str, Ref | None] = {"x": ctx.plain(projected), "r": packed}
    if bias is not None:
        operands["bias"] = ctx.plain(bias).at(rows * size)
    for role, k in (("lens", 4), ("h", 5), ("c", 6), ("peephole", 7)):
        if op.input(k):
            operands[role] = ctx.plain(ctx.value(op.input(k)))
    made: dict[str, Ref | None] = {"state": kept}
    for k, role in enumerate(("y", "y_h", "y_c")):
        if k < len(op.outputs) and op.outputs[k]:
            out = ctx.define(op.outputs[k], x.dtype, result(ctx, op, k))
            made[role] = ctx.new_plain(out)
    each = directions * hidden
    places = (
        {"x_t": directions * rows, "x_b": D.mul(steps, directions * rows), "y_t": each,
         "y_b": D.mul(steps, each), "y_d": hidden, "h_b": each, "h_d": hidden}
        if batch_first
        else {"x_t": D.mul(batch, directions * rows), "x_b": directions * rows,
              "y_t": D.mul(batch, each), "y_b": hidden, "y_d": D.mul(batch, hidden),
              "h_b": hidden, "h_d": D.mul(batch, hidden)}
    )  # fmt: skip
    ints: dict[str, DimLike] = {
        "T": steps, "B": batch, "D": directions, "H": hidden, "G": cell.gates,
        "bias_d": 2 * rows, "before": before, "coupled": _flag(op, "input_forget"),
        "reverse": reverse, **places,
    }  # fmt: skip
    floats = {"clip": float(op.attr("clip", 0.0))}
    for letter, (act, p0, p1) in zip("fgh", chosen, strict=False):
        ints[f"act_{letter}"] = act
        floats |= {f"{letter}0": p0, f"{letter}1": p1}
    ctx.plan.launch("recurrent", operands, made, ints, floats, whole=False, dtype=x.dtype)


def _has(ctx: Lowering, v: Value, dims: Dims, dtype: DType, what: str, named: str) -> None:
    if v.rank != len(dims) or v.dtype != dtype:
        raise Unsupported(f"{what} of {named} has rank {v.rank} and type {v.dtype.name}")
    for axis, (a, b) in enumerate(zip(v.shape, dims, strict=True)):
        ctx.same(a, b, f"axis {axis} of {what} of {named} and what its other operands ask of it")


def _projection(ctx: Lowering, op: Op, x: Value, w: Value, columns: int) -> Value:
    """The inputs of all steps times W [directions * gates * units, inputs], plus its bias."""
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
    return product(ctx, x, flat, bias, True, f"{name}\0projection")


OPS = dict.fromkeys(_CELLS, recurrent)
