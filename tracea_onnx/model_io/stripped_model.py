"""A model file without its weights: each large initializer becomes external data that lies in the
model file itself.

    ModelProto { graph { initializer { raw_data: 400 MB } } }
        becomes   initializer { data_location: EXTERNAL, location: "model.onnx", offset, length }

The file is walked in protobuf's wire format, so that the weights are not read. Sessions do this
when they load: nothing here imports onnx.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

from tracea_onnx.support.wire_format import BYTES, VARINT, Span, encoded_varint, spans, varint

#: Numbers of fields in onnx.proto: of a model; of a graph; of a value; of a tensor.
_GRAPH = 7
_INITIALIZER, _OUTPUT = 5, 12
_VALUE_NAME = 1
_NAME, _RAW, _EXTERNAL_DATA, _LOCATION = 8, 9, 13, 14
_EXTERNAL = 1  # TensorProto.DataLocation


class Stripped(NamedTuple):
    """A model's bytes, and how many of its initializers were left out of them."""

    data: bytes
    left_out: int


def strip_weights(data: memoryview, location: str, least: int) -> Stripped | None:
    """The model `data` with raw data of at least so many bytes left out of its initializers and
    pointed to in the file called `location`; None when `data` is not well-formed. Initializers that
    are outputs of the graph stay.
    """
    try:
        model = spans(data, 0, len(data))
        graphs = {
            at: spans(data, value, end)
            for number, kind, at, value, end in model
            if number == _GRAPH and kind == BYTES
        }
        outputs = {
            bytes(data[value:end])
            for number, kind, _, at, after in chain.from_iterable(graphs.values())
            if number == _OUTPUT and kind == BYTES
            for inner, wire, _, value, end in spans(data, at, after)
            if inner == _VALUE_NAME and wire == BYTES
        }
        pieces: list[bytes] = []
        left_out = 0
        for _, _, at, _, end in model:
            if at not in graphs:
                pieces.append(bytes(data[at:end]))
                continue
            graph = []
            for span in graphs[at]:
                tensor = _tensor(data, span, outputs, location, least)
                left_out += tensor is not None
                graph.append(bytes(data[span[2] : span[4]]) if tensor is None else tensor)
            pieces.append(_message(_GRAPH, graph))
    except ValueError:
        return None
    return Stripped(b"".join(pieces), left_out)


def _tensor(
    data: memoryview, field: Span, outputs: set[bytes], location: str, least: int
) -> bytes | None:
    """The graph's field without the raw data of the initializer it is, or None where it stays."""
    number, kind, _, start, end = field
    if number != _INITIALIZER or kind != BYTES or end - start < least:
        return None
    raw: tuple[int, int] | None = None
    kept: list[bytes] = []
    for number, kind, at, value, after in spans(data, start, end):
        if number == _RAW and kind == BYTES:
            raw = value, after - value
        elif number == _LOCATION and kind == VARINT:
            if varint(data, value)[0] == _EXTERNAL:
                return None
        elif number == _NAME and kind == BYTES and bytes(data[value:after]) in outputs:
            return None
        elif number != _EXTERNAL_DATA:
            kept.append(bytes(data[at:after]))
    if raw is None or raw[1] < least:
        return None
    return _message(_INITIALIZER, [*kept, *_external_data(location, *raw)])


def _external_data(location: str, offset: int, length: int) -> Iterator[bytes]:
    """The fields of a tensor whose data lie in a file."""
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        pair = [_message(1, [key.encode()]), _message(2, [str(value).encode()])]
        yield _message(_EXTERNAL_DATA, pair)
    yield encoded_varint(_LOCATION << 3 | VARINT) + encoded_varint(_EXTERNAL)


def _message(number: int, fields: list[bytes]) -> bytes:
    return b"".join(
        (encoded_varint(number << 3 | BYTES), encoded_varint(sum(map(len, fields))), *fields)
    )
