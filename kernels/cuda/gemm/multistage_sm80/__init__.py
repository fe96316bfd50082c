"""Multistage GEMM: cp.async copies, then mma.sync, 3xTF32 (mma.sync or wgmma) or FFMA."""
