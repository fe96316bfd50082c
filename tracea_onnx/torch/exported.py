"""An FX graph of Dynamo as an ONNX model, by torch.export and torch.onnx."""

from __future__ import annotations

import logging
import operator
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import fx

from tracea_onnx.torch import reasons
from tracea_onnx.torch.fast_paths import FAST_PATHS
from tracea_onnx.torch.outputs import Result, traced
from tracea_onnx.torch.reasons import RunsInEagerError
from tracea_onnx.torch.sizes import Sizes, hint, symbolic

OPSET = 18  # the one torch.onnx's conversions are written for
OPSET_OF_BF16 = 22
#: Loggers of PyTorch that tell developers of exporters what is missing or was skipped.
_LOGGERS = (
    "torch.onnx._internal.exporter._registration", "torch.onnx._internal.exporter._core",
    "onnxscript", "onnx_ir",
)  # fmt: skip


class Exported(NamedTuple):
    """`model` is a ModelProto whose inputs are arguments, weights included; `arguments` are the
    places of these among the graph's placeholders. Behind the results the model has the new
    contents of the arguments at the places `mutated`. It is that of the arguments in `numbers`,
    which are numbers of floating point, alone.
    """

    model: Any
    arguments: list[int]
    mutated: list[int]
    numbers: dict[int, float]


def export(gm: fx.GraphModule, examples: Sequence[Any], results: Sequence[Result]) -> Exported:
    """Raises RunsInEagerError where torch.export or torch.onnx cannot convert the graph."""
    numbers = _constants(gm, examples)
    try:
        with _alone():
            given = _prepared(gm, examples, results, numbers)
            program = torch.export.export(
                given.module, tuple(given.arguments), dynamic_shapes=tuple(given.dynamic),
                strict=False,
            )  # fmt: skip
            converted = torch.onnx.export(
                program,
                dynamo=True,
                optimize=False,
                opset_version=_opset(gm, examples),
                verbose=False,
            )
            assert converted is not None and converted.exported_program is not None
            for node in converted.exported_program.graph.nodes:
                _deterministic_inference(node)
            written = _finish(converted.model.graph, results, given.tensors)
            converted.optimize()
            model = converted.model_proto
            mutated = [given.places[k] for k in written]
            return Exported(model, given.places, mutated, numbers)
    except ImportError as e:
        raise RunsInEagerError(
            f"torch.onnx needs a package that is not installed ({e}): "
            'python -m pip install "tracea-onnx[torch]"'
        ) from e
    except RunsInEagerError:
        raise
    except Exception as e:
        raise RunsInEagerError(reasons.of_conversion(e)) from e


def _opset(gm: fx.GraphModule, examples: Sequence[Any]) -> int:
    """Of the model: convolutions, poolings and others of bfloat16 are of newer ones alone."""
    tensors = [*gm.parameters(), *gm.buffers(), *examples]
    return (
        OPSET_OF_BF16
        if any(isinstance(t, torch.Tensor) and t.dtype == torch.bfloat16 for t in tensors)
        else OPSET
    )


#: What may be done with a number that changes, as tensors.
_ARITHMETIC = (operator.add, operator.sub, operator.mul, operator.truediv)


def _constants(gm: fx.GraphModule, examples: Sequence[Any]) -> dict[int, float]:
    """Arguments that Dynamo took for numbers that change, and that operators need as constants: an
    epsilon, say. They are tensors whose item is used, and not for arithmetic on tensors alone.
    """
    found = {}
    for k, node in enumerate(gm.graph.find_nodes(op="placeholder")):
        if all(user.target == "item" for user in node.users) and any(
            use.target not in _ARITHMETIC or not isinstance(traced(use), torch.Tensor)
            for item in node.users
            for use in item.users
        ):
            found[k] = examples[k].item()
    return found


class _Prepared(NamedTuple):
    """`module` returns the results, then its arguments at the places `tensors`; in their place an
    export returns what is written there. `places` are those of the arguments among the
    placeholders; `dynamic` are their dynamic sizes.
    """

    module: fx.GraphModule
    arguments: list[Any]
    dynamic: list[Any]
    places: list[int]
    tensors: list[int]


def _prepared(
    gm: fx.GraphModule, examples: Sequence[Any], results: Sequence[Result],
    numbers: dict[int, float],
) -> _Prepared:  # fmt: skip
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    graph.graph_copy(gm.graph, copies)
    placeholders = graph.find_nodes(op="placeholder")
    for node in list(graph.nodes):
        # No gradient is recorded, so it does not matter where one would be.
        if node.target is torch._C._set_grad_enabled:
            graph.erase_node(node)
        elif node.op == "call_function":
            node.target = FAST_PATHS.get(node.target, node.target)
    for k, number in numbers.items():
        for item in list(placeholders[k].users):
            _becomes(item, number)
            graph.erase_node(item)
    _sizes_of_tensors(graph, placeholders)
    arguments, dynamic, places = list[Any](), list[Any](), list[int]()
    tensors, returned = list[int](), list[fx.Node]()
    for k, (node, example) in enumerate(zip(placeholders, examples, strict=True)):
        value = traced(node)
        if isinstance(value, torch.Tensor):
            tensors.append(len(arguments))
            returned.append(node)
            arguments.append(_example(example))
            dynamic.append({
                d: torch.export.Dim.DYNAMIC
                for d, size in enumerate(value.shape)
                if symbolic(size)
            })  # fmt: skip
        elif not isinstance(value, torch.SymInt):
            raise RunsInEagerError(f"it takes a {type(value).__name__}")
        elif node.users:
            arguments.append(hint(value))
            dynamic.append(torch.export.Dim.DYNAMIC)
        else:
            graph.erase_node(node)
            continue
        places.append(k)
    graph.output((*(copies[r.node] for r in results), *returned))
    return _Prepared(fx.GraphModule(gm, graph), arguments, dynamic, places, tensors)


def _example(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without Dynamo's marks, which torch.export would take away, and without memory
    that it shares with others, which it may refuse.
    """
    whole = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    return tensor.detach() if whole else tensor.detach().clone()


def _sizes_of_tensors(graph: fx.Graph, placeholders: Sequence[fx.Node]) -> None:
    """Integers that are a size of an argument become that size: shapes stay known by it."""
    places = Sizes([traced(p) for p in placeholders]).places
    first = next((n for n in graph.nodes if n.op != "placeholder"), None)
    for node in placeholders:
        value = traced(node)
        if not isinstance(value, torch.SymInt) or not node.users or first is None:
            continue
        if not symbolic(value):
            _becomes(node, hint(value))
            continue
        if (place := places.get(value.node.expr)) is None:
            continue
        with graph.inserting_before(first):
            size = graph.call_method("size", (placeholders[place[0]], place[1]))
        node.replace_all_uses_with(size)


def _deterministic_inference(node: fx.Node) -> None:
    """Raises RunsInEagerError where ONNX would say something else."""
    if (
        torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
        and _argument(node, "dropout_p", 1.0) != 0
        and _argument(node, "train", True)
    ):
        raise RunsInEagerError(f"it draws random numbers ({node.target})")
    # torch.onnx converts it as if it were inference.
    if node.target is torch.ops.aten._native_batch_norm_legit_functional.default and _argument(
        node, "training", True
    ):
        raise RunsInEagerError("batch normalization is in training mode; call model.eval()")


def _argument(node: fx.Node, name: str, absent: Any) -> Any:
    """Argument of an operator by its name in the schema."""
    for k, argument in enumerate(node.target._schema.arguments):
        if argument.name == name:
            given = node.args[k : k + 1] or (node.kwargs.get(name, argument.default_value),)
            return given[0]
    return absent


def _finish(graph: Any, results: Sequence[Result], tensors: Sequence[int]) -> list[int]:
    """Gives the model its outputs: results in the order of their memory, then what arguments
    become. Returns the places of these arguments; `tensors` are the places of those it returns.
    """
    inputs, values = set(graph.inputs), list(graph.outputs)
    outputs, returned = values[: len(results)], values[len(results) :]
    for k, result in enumerate(results):
        if result.order != tuple(range(len(result.order))):
            outputs[k] = _added(graph, "Transpose", outputs[k], perm=list(result.order))
    written = [k for k, value in zip(tensors, returned, strict=True) if value not in inputs]
    outputs += [value for value in returned if value not in inputs]
    # An output is a value of its own: neither an input nor another output.
    for k, value in enumerate(outputs):
        if value in inputs or value in outputs[:k]:
            outputs[k] = _added(graph, "Identity", value)
    graph.outputs[:] = outputs
    return written


def _becomes(node: fx.Node, value: float) -> None:
    """Puts a number in the place of a node's result."""

    def put(given: fx.Node) -> Any:
        return value if given is node else given

    for user in list(node.users):
        user.args = fx.node.map_arg(user.args, put)
        user.kwargs = fx.node.map_arg(user.kwargs, put)


def _added(graph: Any, operator: str, value: Any, **attributes: Any) -> Any:
    """The result of an operator that is added to the graph's end."""
    import onnx_ir as ir

    node = ir.node(operator, [value], attributes)
    (made,) = node.outputs
    made.name = f"{value.name}_{operator.lower()}"
    made.type = value.type
    graph.append(node)
    return made


@contextmanager
def _alone() -> Iterator[None]:
    """Neither Dynamo, which waits for the result, nor autograd takes part."""
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels = [logger.level for logger in loggers]
    with (
        torch._guards.tracing(None),
        torch.inference_mode(False),
        torch.no_grad(),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
