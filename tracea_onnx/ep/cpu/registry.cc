#include "cpu/registry.h"

#include <cstring>
#include <utility>
#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

namespace tracea {
namespace {

#if defined(__x86_64__) && !defined(TRACEA_EMULATE)
#if defined(__linux__)
// The kernel gives a process room for the tile registers of its threads when it is asked.
bool tiles_allowed() {
  constexpr long kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
}
#else
bool tiles_allowed() { return false; }
#endif

// Asked by hand: __builtin_cpu_supports needs a runtime library that zig's compiler does not link.
struct Cpu {
  bool avx2 = false, avx2_vnni = false, avx512 = false, vnni = false, bf16 = false, amx = false;
  Cpu() {
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return;
    constexpr unsigned kFma = 1u << 12, kXsave = 1u << 27, kF16c = 1u << 29;
    if ((c & (kFma | kXsave | kF16c)) != (kFma | kXsave | kF16c)) return;
    unsigned low, high;
    asm("xgetbv" : "=a"(low), "=d"(high) : "c"(0));  // which registers the operating system saves
    if ((low & 0x06) != 0x06 || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return;
    const unsigned ebx = b, ecx = c, edx = d;
    avx2 = ebx >> 5 & 1;
    const bool more = a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d);
    avx2_vnni = avx2 && more && (a >> 4 & 1);
    constexpr unsigned kF = 1u << 16, kDq = 1u << 17, kBw = 1u << 30, kVl = 1u << 31;
    avx512 =
        avx2 && (low & 0xe6) == 0xe6 && (ebx & (kF | kDq | kBw | kVl)) == (kF | kDq | kBw | kVl);
    vnni = avx512 && (ecx >> 11 & 1);
    bf16 = avx512 && more && (a >> 5 & 1);
    // tiles, of bfloat16 and of 8 bits
    constexpr unsigned kTiles = 1u << 22 | 1u << 24 | 1u << 25, kSaved = 3u << 17;
    amx = vnni && bf16 && (low & kSaved) == kSaved && (edx & kTiles) == kTiles;
  }
};
#endif

bool machine_has(const char* isa) {
#if defined(TRACEA_EMULATE)
  (void)isa;
  return true;
#elif defined(__x86_64__)
  static const Cpu cpu;
  if (!strcmp(isa, "avx512amx")) {
    static const bool tiles = cpu.amx && tiles_allowed();
    return tiles;
  }
  if (!strcmp(isa, "avx512vnni")) return cpu.vnni;
  if (!strcmp(isa, "avx512bf16")) return cpu.bf16;
  if (!strcmp(isa, "avx512")) return cpu.avx512;
  if (!strcmp(isa, "avx2vnni")) return cpu.avx2_vnni;
  if (!strcmp(isa, "avx2")) return cpu.avx2;
#endif
#if !defined(TRACEA_EMULATE)
  return !strcmp(isa, "base");
#endif
}

bool named(const IsaKernels& kernels, const char* isa) {
  return !strcmp(kernels.isa, isa) || !strcmp(kernels.needs, isa);
}

// The kernel and what it needs.
std::pair<const Kernel*, const char*> find(const char* isa, const char* name) {
  const IsaKernels* k = kIsaKernels;
  while (k->isa && !named(*k, isa)) k++;
  for (; k->isa; k++)
    for (auto list = k->lists; *list && machine_has(k->needs); list++)
      for (auto kernel = **list; *kernel; kernel++)
        if (!strcmp((*kernel)->name, name)) return {*kernel, k->needs};
  return {nullptr, ""};
}

}  // namespace

bool isa_available(const char* isa) {
  for (const IsaKernels* k = kIsaKernels; k->isa; k++)
    if (named(*k, isa) && machine_has(k->needs)) return true;
  return false;
}

const char* best_isa() {
  for (const IsaKernels* k = kIsaKernels; k->isa; k++)
    if (machine_has(k->needs)) return k->isa;
  return "";
}

const Kernel* find_kernel(const char* isa, const char* name) { return find(isa, name).first; }

const char* needed(const char* isa, const char* name) { return find(isa, name).second; }

const FamilyInfo* find_family(const char* name) {
  for (const FamilyInfo& f : kFamilies)
    if (!strcmp(f.name, name)) return &f;
  return nullptr;
}

size_t family_index(const FamilyInfo* family) { return size_t(family - kFamilies); }

}  // namespace tracea
