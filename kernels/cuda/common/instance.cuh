// For tools that read a header by itself: what generators put before it. Here, the prelude of f16
// (IS_F32: of f32) and an empty epilogue; IS_INT8: that of bytes, which have an epilogue of their
// own.
#pragma once
#include "common/math_fast.cuh"
#include "common/types.cuh"

#ifndef IS_F32
#define IS_F32 0
#endif
#ifndef IS_INT8
#define IS_INT8 0
#endif
#if IS_INT8
typedef u8 T;
#elif IS_F32
typedef float T;
#else
typedef half_t T;
#endif
#ifndef WIDTH
#define WIDTH 8
#endif
#define EPILOGUE_ARGUMENTS

#if !IS_INT8
struct Epilogue {};
struct Columns {};
DEV Columns columns_at(const Epilogue&, int, int) { return {}; }
DEV void touch_columns(const Epilogue&, int) {}
DEV void finish(const Epilogue&, const Columns&, float (&)[WIDTH], int, i64, int, int) {}
DEV void finish(const Epilogue&, float (&)[WIDTH], int, i64, int, int) {}
#endif
DEV float activation(float x, float, float) { return x; }
