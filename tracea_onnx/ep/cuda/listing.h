// Which GPUs the driver will offer this process, found without initialising CUDA: a process that
// only registers the provider, or runs on the CPU, stays free to fork.
#pragma once
#include <string>
#include <vector>

namespace tracea::cuda {

// A GPU as CUDA will number it. Facts that cannot be known without CUDA are empty, and 0 for `arch`
// (compute capability x 10).
struct ListedGpu {
  std::string name, pci_bus_id;
  int arch = 0;
};

// By CUDA's device ordinal, CUDA_VISIBLE_DEVICES taken into account. Asks NVIDIA's management
// library, then the kernel driver; CUDA itself only where neither is there but a CUDA driver is. It
// may list more than CUDA offers in the end: opening a device says so.
std::vector<ListedGpu> list_gpus();

}  // namespace tracea::cuda
