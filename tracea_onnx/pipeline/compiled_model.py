"""Compiled models: ONNX files with a node com.microsoft::EPContext in place of each partition, as
ONNX Runtime's tools write and read them. The provider runs them without a compiler.
"""

from __future__ import annotations

import glob
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from onnx import ModelProto, NodeProto, TensorProto, TypeProto

from tracea_onnx import provider
from tracea_onnx.errors import TraceaError, UsageError
from tracea_onnx.ir.edit import graphs
from tracea_onnx.ir.graph import tensor_bytes
from tracea_onnx.model_io import model_file
from tracea_onnx.pipeline.fusion_loop import count_nodes


@dataclass(frozen=True)
class CompiledModel:
    """nodes: of the source. partitions: that were compiled. left: nodes for ONNX Runtime. files:
    that were written, the model first.
    """

    nodes: int
    partitions: int
    left: int
    files: list[Path]


def compile_model(
    model: str | PathLike[str],
    output: str | PathLike[str],
    *,
    embed: bool = False,
    external_data: str = "auto",
    options: Mapping[str, str] | None = None,
) -> CompiledModel:
    """Compile a model file for this machine by the provider with these `options` (backend,
    device_id, ...), and write it to `output`: the compiled Plans in the file (`embed`) or in one
    beside it, weights as `external_data` says (`model_file.save`).

    Raises ModelError (unreadable model), UsageError (options), TraceaError when the provider would
    run nothing of the model or ONNX Runtime cannot compile it.
    """
    source, target = Path(model), Path(output)
    model_file.check_output(target)
    original = model_file.load(source)
    model_file.check_apart(original, target)
    if any(_is_compiled(n) for n in _nodes(original.model)):
        raise UsageError(f"{source} is a compiled model already", "give the model it was made from")
    outside = any(
        t.data_location == TensorProto.EXTERNAL for t in model_file.tensors(original.model)
    )
    size = sum(tensor_bytes(t) for t in model_file.tensors(original.model))
    if external_data == "auto":
        external_data = "always" if outside or size > model_file.INLINE_LIMIT else "never"
    nodes = count_nodes(original.model)
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "model.onnx"
        _compile(source, made, options)
        compiled = model_file.load(made)
        parts = [n for n in _nodes(compiled.model) if _is_compiled(n)]
        if not parts:
            raise TraceaError(
                "the provider runs no part of this model, so there is nothing to compile",
                "see why with `tracea-onnx explain MODEL`",
            )
        if external_data == "never":
            for p in [p for p in compiled.model.metadata_props if p.key == _OUTSIDE]:
                compiled.model.metadata_props.remove(p)
        _keep_descriptions(original.model, compiled.model)
        there = frozenset(target.parent.glob(f"{glob.escape(target.stem)}_tracea_*.bin"))
        files = [] if embed else [_taken_out(n, target) for n in parts if _main(n)]
        try:
            files = [*model_file.save(compiled, target, external_data=external_data), *files]
        except TraceaError:
            for pack in set(files) - there:  # of no model
                pack.unlink()
            raise
    return CompiledModel(nodes, len(parts), count_nodes(compiled.model) - len(parts), files)


#: Metadata of ONNX Runtime from 1.32 on: the weights lie in another file.
_OUTSIDE = "external_dependencies"


def _keep_descriptions(original: ModelProto, compiled: ModelProto) -> None:
    """What the model, its inputs and its outputs say of themselves, which ONNX Runtime leaves out
    for the most part.
    """
    for field in ("doc_string", "producer_name", "producer_version", "domain", "model_version"):
        told = getattr(original, field)  # bytes, where they are no UTF-8
        setattr(compiled, field, told.decode(errors="replace") if type(told) is bytes else told)
    for given, made in ((original, compiled), (original.graph, compiled.graph)):
        known = {p.key for p in made.metadata_props}
        made.metadata_props.extend(p for p in given.metadata_props if p.key not in known)
    values = {v.name: v for v in (*original.graph.input, *original.graph.output)}
    for v in (*compiled.graph.input, *compiled.graph.output):
        if told := values.get(v.name):
            inferred = TypeProto.FromString(v.type.SerializeToString())
            v.CopyFrom(told)
            if not v.type.WhichOneof("value"):  # nobody infers what a compiled node makes
                v.type.CopyFrom(inferred)


def _compile(source: Path, made: Path, options: Mapping[str, str] | None) -> None:
    import onnxruntime as ort

    level = (
        ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    )  # what is left runs on other machines, too
    compiler = ort.ModelCompiler(
        provider.select(options),
        str(source),
        embed_compiled_data_into_model=True,
        external_initializers_file_path=made.with_suffix(".data").name,
        external_initializers_size_threshold=model_file.EXTERNAL_MINIMUM,
        graph_optimization_level=level,
    )
    try:
        compiler.compile_to_file(str(made))
    except Exception as e:  # ONNX Runtime's exceptions share no other class
        line = str(e).splitlines()[0]
        if "in-memory address marker" in line:
            raise TraceaError(
                f"ONNX Runtime {ort.__version__} cannot write compiled models with weights in "
                "bodies of"
                " If, Loop or Scan",
                "make a pack, which has no such limit: `tracea-onnx optimize MODEL --pack FILE`",
            ) from None
        if "int4)" in line and "(EPContext)" in line:
            raise TraceaError(
                f"ONNX Runtime {ort.__version__} gives compiled nodes no weights of 4 bits",
                "make a pack, which has no such limit: `tracea-onnx optimize MODEL --pack FILE`",
            ) from None
        raise TraceaError(
            f"ONNX Runtime cannot compile {source}: {line}",
            "see what the provider makes of it with `tracea-onnx explain MODEL`",
        ) from None


def _nodes(model: ModelProto) -> list[NodeProto]:
    return [n for g in graphs(model) for n in g.node]


def _is_compiled(node: NodeProto) -> bool:
    return node.op_type == "EPContext" and node.domain == "com.microsoft"


def _main(node: NodeProto) -> bool:
    return any(a.name == "main_context" and a.i for a in node.attribute)


def _taken_out(node: NodeProto, target: Path) -> Path:
    """Move a node's pack into a file beside the target."""
    attributes = {a.name: a for a in node.attribute}
    content, name = attributes["ep_cache_context"], attributes["partition_name"].s.decode()
    path = target.with_name(f"{target.stem}_tracea_{name[:16]}.bin")
    model_file.write_bytes(path, content.s)
    content.s, attributes["embed_mode"].i = path.name.encode(), 0
    return path
