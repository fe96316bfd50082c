"""The fields of a protobuf message, for who needs few of them and no onnx."""

from __future__ import annotations

from collections.abc import Iterator

#: Of a fixed-size field, by wire type.
_FIXED = {1: 8, 5: 4}


def fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Number and value of each field, in order: an int, or the bytes of what has a length or a
    fixed size. Raises ValueError for what is no message.
    """
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        kind = tag & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield tag >> 3, value
            continue
        if kind == 2:
            size, at = _varint(message, at)
        elif kind in _FIXED:
            size = _FIXED[kind]
        else:
            raise ValueError(f"wire type {kind}")
        if size > len(message) - at:
            raise ValueError("the message is truncated")
        yield tag >> 3, message[at : at + size]
        at += size


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(message) and shift < 64:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("the message is truncated")
