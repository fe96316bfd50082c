"""Answers the provider's compile requests (docs/plan-format.md, "Compiler callback"): from the
cache of Plans, or by the compiler, which takes longer to import than a small model takes to load.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeVar

from tracea_onnx.compiler import plan_cache
from tracea_onnx.support import log
from tracea_onnx.support.scoped_value import override

if TYPE_CHECKING:
    import onnx

T = TypeVar("T")

#: Who collects what the sessions compile that this context creates: the provider asks on the thread
#: that creates a session.
_recordings: ContextVar[tuple[list[bytes], ...]] = ContextVar("recordings", default=())
_listeners: ContextVar[tuple[list[onnx.ModelProto], ...]] = ContextVar("listeners", default=())


@contextmanager
def _collected(places: ContextVar[tuple[list[T], ...]]) -> Iterator[list[T]]:
    """A list that is among these while the context is open."""
    found: list[T] = []
    with override(places, (*places.get(), found)):
        yield found


def recording() -> AbstractContextManager[list[bytes]]:
    """Collects every reply made in this thread while the context is open (how `optimize --pack`
    captures Plans).
    """
    return _collected(_recordings)


def listening() -> AbstractContextManager[list[onnx.ModelProto]]:
    """Collects every request made in this thread while the context is open, with the constants that
    it only points to: these are ONNX Runtime's, and soon gone.
    """
    return _collected(_listeners)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """The compiler makes many objects, and little garbage: looking for it is a sixth of its time,
    as all objects of the program are looked at.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def compile_request(request: bytes) -> bytes:
    """Pack bytes for the graph in `request`; an empty pack when there is nothing to run."""
    slot = plan_cache.Slot(request)
    reply, began = slot.get(), time.perf_counter()
    if reply is not None:
        log.info("plans from the cache: %s bytes", len(reply))
    else:
        with _no_garbage_collection():
            from tracea_onnx.compiler import partition_compiler

            reply, read = partition_compiler.compile_model(request)
        slot.put(read, reply)
        log.info("plans compiled in %.2f s: %s bytes", time.perf_counter() - began, len(reply))
    for packs in _recordings.get():
        packs.append(reply)
    if _listeners.get():
        from tracea_onnx.compiler import partition_compiler

        for requests in _listeners.get():
            requests.append(partition_compiler.whole(request))
    return reply
