"""Regenerates the export matrix: python tests/exports/make.py [CHAIN ...] (torch and transformers
installed; all chains without arguments).

    chain.ts17.onnx      TorchScript exporter, opset 17, every size fixed
    chain.ts17d.onnx     the same with a dynamic batch
    chain.dynamo18d.onnx torch.export exporter

Weights come from a fixed seed. Stack traces, doc strings and other metadata are removed: they hold
paths of the machine that exported; names are shortened.
"""

from __future__ import annotations

import contextlib
import io
import logging
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import torch
from onnx import GraphProto, ModelProto

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.exports import matrix
from tests.exports.cases import CASES
from tests.exports.handwritten import HANDWRITTEN
from tests.exports.models import MODEL_EXPORTERS, MODELS
from tests.exports.modules import Case

#: Every opset once, the commonest ones static and dynamic.
EXPORTERS = (
    "ts11",
    "ts13d",
    "ts14",
    "ts17",
    "ts17d",
    "ts20d",
    "dynamo18",
    "dynamo18d",
    "dynamo20d",
    "dynamo23",
    "dynamo23d",
)


def strip(model: ModelProto) -> ModelProto:
    """`model` without doc strings and metadata, down to the bodies of functions and control
    flow.
    """
    model.doc_string = ""
    del model.metadata_props[:]
    for f in model.functions:
        f.doc_string = ""
        del f.metadata_props[:]
        for n in f.node:
            n.doc_string = ""
            del n.metadata_props[:]
    for g in _graphs(model.graph):
        g.doc_string = ""
        del g.metadata_props[:]
        for part in (*g.node, *g.input, *g.output, *g.value_info, *g.initializer):
            part.doc_string = ""
            if hasattr(part, "metadata_props"):
                del part.metadata_props[:]
    return model


def shorten(model: ModelProto) -> ModelProto:
    """`model` with nodes called n0, n1, ... and inner values t0, t1, ...: most bytes of an export
    are scope names.
    """
    kept = {v.name for v in (*model.graph.input, *model.graph.output)} | {""}
    new: dict[str, str] = {}

    def short(name: str) -> str:
        return name if name in kept else new.setdefault(name, f"t{len(new)}")

    count = 0
    for g in _graphs(model.graph):
        for tensor in g.initializer:
            tensor.name = short(tensor.name)
        for n in g.node:
            n.name, count = f"n{count}", count + 1
            n.input[:] = [short(i) for i in n.input]
            n.output[:] = [short(o) for o in n.output]
        for value in (*g.value_info, *(() if g is model.graph else (*g.input, *g.output))):
            value.name = short(value.name)
    return model


def _graphs(g: GraphProto) -> Iterator[GraphProto]:
    yield g
    for n in g.node:
        for a in n.attribute:
            for inner in (a.g, *a.graphs) if a.HasField("g") else a.graphs:
                yield from _graphs(inner)


def export(case: Case, exporter: str) -> ModelProto:
    """The model one exporter makes of a case. Raises what the exporter raises."""
    dynamic = exporter.endswith("d")
    kind, opset = (
        ("ts", int(exporter[2:].rstrip("d")))
        if exporter.startswith("ts")
        else ("dynamo", int(exporter[6:].rstrip("d")))
    )
    net, inputs = (
        (case.net.half(), tuple(i.half() for i in case.inputs))
        if case.half
        else (case.net, case.inputs)
    )
    net = net.eval()
    if kind == "dynamo":
        # Whole networks compare sizes in their code, which a size declared free would contradict.
        free = torch.export.Dim("batch") if case.axes is None else torch.export.Dim.AUTO
        shapes = tuple(dict.fromkeys(axes, free) for axes in case.dynamic()) if dynamic else None
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                net, inputs, dynamo=True, opset_version=opset, dynamic_shapes=shapes, verbose=False
            )
        model: ModelProto = program.model_proto
        return shorten(strip(model))
    names = [f"i{k}" for k in range(len(inputs))]
    axes: dict[str, Any] = dict(zip(names, case.dynamic(), strict=True)) if dynamic else {}
    mode = torch.onnx.TrainingMode.PRESERVE if case.preserve else torch.onnx.TrainingMode.EVAL
    file = io.BytesIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        torch.onnx.export(
            net, inputs, file, dynamo=False, opset_version=opset, input_names=names,
            dynamic_axes=axes, training=mode, do_constant_folding=not case.preserve
        )  # fmt: skip
    return shorten(strip(onnx.load_from_string(file.getvalue())))


def write(target: Path, model: ModelProto) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(model.SerializeToString(deterministic=True))


def main(wanted: list[str]) -> int:
    logging.disable(logging.ERROR)
    torch.set_num_threads(1)
    for name, make in HANDWRITTEN.items():
        if not wanted or name in wanted:
            write(matrix.file(name), strip(make()))
    for name, build in (CASES | MODELS).items():
        if wanted and name not in wanted:
            continue
        for exporter in EXPORTERS if name in CASES else MODEL_EXPORTERS:
            target = matrix.file(f"{name}.{exporter}")
            torch.manual_seed(0)
            try:
                model = export(build(), exporter)
                matrix.accepted(model)  # an exporter may write what no runtime takes
            except Exception as e:
                target.unlink(missing_ok=True)
                print(
                    f"{matrix.name(target)}: {type(e).__name__}: "
                    f"{str(e).splitlines()[0][:150] if str(e) else ''}",
                    flush=True,
                )
                continue
            write(target, model)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
