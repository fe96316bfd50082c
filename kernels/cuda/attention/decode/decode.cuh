// Decoding (attention/decode/work.cuh): the kernel.
#pragma once
#include "attention/decode/work.cuh"
#if COMPUTE == SIMT
#include "attention/decode/simt.cuh"
#elif COMPUTE == MMA
#include "attention/decode/mma.cuh"
#else
#include "attention/decode/stream.cuh"
#endif

extern "C" __global__ void __launch_bounds__(THREADS, CTAS_PER_SM) attention_decode(PARAMETERS) {
  Attention g = ATTENTION;
#ifdef LENGTH
  const int tiles = (g.H / g.KVH * g.S + ROWS - 1) / ROWS;
  pdl_begin();
  limit_keys(g, blockIdx.x / CLUSTER / tiles / g.KVH);
#endif
  compute_attention(g);
}
