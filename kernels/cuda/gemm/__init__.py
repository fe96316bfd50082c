"""GEMM, GEMV and batched matmul."""
