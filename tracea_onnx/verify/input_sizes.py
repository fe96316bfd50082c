"""Shapes for a model's inputs: what the operators ask of them (`size_constraints`) solved, guesses
for what they leave open.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from onnx import ModelProto, TypeProto, ValueInfoProto

from tracea_onnx.canonicalize import canonical_form, constant_folding
from tracea_onnx.errors import TraceaError
from tracea_onnx.ir import dims, edit
from tracea_onnx.ir.dim_proofs import Dims
from tracea_onnx.ir.dims import Dim
from tracea_onnx.ir.graph import Graph
from tracea_onnx.model_io import function_calls
from tracea_onnx.rewrite.inline import inline
from tracea_onnx.shapes import onnx_inference
from tracea_onnx.shapes.ranks import RANKS
from tracea_onnx.verify.operator_constraints import Follower
from tracea_onnx.verify.size_constraints import Facts
from tracea_onnx.verify.size_solver import Solver

#: Sizes tried for unknown dims, in order: (first axis, image side, anything else).
Guess = tuple[int, int, int]
GUESSES: tuple[Guess, ...] = (
    (2, 64, 7), (1, 64, 7), (2, 224, 16), (1, 224, 16), (1, 224, 1), (1, 640, 128), (1, 1, 1),
    (1, 512, 512), (2, 32, 8), (1, 28, 32),
    (1, 96, 64), (1, 128, 80), (1, 256, 100), (1, 299, 160), (1, 320, 256), (1, 384, 400),
    (1, 336, 1024), (1, 518, 16000),
)  # fmt: skip
Shapes = dict[str, tuple[int, ...]]


def tensor_type(t: TypeProto) -> TypeProto.Tensor | None:
    """The type of the tensor, or of the tensors in a sequence or an optional; None for other
    types.
    """
    if t.HasField("tensor_type"):
        return t.tensor_type
    if t.HasField("sequence_type"):
        return tensor_type(t.sequence_type.elem_type)
    if t.HasField("optional_type"):
        return tensor_type(t.optional_type.elem_type)
    return None


def open_axes(i: ValueInfoProto) -> bool:
    """Whether the input leaves a size, or its rank, open."""
    tensor = tensor_type(i.type)
    return (
        tensor is None
        or not tensor.HasField("shape")
        or any(d.dim_value <= 0 for d in tensor.shape.dim)
    )


def shapes(
    model: ModelProto,
    wanted: Sequence[ValueInfoProto],
    fixed: Mapping[str, tuple[int, ...]],
    symbols: Mapping[str, int],
) -> Iterator[tuple[Shapes, int]]:
    """Shapes of the `wanted` inputs by name, the likeliest first, each once; those of `fixed`
    inputs and the sizes of `symbols` are given.

    With each, how many elements the largest value of the model has then, as far as that can be
    told; 0 where no size was open.
    """
    seeds = _seeds(model, wanted, fixed)
    if all(isinstance(d, int) for shape in seeds.values() for d in shape):
        yield (
            {name: tuple(d for d in shape if isinstance(d, int)) for name, shape in seeds.items()},
            0,
        )
        return
    work = _prepared(model, seeds)
    every = [
        _facts(work, seeds, symbols, flipped)
        for flipped in ((False, True) if _branches(model) else (False,))
    ]
    made: set[tuple[object, ...]] = set()
    later: list[tuple[int, Shapes, int]] = []
    for guess in GUESSES:
        for facts in every:
            solver = Solver(facts, _guesses(seeds, facts, guess))
            found = {
                name: tuple(max(solver.value(d), 0) for d in shape) for name, shape in seeds.items()
            }
            key = tuple(found.items())
            if key in made:
                continue
            made.add(key)
            broken = solver.broken()
            if broken:
                later.append((broken, found, solver.largest()))
            else:
                yield found, solver.largest()
    for _, found, largest in sorted(later, key=lambda e: e[0]):
        yield found, largest


def _branches(model: ModelProto) -> bool:
    return any(n.op_type == "If" for n in model.graph.node)


# --- the inputs' dims -----------------------------------------------------------------------------
_NAME = re.compile(r"[A-Za-z_]\w*")


def names_in(texts: Sequence[str]) -> frozenset[str]:
    """Symbols that dims are called, or that sums and products in them are over."""
    return frozenset(
        name for t in texts for name in ([t] if t.isidentifier() else _NAME.findall(t))
    )


def _seeds(
    model: ModelProto, wanted: Sequence[ValueInfoProto], fixed: Mapping[str, tuple[int, ...]]
) -> dict[str, Dims]:
    """Dims of the inputs: numbers, symbols, and sums or products of these where an exporter wrote
    one (`past_sequence_length + 1`).
    """
    tensors = {i.name: tensor_type(i.type) for i in wanted}
    written = [
        d.dim_param for t in tensors.values() if t is not None for d in t.shape.dim if d.dim_param
    ]
    known, out = names_in(written), dict[str, Dims]()
    for name, t in tensors.items():
        if name in fixed:
            out[name] = tuple(fixed[name])
        elif t is None or not t.HasField("shape"):
            out[name] = tuple(dims.symbol(f"{name}:{k}") for k in range(_rank(model, name)))
        else:
            out[name] = tuple(
                d.dim_value
                if d.dim_value > 0
                else dims.named(d.dim_param, known)
                if d.dim_param
                else dims.symbol(f"{name}:{k}")
                for k, d in enumerate(t.shape.dim)
            )
    return out


def _rank(model: ModelProto, name: str) -> int:
    """The rank of an input without a shape: what the operator that reads it takes, else 1."""
    stored = {t.name: len(t.dims) for t in model.graph.initializer}
    for n in model.graph.node:
        if name in n.input:
            if "Conv" in n.op_type and len(n.input) > 1 and n.input[0] == name:
                return stored.get(n.input[1], 4)
            asked = RANKS.get(n.op_type, ())
            if (k := list(n.input).index(name)) < len(asked):
                return asked[k]
            if n.op_type == "MatMul":
                return 2
            perm = [len(a.ints) for a in n.attribute if a.name == "perm"]
            if perm and n.op_type == "Transpose":
                return perm[0]
    return 1


def _guesses(seeds: Mapping[str, Dims], facts: Facts, guess: Guess) -> Callable[[str], int]:
    sizes: dict[str, int] = {}
    for shape in seeds.values():
        now = [facts.now(d) for d in shape]
        image = (
            facts.images
            and len(now) == 4
            and any(isinstance(d, int) and d in (1, 3, 4) for d in (now[1], now[3]))
        )
        for k, d in enumerate(now):
            for s in dims.symbols(d):
                first = (k == 0 and isinstance(d, Dim) and d.op == "sym") or "batch" in s.lower()
                past = "past" in s and "sequence" in s
                size = (
                    guess[2]
                    if past
                    else guess[0]
                    if first
                    else guess[1]
                    if image or s in facts.spatial
                    else guess[2]
                )
                sizes.setdefault(s, size)
    return lambda s: sizes.get(s, guess[2])


def _prepared(model: ModelProto, seeds: Mapping[str, Dims]) -> ModelProto:
    """The model without weights and functions, with inferred types and what is constant folded, as
    far as it is sound.
    """
    work = onnx_inference.skeleton(model)
    for k in reversed(range(len(work.graph.input))):
        i = work.graph.input[k]
        # nothing is given for it, so it is a constant
        if any(i.name == t.name for t in work.graph.initializer):
            del work.graph.input[k]
            continue
        t = tensor_type(i.type)
        if t is not None and i.name in seeds:
            del t.shape.dim[:]
            for d in seeds[i.name]:
                t.shape.dim.add(
                    **({"dim_value": d} if isinstance(d, int) else {"dim_param": repr(d)})
                )
    try:
        if work.functions:
            inline(work)
            function_calls.expand(work, [])
        onnx_inference.infer(work, {})
        for graph in canonical_form.views(work, None):
            constant_folding.fold(work, graph, edit.protected_names(work, graph.proto), _FOLDED)
    except TraceaError:  # what is wrong with it is said where the model is transformed
        pass
    return work


#: Towers of shapes and pads are small.
_FOLDED = constant_folding.Budget(1 << 20, 1 << 16, 5.0)


def _facts(
    work: ModelProto, seeds: Mapping[str, Dims], symbols: Mapping[str, int], flipped: bool
) -> Facts:
    own = frozenset(s for d in seeds.values() for e in d for s in dims.symbols(e))
    facts = Facts(own)
    for text, size in symbols.items():
        facts.same(dims.named(text, own), size)
    leading = [
        shape[0]
        for shape in seeds.values()
        if len(shape) > 1 and isinstance(shape[0], Dim) and shape[0].op == "sym"
    ]
    Follower(Graph(work), facts, seeds, flipped=flipped)
    facts.again()
    facts.leading = {s for d in leading for s in dims.symbols(facts.now(d))}
    return facts
