"""One change to a graph that a rule fuses: what is left is a near miss, or must still mean what its
nodes compute.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
from onnx import (
    AttributeProto,
    ModelProto,
    NodeProto,
    TensorProto,
    helper,
    numpy_helper,
    shape_inference,
)

from tests.host.rules.rules_oracle import node

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
    bodies = [
        helper.make_graph(
            [node(op, value, f"in_{op}")],
            op,
            [],
            [helper.make_tensor_value_info(f"in_{op}", _FLOAT, None)],
        )
        for op in ("Exp", "Neg")
    ]
    m.graph.input.append(helper.make_tensor_value_info("flag", TensorProto.BOOL, []))
    m.graph.node.append(
        helper.make_node(
            "If",
            ["flag"],
            ["branch"],
            name="n_branch",
            then_branch=bodies[0],
            else_branch=bodies[1],
        )
    )
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
    shift = np.asarray(r.choice((0.0, 0.4)) if a.any() else 1.0, a.dtype)
    with np.errstate(over="ignore"):
        new = (
            a * np.asarray(r.choice((1.01, 3.0, -1.0)), a.dtype) + shift
            if a.dtype.kind == "f"
            else a + r.choice((-1, 1))
        )
    t.CopyFrom(numpy_helper.from_array(np.asarray(new, a.dtype), t.name))
    return True


def widened(r: Random, m: ModelProto) -> bool:
    """A constant grows: by a leading axis, or from one number to one for each column."""
    t = _initializer(r, m)
    if t is None:
        return False
    a = numpy_helper.to_array(t)
    if r.random() < 0.5 or a.size > 1:
        new = np.stack([a] * r.choice((1, 1, 2)))
        new = new[None] if r.random() < 0.3 else new
    else:
        new = np.full(r.choice((2, 3, 4, (1, 1, 1, 1), (1, 1, 1, 1, 1))), a.reshape(-1)[0], a.dtype)
    t.CopyFrom(numpy_helper.from_array(new, t.name))
    return True


def _attributes(m: ModelProto, *names: str) -> list[AttributeProto]:
    return [a for n in m.graph.node for a in n.attribute if a.name in names]


def axis(r: Random, m: ModelProto) -> bool:
    """Another axis, permutation, padding or stride; where operators take axes and ends as inputs,
    `perturbed` does the same.
    """
    found = _attributes(m, "axis", "axes", "perm", "pads", "strides", "dilations", "output_padding")
    if not found:
        return False
    a = r.choice(found)
    if a.type == AttributeProto.INT:
        a.i += r.choice((-1, 1))
    elif a.name == "perm":
        j = r.randrange(len(a.ints) - 1)
        a.ints[j], a.ints[j + 1] = a.ints[j + 1], a.ints[j]
    elif a.ints:
        j = r.randrange(len(a.ints))
        a.ints[j] += r.choice((-1, 1))
    return True


def epsilon(r: Random, m: ModelProto) -> bool:
    """Another epsilon, slope or factor, large enough to show."""
    found = [a for n in m.graph.node for a in n.attribute if a.type == AttributeProto.FLOAT]
    if found:
        a = r.choice(found)
        a.f = r.choice((a.f * 10.0, a.f + 0.7, -a.f))
    return bool(found)


_FLAGS = {
    "keepdims",
    "is_causal",
    "interleaved",
    "transA",
    "transB",
    "trans_b",
    "training_mode",
    "upper",
    "unidirectional",
}


def flag(r: Random, m: ModelProto) -> bool:
    """A flag is turned over, written out where it was left to its default; or another count of
    groups or heads.
    """
    counts = [
        a
        for a in _attributes(m, "group", "num_groups", "q_num_heads", "kv_num_heads", "num_heads")
        if a.type == AttributeProto.INT
    ]
    flags = _attributes(m, *_FLAGS)
    silent = [
        n
        for n in m.graph.node
        if n.op_type.startswith("Reduce") and all(a.name != "keepdims" for a in n.attribute)
    ]
    if counts and r.random() < 0.5:
        a = r.choice(counts)
        a.i = r.choice((1, 2, a.i * 2))
    elif flags and (not silent or r.random() < 0.5):
        a = r.choice(flags)
        a.i = 1 - a.i
    elif silent:
        r.choice(silent).attribute.append(helper.make_attribute("keepdims", 0))
    return bool(counts or flags or silent)


_OTHER = {
    "Add": ("Sub", "Mul"), "Sub": ("Add",), "Mul": ("Div", "Add"), "Div": ("Mul",),
    "ReduceMean": ("ReduceSum", "ReduceMax"), "Sqrt": ("Exp", "Abs"),
    "Softmax": ("LogSoftmax", "Sigmoid"), "Sigmoid": ("Tanh", "Softmax"),
    "Relu": ("Softmax", "Abs"), "Neg": ("Abs",), "GlobalAveragePool": ("GlobalMaxPool",),
    "Exp": ("Sigmoid",), "Reciprocal": ("Neg",), "Erf": ("Tanh",), "Tanh": ("Erf", "LogSoftmax"),
    "Conv": (), "ReduceSum": ("ReduceMean",),
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
    found = [
        n
        for n in m.graph.node
        if n.op_type in ("Sub", "Div", "MatMul", "Where", "Pow", "Concat", "Attention")
        and len(n.input) > 1
    ]
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
    """An input reads another value of the same shape, made before it."""
    shapes = {
        v.name: [d.dim_value for d in v.type.tensor_type.shape.dim]
        for v in [*m.graph.value_info, *m.graph.input]
        if v.type.tensor_type.elem_type == _FLOAT
    }
    made = {o: k for k, n in enumerate(m.graph.node) for o in n.output}
    uses = [
        (n, k, i, place)
        for place, n in enumerate(m.graph.node)
        for k, i in enumerate(n.input)
        if i in shapes
    ]
    found = [
        (n, k, o)
        for n, k, i, place in uses
        for o, s in shapes.items()
        if o != i and s == shapes[i] and made.get(o, -1) < place
    ]
    if found:
        n, k, other = r.choice(found)
        n.input[k] = other
    return bool(found)


def exchanged(r: Random, m: ModelProto) -> bool:
    """The readers of one value read another of the same shape, and the other way round."""
    shapes = {
        v.name: [d.dim_value for d in v.type.tensor_type.shape.dim]
        for v in [*m.graph.value_info, *m.graph.input]
        if v.type.tensor_type.elem_type == _FLOAT
    }
    found = [(a, b) for a in shapes for b in shapes if a < b and shapes[a] == shapes[b]]
    if not found:
        return False
    a, b = r.choice(found)
    ready = {i.name for i in m.graph.input} | {t.name for t in m.graph.initializer} | {""}
    for n in m.graph.node:
        n.input[:] = [{a: b, b: a}.get(i, i) for i in n.input]
        if not ready.issuperset(n.input):
            return False
        ready.update(n.output)
    return True


def retyped(r: Random, m: ModelProto) -> bool:
    """float becomes double, which rules take, or int32, which they must not (most operators do not
    either).
    """
    kind = r.choice((TensorProto.DOUBLE, TensorProto.INT32))
    dtype: np.dtype[Any] = np.dtype(helper.tensor_dtype_to_np_dtype(kind))
    for t in m.graph.initializer:
        if t.data_type == _FLOAT:
            a = (
                np.maximum(numpy_helper.to_array(t), -1e9)
                if kind == TensorProto.INT32
                else numpy_helper.to_array(t)
            )
            t.CopyFrom(numpy_helper.from_array(a.astype(dtype), t.name))
    for v in (*m.graph.input, *m.graph.output):
        if v.type.tensor_type.elem_type == _FLOAT:
            v.type.tensor_type.elem_type = kind
    return True


def training(r: Random, m: ModelProto) -> bool:
    """BatchNormalization that normalises with the batch's own statistics, or a Dropout that is
    on.
    """
    norms = [n for n in m.graph.node if n.op_type == "BatchNormalization"]
    if norms and r.random() < 0.6:
        n = r.choice(norms)
        n.attribute.append(helper.make_attribute("training_mode", 1))
        if r.random() < 0.7:
            n.output.extend([f"{n.output[0]}_mean", f"{n.output[0]}_var"])
        return True
    stored = {"ratio": np.array(0.5, np.float32), "on": np.array(True)}
    return bool(
        _opset(m) >= 12
        and _between(r, m, [node("Dropout", "FROM ratio on", "TO", seed=7)])
        and _store(m, stored)
    )


def dropped(r: Random, m: ModelProto) -> bool:
    """An optional last input is left out."""
    most = {
        "Conv": 2,
        "ConvTranspose": 2,
        "Gemm": 2,
        "LayerNormalization": 2,
        "Attention": 3,
        "MultiHeadAttention": 3,
        "Clip": 2,
        "Slice": 3,
    }
    found = [n for n in m.graph.node if len(n.input) > most.get(n.op_type, 9)]
    if found:
        n = r.choice(found)
        del n.input[-1]
    return bool(found)


def interposed(r: Random, m: ModelProto) -> bool:
    """Something between two nodes of the chain: nothing, a sign, two axes swapped, a size-1 axis
    added in front.
    """
    how = r.choice(("Identity", "Neg", "Abs", "Transpose", "Dropout", "Unsqueeze"))
    if how == "Unsqueeze":
        return _between(r, m, [node("Unsqueeze", "FROM front", "TO")]) and _store(
            m, {"front": np.array([0])}
        )
    return _between(r, m, [node(how, "FROM", "TO")])


def broadcast(r: Random, m: ModelProto) -> bool:
    """An input loses an axis, or its size there becomes 1: what is combined with it may be larger
    now.
    """
    stored = {t.name for t in m.graph.initializer}
    found = [
        i.type.tensor_type.shape
        for i in m.graph.input
        if i.name not in stored and i.type.tensor_type.shape.dim
    ]
    if found:
        dims = list(r.choice(found).dim)
        if r.random() < 0.3:
            shape = next(s for s in found if list(s.dim) == dims)
            del shape.dim[0]
        else:
            d = r.choice(dims)
            d.Clear()
            d.dim_value = 1
    return bool(found)


def _opset(m: ModelProto) -> int:
    return next(int(o.version) for o in m.opset_import if o.domain in ("", "ai.onnx"))


def _store(m: ModelProto, arrays: dict[str, Any]) -> bool:
    m.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in arrays.items())
    return True


def _between(r: Random, m: ModelProto, nodes: list[NodeProto]) -> bool:
    """`nodes` between a value and one or all of its readers; they are written from FROM to TO."""
    values = _inner(m)
    if not values:
        return False
    value = r.choice(values)
    place = next(k for k, n in enumerate(m.graph.node) if value in n.output)
    readers = [(n, k) for n in m.graph.node for k, i in enumerate(n.input) if i == value]
    for n, k in readers if r.random() < 0.5 else [r.choice(readers)]:
        n.input[k] = "interposed"
    for n in nodes:
        n.name = f"n_{n.op_type}_{n.output[0]}"
        n.input[:] = [value if i == "FROM" else i for i in n.input]
        n.output[:] = ["interposed" if o == "TO" else o for o in n.output]
    _insert(m, place + 1, nodes)
    return True


def cast(r: Random, m: ModelProto) -> bool:
    """A value is rounded to half precision and back in the middle of the chain."""
    return _between(
        r,
        m,
        [
            node("Cast", "FROM", "narrow", to=TensorProto.FLOAT16),
            node("Cast", "narrow", "TO", to=_FLOAT),
        ],
    )


def _insert(m: ModelProto, place: int, nodes: list[NodeProto]) -> None:
    rest = list(m.graph.node)
    del m.graph.node[:]
    m.graph.node.extend([*rest[:place], *nodes, *rest[place:]])


MUTATIONS: tuple[Mutation, ...] = (
    exposed, second_reader, captured, overridable, computed, perturbed, widened, axis, epsilon,
    flag, other_operator, swapped, bypassed, rewired, exchanged, retyped,
    training, cast, dropped, interposed, broadcast,
)  # fmt: skip


def mutate(r: Random, m: ModelProto, mutation: Mutation) -> ModelProto | None:
    """A changed copy with fresh types; None when this mutation has nothing to change or makes no
    valid graph.
    """
    made = ModelProto()
    made.CopyFrom(m)
    if not mutation(r, made):
        return None
    del made.graph.value_info[:]
    for o in made.graph.output:
        o.type.tensor_type.ClearField("shape")
    try:
        return shape_inference.infer_shapes(made, strict_mode=True, data_prop=True)
    except shape_inference.InferenceError:
        return None
