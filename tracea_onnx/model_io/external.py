"""Tensors a model stores and the files they lie in: where each is, that it may be read, and how to
bring it in.

A tensor's external data must lie within a regular file inside the model's own folder. Of a large
model file read without its weights (`stripped_model.py`) that file is the model itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path, PurePosixPath, PureWindowsPath

from onnx import AttributeProto, GraphProto, ModelProto, TensorProto

from tracea_onnx.errors import ModelError
from tracea_onnx.ir.graph import external_info, map_data, tensor_array, truncated
from tracea_onnx.ir.graph import tensor_bytes as tensor_bytes
from tracea_onnx.support.data_files import open_data


@dataclass(frozen=True)
class Source:
    """A loaded model. `folder` is where external data is read from (None for a model without
    any).
    """

    model: ModelProto
    folder: Path | None = None
    path: Path | None = None


def tensors(model: ModelProto) -> Iterator[TensorProto]:
    """Every tensor the model stores: initializers, sparse ones, and tensors in attributes, in
    bodies, functions and training graphs too.
    """
    for g in _every_graph(model):
        yield from g.initializer
        for s in g.sparse_initializer:
            yield from (s.values, s.indices)
    yield from attribute_tensors(model)


def attribute_tensors(model: ModelProto) -> Iterator[TensorProto]:
    """Every tensor in an attribute, whatever type the attribute claims to have."""
    for a in _every_attribute(model):
        if a.HasField("t"):
            yield a.t
        yield from a.tensors
        for s in [*([a.sparse_tensor] if a.HasField("sparse_tensor") else []), *a.sparse_tensors]:
            yield from (s.values, s.indices)


def _every_attribute(model: ModelProto) -> Iterator[AttributeProto]:
    """Attributes of all nodes and functions, those inside other attributes too."""
    stack = [a for f in model.functions for a in f.attribute_proto]
    nodes = chain(
        model.graph.node,
        *(f.node for f in model.functions),
        *(g.node for t in model.training_info for g in (t.initialization, t.algorithm)),
    )
    stack += [a for n in nodes for a in n.attribute]
    while stack:
        a = stack.pop()
        yield a
        stack += [
            b
            for g in (*([a.g] if a.HasField("g") else []), *a.graphs)
            for n in g.node
            for b in n.attribute
        ]


def _every_graph(model: ModelProto) -> Iterator[GraphProto]:
    yield model.graph
    for t in model.training_info:
        yield from (t.initialization, t.algorithm)
    for a in _every_attribute(model):
        if a.HasField("g"):
            yield a.g
        yield from a.graphs


def check_external_data(source: Source) -> None:
    """Raise ModelError unless every external tensor lies within a regular file inside the model's
    folder.
    """
    for t in tensors(source.model):
        if t.data_location == TensorProto.EXTERNAL:
            _check_external(t, source)


#: Parts of locations by which programs mean an address in their own memory: ours, and ONNX
#: Runtime's.
_INTERNAL = ("tracea:", "_ORT_MEM_ADDR_")


def _check_external(t: TensorProto, source: Source) -> None:
    info = external_info(t)
    location = info.get("location", "")
    # protobuf hands over bytes that are no UTF-8
    if any(
        not isinstance(text, str) or "\0" in text
        for e in t.external_data
        for text in (e.key, e.value)
    ):
        raise ModelError(
            f"tensor '{t.name}' has external data whose description is not text",
            "export the model again",
        )
    if any(mark in e.value for e in t.external_data for mark in _INTERNAL):
        raise ModelError(
            f"tensor '{t.name}' has its data at an address in memory ('{location}'), which no "
            "model from outside may",
            "export it again",
        )
    if source.folder is None or source.path is None:
        raise ModelError(
            f"tensor '{t.name}' has its data in the file '{location}', which a model in memory "
            "cannot reach",
            "give the model's path instead",
        )
    if (
        not location
        or PurePosixPath(location).is_absolute()
        or PureWindowsPath(location).is_absolute()
        or ".." in Path(location).parts
    ):
        raise ModelError(
            f"tensor '{t.name}' has its data outside the model's folder ('{location}')",
            "save it again beside the model",
        )
    with open_data(source.folder, location) as opened:
        file, size = source.folder / location, os.fstat(opened.fileno()).st_size
    try:
        offset, length = int(info.get("offset", "0")), int(info.get("length", "-1"))
    except ValueError:
        raise ModelError(
            f"tensor '{t.name}' has a malformed external offset or length", "export the model again"
        ) from None
    if any(d < 0 for d in t.dims):
        raise ModelError(f"tensor '{t.name}' has a negative dimension", "export the model again")
    need = tensor_bytes(t)
    if length >= 0 and length != need:
        raise ModelError(
            f"tensor '{t.name}' needs {need} bytes but claims {length} in {file.name}",
            "export the model again",
        )
    if offset < 0 or offset + need > size:
        raise ModelError(
            f"tensor '{t.name}' ends at byte {offset + need} of {file.name}, which has {size}",
            "the file is truncated: download it again",
        )


def with_real_paths(source: Source) -> tuple[ModelProto, Path | None]:
    """The model and the real folder its external data lies in, without links: ONNX Runtime refuses
    a link that leaves the folder.

    The model is `source`'s own unless links make other locations necessary.
    """
    outside = [t for t in tensors(source.model) if t.data_location == TensorProto.EXTERNAL]
    if source.folder is None or not outside:
        return source.model, None
    real = {
        external_info(t)["location"]: (source.folder / external_info(t)["location"]).resolve()
        for t in outside
    }
    folder = source.folder.resolve()
    if all(file == folder / location for location, file in real.items()):
        return source.model, folder
    root = Path(os.path.commonpath([file.parent for file in real.values()]))
    copy = ModelProto()
    copy.CopyFrom(source.model)
    for t in tensors(copy):
        for e in t.external_data:
            if e.key == "location" and e.value in real:
                e.value = real[e.value].relative_to(root).as_posix()
    return copy, root


def in_own_file(t: TensorProto, source: Source) -> bool:
    """Whether the tensor's data lies in the model file itself."""
    return (
        t.data_location == TensorProto.EXTERNAL
        and source.path is not None
        and external_info(t).get("location") == source.path.name
    )


def load_into_memory(source: Source, wanted: Callable[[TensorProto], bool]) -> None:
    """Read the external data of the wanted tensors into the model, in place."""
    for t in tensors(source.model):
        if t.data_location == TensorProto.EXTERNAL and wanted(t):
            load_tensor(t, source.folder)


def load_tensor(t: TensorProto, folder: Path | None) -> None:
    """Read the tensor's external data into it."""
    t.raw_data = raw_bytes(t, folder)
    t.ClearField("data_location")
    del t.external_data[:]


def raw_bytes(t: TensorProto, folder: Path | None) -> bytes:
    """The tensor's elements as ONNX stores them, wherever they lie."""
    if t.data_location == TensorProto.EXTERNAL and folder is not None:
        info = external_info(t)
        with open_data(folder, info["location"]) as f:
            f.seek(int(info.get("offset", "0")))
            data = f.read(tensor_bytes(t))
        if len(data) != tensor_bytes(t):
            raise truncated(t)
        return data
    if t.HasField("raw_data"):
        return t.raw_data
    return tensor_array(t, folder).tobytes()


def stored(t: TensorProto, folder: Path | None) -> memoryview | None:
    """The tensor's stored bytes without reading them; None for one that is not stored as raw
    bytes.
    """
    if t.data_location != TensorProto.EXTERNAL:
        return memoryview(t.raw_data) if t.HasField("raw_data") else None
    if folder is None or not tensor_bytes(t):
        return None
    return map_data(t, folder).data


def set_external(t: TensorProto, location: str, offset: int, length: int) -> None:
    """Let the tensor's data lie in a file beside the model."""
    name, dims, kind, doc = t.name, list(t.dims), t.data_type, t.doc_string
    metadata = list(t.metadata_props) if hasattr(t, "metadata_props") else []
    t.Clear()
    t.name, t.data_type, t.data_location = name, kind, TensorProto.EXTERNAL
    t.dims.extend(dims)
    if doc:
        t.doc_string = doc
    if metadata:
        t.metadata_props.extend(metadata)
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        t.external_data.add(key=key, value=value)
