"""Runs a `Case` on the GPU: operands from numpy, poisoned outputs, late operands (`late`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.support.cuda import late
from tests.support.cuda import runner as R
from tests.support.cuda.case import Array, Case, poisoned
from tracea_onnx.codegen.kernel_request import Request


def request_of(c: Case) -> Request:
    operands = (*c.operands, *c.outputs)
    request: Request = R.request(
        c.family,
        c.dtype,
        c.ints,
        c.floats,
        c.program,
        operands,
        unaligned=c.unaligned,
        constant=c.constant,
    )
    return request if c.tile is None else R.force(request, c.tile)


def _upload(a: Array) -> tuple[int, Any]:
    """The bytes of `a` in a device buffer of their own, with 256 bytes of NaN after them: its
    address, and what keeps it.
    """
    raw = np.concatenate(
        [np.frombuffer(np.ascontiguousarray(a).tobytes(), np.uint8), np.full(256, 0xFF, np.uint8)]
    )
    buffer = R.torch().from_numpy(raw).cuda()
    return buffer.data_ptr(), buffer


def place(
    c: Case, upload: Callable[[Array], tuple[int, Any]] = _upload
) -> tuple[dict[str, int], list[Any]]:
    """Addresses of the inputs, and what keeps them; arrays that are views of one array share its
    buffer.
    """
    held: dict[int, tuple[int, Any, Array]] = {}
    places: dict[str, int] = {}
    for name, a in c.operands.items():
        whole: Array = a
        while isinstance(whole.base, np.ndarray):
            whole = whole.base
        if whole.dtype != a.dtype or not a.flags.c_contiguous or not whole.flags.c_contiguous:
            whole = np.ascontiguousarray(a)
            a = whole
        key = whole.__array_interface__["data"][0]
        if key not in held:
            held[key] = *upload(whole), whole
        places[name] = held[key][0] + a.__array_interface__["data"][0] - key
    return places, list(held.values())


def run(c: Case, r: Request) -> float:
    """Worst error of a case over its bound."""
    t = R.torch()
    places, keep = place(c)
    buffers = {n: _upload(poisoned(o.count, o.dtype))[1] for n, o in c.outputs.items()}
    launch = R.bind(r, places | {n: b.data_ptr() for n, b in buffers.items()}, c.env)
    fixed = [places[n] for n in c.constant & places.keys()]
    delayed = [
        x
        for address, x, _ in keep
        if not any(address <= f < address + x.numel() * x.element_size() for f in fixed)
    ]
    late.behind(lambda: launch(R.current_stream()), [*delayed, *buffers.values()])
    t.cuda.synchronize()
    worst = 0.0
    for n, o in c.outputs.items():
        raw = buffers[n].cpu().numpy()
        if not (raw[-256:] == 0xFF).all():
            raise AssertionError(f"{n} is written past its end")
        worst = max(worst, o.error(raw[:-256].view(poisoned(1, o.dtype).dtype)))
    del keep
    return worst
