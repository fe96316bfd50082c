// wgmma.mma_async: d[64 x N] = a b^T + (add ? d : 0), with N = 8, 16, ..., 256.
// b is a descriptor of shared memory; a is one, or registers. k is 16 elements of 2 bytes, 32 of
// one (IS_INT8; of MMA_TYPE and RIGHT_TYPE, with sums of integers), or 8 of f32, which are
// truncated to TF32. A_ACROSS, B_ACROSS: the operand is contiguous along m or n, not
// along k.
#pragma once
#ifndef GENERATED
#include "common/instance.cuh"
#ifndef WGMMA_SIZES
#define MMA_TYPE "f16"                    // "f16", "bf16" or "tf32"
#define WGMMA_SIZES WGMMA(64) WGMMA(256)  // every N that is used: all take long to compile
#endif
#endif  // GENERATED

// A thread's N / 2 accumulators: their names in PTX, and the asm operands.
#define R1 "%0, %1, %2, %3"
#define R2 R1 ", %4, %5, %6, %7"
#define R3 R2 ", %8, %9, %10, %11"
#define R4 R3 ", %12, %13, %14, %15"
#define R5 R4 ", %16, %17, %18, %19"
#define R6 R5 ", %20, %21, %22, %23"
#define R7 R6 ", %24, %25, %26, %27"
#define R8 R7 ", %28, %29, %30, %31"
#define R9 R8 ", %32, %33, %34, %35"
#define R10 R9 ", %36, %37, %38, %39"
#define R11 R10 ", %40, %41, %42, %43"
#define R12 R11 ", %44, %45, %46, %47"
#define R13 R12 ", %48, %49, %50, %51"
#define R14 R13 ", %52, %53, %54, %55"
#define R15 R14 ", %56, %57, %58, %59"
#define R16 R15 ", %60, %61, %62, %63"
#define R17 R16 ", %64, %65, %66, %67"
#define R18 R17 ", %68, %69, %70, %71"
#define R19 R18 ", %72, %73, %74, %75"
#define R20 R19 ", %76, %77, %78, %79"
#define R21 R20 ", %80, %81, %82, %83"
#define R22 R21 ", %84, %85, %86, %87"
#define R23 R22 ", %88, %89, %90, %91"
#define R24 R23 ", %92, %93, %94, %95"
#define R25 R24 ", %96, %97, %98, %99"
#define R26 R25 ", %100, %101, %102, %103"
#define R27 R26 ", %104, %105, %106, %107"
#define R28 R27 ", %108, %109, %110, %111"
#define R29 R28 ", %112, %113, %114, %115"
#define R30 R29 ", %116, %117, %118, %119"
#define R31 R30 ", %120, %121, %122, %123"
#define R32 R31 ", %124, %125, %126, %127"
#if IS_INT8
#define D4(i) "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3])
#else
#define D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#endif
#define D8(i) D4(i), D4(i + 4)
#define D16(i) D8(i), D8(i + 8)
#define D32(i) D16(i), D16(i + 16)
#define D64(i) D32(i), D32(i + 32)
#define LISTED(...) __VA_ARGS__

// i0, i1, ...: numbers of the asm operands after the accumulators.
#define WGMMA_BEGIN(N, K, RESULTS, ADD)                                                     \
  "{.reg .pred p; setp.ne.b32 p, %" #ADD ", 0; wgmma.mma_async.sync.aligned.m64n" #N "k" #K \
  ".f32." MMA_TYPE "." MMA_TYPE " {" RESULTS "}, "
#define WGMMA_SHARED(N, RESULTS, OUTPUTS, i0, i1, i2, i3, i4, i5)                               \
  template <int A_ACROSS = 0, int B_ACROSS = 0>                                                 \
  DEV void wgmma(float (&d)[N / 2], u64 a, u64 b, int add) {                                    \
    asm volatile(WGMMA_BEGIN(N, 16, RESULTS, i2) "%" #i0 ", %" #i1 ", p, 1, 1, %" #i3 ", %" #i4 \
                                                 ";}"                                           \
                 : LISTED OUTPUTS                                                               \
                 : "l"(a), "l"(b), "r"(add), "n"(A_ACROSS), "n"(B_ACROSS));                     \
  }
#define WGMMA_REGISTERS(N, K, END, RESULTS, OUTPUTS, i0, i1, i2, i3, i4, i5)                      \
  DEV void wgmma(float (&d)[N / 2], const u32(&a)[4], u64 b, int add) {                           \
    asm volatile(WGMMA_BEGIN(N, K, RESULTS, i5) "{%" #i0 ", %" #i1 ", %" #i2 ", %" #i3 "}, %" #i4 \
                                                ", p, 1, 1" END ";}"                              \
                 : LISTED OUTPUTS                                                                 \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));                 \
  }
#define WGMMA_BYTES(N, RESULTS, OUTPUTS, i0, i1, i2, i3, i4, i5)                                   \
  template <int A_ACROSS = 0, int B_ACROSS = 0>                                                    \
  DEV void wgmma(int (&d)[N / 2], u64 a, u64 b, int add) {                                         \
    asm volatile("{.reg .pred p; setp.ne.b32 p, %" #i2 ", 0; wgmma.mma_async.sync.aligned.m64n" #N \
                 "k32.s32." MMA_TYPE "." RIGHT_TYPE " {" RESULTS "}, %" #i0 ", %" #i1 ", p;}"      \
                 : LISTED OUTPUTS                                                                  \
                 : "l"(a), "l"(b), "r"(add));                                                      \
  }
#if IS_INT8
#define WGMMA_OF(N, ...) WGMMA_BYTES(N, __VA_ARGS__)
#elif IS_F32
#define WGMMA_OF(N, ...) WGMMA_REGISTERS(N, 8, "", __VA_ARGS__)
#else
#define WGMMA_OF(N, ...)       \
  WGMMA_SHARED(N, __VA_ARGS__) \
  WGMMA_REGISTERS(N, 16, ", 0", __VA_ARGS__)
#endif
#define WGMMA_EXPANDED(...) WGMMA_OF(__VA_ARGS__)
#define WGMMA(N) WGMMA_EXPANDED(N, WGMMA_##N)
#define WGMMA_8 R1, (D4(0)), 4, 5, 6, 7, 8, 9
#define WGMMA_16 R2, (D8(0)), 8, 9, 10, 11, 12, 13
#define WGMMA_24 R3, (D8(0), D4(8)), 12, 13, 14, 15, 16, 17
#define WGMMA_32 R4, (D16(0)), 16, 17, 18, 19, 20, 21
#define WGMMA_40 R5, (D16(0), D4(16)), 20, 21, 22, 23, 24, 25
#define WGMMA_48 R6, (D16(0), D8(16)), 24, 25, 26, 27, 28, 29
#define WGMMA_56 R7, (D16(0), D8(16), D4(24)), 28, 29, 30, 31, 32, 33
#define WGMMA_64 R8, (D32(0)), 32, 33, 34, 35, 36, 37
#define WGMMA_72 R9, (D32(0), D4(32)), 36, 37, 38, 39, 40, 41
#define WGMMA_80 R10, (D32(0), D8(32)), 40, 41, 42, 43, 44, 45
#define WGMMA_88 R11, (D32(0), D8(32), D4(40)), 44, 45, 46, 47, 48, 49
#define WGMMA_96 R12, (D32(0), D16(32)), 48, 49, 50, 51, 52, 53
#define WGMMA_104 R13, (D32(0), D16(32), D4(48)), 52, 53, 54, 55, 56, 57
#define WGMMA_112 R14, (D32(0), D16(32), D8(48)), 56, 57, 58, 59, 60, 61
#define WGMMA_120 R15, (D32(0), D16(32), D8(48), D4(56)), 60, 61, 62, 63, 64, 65
#define WGMMA_128 R16, (D64(0)), 64, 65, 66, 67, 68, 69
#define WGMMA_136 R17, (D64(0), D4(64)), 68, 69, 70, 71, 72, 73
#define WGMMA_144 R18, (D64(0), D8(64)), 72, 73, 74, 75, 76, 77
#define WGMMA_152 R19, (D64(0), D8(64), D4(72)), 76, 77, 78, 79, 80, 81
#define WGMMA_160 R20, (D64(0), D16(64)), 80, 81, 82, 83, 84, 85
#define WGMMA_168 R21, (D64(0), D16(64), D4(80)), 84, 85, 86, 87, 88, 89
#define WGMMA_176 R22, (D64(0), D16(64), D8(80)), 88, 89, 90, 91, 92, 93
#define WGMMA_184 R23, (D64(0), D16(64), D8(80), D4(88)), 92, 93, 94, 95, 96, 97
#define WGMMA_192 R24, (D64(0), D32(64)), 96, 97, 98, 99, 100, 101
#define WGMMA_200 R25, (D64(0), D32(64), D4(96)), 100, 101, 102, 103, 104, 105
#define WGMMA_208 R26, (D64(0), D32(64), D8(96)), 104, 105, 106, 107, 108, 109
#define WGMMA_216 R27, (D64(0), D32(64), D8(96), D4(104)), 108, 109, 110, 111, 112, 113
#define WGMMA_224 R28, (D64(0), D32(64), D16(96)), 112, 113, 114, 115, 116, 117
#define WGMMA_232 R29, (D64(0), D32(64), D16(96), D4(112)), 116, 117, 118, 119, 120, 121
#define WGMMA_240 R30, (D64(0), D32(64), D16(96), D8(112)), 120, 121, 122, 123, 124, 125
#define WGMMA_248 R31, (D64(0), D32(64), D16(96), D8(112), D4(120)), 124, 125, 126, 127, 128, 129
#define WGMMA_256 R32, (D64(0), D64(64)), 128, 129, 130, 131, 132, 133
WGMMA_SIZES
