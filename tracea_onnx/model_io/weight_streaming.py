"""A large model file read without its weights, and written without them in memory: each large
initializer becomes external data that lies in the model file itself.

    ModelProto { graph { initializer { raw_data: 400 MB } } }
        becomes   initializer { data_location: EXTERNAL, location: "model.onnx", offset, length }

The file is walked in protobuf's wire format, so the weights are never read until something needs
them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from onnx import GraphProto, ModelProto, TensorProto

from tracea_onnx.model_io.external import tensor_bytes
from tracea_onnx.support.wire_format import BYTES, spans

#: Model files from this many bytes on are read without their weights, and initializers from this
#: many bytes on stay in the file.
FILE, TENSOR = 256 << 20, 1 << 20

_GRAPH = ModelProto.GRAPH_FIELD_NUMBER
_INITIALIZER = GraphProto.INITIALIZER_FIELD_NUMBER
_RAW = TensorProto.RAW_DATA_FIELD_NUMBER
_PLACE = (TensorProto.DATA_LOCATION_FIELD_NUMBER, TensorProto.EXTERNAL_DATA_FIELD_NUMBER)


def strip_weights(data: memoryview, location: str) -> bytes | None:
    """The model's bytes with large raw data left out and pointed to in the file called `location`;
    None when `data` is not well-formed.
    """
    try:
        return b"".join(_rewrite(data, 0, len(data), (_GRAPH, _INITIALIZER), location))
    except ValueError:
        return None


def _rewrite(
    data: memoryview, start: int, end: int, path: tuple[int, ...], location: str
) -> Iterator[bytes]:
    """The message at [start, end) with the submessages at `path` rewritten; at the end of the path
    lies a tensor.
    """
    if not path:
        yield from _tensor(data, start, end, location)
        return
    for number, kind, at, value, after in spans(data, start, end):
        if number == path[0] and kind == BYTES:
            inner = b"".join(_rewrite(data, value, after, path[1:], location))
            yield _varint(number << 3 | BYTES) + _varint(len(inner)) + inner
        else:
            yield bytes(data[at:after])


def _tensor(data: memoryview, start: int, end: int, location: str) -> Iterator[bytes]:
    place: tuple[int, int] | None = None
    kept: list[tuple[int, bytes]] = []
    for number, kind, at, value, after in spans(data, start, end):
        if number == _RAW and kind == BYTES and after - value >= TENSOR:
            place = value, after - value
        else:
            kept.append((number, bytes(data[at:after])))
    yield from (field for number, field in kept if place is None or number not in _PLACE)
    if place is not None:
        t = TensorProto(data_location=TensorProto.EXTERNAL)
        for key, text in (
            ("location", location),
            ("offset", str(place[0])),
            ("length", str(place[1])),
        ):
            t.external_data.add(key=key, value=text)
        yield t.SerializeToString()  # a message appended to another is merged into it


@dataclass(frozen=True)
class FileRange:
    """Bytes of a model file: given, or the external data of a tensor."""

    data: bytes = b""
    outside: TensorProto | None = None

    def __len__(self) -> int:
        return len(self.data) if self.outside is None else tensor_bytes(self.outside)


def inline_weights(data: memoryview) -> list[FileRange]:
    """The serialized model `data` in pieces, with the external data of its graph's initializers
    inside, none of it read yet.
    """
    return _fill(data, 0, len(data), (_GRAPH, _INITIALIZER))


def _fill(data: memoryview, start: int, end: int, path: tuple[int, ...]) -> list[FileRange]:
    if not path:
        return _weights(bytes(data[start:end]))
    out: list[FileRange] = []
    for number, kind, at, value, after in spans(data, start, end):
        if number == path[0] and kind == BYTES:
            inner = _fill(data, value, after, path[1:])
            out += [FileRange(_varint(number << 3 | BYTES) + _varint(sum(map(len, inner)))), *inner]
        else:
            out.append(FileRange(bytes(data[at:after])))
    return out


def _weights(data: bytes) -> list[FileRange]:
    t = TensorProto.FromString(data)
    if t.data_location != TensorProto.EXTERNAL:
        return [FileRange(data)]
    inside, size = TensorProto.FromString(data), tensor_bytes(t)
    inside.ClearField("data_location")
    del inside.external_data[:]
    head = FileRange(
        inside.SerializeToString(deterministic=True) + _varint(_RAW << 3 | BYTES) + _varint(size)
    )
    return [head, FileRange(outside=t)] if size else [head]


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
