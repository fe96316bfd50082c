"""Mutations of a model's structure: each takes the model and a source of random numbers, and
changes one thing in place.

They follow the format (attributes, dims, initializers, edges, operators, operator sets, subgraphs,
functions, external data, names), so that most results get past the parser; `damage` changes bytes
instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    helper,
    numpy_helper,
)

from tracea_onnx.ir.edit import graphs

#: Integers at which sizes, counts and offsets go wrong.
INTS = (
    0,
    1,
    2,
    3,
    4,
    5,
    7,
    8,
    16,
    31,
    64,
    255,
    1024,
    65536,
    -1,
    -2,
    -3,
    -8,
    -1024,
    1 << 20,
    (1 << 31) - 1,
    1 << 31,
    -(1 << 31),
    1 << 32,
    1 << 40,
    1 << 53,
    1 << 62,
    (1 << 63) - 1,
    -(1 << 63),
)
FLOATS = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    1e-30,
    1e30,
    -1e30,
    3.4e38,
    float("inf"),
    float("-inf"),
    float("nan"),
)
#: What a page would run if it did not escape names.
SCRIPT = "<script>fuzz()</script>"
TEXTS = (
    "",
    "x",
    "NOTSET",
    "SAME_UPPER",
    "VALID",
    "linear",
    "a\nerror: b",
    "a\x1b]0;title\x07",
    "a\x1b[2J",
    "\x00",
    "a\x00b",
    "\x9b31m",
    "\u202e",
    "\ud7ff",
    SCRIPT,
    "'\"><img src=x onerror=fuzz()>",
    "%s%n",
    "../../etc/passwd",
    "a" * 5000,
    "é" * 300,
    "{}",
    "[]",
    "null",
    "-1",
    "*tracea:memory*",
)
PARAMS = (
    "n",
    "N",
    "x",
    "batch",
    "2*n",
    "n*m",
    "n+1",
    "n-1",
    "n//2",
    "n/0",
    "n%0",
    "((((",
    "n**n**n",
    "-n",
    "",
    " ",
    "99999999999999999999",
    "n" * 3000,
    "floor(n/2)",
    "0",
    "-1",
    "a b",
    "a\nb",
    "\x1b[2J",
    "__import__('os')",
    "+".join(f"a{k}" for k in range(200)),
    "(" * 500 + "n" + ")" * 500,
    "n*" * 300 + "n",
    "max(n,m)",
    "Min(n, 2)",
)
LOCATIONS = (
    "tracea:memory",
    "*/_ORT_MEM_ADDR_/*",
    "",
    ".",
    "..",
    "../x",
    "/etc/passwd",
    "/dev/zero",
    "/proc/self/mem",
    "none.data",
    "input.onnx",
    "input.onnx/",
    "a/../input.onnx",
    "C:\\x",
    "x\x00y",
    "a" * 5000,
    "\x1b[2J",
)

Mutation = Callable[[ModelProto, Random], None]


def _graph(m: ModelProto, r: Random) -> GraphProto:
    found = list(graphs(m))
    return found[0] if r.random() < 0.7 else r.choice(found)


def _nodes(m: ModelProto) -> list[NodeProto]:
    return [n for g in graphs(m) for n in g.node] + [n for f in m.functions for n in f.node]


def _node(m: ModelProto, r: Random) -> NodeProto | None:
    found = _nodes(m)
    return r.choice(found) if found else None


def _values(g: GraphProto) -> list[str]:
    return (
        [v.name for v in g.input]
        + [t.name for t in g.initializer]
        + [o for n in g.node for o in n.output]
        + [""]
    )


def _text(r: Random) -> str:
    return r.choice(TEXTS)


def _int(r: Random) -> int:
    return r.choice(INTS) if r.random() < 0.8 else r.randrange(-20, 200)


# --- attributes -----------------------------------------------------------------------------------


def attribute(m: ModelProto, r: Random) -> None:
    """Another value of the same type."""
    node = _node(m, r)
    if node is None or not node.attribute:
        return
    a = r.choice(node.attribute)
    if a.type == AttributeProto.INT:
        a.i = _int(r)
    elif a.type == AttributeProto.FLOAT:
        a.f = r.choice(FLOATS)
    elif a.type == AttributeProto.STRING:
        a.s = (
            _text(r).encode("utf-8", "surrogatepass")
            if r.random() < 0.7
            else bytes(r.randrange(256) for _ in range(8))
        )
    elif a.type == AttributeProto.INTS:
        _list(a.ints, _int, r)
    elif a.type == AttributeProto.FLOATS:
        _list(a.floats, lambda s: s.choice(FLOATS), r)
    elif a.type == AttributeProto.TENSOR:
        _tensor(a.t, r)


def _list(values: Any, draw: Callable[[Random], Any], r: Random) -> None:
    kind = r.random()
    if kind < 0.5 and len(values):
        values[r.randrange(len(values))] = draw(r)
    elif kind < 0.65:
        values.append(draw(r))
    elif kind < 0.8 and len(values):
        del values[r.randrange(len(values))]
    elif kind < 0.9:
        del values[:]
    else:
        values.extend([draw(r)] * r.choice((1, 8, 300)))


def attribute_kind(m: ModelProto, r: Random) -> None:
    """An attribute of another type or name, twice, gone, or that refers to one of a function."""
    node = _node(m, r)
    if node is None:
        return
    if not node.attribute or r.random() < 0.3:
        name = r.choice(
            (
                "axis",
                "axes",
                "perm",
                "to",
                "group",
                "kernel_shape",
                "strides",
                "pads",
                "epsilon",
                "value",
                "body",
                "then_branch",
                "spec",
                "left_window_size",
                "stash_type",
                _text(r),
            )
        )
        value = r.choice((_int(r), [_int(r), _int(r)], 1.5, "text", b"\xff", [0.5], ["a", "b"]))
        node.attribute.append(helper.make_attribute(name, value))
        return
    at = r.randrange(len(node.attribute))
    a = node.attribute[at]
    kind = r.randrange(5)
    if kind == 0:
        del node.attribute[at]
    elif kind == 1:
        node.attribute.append(a)
    elif kind == 2:
        a.name = _text(r)
    elif kind == 3:
        kinds: list[Any] = AttributeProto.AttributeType.values()
        a.type = r.choice(kinds)
    else:
        a.ref_attr_name = r.choice(("alpha", "", a.name))


def spec(m: ModelProto, r: Random) -> None:
    """What a fused op says of itself: one token of its JSON text changed, or other text."""
    places: list[tuple[Any, str]] = [
        (a, "s")
        for n in _nodes(m)
        if n.domain == "ai.tracea"
        for a in n.attribute
        if a.type == AttributeProto.STRING
    ]
    places += [(p, "value") for n in _nodes(m) for p in n.metadata_props] + [
        (p, "value") for f in m.functions for p in f.metadata_props
    ]
    places += [(p, "value") for p in m.metadata_props] + [(f, "doc_string") for f in m.functions]
    if not places:
        return
    holder, field = r.choice(places)
    old = getattr(holder, field)
    text = old.decode("utf-8", "replace") if isinstance(old, bytes) else old
    digits = [k for k, c in enumerate(text) if c.isdigit()]
    kind = r.random()
    if kind < 0.5 and digits:
        at = r.choice(digits)
        text = text[:at] + str(_int(r)) + text[at + 1 :]
    elif kind < 0.7 and text:
        at = r.randrange(len(text))
        text = text[:at] + text[at + r.randrange(1, 30) :]
    elif kind < 0.8:
        text = r.choice(
            ("[" * 100000, '{"a":' * 3000, "NaN", '{"spec": 1}', "[]", "{}", "null", "1e999")
        )
    else:
        text = _text(r)
    setattr(holder, field, text.encode("utf-8", "replace") if isinstance(old, bytes) else text)


# --- values ---------------------------------------------------------------------------------------


def dims(m: ModelProto, r: Random) -> None:
    """The shape or type that a value is said to have."""
    g = _graph(m, r)
    found = [*g.input, *g.output, *g.value_info]
    if not found:
        return
    v = r.choice(found)
    t = v.type.tensor_type
    kind = r.random()
    if kind < 0.35 and len(t.shape.dim):
        d = r.choice(t.shape.dim)
        d.Clear()
        if r.random() < 0.5:
            d.dim_value = _int(r)
        elif r.random() < 0.9:
            d.dim_param = r.choice(PARAMS)
    elif kind < 0.5:
        t.shape.dim.add().dim_value = abs(_int(r))
    elif kind < 0.6 and len(t.shape.dim):
        del t.shape.dim[r.randrange(len(t.shape.dim))]
    elif kind < 0.7:
        t.ClearField("shape")
    elif kind < 0.85:
        t.elem_type = r.choice(list(TensorProto.DataType.values()))
    elif kind < 0.9:
        v.ClearField("type")
    elif kind < 0.95:
        inner = v.type.tensor_type.elem_type
        v.type.Clear()
        r.choice(
            (v.type.sequence_type, v.type.optional_type)
        ).elem_type.tensor_type.elem_type = inner
    else:
        t.shape.dim.extend([onnx.TensorShapeProto.Dimension(dim_value=1)] * r.choice((8, 40, 1000)))


def symbolic(m: ModelProto, r: Random) -> None:
    """Sizes of the inputs become unknown: of all, or of some axes; with names of their own, one
    name, or none.
    """
    names = r.choice(("own", "one", "none"))
    share = r.choice((1.0, 0.5))
    stored = {t.name for t in m.graph.initializer}
    for v in m.graph.input:
        if v.name in stored or not v.type.HasField("tensor_type"):
            continue
        for k, d in enumerate(v.type.tensor_type.shape.dim):
            if r.random() < share:
                d.Clear()
                if names != "none":
                    d.dim_param = f"{v.name}_{k}" if names == "own" else "n"
    del m.graph.value_info[:]
    for v in m.graph.output:
        v.type.tensor_type.ClearField("shape")


def tensor(m: ModelProto, r: Random) -> None:
    """Bytes, type, dims or name of a constant."""
    found = [t for g in graphs(m) for t in g.initializer]
    found += [a.t for n in _nodes(m) for a in n.attribute if a.type == AttributeProto.TENSOR]
    if found:
        _tensor(r.choice(found), r)


def _tensor(t: TensorProto, r: Random) -> None:
    kind = r.random()
    if kind < 0.35:
        try:
            values = np.array(numpy_helper.to_array(t))
        except Exception:  # damaged already
            return
        if values.size and values.dtype.kind in "iufb":
            flat = values.reshape(-1)
            with np.errstate(all="ignore"):
                for _ in range(r.choice((1, 1, 2, 5))):
                    new: Any = r.choice(FLOATS) if values.dtype.kind == "f" else _int(r)
                    flat[r.randrange(flat.size)] = np.array(new).astype(values.dtype)
            t.CopyFrom(numpy_helper.from_array(values, t.name))
    elif kind < 0.5:
        if r.random() < 0.5 and len(t.dims):
            t.dims[r.randrange(len(t.dims))] = _int(r)
        else:
            t.dims.append(_int(r))
    elif kind < 0.6 and len(t.dims):
        del t.dims[r.randrange(len(t.dims))]
    elif kind < 0.7:  # another valid shape of as many, or of fewer, elements
        try:
            values = numpy_helper.to_array(t)
        except Exception:
            return
        flat = values.reshape(-1)
        shaped = r.choice(
            (
                flat,
                flat[:1],
                flat[:0],
                flat[: flat.size // 2],
                values[None],
                np.tile(flat, 2) if flat.size < 1000 else flat,
                flat[0] if flat.size else flat,
            )
        )
        t.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(shaped), t.name))
    elif kind < 0.8:
        t.data_type = r.choice(list(TensorProto.DataType.values()))
    elif kind < 0.9:
        raw = t.raw_data
        t.raw_data = r.choice(
            (raw[:-1], raw[: len(raw) // 2], raw + b"\0", b"", raw * 2, b"\xff" * len(raw))
        )
    elif kind < 0.95:
        t.int64_data.extend([_int(r)] * 3)
    else:
        t.name = _text(r)


def external(m: ModelProto, r: Random) -> None:
    """A constant that is said to lie in a file."""
    found = [t for g in graphs(m) for t in g.initializer] + [
        a.t for n in _nodes(m) for a in n.attribute if a.type == AttributeProto.TENSOR
    ]
    if not found:
        return
    t = r.choice(found)
    size = len(t.raw_data)
    t.data_location = TensorProto.EXTERNAL if r.random() < 0.95 else TensorProto.DEFAULT
    if r.random() < 0.8:
        t.ClearField("raw_data")
    del t.external_data[:]
    entries = [("location", r.choice(LOCATIONS))]
    if r.random() < 0.7:
        entries.append(
            ("offset", r.choice((str(_int(r)), "0", "", "x", " 0_0 ", "1e3", "0x10", "9" * 400)))
        )
    if r.random() < 0.7:
        entries.append(("length", r.choice((str(_int(r)), str(size), "", "-", "9" * 5000))))
    if r.random() < 0.2:
        entries.append(
            r.choice((("checksum", "0"), ("location", "input.onnx"), ("", ""), ("basepath", "/")))
        )
    r.shuffle(entries)
    for key, value in entries:
        t.external_data.add(key=key, value=value)


# --- edges and nodes ------------------------------------------------------------------------------


def rewire(m: ModelProto, r: Random) -> None:
    """An edge that leads elsewhere: to a later value, to the node's own output, to nothing."""
    g = _graph(m, r)
    if not g.node:
        return
    n = r.choice(g.node)
    kind, values = r.random(), _values(g)
    if kind < 0.5 and n.input:
        n.input[r.randrange(len(n.input))] = r.choice(values)
    elif kind < 0.6:
        n.input.append(r.choice(values))
    elif kind < 0.7 and n.input:
        del n.input[r.randrange(len(n.input))]
    elif kind < 0.8 and n.output:
        n.output[r.randrange(len(n.output))] = r.choice(values)
    elif kind < 0.85:
        n.output.append(r.choice(("", "new", *values)))
    elif kind < 0.9 and n.output:
        del n.output[r.randrange(len(n.output))]
    elif n.output and n.input:
        n.input[0] = n.output[0]


def operator(m: ModelProto, r: Random) -> None:
    """Another operator, or the same of another domain."""
    node = _node(m, r)
    if node is None:
        return
    if r.random() < 0.8:
        node.op_type = r.choice(_operators())
    else:
        node.domain = r.choice(
            ("", "ai.onnx", "com.microsoft", "ai.tracea", "ai.onnx.ml", "none", "\x1b[2J")
        )


def _operators() -> Sequence[str]:
    if not _OPERATORS:
        _OPERATORS.extend(sorted({s.name for s in onnx.defs.get_all_schemas() if s.domain == ""}))
        _OPERATORS.extend(
            ["FusedMatMul", "FusedConv", "SkipLayerNormalization", "MultiHeadAttention", "x"]
        )
    return _OPERATORS


_OPERATORS: list[str] = []


def nodes(m: ModelProto, r: Random) -> None:
    """A node twice, gone, or elsewhere in the order."""
    g = _graph(m, r)
    if not g.node:
        return
    at, kind = r.randrange(len(g.node)), r.random()
    if kind < 0.3:
        del g.node[at]
    elif kind < 0.6:
        copy = NodeProto()
        copy.CopyFrom(g.node[at])
        if r.random() < 0.7:
            for k, o in enumerate(copy.output):
                copy.output[k] = f"{o}.again"
            if r.random() < 0.5:
                g.output.append(onnx.ValueInfoProto(name=copy.output[0] if copy.output else ""))
        g.node.insert(r.randrange(len(g.node) + 1), copy)
    else:
        node = NodeProto()
        node.CopyFrom(g.node[at])
        del g.node[at]
        g.node.insert(r.randrange(len(g.node) + 1), node)


def join(m: ModelProto, r: Random) -> None:
    """A plain node after some value, which is an output from then on: several rules meet."""
    g = m.graph
    values = [v for v in _values(g) if v]
    if not values:
        return
    made = f"joined{len(g.node)}_{r.randrange(1000)}"
    op, more = r.choice(
        (
            ("Add", 2),
            ("Mul", 2),
            ("Sub", 2),
            ("MatMul", 2),
            ("Concat", 2),
            ("Relu", 1),
            ("Sigmoid", 1),
            ("Erf", 1),
            ("Softmax", 1),
            ("Transpose", 1),
            ("Shape", 1),
            ("Cast", 1),
            ("Flatten", 1),
            ("Identity", 1),
            ("ReduceMean", 1),
            ("Sqrt", 1),
            ("Reshape", 2),
            ("Gather", 2),
            ("Split", 1),
            ("Unsqueeze", 2),
            ("Where", 3),
            ("Slice", 3),
        )
    )
    attrs: dict[str, Any] = (
        {"axis": r.choice((0, 1, -1))}
        if op in ("Concat", "Softmax", "Gather")
        else {"to": r.choice((1, 6, 7, 10, 16))}
        if op == "Cast"
        else {}
    )
    outputs = [made, f"{made}b"] if op == "Split" else [made]
    g.node.append(helper.make_node(op, [r.choice(values) for _ in range(more)], outputs, **attrs))
    g.output.append(onnx.ValueInfoProto(name=made))


def outputs(m: ModelProto, r: Random) -> None:
    """Inputs and outputs of the graph: more, fewer, twice, exchanged."""
    g = m.graph
    kind = r.random()
    if kind < 0.3:
        g.output.append(onnx.ValueInfoProto(name=r.choice(_values(g))))
    elif kind < 0.5 and g.output:
        g.output.append(r.choice(g.output))
    elif kind < 0.6 and g.output:
        del g.output[r.randrange(len(g.output))]
    elif kind < 0.75 and g.input:
        g.input.append(r.choice(g.input))
    elif kind < 0.85 and g.input:
        del g.input[r.randrange(len(g.input))]
    elif g.input:
        g.output.append(r.choice(g.input))


# --- headers, subgraphs, functions ----------------------------------------------------------------


def opset(m: ModelProto, r: Random) -> None:
    kind = r.random()
    if kind < 0.6 and m.opset_import:
        r.choice(m.opset_import).version = r.choice((*range(1, 30), 0, -1, 1 << 40))
    elif kind < 0.75:
        m.opset_import.add(
            domain=r.choice(
                ("", "ai.onnx", "com.microsoft", "ai.tracea", "ai.onnx.ml", "none", _text(r))
            ),
            version=r.choice((1, 2, 13, 23, 0)),
        )
    elif kind < 0.85 and m.opset_import:
        del m.opset_import[r.randrange(len(m.opset_import))]
    else:
        m.ir_version = r.choice((0, 1, 2, 3, 4, 7, 8, 9, 10, 11, 12, 13, 99, -1))


def names(m: ModelProto, r: Random) -> None:
    """A name with odd characters, of a node or, everywhere alike, of a value; or two values of one
    name.
    """
    new = _text(r)
    g = _graph(m, r)
    if r.random() < 0.4:
        node = _node(m, r)
        if node is not None:
            node.name = new
        return
    found = [v for v in _values(g) if v]
    if not found:
        return
    old = r.choice(found)
    if r.random() < 0.2:
        new = r.choice(found)
    for h in graphs(m):
        for n in h.node:
            for field in (n.input, n.output):
                for k, v in enumerate(field):
                    if v == old:
                        field[k] = new
        for v in [*h.input, *h.output, *h.value_info, *h.initializer]:
            if v.name == old:
                v.name = new


def subgraph(m: ModelProto, r: Random) -> None:
    """A node moves into a branch of If, or into the body of a Loop, which may lie in others."""
    g = _graph(m, r)
    if not g.node:
        return
    at = r.randrange(len(g.node))
    depth = r.choice((1, 1, 1, 2, 5, 30))
    for _ in range(depth):
        inner = NodeProto()
        inner.CopyFrom(g.node[at])
        outs = [o for o in inner.output if o]
        tag = f"wrapped{len(g.initializer)}_{r.randrange(10000)}"
        body = helper.make_graph([inner], tag, [], [onnx.ValueInfoProto(name=o) for o in outs])
        if r.random() < 0.7:
            other = helper.make_graph(
                [
                    helper.make_node("Identity", [i], [f"{o}.else"])
                    for o, i in zip(
                        outs, [next((i for i in inner.input if i), "")] * len(outs), strict=True
                    )
                ],
                f"{tag}e",
                [],
                [onnx.ValueInfoProto(name=f"{o}.else") for o in outs],
            )
            branches = [body, other if r.random() < 0.5 or depth > 5 else body]
            outer = helper.make_node(
                "If", [tag], list(inner.output), then_branch=branches[0], else_branch=branches[1]
            )
            g.initializer.append(numpy_helper.from_array(np.array(r.random() < 0.7), tag))
        else:
            body.input.extend(
                [
                    helper.make_tensor_value_info(f"{tag}i", TensorProto.INT64, []),
                    helper.make_tensor_value_info(f"{tag}c", TensorProto.BOOL, []),
                ]
            )
            body.output.insert(0, helper.make_tensor_value_info(f"{tag}c2", TensorProto.BOOL, []))
            body.node.append(helper.make_node("Identity", [f"{tag}c"], [f"{tag}c2"]))
            outer = helper.make_node("Loop", [tag, ""], list(inner.output), body=body)
            g.initializer.append(
                numpy_helper.from_array(np.array(r.choice((0, 1, 2, 3)), np.int64), tag)
            )
        g.node[at].CopyFrom(outer)


def function(m: ModelProto, r: Random) -> None:
    """A node becomes a call of a function: its own, one that calls itself or another, or one named
    like a fused op.
    """
    g = m.graph
    if not g.node:
        return
    at = r.randrange(len(g.node))
    inner = NodeProto()
    inner.CopyFrom(g.node[at])
    domain, name = r.choice(
        (
            ("local", "F"),
            ("ai.tracea", "Gelu_0123456789ab"),
            ("ai.tracea", "Conv_5b50009b45fa"),
            ("local", f"F{len(m.functions)}"),
            ("", "Relu"),
            ("local", _text(r)),
        )
    )
    body = [inner]
    kind = r.random()
    if kind < 0.15:
        body = [helper.make_node(name, list(inner.input), list(inner.output), domain=domain)]
    elif kind < 0.3 and m.functions:
        f = r.choice(m.functions)
        body = [helper.make_node(f.name, list(inner.input), list(inner.output), domain=f.domain)]
    imports = [helper.make_opsetid(o.domain, o.version) for o in m.opset_import]
    if not any(o.domain == domain for o in m.opset_import):
        m.opset_import.add(domain=domain, version=1)
        imports.append(helper.make_opsetid(domain, 1))
    inputs = list(dict.fromkeys(i for i in inner.input if i))
    outs = [o for o in inner.output if o]
    m.functions.append(helper.make_function(domain, name, inputs, outs, body, imports))
    g.node[at].CopyFrom(
        helper.make_node(name, inputs, outs, domain=domain, name=r.choice(("", "call")))
    )


def sparse(m: ModelProto, r: Random) -> None:
    """What few models have: sparse constants, annotations, training parts, documentation,
    metadata.
    """
    kind = r.randrange(5)
    if kind == 0 and m.graph.initializer:
        s = m.graph.sparse_initializer.add()
        s.values.CopyFrom(r.choice(m.graph.initializer))
        s.indices.CopyFrom(numpy_helper.from_array(np.array([_int(r) for _ in range(3)], np.int64)))
        s.dims.extend([abs(_int(r))])
    elif kind == 1:
        q = m.graph.quantization_annotation.add()
        q.tensor_name = r.choice(_values(m.graph))
        q.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value=_text(r))
    elif kind == 2:
        m.metadata_props.add(
            key=r.choice(("tracea.nodes", "tracea.rule", "tracea", "x", _text(r))), value=_text(r)
        )
    elif kind == 3:
        m.training_info.add().algorithm.CopyFrom(m.graph)
    else:
        node = _node(m, r)
        if node is not None:
            node.metadata_props.add(
                key=r.choice(("tracea.nodes", "tracea.rule", "tracea.spec", "x")), value=_text(r)
            )


MUTATIONS: tuple[Mutation, ...] = (
    attribute,
    attribute,
    attribute,
    attribute_kind,
    spec,
    dims,
    dims,
    symbolic,
    tensor,
    tensor,
    tensor,
    external,
    rewire,
    rewire,
    operator,
    operator,
    nodes,
    join,
    join,
    outputs,
    opset,
    names,
    subgraph,
    function,
    sparse,
)


def damage(data: bytes, r: Random) -> bytes:
    """The bytes with a few of them changed, cut out, or repeated."""
    out = bytearray(data)
    for _ in range(r.choice((1, 1, 2, 4, 16))):
        if not out:
            break
        at, kind = r.randrange(len(out)), r.random()
        if kind < 0.5:
            out[at] = r.randrange(256)
        elif kind < 0.65:
            out[at] ^= 1 << r.randrange(8)
        elif kind < 0.8:
            del out[at : at + r.choice((1, 4, 64, 1 << 20))]
        elif kind < 0.9:
            out[at:at] = out[max(0, at - 20) : at]
        else:
            out[at : at + 8] = r.choice(INTS).to_bytes(8, "little", signed=True)
    return bytes(out)


def tree(value: Any, r: Random) -> Any:
    """A JSON value with one leaf, or one branch, changed."""
    places: list[tuple[Any, Any]] = []

    def walk(v: Any) -> None:
        for k in list(v) if isinstance(v, dict) else range(len(v)):
            places.append((v, k))
            if isinstance(v[k], (dict, list)):
                walk(v[k])

    if isinstance(value, (dict, list)):
        walk(value)
    if not places:
        return r.choice((None, 1, "x", [], {}))
    leaves = [(v, k) for v, k in places if not isinstance(v[k], (dict, list))]
    holder, key = r.choice(leaves) if leaves and r.random() < 0.75 else r.choice(places)
    old, kind = holder[key], r.random()
    if kind < 0.1:
        if isinstance(holder, dict):
            del holder[key]
        else:
            holder.pop(key)
    elif kind < 0.2:
        holder[key] = r.choice((None, True, "x", [], {}, -1, 1.5, [[]], "a" * 1000, float("inf")))
    elif kind < 0.3 and isinstance(holder, list):
        holder.append(old)
    elif isinstance(old, bool) or not isinstance(old, (int, float)):
        holder[key] = (
            r.choice((_text(r), r.choice(INTS))) if isinstance(old, str) else r.choice(INTS)
        )
    elif isinstance(old, float):
        holder[key] = r.choice((1e308, -1.0, 0.0, 0.5))
    else:
        holder[key] = r.choice((old + 1, old - 1, old * 2, -old, _int(r), r.randrange(0, 40)))
    return value
