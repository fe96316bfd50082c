"""The native library, NVRTC and GPUs, seen from Python."""
