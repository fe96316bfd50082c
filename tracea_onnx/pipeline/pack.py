"""Packs for programs without Python: every Plan that a session over a model asks for."""

from __future__ import annotations

from tracea_onnx import provider
from tracea_onnx.compiler.compile_requests import recording
from tracea_onnx.compiler.partition_compiler import PRODUCER
from tracea_onnx.errors import TraceaError
from tracea_onnx.plan.builder import merge_packs, read_pack


def build_pack(model: str | bytes, *, trust: bool = False) -> bytes:
    """Pack of every Plan a session over `model` asks for on this machine; a program loads it with
    the option `kernel_pack`.

    `trust`: believe the specs of its fused ops (for a model that this process has fused), so that
    the Plans are for the fused ops themselves.

    Raises TraceaError when the provider would run nothing of the model.
    """
    with recording() as packs:
        provider.create_session(model, {"specs": "trust" if trust else "rematch"})
    pack = merge_packs(packs, PRODUCER)
    if not read_pack(pack)[0]["entries"]:
        raise TraceaError(
            "the provider runs no part of this model, so there is nothing to pack",
            "see why with `tracea-onnx explain MODEL`",
        )
    return pack
