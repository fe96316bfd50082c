"""Reading and writing models: external data stays on disk, every error is one line, no partial file
is ever left.

A model is loaded without its external data. Each external tensor is checked (a regular file inside
the model's own folder, offset and length within the file, bytes = dims x element size) and stays
memory-mapped until something reads it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import stat
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path

import onnx
from onnx import ModelProto, TensorProto

from tracea_onnx.errors import ModelError, UsageError
from tracea_onnx.ir import edit, fused_op_names
from tracea_onnx.ir.edit import graphs
from tracea_onnx.ir.graph import domain_of, external_info, map_data, tensor_array
from tracea_onnx.model_io import limits, weight_streaming
from tracea_onnx.model_io.external import Source as Source
from tracea_onnx.model_io.external import (
    attribute_tensors,
    check_external_data,
    in_own_file,
    load_into_memory,
    load_tensor,
    raw_bytes,
    set_external,
)
from tracea_onnx.model_io.external import tensor_bytes as tensor_bytes
from tracea_onnx.model_io.external import tensors as tensors
from tracea_onnx.model_io.external import with_real_paths as with_real_paths
from tracea_onnx.model_io.stripped_model import strip_weights
from tracea_onnx.support import files, log
from tracea_onnx.support.data_files import ModelFolder

# protobuf ships no types
_DecodeError: type[Exception] = import_module("google.protobuf.message").DecodeError

EXTERNAL_DATA = ("auto", "always", "never")
#: Protobuf refuses messages of 2 GiB and more; above this `auto` moves weights to a file of their
#: own.
INLINE_LIMIT = (1 << 31) - (64 << 20)
#: Tensors below this many bytes always stay in the model file.
EXTERNAL_MINIMUM = 1024
_ALIGN = 4096  # lets ONNX Runtime map a tensor instead of copying it
_CHUNK = 64 << 20
_PLACEHOLDER = "\0"
#: Seconds to wait for another process that gives its files their names.
_PATIENCE = 60.0


def load(model: ModelProto | str | os.PathLike[str], *, changed_specs: bool = False) -> Source:
    """Load and check a model file, or take a copy of a model in memory. `changed_specs` lets fused
    ops pass that do not say what they said when optimize wrote them, for a caller that goes by
    their bodies alone.

    Raises ModelError (exit code 3) with one line for anything that is not a readable, well-formed
    ONNX model.
    """
    if isinstance(model, ModelProto):
        own = ModelProto()
        own.CopyFrom(model)
        source = Source(own)
    else:
        path = Path(model)
        source = Source(_parse(path, _read(path)), ModelFolder.of(path), path)
    where = str(source.path) if source.path else "the model"
    _check_header(source.model, where)
    _check_contents(source.model, where)
    limits.check(source.model, where)
    check_external_data(source)
    # they are small, and onnx would look for their files in the current folder
    for t in attribute_tensors(source.model):
        if t.data_location == TensorProto.EXTERNAL:
            load_tensor(t, source.folder)
    if not changed_specs:
        fused_op_names.check(source.model, where)
    if source.path is not None:
        log.info("read %s: %s nodes", where, len(source.model.graph.node))
    return source


def _read(path: Path) -> bytes:
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise ModelError(f"{path} is a folder", "give the .onnx file inside it")
        if not stat.S_ISREG(mode):
            raise ModelError(f"{path} is not a regular file", "give the path of an .onnx file")
        with path.open("rb") as f:
            if os.fstat(f.fileno()).st_size >= weight_streaming.FILE:
                with (
                    mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
                    memoryview(mapped) as view,
                ):
                    small = strip_weights(view, path.name, weight_streaming.TENSOR)
                if small is not None:
                    return small.data
            data = f.read()
    except FileNotFoundError:
        raise ModelError(f"{path} does not exist", "check the path") from None
    except OSError as e:
        raise ModelError(
            f"{path} cannot be read ({e.strerror or e})", "check the path and its permissions"
        ) from None
    if not data:
        raise ModelError(f"{path} is empty", "download or export the model again")
    return data


_UPGRADE = "upgrade onnx and onnxruntime, or export to a lower opset"
_SIGNATURES = (
    (b"version https://git-lfs", "a Git LFS pointer, not the model itself", "run: git lfs pull"),
    (
        b"PK\x03\x04",
        "a zip archive (a PyTorch checkpoint or an archive of a model)",
        "unpack it, or export the model with torch.onnx.export",
    ),
    (b"\x1f\x8b", "a gzip archive", "unpack it first"),
    (b"\x89HDF", "an HDF5 file (a Keras model)", "convert it with tf2onnx"),
    (b"%PDF", "a PDF document", "give an .onnx file"),
)


def _parse(path: Path, data: bytes) -> ModelProto:
    head = data[:512].lstrip()
    for signature, what, fix in _SIGNATURES:
        if head.startswith(signature):
            raise ModelError(f"{path} is {what}", fix)
    if data[4:8] == b"ORTM":
        raise ModelError(
            f"{path} is in ONNX Runtime's .ort format", "give the .onnx file it was made from"
        )
    if data[4:8] == b"TFL3":
        raise ModelError(f"{path} is a TensorFlow Lite model", "convert it with tf2onnx")
    if head[:1] == b"<":
        raise ModelError(
            f"{path} is an HTML or XML page, not a model",
            "download the file itself, not the page that shows it",
        )
    model = ModelProto()
    try:
        model.ParseFromString(data)
    except _DecodeError:
        if all(b in b"\t\n\r" or 32 <= b < 127 for b in data[:512]):
            raise ModelError(
                f"{path} is a text file, not an ONNX model", "give an .onnx file"
            ) from None
        raise ModelError(
            f"{path} is truncated or is not an ONNX model", "download or export it again"
        ) from None
    return model


def _check_header(model: ModelProto, where: str) -> None:
    if not model.ir_version or not model.HasField("graph"):
        raise ModelError(
            f"{where} is not an ONNX model (no IR version or no graph in it)",
            "download or export it again",
        )
    if not model.graph.output:
        raise ModelError(f"{where} has no outputs", "export it again")
    if not model.opset_import:
        raise ModelError(f"{where} imports no operator set", "export it again")
    if model.ir_version > onnx.IR_VERSION:
        raise ModelError(
            f"{where} has IR version {model.ir_version}, the installed onnx knows up to "
            f"{int(onnx.IR_VERSION)}",
            _UPGRADE,
        )
    versions: dict[str, int] = {}
    for o in model.opset_import:
        domain = domain_of(o.domain)
        if versions.setdefault(domain, o.version) != o.version:
            raise ModelError(
                f"{where} imports operator set '{domain}' in versions {versions[domain]} and "
                f"{o.version}",
                "export it again",
            )
    newest = onnx.defs.onnx_opset_version()
    for o in model.opset_import:
        if not domain_of(o.domain) and not 1 <= o.version <= newest:
            raise ModelError(
                f"{where} uses opset {o.version}, the installed onnx knows 1 to {newest}", _UPGRADE
            )


#: Tensors of at most so many bytes are read when the model is: they may be sizes, or numbers that
#: an operator follows from.
_FEW_BYTES = 4096
_KNOWN_TYPES = frozenset(TensorProto.DataType.values()) - {TensorProto.UNDEFINED}


def _check_contents(model: ModelProto, where: str) -> None:
    """Names must be text, element types known, and small tensors of their type and shape: only a
    damaged file has others.
    """
    if reason := edit.unreadable(model):
        raise ModelError(f"{where} is damaged: {reason}", "download or export it again")
    for t in tensors(model):
        if t.data_type not in _KNOWN_TYPES or any(d < 0 for d in t.dims):
            raise ModelError(
                f"{where} is damaged: tensor '{t.name}' has no valid type or shape",
                "download or export it again",
            )
        inside = t.data_location != TensorProto.EXTERNAL and t.data_type != TensorProto.STRING
        if inside and tensor_bytes(t) <= _FEW_BYTES:
            tensor_array(t, None)


# --- writing --------------------------------------------------------------------------------------
def check_output(target: Path) -> None:
    """Raise UsageError when `target` cannot be written; called before long work."""
    folder = target.parent
    if not folder.is_dir():
        raise UsageError(f"the folder {folder} does not exist", "create it first")
    if target.is_dir():
        raise UsageError(f"{target} is a folder", "give a file name")
    if target.exists() and not target.is_file():
        # a device would be replaced by a file
        raise UsageError(f"{target} is not a regular file", "give a file name")
    if not os.access(folder, os.W_OK) or (target.exists() and not os.access(target, os.W_OK)):
        raise UsageError(
            f"{target} cannot be written", "check the permissions of the file and its folder"
        )


def check_apart(source: Source, model: Path | None, others: Sequence[Path] = ()) -> None:
    """Raise UsageError where a file to be written would destroy one that is read, or another one
    that is written.

    `model` is where the model goes, which may replace the one it is made from; `others` are written
    beside it.
    """
    taken: list[tuple[Path, str]] = []
    if source.path is not None and source.folder is not None:
        taken = [
            (source.folder / name, "holds weights of the model that is read")
            for name in _locations(source.model) - {source.path.name}
        ]
        taken.append((source.path, "is the model that is read"))
    for target in filter(None, [model, *others]):
        for file, what in taken:
            if same_file(target, file) and not (target is model and file == source.path):
                raise UsageError(f"{target} {what}", "choose another name for what is written")
        taken.append((target, "would be written twice"))
        if target is model:
            taken.append(
                (_data_file(target), "is to hold the weights of the model that is written")
            )


def same_file(a: Path, b: Path) -> bool:
    """Whether these are one file, or will be once they are written."""
    try:
        return a.samefile(b)
    except OSError:  # one of them does not exist yet
        return a.parent.resolve() / a.name == b.parent.resolve() / b.name


def _locations(model: ModelProto) -> set[str]:
    return {
        external_info(t).get("location", "")
        for t in tensors(model)
        if t.data_location == TensorProto.EXTERNAL
    }


def _data_file(model: Path) -> Path:
    return model.with_name(model.name + ".data")


@contextlib.contextmanager
def _writing(*targets: Path) -> Iterator[tuple[files.Folder, list[files.NewFile]]]:
    """New files for targets of one folder, with the permissions they are to have."""
    try:
        with files.folder(targets[0].parent) as folder, contextlib.ExitStack() as stack:
            made = [stack.enter_context(folder.new(t.name)) for t in targets]
            for f, t in zip(made, targets, strict=True):
                f.mode(stat.S_IMODE(t.stat().st_mode) if t.exists() else 0o666 & ~files.umask())
            yield folder, made
    except OSError as e:
        raise UsageError(
            f"{targets[0]} cannot be written ({e.strerror})",
            "free some space, check the permissions, or choose another place",
        ) from None


@contextlib.contextmanager
def _placing(folder: files.Folder, made: Sequence[files.NewFile]) -> Iterator[None]:
    """Whole files get their names inside: one process at a time does that in a folder, and removes
    what killed ones left.
    """
    for f in made:
        os.fsync(f.fd)
    with folder.locked(_PATIENCE) as locked:
        if not locked:
            raise UsageError(
                f"another process keeps the folder {folder.path} locked",
                "try again when it has ended",
            )
        yield
        folder.sync()
        folder.clean("|".join(re.escape(f.target) for f in made))
    for f in made:
        log.info("wrote %s", folder.path / f.target)


def write_bytes(target: Path, data: bytes) -> None:
    """Write a file whole or not at all."""
    check_output(target)
    with _writing(target) as (folder, [f]):
        f.write(data)
        with _placing(folder, [f]):
            f.place()


def serialize(model: ModelProto) -> bytes:
    """The same model gives the same bytes."""
    return bytes(model.SerializeToString(deterministic=True))


def save(source: Source, target: Path, *, external_data: str = "auto") -> list[Path]:
    """Write the model, with its weights inside (`never`), in `<target>.data` (`always`), or there
    only when it must be (`auto`: the source had external data, or the model would pass 2 GiB).
    Returns the files written. The same input gives the same bytes.
    """
    if external_data not in EXTERNAL_DATA:
        raise UsageError(
            f"external data '{external_data}' is unknown", f"choose from {', '.join(EXTERNAL_DATA)}"
        )
    check_output(target)
    mapped = [t for t in tensors(source.model) if t.data_location == TensorProto.EXTERNAL]
    outside = [t for t in mapped if not in_own_file(t, source)]
    size = source.model.ByteSize() + sum(tensor_bytes(t) for t in mapped)
    if external_data == "never" and size > INLINE_LIMIT:
        raise UsageError(
            f"the model has {size / 2**30:.1f} GiB, more than one ONNX file can hold",
            "leave out --external-data never",
        )
    if external_data == "always" or (external_data == "auto" and (outside or size > INLINE_LIMIT)):
        return _save_external(source, target)
    if mapped:
        _save_whole(source, target)
    else:
        write_bytes(target, serialize(source.model))
    return [target]


def _save_whole(source: Source, target: Path) -> None:
    """One file with all weights inside; those on disk go from file to file."""
    light = Source(ModelProto(), source.folder, source.path)
    light.model.CopyFrom(source.model)
    # a name is unique within a graph and those around it
    streamed = {t.name for t in light.model.graph.initializer}
    load_into_memory(light, lambda t: t.name not in streamed)
    with _writing(target) as (folder, [f]):
        for piece in weight_streaming.inline_weights(memoryview(serialize(light.model))):
            f.write(piece.data)
            if piece.outside is not None:
                weights = map_data(piece.outside, source.folder or target.parent).data
                for at in range(0, len(weights), _CHUNK):
                    f.write(weights[at : at + _CHUNK])
        with _placing(folder, [f]):
            f.place()


def _save_external(source: Source, target: Path) -> list[Path]:
    """Two files cannot be replaced in one step. Whenever this is interrupted, the model's name
    belongs to a whole model with its own weights, the old ones or the new ones:

    - Where there were no such weights, they get their name first, then the model does.
    - Where the weights stay the same, the model is replaced.
    - Else the new weights first have a hidden name, to which the model refers that takes the old
      one's place. Then a copy of the weights gets their own name, and the model that refers to that
      one takes its place.
    """
    data = _data_file(target)
    check_output(data)
    _guard_data(source, target, data)
    light = ModelProto()
    light.CopyFrom(source.model)
    with _writing(target, data) as (folder, [f, weights]):
        offset = 0
        for t in [t for g in graphs(light) for t in g.initializer]:
            size = tensor_bytes(t)
            if t.data_type == TensorProto.STRING or (
                size < EXTERNAL_MINIMUM and t.data_location != TensorProto.EXTERNAL
            ):
                continue
            padding = -offset % _ALIGN
            weights.write(bytes(padding))
            weights.write(raw_bytes(t, source.folder))
            set_external(t, _PLACEHOLDER, offset + padding, size)
            offset += padding + size
        for t in tensors(light):
            if (
                t.data_location == TensorProto.EXTERNAL
                and external_info(t)["location"] != _PLACEHOLDER
            ):
                load_tensor(t, source.folder)
        f.write(_referring(light, data.name))
        with _placing(folder, [f, weights]):
            if not os.path.lexists(data):
                f.hide()  # tells the next run, if this one is killed here, whose the weights are
                weights.place()
                f.place()
            elif weights.equals(data):
                f.place()
            else:
                with _writing(target, data) as (_, [first, copy]):
                    first.write(_referring(light, weights.hide()))
                    for piece in weights.contents():
                        copy.write(piece)
                    for new in (first, copy):
                        os.fsync(new.fd)
                    first.place()
                    try:
                        copy.place()
                        f.place()
                    except BaseException:
                        weights.keep()
                        raise
    return [target, data]


def _referring(light: ModelProto, name: str) -> bytes:
    """The model, with its weights in the file of this name."""
    for e in (e for t in tensors(light) for e in t.external_data if e.key == "location"):
        e.value = name
    return serialize(light)


def _guard_data(source: Source, target: Path, data: Path) -> None:
    """Refuse to overwrite weights of any model but the one that `target` holds."""
    if not os.path.lexists(data):
        return
    if source.path is not None and source.folder is not None and not same_file(target, source.path):
        for location in _locations(source.model) - {source.path.name}:
            if same_file(source.folder / location, data):
                raise UsageError(
                    f"{data} holds the weights of {source.path}", "choose another output name"
                )
    with files.folder(target.parent) as folder:
        models = [
            target,
            *(target.with_name(name) for name in folder.left_over(re.escape(target.name))),
        ]
    used: set[str] = set()
    for model in models:
        with contextlib.suppress(ModelError):
            used |= _locations(_parse(model, _read(model)))
    if not any(name == data.name or name.startswith(f".{data.name}.") for name in used):
        raise UsageError(
            f"{data} exists, and no model at {target} uses it: it may belong to another one",
            "remove it, or choose another output name",
        )
