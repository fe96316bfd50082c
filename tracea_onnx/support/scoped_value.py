"""A context variable that has a value for the time of a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def override(variable: ContextVar[T], value: T) -> Iterator[None]:
    """`variable` is `value` within the block, and what it was behind it."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
