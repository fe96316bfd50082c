#include "cpu/registry.h"

#include <cstring>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace tracea {
namespace {

#if defined(__x86_64__)
// Asked by hand: __builtin_cpu_supports needs a runtime library that zig's compiler does not link.
struct Cpu {
  bool avx2 = false, avx512 = false, vnni = false;
  Cpu() {
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return;
    constexpr unsigned kFma = 1u << 12, kXsave = 1u << 27, kF16c = 1u << 29;
    if ((c & (kFma | kXsave | kF16c)) != (kFma | kXsave | kF16c)) return;
    unsigned low, high;
    asm("xgetbv" : "=a"(low), "=d"(high) : "c"(0));  // which registers the operating system saves
    if ((low & 0x06) != 0x06 || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return;
    avx2 = b >> 5 & 1;
    constexpr unsigned kF = 1u << 16, kDq = 1u << 17, kBw = 1u << 30, kVl = 1u << 31;
    avx512 = avx2 && (low & 0xe6) == 0xe6 && (b & (kF | kDq | kBw | kVl)) == (kF | kDq | kBw | kVl);
    vnni = avx512 && (c >> 11 & 1);
  }
};
#endif

bool machine_has(const char* isa) {
#if defined(__x86_64__)
  static const Cpu cpu;
  if (!strcmp(isa, "avx512vnni")) return cpu.vnni;
  if (!strcmp(isa, "avx512")) return cpu.avx512;
  if (!strcmp(isa, "avx2")) return cpu.avx2;
#endif
  return !strcmp(isa, "base");
}

}  // namespace

bool isa_available(const char* isa) {
  for (const IsaKernels* k = kIsaKernels; k->isa; k++)
    if (!strcmp(k->isa, isa) && machine_has(k->needs)) return true;
  return false;
}

const char* best_isa() {
  for (const IsaKernels* k = kIsaKernels; k->isa; k++)
    if (machine_has(k->needs)) return k->isa;
  return "";
}

const Kernel* find_kernel(const char* isa, const char* name) {
  const IsaKernels* k = kIsaKernels;
  while (k->isa && strcmp(k->isa, isa) != 0) k++;
  for (; k->isa; k++)
    for (auto list = k->lists; *list && machine_has(k->needs); list++)
      for (auto kernel = **list; *kernel; kernel++)
        if (!strcmp((*kernel)->name, name)) return *kernel;
  return nullptr;
}

const FamilyInfo* find_family(const char* name) {
  for (const FamilyInfo& f : kFamilies)
    if (!strcmp(f.name, name)) return &f;
  return nullptr;
}

size_t family_index(const FamilyInfo* family) { return size_t(family - kFamilies); }

}  // namespace tracea
