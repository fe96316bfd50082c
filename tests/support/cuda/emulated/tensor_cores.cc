#include <vector>

#include "device.h"
#include "ptx.h"

namespace emulated {
float from_half(u16 bits) {
  const u32 sign = u32(bits & 0x8000) << 16, e = bits >> 10 & 31, m = bits & 1023;
  if (!e) {
    const float v = float(m) * 0x1p-24f;
    return sign ? -v : v;
  }
  const u32 b = sign | (e == 31 ? 255 : e + 112) << 23 | m << 13;
  float r;
  memcpy(&r, &b, 4);
  return r;
}
u16 to_half(float v) {
  u32 b;
  memcpy(&b, &v, 4);
  const u16 sign = b >> 16 & 0x8000;
  b &= 0x7fffffff;
  if (b > 0x7f800000) return 0x7fff;
  if (b >= 0x477ff000) return sign | 0x7c00;
  if (b < 0x38800000) return sign | u16(__builtin_lrintf(__builtin_fabsf(v) * 0x1p24f));
  return sign | u16((b - 0x38000000 + 0xfff + (b >> 13 & 1)) >> 13);
}

namespace {
int bits_of(Type t) { return t == S8 || t == U8 ? 8 : t == F16 || t == BF16 ? 16 : 32; }
// Element `e` of a register.
float real(Type t, u32 word, int e) {
  switch (t) {
    case F16: return from_half(u16(word >> 16 * e));
    case BF16: return from_bfloat(u16(word >> 16 * e));
    default: break;
  }
  word &= 0xffffe000;  // tensor cores truncate f32 to TF32
  float r;
  memcpy(&r, &word, 4);
  return r;
}
u32 whole(Type t, u32 word, int e) {
  return t == S8 ? u32((signed char)(word >> 8 * e)) : word >> 8 * e & 255;
}
// d = a b + c of 16 x 8, by `element(type, register, its element)`.
template <class Sum, class Element>
void products(Product** lanes, const Element& element, Sum (&d)[16][8]) {
  const Product& any = *lanes[0];
  const int each = 32 / bits_of(any.a_type), k_count = int(any.k), words = k_count / each / 4;
  Sum a[16][32], b[8][32];
  for (int lane = 0; lane < 32; lane++)
    for (int w = 0; w < words; w++)
      for (int e = 0; e < each; e++) {
        const int k = (w * 4 + lane % 4) * each + e;
        for (int half = 0; half < 2; half++)
          a[lane / 4 + half * 8][k] = element(any.a_type, lanes[lane]->a[w * 2 + half], e);
        b[lane / 4][k] = element(any.b_type, lanes[lane]->b[w], e);
      }
  for (int m = 0; m < 16; m++)
    for (int n = 0; n < 8; n++) {
      Sum sum = d[m][n];
      for (int k = 0; k < k_count; k++) sum += a[m][k] * b[n][k];
      d[m][n] = sum;
    }
}
// Where element j of a lane's sums is.
int row(int lane, int j) { return lane / 4 + j / 2 * 8; }
int column(int lane, int j) { return lane % 4 * 2 + j % 2; }
void multiply_warp(void** given, u32 mask) {
  if (mask != ~0u) fail("mma by some lanes of a warp, mask %08x", mask);
  Product** const lanes = (Product**)given;
  const Type sum_type = lanes[0]->sum_type;
  if (sum_type == S32) {
    u32 d[16][8];
    for (int lane = 0; lane < 32; lane++)
      for (int j = 0; j < 4; j++) d[row(lane, j)][column(lane, j)] = lanes[lane]->c[j];
    products(lanes, whole, d);
    for (int lane = 0; lane < 32; lane++)
      for (int j = 0; j < 4; j++) lanes[lane]->c[j] = d[row(lane, j)][column(lane, j)];
    return;
  }
  float d[16][8];
  for (int lane = 0; lane < 32; lane++)
    for (int j = 0; j < 4; j++) {
      float& to = d[row(lane, j)][column(lane, j)];
      if (sum_type == F16)
        to = from_half(u16(lanes[lane]->c[j / 2] >> j % 2 * 16));
      else
        memcpy(&to, &lanes[lane]->c[j], 4);
    }
  products(lanes, real, d);
  for (int lane = 0; lane < 32; lane++) {
    u32(&c)[4] = lanes[lane]->c;
    for (int j = 0; j < 4; j++) {
      const float v = d[row(lane, j)][column(lane, j)];
      if (sum_type == F16)
        c[j / 2] = (j % 2 ? c[j / 2] & 0xffff : 0) | u32(to_half(v)) << j % 2 * 16;
      else
        memcpy(&c[j], &v, 4);
    }
  }
}
// Calls move(the address of rows of 16 bits, a lane's register, its half) for all elements.
template <class Move>
void for_matrices(void** given, const char* what, const Move& move) {
  Matrices** const lanes = (Matrices**)given;
  for (u32 matrix = 0; matrix < lanes[0]->count; matrix++) {
    char* rows[8];
    for (u32 r = 0; r < 8; r++) rows[r] = at(lanes[matrix * 8 + r]->address, 16, 16, what);
    for (u32 lane = 0; lane < 32; lane++)
      for (u32 half = 0; half < 2; half++) {
        const u32 i = lane / 4, j = lane % 4 * 2 + half;
        u16* const element = lanes[0]->trans ? (u16*)rows[j] + i : (u16*)rows[i] + j;
        move(*element, lanes[lane]->words[matrix], half * 16);
      }
  }
}

// An operand of wgmma in shared memory: rows (of m or n) by k.
struct Matrix {
  u32 start, leading, stride, width;  // width: bytes of the swizzle, 16: none
  explicit Matrix(u64 descriptor)
      : start(u32(descriptor & 0x3fff) << 4),
        leading(u32(descriptor >> 16 & 0x3fff) << 4),
        stride(u32(descriptor >> 32 & 0x3fff) << 4) {
    constexpr u32 WIDTHS[4] = {16, 128, 64, 32};
    width = WIDTHS[descriptor >> 62];
    if (descriptor >> 49 & 7) fail("there is no emulation of a base offset of wgmma");
  }
  const u32* chunk(u32 address) const {
    address ^= (address >> 7 & (width / 16 - 1)) << 4;
    return (const u32*)at(address, 16, 16, "an operand of wgmma");
  }
  // 16 bytes of a row along k, or (across) of a k along rows.
  const u32* along(u32 row, u32 byte) const {
    const u32 group = start + row / 8 * stride + row % 8 * width;
    return chunk(width == 16 ? group + byte / 16 * leading : group + byte);
  }
  const u32* across(u32 row, u32 k) const {
    if (width == 16) return chunk(start + row / 8 * stride + k / 8 * leading + k % 8 * 16);
    return chunk(start + row * 2 / width * leading + k / 8 * stride + k % 8 * width +
                 row * 2 % width);
  }
};
// to[k * pitch + row] of rows [first, first + count).
template <class Sum, class Element>
void read(const Matrix& m, Type type, bool across, u32 first, u32 count, u32 k_count,
          const Element& element, Sum* to, u32 pitch) {
  const u32 each = 32 / u32(bits_of(type)), chunk = 4 * each;
  if (across && each != 2)
    fail("there is no emulation of an operand of wgmma that is contiguous along its rows");
  for (u32 i = 0; i < count; i += across ? chunk : 1)
    for (u32 k = 0; k < k_count; k += across ? 1 : chunk) {
      const u32* const words = across ? m.across(first + i, k) : m.along(first + i, k / each * 4);
      for (u32 e = 0; e < chunk; e++) {
        const Sum v = element(type, words[e / each], int(e % each));
        to[across ? k * pitch + i + e : (k + e) * pitch + i] = v;
      }
    }
}
struct Pending {
  GroupProduct lanes[32];
  u32 warp;  // of its warpgroup
};
std::vector<std::vector<std::vector<Pending>>> in_flight(16 * 32);  // of each warp, in groups

template <class Sum, class Element>
void perform(const Pending& p, const Element& element) {
  const GroupProduct& any = p.lanes[0];
  static Sum a[32 * 16], b[32 * 256], d[16 * 256];  // of one host thread
  const u32 n = any.n, k_count = any.k, each = 32 / u32(bits_of(any.a_type));
  if (any.in_registers) {
    for (u32 lane = 0; lane < 32; lane++)
      for (u32 j = 0; j < 4; j++)
        for (u32 e = 0; e < each; e++)
          a[((j / 2 * 4 + lane % 4) * each + e) * 16 + lane / 4 + j % 2 * 8] =
              element(any.a_type, p.lanes[lane].registers[j], int(e));
  } else {
    read(Matrix(any.a), any.a_type, any.a_across, p.warp * 16, 16, k_count, element, a, 16);
  }
  read(Matrix(any.b), any.b_type, any.b_across, 0, n, k_count, element, b, n);
  const auto place = [&](u32 lane, u32 j) {
    return (lane / 4 + j / 2 % 2 * 8) * n + j / 4 * 8 + lane % 4 * 2 + j % 2;
  };
  for (u32 lane = 0; lane < 32; lane++)
    for (u32 j = 0; j < n / 2; j++) {
      Sum& to = d[place(lane, j)];
      to = 0;
      if (any.adds) memcpy(&to, p.lanes[lane].sums + j, 4);
    }
  const Sum sign = Sum(any.a_sign * any.b_sign);
  for (u32 m = 0; m < 16; m++)
    for (u32 k = 0; k < k_count; k++) {
      const Sum left = sign * a[k * 16 + m];
      for (u32 i = 0; i < n; i++) d[m * n + i] += left * b[k * n + i];
    }
  for (u32 lane = 0; lane < 32; lane++)
    for (u32 j = 0; j < n / 2; j++) memcpy(p.lanes[lane].sums + j, &d[place(lane, j)], 4);
}
void check_warp(u32 mask) {
  if (mask != ~0u) fail("wgmma by some lanes of a warp, mask %08x", mask);
}
}  // namespace

void clear_tensor_cores() {
  for (auto& groups : in_flight) groups.clear();
}
void multiply(GroupProduct& p) {
  together(
      "wgmma",
      [](void** lanes, u32 mask) {
        check_warp(mask);
        auto& groups = in_flight[warp_in_cluster()];
        if (groups.empty()) groups.emplace_back();
        groups.back().emplace_back();
        Pending& added = groups.back().back();
        added.warp = threadIdx.x / 32 % 4;
        for (int lane = 0; lane < 32; lane++) added.lanes[lane] = *(GroupProduct*)lanes[lane];
      },
      &p);
}
void commit_products() {
  together(
      "wgmma.commit_group",
      [](void**, u32 mask) {
        check_warp(mask);
        in_flight[warp_in_cluster()].emplace_back();
      },
      nullptr);
}
// The last group is not committed.
void wait_for_products(u32 left) {
  together(
      "wgmma.wait_group",
      [](void** lanes, u32 mask) {
        check_warp(mask);
        auto& groups = in_flight[warp_in_cluster()];
        while (groups.size() > *(u32*)lanes[0] + 1) {
          for (const Pending& p : groups.front())
            p.lanes[0].sum_type == S32 ? perform<u32>(p, whole) : perform<float>(p, real);
          groups.erase(groups.begin());
        }
      },
      &left);
}

void multiply(Product& p) { together("mma.sync", multiply_warp, &p); }
void load_matrices(Matrices& m) {
  together(
      "ldmatrix",
      [](void** lanes, u32) {
        for_matrices(lanes, "a row of ldmatrix", [](const u16& element, u32& word, u32 shift) {
          word = (shift ? word : 0) | u32(element) << shift;
        });
      },
      &m);
}
void store_matrices(Matrices& m) {
  together(
      "stmatrix",
      [](void** lanes, u32) {
        for_matrices(lanes, "a row of stmatrix",
                     [](u16& element, u32 word, u32 shift) { element = u16(word >> shift); });
      },
      &m);
}
}  // namespace emulated
