"""PyTorch's devices as the provider and ONNX Runtime name them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tracea_onnx.torch.reasons import RunsInEagerError

HOST, GPU = "cpu", "cuda"
#: ONNX's numbers of the element types (TensorProto.DataType).
ELEMENT_TYPES = {
    torch.float32: 1, torch.uint8: 2, torch.int8: 3, torch.int16: 5, torch.int32: 6, torch.int64: 7,
    torch.bool: 9, torch.float16: 10, torch.float64: 11, torch.bfloat16: 16,
}  # fmt: skip

#: ONNX Runtime's names of those that PyTorch has another name for.
_NAMES = {torch.float32: "float", torch.float64: "double"}


def type_name(dtype: torch.dtype) -> str:
    """The type of a tensor as ONNX Runtime tells it."""
    return f"tensor({_NAMES.get(dtype) or str(dtype).removeprefix('torch.')})"


def common(devices: set[torch.device]) -> torch.device:
    """Device that a graph on these devices runs on: the GPU, also beside tensors of the host."""
    if others := {d.type for d in devices} - {HOST, GPU}:
        raise RunsInEagerError(f"it has tensors on {' and '.join(sorted(others))}")
    gpus = {d for d in devices if d.type == GPU}
    if len(gpus) > 1:
        raise RunsInEagerError("it has tensors on several GPUs")
    return next(iter(gpus), torch.device(HOST))


class Stream:
    """The stream of a session, which is what PyTorch's was when the session was made; the host has
    none.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.own = torch.cuda.current_stream(device) if device.type == GPU else None

    def options(self) -> dict[str, str]:
        """Provider options that put a session there."""
        if self.own is None:
            return {}
        return {
            "backend": GPU,
            "device_id": str(self.own.device_index),
            "user_compute_stream": str(self.own.cuda_stream),
        }

    def run_options(self, outputs: set[torch.device]) -> Any:
        """Of a run with outputs on these devices: it waits for the GPU only if the host has one."""
        if self.own is None or any(d.type == HOST for d in outputs):
            return None
        import onnxruntime as ort

        made = ort.RunOptions()
        made.add_run_config_entry("disable_synchronize_execution_providers", "1")
        return made

    @contextmanager
    def ordered(self) -> Iterator[None]:
        """Context: the work inside is ordered after earlier work of PyTorch's current stream, and
        before later work.
        """
        if self.own is None:
            yield
            return
        current = torch.cuda.current_stream(self.device)
        if current == self.own:
            yield
            return
        self.own.wait_stream(current)
        try:
            yield
        finally:
            current.wait_stream(self.own)


def place(device: torch.device) -> tuple[str, int]:
    """The device for an `IOBinding`."""
    return device.type, device.index or 0
