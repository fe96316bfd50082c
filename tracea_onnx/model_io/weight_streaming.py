"""Writes a large model that was read without its weights (`stripped_model.py`): their bytes are
copied from file to file and are never all in memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from onnx import GraphProto, ModelProto, TensorProto

from tracea_onnx.model_io.external import tensor_bytes
from tracea_onnx.support.wire_format import BYTES, encoded_varint, spans

#: Model files from this many bytes on are read without their weights, and initializers from this
#: many bytes on stay in the file.
FILE, TENSOR = 256 << 20, 1 << 20

_GRAPH = ModelProto.GRAPH_FIELD_NUMBER
_INITIALIZER = GraphProto.INITIALIZER_FIELD_NUMBER
_RAW = TensorProto.RAW_DATA_FIELD_NUMBER


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
            out += [
                FileRange(
                    encoded_varint(number << 3 | BYTES) + encoded_varint(sum(map(len, inner)))
                ),
                *inner,
            ]
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
        inside.SerializeToString(deterministic=True)
        + encoded_varint(_RAW << 3 | BYTES)
        + encoded_varint(size)
    )
    return [head, FileRange(outside=t)] if size else [head]
