"""Reads single fields of a serialised protobuf message without importing onnx. Other fields are
skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

#: Wire types: a varint, 8 bytes, what has a length, 4 bytes.
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
#: Number and wire type of a field, and where it lies: its tag from the third to the fourth, its
#: value from there to the fifth. No class of its own: sessions make thousands when they load.
Span: TypeAlias = tuple[int, int, int, int, int]


def spans(message: memoryview | bytes, start: int, end: int) -> list[Span]:
    """The fields of the message at [start, end), in order. Raises ValueError for what is no
    message.
    """
    found: list[Span] = []
    at = start
    try:
        while at < end:
            begin = at
            tag, at = message[at], at + 1
            if tag > 127:
                tag, at = varint(message, begin)
            kind, value = tag & 7, at
            if kind == BYTES:
                length, value = message[at], at + 1
                if length > 127:
                    length, value = varint(message, at)
                at = value + length
            elif kind == VARINT:
                at = at + 1 if message[at] < 128 else varint(message, at)[1]
            elif kind in (FIXED32, FIXED64):
                at += 4 if kind == FIXED32 else 8
            else:
                raise ValueError(f"wire type {kind}")
            found.append((tag >> 3, kind, begin, value, at))
    except IndexError:
        at = end + 1
    if at > end:
        raise ValueError("the message is truncated")
    return found


def fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Number and value of each field, in order: an int, or the bytes of what has a length or a
    fixed size. Raises ValueError for what is no message.
    """
    for number, kind, _, value, end in spans(message, 0, len(message)):
        yield number, varint(message, value)[0] if kind == VARINT else message[value:end]


def varint(message: memoryview | bytes, at: int) -> tuple[int, int]:
    """A varint and where it ends. Raises ValueError."""
    value = 0
    for shift in range(0, 64, 7):
        if at >= len(message):
            raise ValueError("the message is truncated")
        byte, at = message[at], at + 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError("a number of more than 64 bits")


def encoded_varint(value: int) -> bytes:
    """A varint's bytes; the value is not negative."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
