"""Products and convolutions of 8-bit integers (families `gemm_int8` and `conv2d_int8`)."""
