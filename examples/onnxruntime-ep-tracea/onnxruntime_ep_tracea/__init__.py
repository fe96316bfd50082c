"""TraceaExecutionProvider for ONNX Runtime."""

from tracea_onnx import get_ep_name, get_ep_names, get_library_path

__all__ = ["get_ep_name", "get_ep_names", "get_library_path"]
