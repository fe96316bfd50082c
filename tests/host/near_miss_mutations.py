"""One change to a graph that a rule fuses: what is left is a near miss, or must still mean what its nodes compute."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper, shape_inference

from tests.host.rules_oracle import node

#: A mutation returns False when the graph has nothing it could change.
Mutation = Callable[[Random, ModelProto], bool]
_FLOAT = int(TensorProto.FLOAT)


def _inner(m: ModelProto) -> list[str]:
    """Float values between nodes."""
    known = {v.name for v in m.graph.value_info if v.type.tensor_type.elem_type == _FLOAT}
    outputs = {o.name for o in m.graph.output}
    return [o for n in m.graph.node for o in n.output if o in known and o not in outputs]


def _add_output(m: ModelProto, name: str) -> None:
    m.graph.output.append(helper.make_tensor_value_info(name, _FLOAT, None))


def exposed(r: Random, m: ModelProto) -> bool:
    values = _inner(m)
    if values:
        _add_output(m, r.choice(values))
    return bool(values)


def second_reader(r: Random, m: ModelProto) -> bool:
    values = _inner(m)
    if values:
        m.graph.node.append(node(r.choice(("Relu", "Neg", "Softmax")), r.choice(values), "extra"))
        _add_output(m, "extra")
    return bool(values)


def captured(r: Random, m: ModelProto) -> bool:
    values = _inner(m)
    if not values:
        return False
    value = r.choice(values)
    bodies = [helper.make_graph([node(op, value, f"in_{op}")], op, [], [helper.make_tensor_value_info(f"in_{op}", _FLOAT, None)]) for op in ("Exp", "Neg")]
    m.graph.input.append(helper.make_tensor_value_info("flag", TensorProto.BOOL, []))
    m.graph.node.append(helper.make_node("If", ["flag"], ["branch"], name="n_branch", then_branch=bodies[0], else_branch=bodies[1]))
    _add_output(m, "branch")
    return True


def _initializer(r: Random, m: ModelProto, kinds: str = "f") -> TensorProto | None:
    found = [t for t in m.graph.initializer if numpy_helper.to_array(t).dtype.kind in kinds]
    return r.choice(found) if found else None


def overridable(r: Random, m: ModelProto) -> bool:
    t = _initializer(r, m, "fi")
    if t is not None:
        m.graph.input.append(helper.make_tensor_value_info(t.name, t.data_type, list(t.dims)))
    return t is not None


def computed(r: Random, m: ModelProto) -> bool:
    """A constant becomes an input."""
    t = _initializer(r, m)
    if t is not None:
        m.graph.input.append(helper.make_tensor_value_info(t.name, t.data_type, list(t.dims)))
        m.graph.initializer.remove(t)
    return t is not None


def perturbed(r: Random, m: ModelProto) -> bool:
    """Another epsilon, scale or table of sizes."""
    t = _initializer(r, m, "fi")
    if t is None:
        return False
    a = numpy_helper.to_array(t)
    new = a * np.asarray(r.choice((1.01, 3.0, -1.0)), a.dtype) if a.dtype.kind == "f" else a + r.choice((-1, 1))
    t.CopyFrom(numpy_helper.from_array(np.asarray(new, a.dtype), t.name))
    return True


def widened(r: Random, m: ModelProto) -> bool:
    """A constant grows: by a leading axis, or from one number to one for each column."""
    t = _initializer(r, m)
    if t is None:
        return False
    a = numpy_helper.to_array(t)
    new = np.stack([a] * r.choice((1, 2))) if a.ndim and r.random() < 0.7 else np.full(r.choice((2, 3, 4, 5, 7)), a.reshape(-1)[0], a.dtype)
    t.CopyFrom(numpy_helper.from_array(new, t.name))
    return True


_NUMBERS = {
    "axis": (-2, -1, 1, 1), "epsilon": (2.0, 10.0), "transB": (), "alpha": (0.5,), "beta": (0.5, 2.0), "group": (2,), "num_groups": (2,), "scale": (0.5,),
    "keepdims": (), "is_causal": (), "interleaved": (),
}  # fmt: skip


def attribute(r: Random, m: ModelProto) -> bool:
    """Another number in one attribute: an axis, a permutation, an epsilon, a flag."""
    found = [a for n in m.graph.node for a in n.attribute if a.type in (AttributeProto.INT, AttributeProto.INTS, AttributeProto.FLOAT)]
    if not found:
        return False
    a = r.choice(found)
    if a.type == AttributeProto.INTS:
        if a.name == "perm" and len(a.ints) > 1:
            j = r.randrange(len(a.ints) - 1)
            a.ints[j], a.ints[j + 1] = a.ints[j + 1], a.ints[j]
        elif a.ints:
            j = r.randrange(len(a.ints))
            a.ints[j] += r.choice((-1, 1))
    elif a.type == AttributeProto.FLOAT:
        a.f *= r.choice((2.0, 0.5, 10.0))
    else:
        a.i = 1 - a.i if not _NUMBERS.get(a.name, (1,)) else a.i + r.choice((-1, 1))
    return True


_OTHER = {
    "Add": ("Sub", "Mul"), "Sub": ("Add",), "Mul": ("Div", "Add"), "Div": ("Mul",), "ReduceMean": ("ReduceSum", "ReduceMax"), "Sqrt": ("Exp", "Abs"),
    "Softmax": ("LogSoftmax", "Sigmoid"), "Sigmoid": ("Tanh", "Softmax"), "Relu": ("Softmax", "Abs"), "Neg": ("Abs",), "GlobalAveragePool": ("GlobalMaxPool",),
    "Exp": ("Sigmoid",), "Reciprocal": ("Neg",), "Erf": ("Tanh",), "Tanh": ("Erf", "LogSoftmax"), "Conv": (), "ReduceSum": ("ReduceMean",),
}  # fmt: skip


def other_operator(r: Random, m: ModelProto) -> bool:
    found = [n for n in m.graph.node if _OTHER.get(n.op_type)]
    if found:
        n = r.choice(found)
        n.op_type = r.choice(_OTHER[n.op_type])
        axes = [a for a in n.attribute if a.name == "axes"]
        if n.op_type == "ReduceSum" and axes:  # takes its axes as an input
            m.graph.initializer.append(numpy_helper.from_array(np.array(axes[0].ints), "sum_axes"))
            n.input.append("sum_axes")
            n.attribute.remove(axes[0])
        elif n.op_type == "ReduceMean" and len(n.input) > 1:
            return False
    return bool(found)


def swapped(r: Random, m: ModelProto) -> bool:
    """The operands of a node that does not commute."""
    found = [n for n in m.graph.node if n.op_type in ("Sub", "Div", "MatMul", "Where", "Pow", "Concat", "Attention") and len(n.input) > 1]
    if found:
        n = r.choice(found)
        n.input[-1], n.input[-2] = n.input[-2], n.input[-1]
    return bool(found)


def bypassed(r: Random, m: ModelProto) -> bool:
    """A node is left out: its readers read its first input."""
    found = [n for n in m.graph.node[:-1] if n.output[0] in _inner(m)]
    if not found:
        return False
    gone = r.choice(found)
    for n in m.graph.node:
        for k, i in enumerate(n.input):
            if i == gone.output[0]:
                n.input[k] = gone.input[0]
    m.graph.node.remove(gone)
    return True


def rewired(r: Random, m: ModelProto) -> bool:
    """An input reads another value of the same shape."""
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in [*m.graph.value_info, *m.graph.input] if v.type.tensor_type.elem_type == _FLOAT}
    found = [(n, k, o) for n in m.graph.node for k, i in enumerate(n.input) if i in shapes for o, s in shapes.items() if o != i and s == shapes[i]]
    if found:
        n, k, other = r.choice(found)
        n.input[k] = other
    return bool(found)


def retyped(r: Random, m: ModelProto) -> bool:
    """float becomes double, which rules take, or int32, which they must not (most operators do not either)."""
    kind = r.choice((TensorProto.DOUBLE, TensorProto.INT32))
    dtype: np.dtype[Any] = np.dtype(helper.tensor_dtype_to_np_dtype(kind))
    for t in m.graph.initializer:
        if t.data_type == _FLOAT:
            a = np.maximum(numpy_helper.to_array(t), -1e9) if kind == TensorProto.INT32 else numpy_helper.to_array(t)
            t.CopyFrom(numpy_helper.from_array(a.astype(dtype), t.name))
    for v in (*m.graph.input, *m.graph.output):
        if v.type.tensor_type.elem_type == _FLOAT:
            v.type.tensor_type.elem_type = kind
    return True


def training(r: Random, m: ModelProto) -> bool:
    """BatchNormalization that normalises with the batch's own statistics, or a Dropout that is on."""
    norms = [n for n in m.graph.node if n.op_type == "BatchNormalization"]
    if norms:
        n = r.choice(norms)
        n.attribute.append(helper.make_attribute("training_mode", 1))
        n.output.extend([f"{n.output[0]}_mean", f"{n.output[0]}_var"])
    return bool(norms)


def cast(r: Random, m: ModelProto) -> bool:
    """A value is rounded to half precision and back in the middle of the chain."""
    values = _inner(m)
    if not values:
        return False
    value = r.choice(values)
    place = next(k for k, n in enumerate(m.graph.node) if value in n.output)
    casts = [node("Cast", value, "narrow", to=TensorProto.FLOAT16), node("Cast", "narrow", "wide", to=_FLOAT)]
    for n in m.graph.node:
        n.input[:] = ["wide" if i == value else i for i in n.input]
    _insert(m, place + 1, casts)
    return True


def _insert(m: ModelProto, place: int, nodes: list[NodeProto]) -> None:
    rest = list(m.graph.node)
    del m.graph.node[:]
    m.graph.node.extend([*rest[:place], *nodes, *rest[place:]])


MUTATIONS: tuple[Mutation, ...] = (
    exposed, second_reader, captured, overridable, computed, perturbed, widened, attribute, attribute, other_operator, swapped, bypassed, rewired, retyped,
    training, cast,
)  # fmt: skip


def mutate(r: Random, m: ModelProto) -> ModelProto | None:
    """A changed copy with fresh types; None when this mutation has nothing to change or makes no valid graph."""
    made = ModelProto()
    made.CopyFrom(m)
    if not r.choice(MUTATIONS)(r, made):
        return None
    del made.graph.value_info[:]
    for o in made.graph.output:
        o.type.tensor_type.ClearField("shape")
    try:
        inferred = shape_inference.infer_shapes(made, strict_mode=True, data_prop=True)
    except Exception:
        return None
    return inferred
