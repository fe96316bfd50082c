// mbarriers, and copies of the Tensor Memory Accelerator.
#include <vector>

#include "device.h"
#include "ptx.h"

namespace emulated {
namespace {
// The 64 bits of an mbarrier. A phase ends when no arrival and no byte is awaited.
struct Mbarrier {
  u64 parity : 1, expected : 18, awaited : 18;
  signed long long bytes : 23;
  u64 made : 4;
};
static_assert(sizeof(Mbarrier) == 8, "64 bits");
constexpr u32 MADE = 5;

Mbarrier& mbarrier(u32 address) {
  Mbarrier& b = *(Mbarrier*)at(address, 8, 8, "an mbarrier");
  if (b.made != MADE) fail("there is no mbarrier at %x", address);
  return b;
}
void complete(Mbarrier& b) {
  if (b.awaited || b.bytes) return;
  b.parity ^= 1, b.awaited = b.expected;
  wake_first(&b);
}
void complete_bytes(Mbarrier& b, u32 bytes) {
  b.bytes -= bytes;
  complete(b);
}
void arrive(Mbarrier& b, u32 address) {
  if (!b.awaited) fail("one arrival too many at the mbarrier at %x", address);
  b.awaited -= 1;
  complete(b);
}

// Where byte `offset` behind `address` lies with a swizzle of `width` bytes.
u32 swizzled(u32 address, u32 width) { return address ^ (address >> 7 & (width / 16 - 1)) << 4; }
// Calls move(byte in shared memory, address of the element or null, its bytes) for all elements of
// a copy.
template <class Move>
void for_elements(const TensorCopy& c, const Move& move) {
  const TensorMap& m = *c.map;
  u32 offset = 0;
  const auto element = [&](const long long* at) {
    const char* place = m.base;
    for (u32 k = 0; k < m.rank; k++) {
      if (at[k] < 0 || at[k] >= m.dims[k]) place = nullptr;
      if (place) place += at[k] * m.strides[k];
    }
    move(offset, (char*)place);
    offset += m.bytes;
  };
  long long at[5];
  if (m.im2col) {
    // Pixels from (w, h[, d], n) on, row by row within the corners.
    long long pixel[5];
    for (u32 k = 0; k < m.rank; k++) pixel[k] = c.at[k];
    for (u32 p = 0; p < m.pixels; p++) {
      for (u32 k = 1; k < m.rank; k++) at[k] = pixel[k] + (k + 1 < m.rank ? c.offsets[k - 1] : 0);
      for (u32 channel = 0; channel < m.channels; channel++) {
        at[0] = pixel[0] + channel;
        element(at);
      }
      for (u32 k = 1; k < m.rank; k++) {
        pixel[k] += k + 1 < m.rank ? m.steps[k] : 1;
        if (k + 1 == m.rank || pixel[k] < m.dims[k] + m.upper[k - 1]) break;
        pixel[k] = m.lower[k - 1];
      }
    }
    return;
  }
  u32 index[5] = {};
  for (;;) {
    for (u32 k = 0; k < m.rank; k++) at[k] = c.at[k] + index[k];
    element(at);
    u32 k = 0;
    while (k < m.rank && (index[k] += m.steps[k]) >= m.box[k]) index[k++] = 0;
    if (k == m.rank) return;
  }
}
u32 bytes_of(const TensorMap& m) {
  u32 count = m.im2col ? m.channels * m.pixels : 1;
  for (u32 k = 0; k < m.rank && !m.im2col; k++) count *= (m.box[k] + m.steps[k] - 1) / m.steps[k];
  return count * m.bytes;
}
void check(const TensorCopy& c, u32 address, const char* what) {
  if (c.map->magic != TensorMap::MAGIC) fail("%s without a tensor map", what);
  if (c.map->rank != c.rank || bool(c.map->im2col) != c.im2col)
    fail("%s of %u dimensions%s by a map of %u%s", what, c.rank, c.im2col ? ", im2col," : "",
         c.map->rank, c.map->im2col ? ", im2col" : "");
  at(address, bytes_of(*c.map), 128, what);
}
}  // namespace

void mbarrier_init(u32 address, u32 arrivals) {
  Mbarrier& b = *(Mbarrier*)at(address, 8, 8, "an mbarrier");
  b.parity = 0, b.expected = b.awaited = arrivals, b.bytes = 0, b.made = MADE;
}
void mbarrier_arrive(u32 address) { arrive(mbarrier(address), address); }
void mbarrier_expect(u32 address, u32 bytes, bool arrives) {
  Mbarrier& b = mbarrier(address);
  b.bytes += bytes;
  if (arrives) arrive(b, address);
}
bool mbarrier_wait(u32 address, u32 parity) {
  Mbarrier& b = mbarrier(address);
  while (b.parity == (parity & 1)) sleep("the mbarrier", &b);
  return true;
}
void arrive_after_copies(u32 address) {
  Mbarrier* const b = &mbarrier(address);
  const auto copies = copies_so_far();
  later([=] {
    copies();
    arrive(*b, address);
  });
}

void tensor_load(const TensorCopy& c, u32 to, u32 b, u32 blocks) {
  check(c, to, "a tensor copy");
  const u32 bytes = bytes_of(*c.map);
  std::vector<u32> offsets;
  std::vector<char*> places;
  std::vector<Mbarrier*> barriers;
  for (u32 rank = 0; rank < (blocks ? 16 : 1); rank++) {
    if (blocks && !(blocks >> rank & 1)) continue;
    const u32 own = blocks ? address_in(to, rank) : to, its = blocks ? address_in(b, rank) : b;
    places.push_back(at(own, bytes, 128, "a tensor copy"));
    memset(places.back(), 0xff, bytes);
    barriers.push_back(&mbarrier(its));
  }
  const u32 start = to & 0xffffff;
  later([=] {
    for_elements(c, [&](u32 offset, const char* from) {
      const u32 place = swizzled(start + offset, c.map->swizzle) - start;
      for (char* p : places)
        from ? memcpy(p + place, from, c.map->bytes) : memset(p + place, 0, c.map->bytes);
    });
    for (Mbarrier* barrier : barriers) complete_bytes(*barrier, bytes);
  });
}
void tensor_store(const TensorCopy& c, u32 from) {
  check(c, from, "a tensor store");
  const char* const place = at(from, bytes_of(*c.map), 128, "a tensor store");
  const u32 start = from & 0xffffff;
  store_later([=] {
    for_elements(c, [&](u32 offset, char* to) {
      if (to) memcpy(to, place + (swizzled(start + offset, c.map->swizzle) - start), c.map->bytes);
    });
  });
}
void bulk_copy(u32 to, u32 from, u32 bytes, u32 b) {
  if (bytes % 16) fail("a bulk copy of %u bytes", bytes);
  char* const place = at(to, bytes, 16, "a bulk copy");
  const char* const source = at(from, bytes, 16, "a bulk copy");
  Mbarrier* const barrier = &mbarrier(b);
  memset(place, 0xff, bytes);
  later([=] {
    memcpy(place, source, bytes);
    complete_bytes(*barrier, bytes);
  });
}
void store_async(u32 to, u32 word, u32 b) {
  char* const place = at(to, 4, 4, "an asynchronous store");
  Mbarrier* const barrier = &mbarrier(b);
  later([=] {
    memcpy(place, &word, 4);
    complete_bytes(*barrier, 4);
  });
}
}  // namespace emulated
