// Tensor-core instructions of 8-bit integers.
#pragma once
#ifndef GENERATED
#include "common/instance.cuh"
#endif  // GENERATED
#include "common/mma.cuh"

// d += a b modulo 2^32: 16 x 8 += 16 x 32 by 32 x 8
#define MULTIPLY_BYTES(A, B, NAMES)                                                     \
  DEV void multiply(int (&d)[4], const u32(&a)[4], u32 b0, u32 b1, A*, B*) {            \
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32." NAMES                         \
                 ".s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])                       \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));       \
  }
MULTIPLY_BYTES(u8, u8, "u8.u8")
MULTIPLY_BYTES(u8, signed char, "u8.s8")
MULTIPLY_BYTES(signed char, u8, "s8.u8")
MULTIPLY_BYTES(signed char, signed char, "s8.s8")
