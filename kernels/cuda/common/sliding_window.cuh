// Windows over channels-last images, for threads that march down strips of COLUMNS output columns:
// which input rows and columns they read. The generator defines KH, KW, SH, SW, DH, DW and COLUMNS.
#pragma once
#ifndef GENERATED
#include "common/instance.cuh"
constexpr int KH = 3, KW = 3, SH = 1, SW = 1, DH = 1, DW = 1, COLUMNS = 2;
#endif  // GENERATED

constexpr int SPAN = (COLUMNS - 1) * SW + (KW - 1) * DW + 1,
              DEPTH = (KH - 1) * DH + 1;  // input columns of a strip, input rows of a window

constexpr bool column_used(int s) {
  for (int j = 0; j < COLUMNS; j++)
    if (s >= j * SW && (s - j * SW) % DW == 0 && (s - j * SW) / DW < KW) return true;
  return false;
}
// Whether windows read input row `row`, counted from the top of one.
constexpr bool row_used(int row) {
  for (int kh = 0; kh < KH; kh++)
    if (kh * DH % SH == row % SH) return true;
  return false;
}
