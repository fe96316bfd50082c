"""What ONNX Runtime's own operators do to types and shapes, told to ONNX's inference as functions
that only it sees.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from onnx import FunctionProto, ModelProto, NodeProto, helper

from tracea_onnx.ir.edit import graphs

DOMAIN = "com.microsoft"
Body = Callable[[NodeProto], list[NodeProto] | None]


def _like(*outputs: int) -> Body:
    """The outputs at these places have the type and shape of the first input."""

    def body(n: NodeProto) -> list[NodeProto] | None:
        named = [k for k, o in enumerate(n.output) if o]
        return (
            [helper.make_node("Identity", ["i0"], [f"o{k}"]) for k in named]
            if set(named) <= set(outputs)
            else None
        )

    return body


def _attention(n: NodeProto) -> list[NodeProto] | None:
    if any(n.output[1:]) or any(a.name == "qkv_hidden_sizes" for a in n.attribute):
        return None
    return [
        helper.make_node("MatMul", ["i0", "i1"], ["qkv"]),
        helper.make_node("Split", ["qkv"], ["q", "k", "o0"], axis=-1, num_outputs=3),
    ]


def _grouped(n: NodeProto) -> list[NodeProto] | None:
    """Without keys the first input holds all three projections."""
    return (
        [helper.make_node("Identity", ["i0"], ["o0"])]
        if len(n.input) > 1 and n.input[1] and not any(n.output[1:])
        else None
    )


def _embedding(n: NodeProto) -> list[NodeProto] | None:
    return [
        helper.make_node("Gather", ["i2", "i0"], [f"o{k}"])
        for k in (0, 2)
        if k < len(n.output) and n.output[k]
    ]


_BODIES: Mapping[str, Body] = {
    **dict.fromkeys(
        (
            "Gelu",
            "FastGelu",
            "BiasGelu",
            "QuickGelu",
            "RotaryEmbedding",
            "SimplifiedLayerNormalization",
        ),
        _like(0),
    ),
    **dict.fromkeys(("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"), _like(0, 3)),
    "Attention": _attention,
    "GroupQueryAttention": _grouped,
    "EmbedLayerNormalization": _embedding,
}


def functions(model: ModelProto) -> list[FunctionProto]:
    """A function for each operator all whose calls in `model` are understood and alike in which
    inputs and outputs they have.
    """
    calls: dict[str, list[NodeProto]] = {}
    for g in graphs(model):
        for n in g.node:
            if n.domain == DOMAIN and n.op_type in _BODIES:
                calls.setdefault(n.op_type, []).append(n)
    own = {f.name for f in model.functions if f.domain == DOMAIN}
    out = []
    for op, nodes in calls.items():
        bodies = [_BODIES[op](n) for n in nodes]
        made = {tuple(o for b in body or () for o in b.output) for body in bodies}
        if (
            op in own
            or not all(bodies)
            or len(made) != 1
            or len({tuple(map(bool, n.output)) for n in nodes}) != 1
        ):
            continue
        inputs = [f"i{k}" for k in range(max(len(n.input) for n in nodes))]
        outputs = [f"o{k}" if o else f"none{k}" for k, o in enumerate(nodes[0].output)]
        body = list(bodies[0] or ())
        body += [helper.make_node("Identity", ["i0"], [o]) for o in outputs if o.startswith("none")]
        out.append(
            helper.make_function(DOMAIN, op, inputs, outputs, body, [helper.make_opsetid("", 18)])
        )
    return out
