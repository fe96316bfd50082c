#include "cuda/listing.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#if defined(_WIN32)
#include <windows.h>
#else
#include <dirent.h>
#include <dlfcn.h>
#include <unistd.h>
#endif

#include "cuda/device.h"

namespace tracea::cuda {
namespace {

struct Physical {
  ListedGpu gpu;
  std::string uuid;
};

#if defined(_WIN32)
void* open_management() { return reinterpret_cast<void*>(LoadLibraryA("nvml.dll")); }
void* find(void* library, const char* symbol) {
  return reinterpret_cast<void*>(GetProcAddress(static_cast<HMODULE>(library), symbol));
}
#else
void* open_management() { return dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL); }
void* find(void* library, const char* symbol) { return dlsym(library, symbol); }
#endif

// nvmlPciInfo_t
struct PciInfo {
  char legacy[16];
  unsigned domain, bus, device, id, subsystem;
  char bus_id[32];
};

// What NVML knows, in order of PCI addresses. False where it does not work.
bool ask_management(std::vector<Physical>& out) {
  void* const library = open_management();  // kept: opening it again costs more than it takes
  if (!library) return false;
  const auto function = [&](const char* symbol, auto& f) {
    return (f = reinterpret_cast<std::remove_reference_t<decltype(f)>>(find(library, symbol))) !=
           nullptr;
  };
  int (*start)() = nullptr, (*stop)() = nullptr, (*count)(unsigned*) = nullptr,
      (*handle)(unsigned, void**) = nullptr, (*name)(void*, char*, unsigned) = nullptr;
  int (*uuid)(void*, char*, unsigned) = nullptr, (*pci)(void*, PciInfo*) = nullptr,
                            (*capability)(void*, int*, int*) = nullptr;
  if (!function("nvmlInit_v2", start) || !function("nvmlShutdown", stop) ||
      !function("nvmlDeviceGetCount_v2", count) ||
      !function("nvmlDeviceGetHandleByIndex_v2", handle) || !function("nvmlDeviceGetName", name) ||
      !function("nvmlDeviceGetUUID", uuid) || !function("nvmlDeviceGetPciInfo_v3", pci) ||
      !function("nvmlDeviceGetCudaComputeCapability", capability) || start() != 0)
    return false;
  unsigned n = 0;
  bool ok = count(&n) == 0;
  for (unsigned k = 0; ok && k < n; k++) {
    void* device = nullptr;
    char text[96] = {}, id[96] = {};
    PciInfo at{};
    int major = 0, minor = 0;
    ok = handle(k, &device) == 0;
    if (!ok) break;
    Physical p;
    if (name(device, text, sizeof text) == 0) p.gpu.name = text;
    if (uuid(device, id, sizeof id) == 0) p.uuid = id;
    if (capability(device, &major, &minor) == 0) p.gpu.arch = major * 10 + minor;
    if (pci(device, &at) == 0) {
      p.gpu.pci_bus_id = at.bus_id;  // 00000000:01:00.0, where CUDA writes 0000:01:00.0
      if (p.gpu.pci_bus_id.size() == 16 && p.gpu.pci_bus_id.compare(0, 4, "0000") == 0)
        p.gpu.pci_bus_id.erase(0, 4);
    }
    out.push_back(std::move(p));
  }
  stop();
  if (!ok) out.clear();
  return ok;
}

#if defined(_WIN32)
bool ask_kernel(std::vector<Physical>&) { return false; }
#else
// What Linux's kernel driver tells: a folder per GPU, named by its PCI address, and a device node,
// either of which a container may lack.
bool ask_kernel(std::vector<Physical>& out) {
  const std::string root = "/proc/driver/nvidia/gpus";
  std::vector<std::string> addresses;
  if (DIR* d = opendir(root.c_str())) {
    while (const dirent* e = readdir(d))
      if (e->d_name[0] != '.') addresses.emplace_back(e->d_name);
    closedir(d);
  }
  std::sort(addresses.begin(), addresses.end());
  for (const std::string& address : addresses) {
    Physical p;
    p.gpu.pci_bus_id = address;
    int minor = -1;
    if (FILE* f = fopen((root + "/" + address + "/information").c_str(), "r")) {
      char line[256], value[200];
      while (fgets(line, sizeof line, f)) {
        if (sscanf(line, "Model: %199[^\n]", value) == 1) p.gpu.name = value;
        if (sscanf(line, "GPU UUID: %199s", value) == 1) p.uuid = value;
        sscanf(line, "Device Minor: %d", &minor);
      }
      fclose(f);
    }
    if (minor < 0 || access(("/dev/nvidia" + std::to_string(minor)).c_str(), F_OK) == 0)
      out.push_back(std::move(p));
  }
  if (!out.empty()) return true;
  // Sandboxes may have the device nodes alone: nvidia0, nvidia1, ...
  if (DIR* d = opendir("/dev")) {
    while (const dirent* e = readdir(d))
      if (const char* digits = e->d_name + 6; !strncmp(e->d_name, "nvidia", 6) && *digits &&
                                              strspn(digits, "0123456789") == strlen(digits))
        out.emplace_back();
    closedir(d);
  }
  return !out.empty();
}
#endif

// Those that CUDA_VISIBLE_DEVICES names, as CUDA reads it: up to the first entry that names none.
std::vector<Physical> visible(const std::vector<Physical>& all, const char* wanted) {
  if (!wanted) return all;
  std::vector<Physical> out;
  std::vector<size_t> taken;
  const std::string text = wanted;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    std::string entry = text.substr(at, end - at);
    at = end + 1;
    entry.erase(0, entry.find_first_not_of(' '));
    entry.erase(entry.find_last_not_of(' ') + 1);
    if (entry.compare(0, 4, "MIG-") == 0) {  // a part of a GPU, whose facts are its own
      out.push_back({});
      continue;
    }
    size_t k = all.size();
    if (entry.compare(0, 4, "GPU-") == 0) {
      for (size_t g = 0; g < all.size(); g++)
        if (all[g].uuid.compare(0, entry.size(), entry) == 0) k = g;
    } else if (!entry.empty() && entry.size() < 6 &&
               entry.find_first_not_of("0123456789") == std::string::npos) {
      k = size_t(atoi(entry.c_str()));
    }
    if (k >= all.size() || std::find(taken.begin(), taken.end(), k) != taken.end()) break;
    taken.push_back(k);
    out.push_back(all[k]);
  }
  return out;
}

}  // namespace

std::vector<ListedGpu> list_gpus() {
  if (!driver_present()) return {};
  std::vector<Physical> all;
  if (!ask_management(all) && !ask_kernel(all))
    return std::vector<ListedGpu>(size_t(Device::count()));
  // Unless told otherwise CUDA puts the fastest first: which of different GPUs has which number is
  // then its own business.
  const char* order = getenv("CUDA_DEVICE_ORDER");
  const bool by_address = order && !strcmp(order, "PCI_BUS_ID");
  const bool alike = std::all_of(all.begin(), all.end(), [&](const Physical& p) {
    return p.gpu.name == all.front().gpu.name && p.gpu.arch == all.front().gpu.arch;
  });
  std::vector<ListedGpu> out;
  for (const Physical& p : visible(all, getenv("CUDA_VISIBLE_DEVICES")))
    out.push_back(alike || by_address ? p.gpu : ListedGpu{});
  return out;
}

}  // namespace tracea::cuda
