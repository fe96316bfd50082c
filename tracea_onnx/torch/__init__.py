"""PyTorch on the provider: a backend of `torch.compile`, and a patch of `conv2d`.

    compiled = torch.compile(model, backend="tracea")
    with torch.inference_mode():
        compiled(x)
    print(tracea_onnx.torch.report())

    with tracea_onnx.torch.patch_conv2d():
        model(x)

Needs torch, and for `torch.compile` onnxscript: the extra `torch`. What the provider cannot run
runs in PyTorch, and the logger `tracea_onnx.torch` says why, once.
"""

from __future__ import annotations

from importlib.metadata import entry_points

from tracea_onnx.torch.backend import tracea
from tracea_onnx.torch.conv2d import patch_conv2d, unpatch
from tracea_onnx.torch.graphs import Graph, Report, report

__all__ = ["Graph", "Report", "patch_conv2d", "report", "tracea", "unpatch"]

# An installed package is found through its entry point; a checkout has none.
if not entry_points(group="torch_dynamo_backends", name=tracea.__name__):
    from torch._dynamo import register_backend

    register_backend(tracea)
