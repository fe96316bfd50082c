// Weights of 2, 4 or 8 bits as kernels read them. A piece has DEPTH terms of 16 columns, TILE: 16
// bytes for each lane of a warp, STEPS steps of mma.sync m16n8k16. Lane 4 g + t has terms of
// columns g and g + 8 (rows of the fragment A). Words 0 and 1 are of the first half of its steps,
// for either column, 2 and 3 of the second half. Pair i of a word has bits BITS * i and BITS * i +
// 16, of two neighbouring terms: registers a[0] and a[1] (even i), a[2] and a[3] (odd i) of step i
// / 2. Behind the pieces [tiles][pieces][32 lanes] lie scales [tiles][blocks][8][2] of columns g, g
// + 8, and, where they differ, zeros: bytes, or floats that are no integers.
#pragma once
#ifndef GENERATED
#include "common/instance.cuh"
typedef half_t S;          // of scales
constexpr int BITS = 4;    // of a weight: 2, 4, 8
constexpr int BLOCK = 32;  // terms that share a scale: 16, a multiple of 32 (0: all)
constexpr int ZEROS = 1;   // 0: the zero of all is ZERO, 1: bytes, 2: floats
constexpr int ZERO = 8;
#endif  // GENERATED
#include "common/base.cuh"

constexpr int STEPS = 16 / BITS, DEPTH = 16 * STEPS, MASK = (1 << BITS) - 1;
// Neighbouring terms of a lane; all terms of a step are of one block.
constexpr int RUN = BLOCK == 16 ? 4 : 8;
// The first of the four terms of lane 4 g + t in a step.
DEV int first_term(int step, int t) {
  return RUN == 4 ? 16 * step + 4 * t : 32 * (step / 2) + 8 * t + 4 * (step % 2);
}
// The word of a lane's 16 bytes, and the first pair there, of a step; r: 0 for column g, 1: g + 8.
DEV constexpr int word_of(int step, int r) { return step / (STEPS / 2) * 2 + r; }
DEV constexpr int pair_of(int step) { return step % (STEPS / 2) * 2; }
// Blocks before term k, or of k terms.
DEV int blocks_before(int k) {
  if constexpr (BLOCK != 0) return k / BLOCK;
  return 0;
}
DEV int blocks_of(int k) { return blocks_before(k + BLOCK - 1) + (BLOCK == 0); }
