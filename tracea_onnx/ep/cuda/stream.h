// Streams as ONNX Runtime hands them out (OrtSyncStream), and their notifications.
#pragma once
#include "cuda/driver.h"
#include "ort/ort_abi.h"

namespace tracea::cuda {

// A CUDA stream of the user's on a device, for `RunOptionsSetSyncStream` and `CopyTensors`. Throws
// Failure.
OrtSyncStreamImpl* make_user_stream(const OrtMemoryDevice* where);

// What a session tells ONNX Runtime its runs use, so that a run may be given another one. It stands
// for the stream context of the run, which is chosen before, and is no stream: nothing is made for
// it, and ONNX Runtime has nothing to wait for that the stream context does not wait for.
OrtSyncStreamImpl* make_session_stream();

// Of a stream that ONNX Runtime passes on; null for that of a session, or for none.
inline Stream stream_of(OrtSyncStream* stream) {
  return stream ? static_cast<Stream>(ort.SyncStream_GetHandle(stream)) : nullptr;
}

}  // namespace tracea::cuda
