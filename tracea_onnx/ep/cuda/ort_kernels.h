// What the provider runs node by node, as kernels that ONNX Runtime looks up: the copies between
// providers, and If, Loop and Scan.
#pragma once
#include <memory>

#include "cuda/stream_context.h"
#include "ort/ort_abi.h"

namespace tracea::cuda {

// The kernels of a session with these streams. The caller releases the registry, and not before the
// session has made its kernels. Throws Failure.
OrtKernelRegistry* make_kernels(const std::shared_ptr<StreamPool>* streams);

}  // namespace tracea::cuda
