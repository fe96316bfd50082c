// Copies of matrices of two-byte elements whose rows begin anywhere, with rows at multiples of 32
// bytes: what tensor maps and wide copies can read, whole sectors of L2 at a time.
//
// The generator defines: T, BOTH (two operands, of which the first has the first `blocks` blocks)
// and the parameters of each.

DEV void align_rows(const T* from, T* to, int rows, int columns, i64 pitch, i64 from_0, i64 from_1,
                    i64 to_0, i64 to_1, int block) {
  const u32 chunks = (columns + 7) / 8, t = block * 256 + threadIdx.x, r = t / chunks,
            c = t % chunks * 8;
  if (r >= rows || (from_0 == 0 && blockIdx.z) || (from_1 == 0 && blockIdx.y)) return;
  const T* const matrix = from + blockIdx.z * from_0 + blockIdx.y * from_1;
  const int count = min(8, columns - (int)c);
  Piece piece;
  piece.read(matrix + r * pitch + c, count, matrix, matrix + (rows - 1) * pitch + columns);
  *(uint4*)(to + blockIdx.z * to_0 + blockIdx.y * to_1 + (i64)r * ((columns + 15) / 16 * 16) + c) =
      piece.elements(count);
}

extern "C" __global__ void __launch_bounds__(256) align(PARAMETERS) {
  asm volatile("griddepcontrol.launch_dependents;\ngriddepcontrol.wait;" ::: "memory");
#if BOTH
  if (blockIdx.x >= blocks) {
    align_rows(other_from, other_to, other_rows, other_columns, other_pitch, other_from_0,
               other_from_1, other_to_0, other_to_1, blockIdx.x - blocks);
    return;
  }
#endif
  align_rows(from, to, rows, columns, pitch, from_0, from_1, to_0, to_1, blockIdx.x);
}
