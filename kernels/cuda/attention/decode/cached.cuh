// Decoding (attention/decode/work.cuh) over a cache, of which a tensor says how many keys each
// batch entry has: lens[b] + lens_add.
#pragma once
#ifndef GENERATED
#include "common/instance.cuh"
#define LENGTH int             // of lens
constexpr bool CLAMP = false;  // queries of a batch entry with fewer keys than S begin at the first
#define PARAMETERS OPERANDS, const LENGTH *lens, int lens_add, u32 *fault
#endif  // GENERATED
#include "attention/decode/simt.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, CTAS_PER_SM) attention_cached(PARAMETERS) {
  Attention g = ATTENTION;
  const int tiles = (g.H / g.KVH * g.S + ROWS - 1) / ROWS, b = blockIdx.x / CLUSTER / tiles / g.KVH;
  pdl_begin();
  const i64 keys = i64(lens[b]) + lens_add;
  if (keys < 0 || keys > g.Tk) *fault = 1;
  g.Tk = keys < 0 || keys > g.Tk ? 0 : int(keys);
  g.past = CLAMP ? max(0, g.Tk - g.S) : g.Tk - g.S;
  compute_attention(g);
}
