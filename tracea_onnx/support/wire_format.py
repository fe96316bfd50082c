"""The fields of a protobuf message, for who needs few of them: no onnx, and nothing read that is
not asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

#: Wire types: a varint, 8 bytes, what has a length, 4 bytes.
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


class Span(NamedTuple):
    """Where a field lies: from `start` its tag, from `value` to `end` its value."""

    number: int
    kind: int
    start: int
    value: int
    end: int


def spans(message: memoryview, start: int, end: int) -> Iterator[Span]:
    """The fields of the message at [start, end), in order. Raises ValueError for what is no
    message.
    """
    at = start
    while at < end:
        tag, value = _varint(message, at)
        kind = tag & 7
        if kind == VARINT:
            _, after = _varint(message, value)
        elif kind == BYTES:
            length, value = _varint(message, value)
            after = value + length
        elif kind in (FIXED32, FIXED64):
            after = value + (4 if kind == FIXED32 else 8)
        else:
            raise ValueError(f"wire type {kind}")
        if after > end:
            raise ValueError("the message is truncated")
        yield Span(tag >> 3, kind, at, value, after)
        at = after


def fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Number and value of each field, in order: an int, or the bytes of what has a length or a
    fixed size. Raises ValueError for what is no message.
    """
    for number, kind, _, value, end in spans(message, 0, len(message)):
        yield number, _varint(message, value)[0] if kind == VARINT else message[value:end]


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """A varint and where it ends."""
    value = shift = 0
    while at < len(message) and shift < 64:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("the message is truncated")
