"""The compiler for a process without Python: the provider starts this program, with a socket as its
standard input (`ep/ort/python.cc` has the messages). It ends with that process, or after a while
without requests: the provider starts another one when it needs it.
"""

from __future__ import annotations

import select
import socket
import struct
import sys

from tracea_onnx.compiler.compile_requests import compile_request
from tracea_onnx.errors import TraceaError
from tracea_onnx.support import process_memory

#: Seconds without a request after which the program ends.
_IDLE = 30.0


def serve(channel: socket.socket, idle: float = _IDLE) -> None:
    """Answers requests until the other side goes."""

    def read(n: int) -> bytes:
        data = bytearray(n)
        view = memoryview(data)
        while view:
            got = channel.recv_into(view)
            if not got:
                raise EOFError
            view = view[got:]
        return bytes(data)

    def constant(address: int, size: int) -> bytes:
        channel.sendall(struct.pack("=cQQ", b"c", address, size))
        return read(size)

    process_memory.read = constant
    try:
        while select.select([channel], [], [], idle)[0]:
            request = read(*struct.unpack("=Q", read(8)))
            try:
                kind, reply = b"r", compile_request(request)
            except TraceaError as e:
                kind, reply = b"e", str(e).encode()
            except EOFError:
                raise
            except Exception as e:
                kind, reply = b"e", f"internal error: {type(e).__name__}: {e}".encode()
            channel.sendall(struct.pack("=cQ", kind, len(reply)) + reply)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass


if __name__ == "__main__":
    with socket.socket(fileno=sys.stdin.fileno()) as standard_input:
        serve(standard_input)
