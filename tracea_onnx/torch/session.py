"""A session of ONNX Runtime on the provider that takes and gives PyTorch's tensors, not copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from tracea_onnx import provider
from tracea_onnx.torch import devices
from tracea_onnx.torch.reasons import RunsInEagerError


class Slot(NamedTuple):
    """An output of the model: its type, and where it is wanted."""

    dtype: torch.dtype
    device: torch.device


class TensorSession:
    """`model` is ONNX as bytes, without the contents of `weights`: those initializers are external
    data, and are read where PyTorch has them.
    """

    def __init__(
        self, model: bytes, weights: Mapping[str, torch.Tensor], outputs: Sequence[Slot],
        device: torch.device, options: Mapping[str, str],
    ) -> None:  # fmt: skip
        import onnxruntime as ort

        self._stream = devices.Stream(device)
        settings = ort.SessionOptions()
        settings.log_severity_level = 3
        settings.intra_op_num_threads = torch.get_num_threads()
        settings.inter_op_num_threads = 1
        # PyTorch's own threads have work between the runs
        settings.add_session_config_entry("session.force_spinning_stop", "1")
        if weights:
            settings.add_external_initializers(list(weights), [_value(w) for w in weights.values()])
        self._session = provider.create_session(
            model, self._stream.options() | dict(options), settings
        )
        self._inputs = [i.name for i in self._session.get_inputs()]
        for output, slot in zip(self._session.get_outputs(), outputs, strict=True):
            if output.type != devices.type_name(slot.dtype):
                raise RunsInEagerError(f"its {slot.dtype} results are {output.type} in ONNX")
        self._outputs = [
            (o.name, *slot) for o, slot in zip(self._session.get_outputs(), outputs, strict=True)
        ]
        self._run_options = self._stream.run_options({slot.device for slot in outputs})
        self.nodes = sum(
            len(part.get_nodes()) for part in self._session.get_provider_graph_assignment_info()
        )
        self.provider_nodes = len(provider.assigned_nodes(self._session))

    def run(
        self, inputs: Sequence[torch.Tensor], shapes: Sequence[Sequence[int] | None]
    ) -> list[torch.Tensor]:
        """Outputs of these shapes, in PyTorch's memory; where a shape is None, which depends on the
        data, in ONNX Runtime's.
        """
        binding = self._session.io_binding()
        alive = []
        for name, tensor in zip(self._inputs, inputs, strict=True):
            given = tensor.resolve_neg().contiguous()
            alive.append(given)
            binding.bind_input(
                name, *devices.place(given.device), devices.ELEMENT_TYPES[given.dtype],
                given.shape, given.data_ptr() or _NOWHERE,
            )  # fmt: skip
        results: list[Any] = []
        for (name, dtype, device), shape in zip(self._outputs, shapes, strict=True):
            if shape is None:
                binding.bind_output(name, *devices.place(device))
                results.append(None)
                continue
            result = torch.empty(shape, dtype=dtype, device=device)
            results.append(result)
            binding.bind_output(
                name,
                *devices.place(device),
                devices.ELEMENT_TYPES[dtype],
                shape,
                result.data_ptr() or _NOWHERE,
            )
        with self._stream.ordered():
            self._session.run_with_iobinding(binding, self._run_options)
        if None in shapes:
            for k, value in enumerate(binding.get_outputs()):
                if shapes[k] is None:
                    results[k] = _owned(value, self._outputs[k][1])
        return results


#: For tensors without elements, for which ONNX Runtime wants an address, too.
_NOWHERE = 64


def _value(tensor: torch.Tensor) -> Any:
    """A value over the tensor's memory, which lives as long. A session on a GPU reads it on the
    host, once.
    """
    import onnxruntime as ort
    from onnxruntime.capi import onnxruntime_pybind11_state as native

    held = tensor.detach().to(devices.HOST).contiguous()
    flags = held.dtype == torch.bool  # bytes, as ONNX Runtime takes them
    capsule = (held.view(torch.uint8) if flags else held).__dlpack__()
    # ONNX Runtime 1.24 has no OrtValue.from_dlpack
    return ort.OrtValue(native.OrtValue.from_dlpack(capsule, flags))


def external(name: str, tensor: torch.Tensor) -> Any:
    """An initializer whose contents a session is given beside the model."""
    from onnx import TensorProto

    made = TensorProto(
        name=name, dims=tensor.shape, data_type=devices.ELEMENT_TYPES[tensor.dtype],
        data_location=TensorProto.EXTERNAL,
    )  # fmt: skip
    made.external_data.add(key="location", value="in PyTorch's memory")
    return made


def _owned(value: Any, dtype: torch.dtype) -> torch.Tensor:
    """A tensor over ONNX Runtime's memory, which lives as long. On a GPU a copy: ONNX Runtime would
    give its memory away while PyTorch's streams still read it.
    """
    tensor: torch.Tensor = torch.from_dlpack(value._get_c_value())
    if dtype == torch.bool:
        tensor = tensor.view(torch.bool)
    return tensor if tensor.device.type == devices.HOST else tensor.clone()


def supported(tensor: torch.Tensor) -> None:
    """Raise RunsInEagerError unless the tensor's memory is what ONNX Runtime takes."""
    if tensor.dtype not in devices.ELEMENT_TYPES:
        raise RunsInEagerError(f"it has tensors of type {str(tensor.dtype).removeprefix('torch.')}")
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise RunsInEagerError(f"it has a tensor of layout {tensor.layout}")
