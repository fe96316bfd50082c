// The part of ONNX Runtime's C ABI this provider uses, declared by hand: no ORT header is needed to
// build. OrtApi and OrtEpApi are append-only tables of function pointers, so a function is (slot,
// signature); callback structs are declared with their members in ABI order up to API version
// kMaxAbi; these are Callbacks, so that none lets an exception out.
// tests/host/lowering/test_plan_native.py checks every slot and offset.
#pragma once
#include <cstddef>
#include <cstdint>

#include "ort/boundary.h"
#include "plan/files.h"

extern "C" {
struct OrtStatus;
struct OrtEpApi;
struct OrtModelEditorApi;
struct OrtLogger;
struct OrtSessionOptions;
struct OrtRunOptions;
struct OrtKeyValuePairs;
struct OrtHardwareDevice;
struct OrtEpDevice;
struct OrtMemoryInfo;
struct OrtMemoryDevice;
struct OrtValue;
struct OrtGraph;
struct OrtNode;
struct OrtValueInfo;
struct OrtTypeInfo;
struct OrtTensorTypeAndShapeInfo;
struct OrtOpAttr;
struct OrtAllocator;
struct OrtEpGraphSupportInfo;
struct OrtNodeComputeContext;
struct OrtKernelContext;
struct OrtKernelRegistry;
struct OrtCustomOpDomain;
struct OrtSyncStream;
struct OrtKernelInfo;
struct OrtKernelDef;
struct OrtKernelDefBuilder;
struct OrtDataType;
struct OrtSharedPrePackedWeightCache;
struct OrtEpProfilerImpl;
struct OrtExternalResourceImporterImpl;
struct OrtDeviceEpIncompatibilityDetails;
struct OrtApi;
struct OrtApiBase {
  const OrtApi* (*GetApi)(uint32_t);
  const char* (*GetVersionString)();
};

struct OrtNodeFusionOptions {
  uint32_t ort_version_supported;
  bool drop_constant_initializers;
};

struct OrtNodeComputeInfo {
  uint32_t ort_version_supported;
  tracea::Callback<OrtStatus*(OrtNodeComputeInfo*, OrtNodeComputeContext*, void** state)>
      CreateState;
  tracea::Callback<OrtStatus*(OrtNodeComputeInfo*, void* state, OrtKernelContext*)> Compute;
  tracea::Callback<void(OrtNodeComputeInfo*, void* state)> ReleaseState;
};

struct OrtAllocator {
  uint32_t version;
  tracea::Callback<void*(OrtAllocator*, size_t)> Alloc;
  tracea::Callback<void(OrtAllocator*, void*)> Free;
  tracea::Callback<const OrtMemoryInfo*(const OrtAllocator*)> Info;
  tracea::Callback<void*(OrtAllocator*, size_t)> Reserve;                          // 1.18
  tracea::Callback<OrtStatus*(const OrtAllocator*, OrtKeyValuePairs**)> GetStats;  // 1.23
  tracea::Callback<void*(OrtAllocator*, size_t, OrtSyncStream*)> AllocOnStream;    // 1.23
  tracea::Callback<OrtStatus*(OrtAllocator*)> Shrink;                              // 1.25
};

struct OrtDataTransferImpl {
  uint32_t ort_version_supported;
  tracea::Callback<void(OrtDataTransferImpl*)> Release;
  tracea::Callback<bool(const OrtDataTransferImpl*, const OrtMemoryDevice* from,
                        const OrtMemoryDevice* to)>
      CanCopy;
  tracea::Callback<OrtStatus*(OrtDataTransferImpl*, const OrtValue** from, OrtValue** to,
                              OrtSyncStream**, size_t n)>
      CopyTensors;
};

struct OrtSyncNotificationImpl {
  uint32_t ort_version_supported;
  tracea::Callback<void(OrtSyncNotificationImpl*)> Release;
  tracea::Callback<OrtStatus*(OrtSyncNotificationImpl*)> Activate;
  tracea::Callback<OrtStatus*(OrtSyncNotificationImpl*, OrtSyncStream* consumer)> WaitOnDevice;
  tracea::Callback<OrtStatus*(OrtSyncNotificationImpl*)> WaitOnHost;
};

struct OrtSyncStreamImpl {
  uint32_t ort_version_supported;
  tracea::Callback<void(OrtSyncStreamImpl*)> Release;
  tracea::Callback<void*(OrtSyncStreamImpl*)> GetHandle;
  tracea::Callback<OrtStatus*(OrtSyncStreamImpl*, OrtSyncNotificationImpl**)> CreateNotification;
  tracea::Callback<OrtStatus*(OrtSyncStreamImpl*)> Flush;
  tracea::Callback<OrtStatus*(OrtSyncStreamImpl*)> OnSessionRunEnd;
};

struct OrtKernelImpl {
  uint32_t ort_version_supported, flags;
  tracea::Callback<OrtStatus*(OrtKernelImpl*, OrtKernelContext*)> Compute;
  tracea::Callback<void(OrtKernelImpl*)> Release;
  tracea::Callback<OrtStatus*(OrtKernelImpl*, const OrtValue*, int, OrtAllocator*,
                              OrtSharedPrePackedWeightCache*, bool*)>
      PrePackWeight;
  tracea::Callback<OrtStatus*(OrtKernelImpl*, const void* const*, const size_t*, size_t, int)>
      SetSharedPrePackedWeight;
};
typedef tracea::Callback<OrtStatus*(void* state, const OrtKernelInfo*, OrtKernelImpl**)>
    OrtKernelCreateFunc;

struct OrtLoopKernelHelper {
  uint32_t ort_version_supported;
  tracea::Callback<void(OrtLoopKernelHelper*)> Release;
  tracea::Callback<OrtStatus*(OrtLoopKernelHelper*, void* stream, const OrtValue* const* values,
                              size_t n, void* output, size_t bytes)>
      ConcatOutput;
};

struct OrtScanKernelHelper {
  uint32_t ort_version_supported;
  tracea::Callback<void(OrtScanKernelHelper*)> Release;
  tracea::Callback<OrtStatus*(OrtScanKernelHelper*, const size_t* permutation, size_t n,
                              const OrtValue*, OrtSyncStream*, OrtValue*)>
      Transpose;
};

struct OrtEp {
  uint32_t ort_version_supported;
  tracea::Callback<const char*(const OrtEp*)> GetName;
  tracea::Callback<OrtStatus*(OrtEp*, const OrtGraph*, OrtEpGraphSupportInfo*)> GetCapability;
  tracea::Callback<OrtStatus*(OrtEp*, const OrtGraph** graphs, const OrtNode** fused, size_t n,
                              OrtNodeComputeInfo** out, OrtNode** ep_context_nodes)>
      Compile;
  tracea::Callback<void(OrtEp*, OrtNodeComputeInfo**, size_t)> ReleaseNodeComputeInfos;
  tracea::Callback<OrtStatus*(OrtEp*, int*)> GetPreferredDataLayout;
  tracea::Callback<OrtStatus*(OrtEp*, const char*, const char*, int, int*)>
      ShouldConvertDataLayoutForOp;
  tracea::Callback<OrtStatus*(OrtEp*, const char* const*, const char* const*, size_t)>
      SetDynamicOptions;
  tracea::Callback<OrtStatus*(OrtEp*, const OrtRunOptions*)> OnRunStart;
  tracea::Callback<OrtStatus*(OrtEp*, const OrtRunOptions*, bool sync)> OnRunEnd;
  tracea::Callback<OrtStatus*(OrtEp*, const OrtMemoryInfo*, OrtAllocator**)> CreateAllocator;
  tracea::Callback<OrtStatus*(OrtEp*, const OrtMemoryDevice*, OrtSyncStreamImpl**)>
      CreateSyncStreamForDevice;
  tracea::Callback<const char*(OrtEp*, const OrtGraph*)> GetCompiledModelCompatibilityInfo;
  tracea::Callback<OrtStatus*(OrtEp*, const OrtKernelRegistry**)> GetKernelRegistry;  // 1.24
  tracea::Callback<OrtStatus*(OrtEp*, bool*)> IsConcurrentRunSupported;               // 1.24
  tracea::Callback<OrtStatus*(OrtEp*)> Sync;                                          // 1.25
  tracea::Callback<OrtStatus*(OrtEp*, OrtEpProfilerImpl**)> CreateProfiler;           // 1.25
  tracea::Callback<bool(const OrtEp*)> IsGraphCaptureEnabled;                         // 1.26
  tracea::Callback<bool(const OrtEp*, int)> IsGraphCaptured;                          // 1.26
  tracea::Callback<OrtStatus*(OrtEp*, int)> ReplayGraph;                              // 1.26
  tracea::Callback<int(const OrtEp*)> GetGraphCaptureNodeAssignmentPolicy;            // 1.26
  tracea::Callback<OrtStatus*(const OrtEp*, void*)> GetAvailableResource;             // 1.26
  tracea::Callback<OrtStatus*(OrtEp*)> OnSessionInitializationEnd;                    // 1.27
  tracea::Callback<OrtStatus*(const OrtEp*, const OrtMemoryDevice**)>
      GetDefaultMemoryDevice;                                             // 1.27
  tracea::Callback<OrtStatus*(OrtEp*, int)> ReleaseCapturedGraph;         // 1.27
  tracea::Callback<OrtStatus*(const OrtEp*, int*)> GetWeightlessSupport;  // 1.29
};

struct OrtEpFactory {
  uint32_t ort_version_supported;
  tracea::Callback<const char*(const OrtEpFactory*)> GetName;
  tracea::Callback<const char*(const OrtEpFactory*)> GetVendor;
  tracea::Callback<OrtStatus*(OrtEpFactory*, const OrtHardwareDevice* const*, size_t, OrtEpDevice**,
                              size_t max, size_t* n)>
      GetSupportedDevices;
  tracea::Callback<OrtStatus*(OrtEpFactory*, const OrtHardwareDevice* const*,
                              const OrtKeyValuePairs* const*, size_t, const OrtSessionOptions*,
                              const OrtLogger*, OrtEp**)>
      CreateEp;
  tracea::Callback<void(OrtEpFactory*, OrtEp*)> ReleaseEp;
  tracea::Callback<uint32_t(const OrtEpFactory*)> GetVendorId;
  tracea::Callback<const char*(const OrtEpFactory*)> GetVersion;
  tracea::Callback<OrtStatus*(OrtEpFactory*, const OrtHardwareDevice* const*, size_t, const char*,
                              int*)>
      ValidateCompiledModelCompatibilityInfo;
  tracea::Callback<OrtStatus*(OrtEpFactory*, const OrtMemoryInfo*, const OrtKeyValuePairs*,
                              OrtAllocator**)>
      CreateAllocator;
  tracea::Callback<void(OrtEpFactory*, OrtAllocator*)> ReleaseAllocator;
  tracea::Callback<OrtStatus*(OrtEpFactory*, OrtDataTransferImpl**)> CreateDataTransfer;
  tracea::Callback<bool(const OrtEpFactory*)> IsStreamAware;
  tracea::Callback<OrtStatus*(OrtEpFactory*, const OrtMemoryDevice*, const OrtKeyValuePairs*,
                              OrtSyncStreamImpl**)>
      CreateSyncStreamForDevice;
  tracea::Callback<OrtStatus*(OrtEpFactory*, const OrtHardwareDevice*,
                              OrtDeviceEpIncompatibilityDetails*)>
      GetHardwareDeviceIncompatibilityDetails;
  tracea::Callback<OrtStatus*(OrtEpFactory*, const OrtEpDevice*, OrtExternalResourceImporterImpl**)>
      CreateExternalResourceImporterForDevice;
  tracea::Callback<OrtStatus*(OrtEpFactory*, size_t*)> GetNumCustomOpDomains;
  tracea::Callback<OrtStatus*(OrtEpFactory*, OrtCustomOpDomain**, size_t)> GetCustomOpDomains;
  tracea::Callback<OrtStatus*(OrtEpFactory*, const OrtEpDevice*, const void*)> InitGraphicsInterop;
  tracea::Callback<OrtStatus*(OrtEpFactory*, const OrtEpDevice*)> DeinitGraphicsInterop;
  tracea::Callback<OrtStatus*(OrtEpFactory*, const OrtHardwareDevice*,
                              const OrtKeyValuePairs* const*, size_t, const OrtSessionOptions*,
                              size_t*)>
      SelectBestModelCandidate;
};
}  // extern "C"

#define TRACEA_ORT_FUNCTIONS(X)                                                                    \
  X(0, CreateStatus, OrtStatus*(int code, const char* message))                                    \
  X(2, GetErrorMessage, const char*(const OrtStatus*))                                             \
  X(51, GetTensorMutableData, OrtStatus*(OrtValue*, void**))                                       \
  X(55, CastTypeInfoToTensorInfo,                                                                  \
    OrtStatus*(const OrtTypeInfo*, const OrtTensorTypeAndShapeInfo**))                             \
  X(60, GetTensorElementType, OrtStatus*(const OrtTensorTypeAndShapeInfo*, int*))                  \
  X(61, GetDimensionsCount, OrtStatus*(const OrtTensorTypeAndShapeInfo*, size_t*))                 \
  X(62, GetDimensions, OrtStatus*(const OrtTensorTypeAndShapeInfo*, int64_t*, size_t))             \
  X(63, GetSymbolicDimensions, OrtStatus*(const OrtTensorTypeAndShapeInfo*, const char**, size_t)) \
  X(72, MemoryInfoGetId, OrtStatus*(const OrtMemoryInfo*, int*))                                   \
  X(90, KernelContext_GetInput, OrtStatus*(const OrtKernelContext*, size_t, const OrtValue**))     \
  X(91, KernelContext_GetOutput,                                                                   \
    OrtStatus*(OrtKernelContext*, size_t, const int64_t*, size_t, OrtValue**))                     \
  X(93, ReleaseStatus, void(OrtStatus*))                                                           \
  X(94, ReleaseMemoryInfo, void(OrtMemoryInfo*))                                                   \
  X(96, ReleaseValue, void(OrtValue*))                                                             \
  X(193, KernelContext_GetGPUComputeStream, OrtStatus*(const OrtKernelContext*, void**))           \
  X(211, CreateOpAttr, OrtStatus*(const char*, const void*, int len, int type, OrtOpAttr**))       \
  X(212, ReleaseOpAttr, void(OrtOpAttr*))                                                          \
  X(238, GetSessionConfigEntry, OrtStatus*(const OrtSessionOptions*, const char*, char*, size_t*)) \
  X(247, Logger_LogMessage,                                                                        \
    OrtStatus*(const OrtLogger*, int, const char*, const char*, int, const char*))                 \
  X(272, ReadOpAttr, OrtStatus*(const OrtOpAttr*, int, void*, size_t, size_t*))                    \
  X(274, KernelContext_ParallelFor,                                                                \
    OrtStatus*(const OrtKernelContext*, void (*)(void*, size_t), size_t total, size_t batches,     \
               void*))                                                                             \
  X(289, GetValueInfoName, OrtStatus*(const OrtValueInfo*, const char**))                          \
  X(290, GetValueInfoTypeInfo, OrtStatus*(const OrtValueInfo*, const OrtTypeInfo**))               \
  X(291, GetModelEditorApi, const OrtModelEditorApi*())                                            \
  X(295, CreateKeyValuePairs, void(OrtKeyValuePairs**))                                            \
  X(296, AddKeyValuePair, void(OrtKeyValuePairs*, const char*, const char*))                       \
  X(297, GetKeyValue, const char*(const OrtKeyValuePairs*, const char*))                           \
  X(300, ReleaseKeyValuePairs, void(OrtKeyValuePairs*))                                            \
  X(307, HardwareDevice_Type, int(const OrtHardwareDevice*))                                       \
  X(308, HardwareDevice_VendorId, uint32_t(const OrtHardwareDevice*))                              \
  X(311, HardwareDevice_Metadata, const OrtKeyValuePairs*(const OrtHardwareDevice*))               \
  X(317, GetEpApi, const OrtEpApi*())                                                              \
  X(318, GetTensorSizeInBytes, OrtStatus*(const OrtValue*, size_t*))                               \
  X(320, CreateMemoryInfo_V2,                                                                      \
    OrtStatus*(const char*, int device_type, uint32_t vendor, int32_t device, int memory_type,     \
               size_t alignment, int allocator_type, OrtMemoryInfo**))                             \
  X(321, MemoryInfoGetDeviceMemType, int(const OrtMemoryInfo*))                                    \
  X(326, ValueInfo_GetInitializerValue, OrtStatus*(const OrtValueInfo*, const OrtValue**))         \
  X(331, ValueInfo_IsConstantInitializer, OrtStatus*(const OrtValueInfo*, bool*))                  \
  X(333, Graph_GetName, OrtStatus*(const OrtGraph*, const char**))                                 \
  X(334, Graph_GetModelPath, OrtStatus*(const OrtGraph*, const tracea::PathChar**))                \
  X(335, Graph_GetOnnxIRVersion, OrtStatus*(const OrtGraph*, int64_t*))                            \
  X(336, Graph_GetNumOperatorSets, OrtStatus*(const OrtGraph*, size_t*))                           \
  X(337, Graph_GetOperatorSets, OrtStatus*(const OrtGraph*, const char**, int64_t*, size_t))       \
  X(338, Graph_GetNumInputs, OrtStatus*(const OrtGraph*, size_t*))                                 \
  X(339, Graph_GetInputs, OrtStatus*(const OrtGraph*, const OrtValueInfo**, size_t))               \
  X(340, Graph_GetNumOutputs, OrtStatus*(const OrtGraph*, size_t*))                                \
  X(341, Graph_GetOutputs, OrtStatus*(const OrtGraph*, const OrtValueInfo**, size_t))              \
  X(344, Graph_GetNumNodes, OrtStatus*(const OrtGraph*, size_t*))                                  \
  X(345, Graph_GetNodes, OrtStatus*(const OrtGraph*, const OrtNode**, size_t))                     \
  X(346, Graph_GetParentNode, OrtStatus*(const OrtGraph*, const OrtNode**))                        \
  X(349, Node_GetName, OrtStatus*(const OrtNode*, const char**))                                   \
  X(350, Node_GetOperatorType, OrtStatus*(const OrtNode*, const char**))                           \
  X(351, Node_GetDomain, OrtStatus*(const OrtNode*, const char**))                                 \
  X(353, Node_GetNumInputs, OrtStatus*(const OrtNode*, size_t*))                                   \
  X(354, Node_GetInputs, OrtStatus*(const OrtNode*, const OrtValueInfo**, size_t))                 \
  X(355, Node_GetNumOutputs, OrtStatus*(const OrtNode*, size_t*))                                  \
  X(356, Node_GetOutputs, OrtStatus*(const OrtNode*, const OrtValueInfo**, size_t))                \
  X(357, Node_GetNumImplicitInputs, OrtStatus*(const OrtNode*, size_t*))                           \
  X(358, Node_GetImplicitInputs, OrtStatus*(const OrtNode*, const OrtValueInfo**, size_t))         \
  X(359, Node_GetNumAttributes, OrtStatus*(const OrtNode*, size_t*))                               \
  X(360, Node_GetAttributes, OrtStatus*(const OrtNode*, const OrtOpAttr**, size_t))                \
  X(362, OpAttr_GetTensorAttributeAsOrtValue, OrtStatus*(const OrtOpAttr*, OrtValue**))            \
  X(363, OpAttr_GetType, OrtStatus*(const OrtOpAttr*, int*))                                       \
  X(364, OpAttr_GetName, OrtStatus*(const OrtOpAttr*, const char**))                               \
  X(365, Node_GetNumSubgraphs, OrtStatus*(const OrtNode*, size_t*))                                \
  X(366, Node_GetSubgraphs, OrtStatus*(const OrtNode*, const OrtGraph**, size_t, const char**))    \
  X(368, Node_GetEpName, OrtStatus*(const OrtNode*, const char**))                                 \
  X(373, GetRunConfigEntry, const char*(const OrtRunOptions*, const char*))                        \
  X(378, GetTensorData, OrtStatus*(const OrtValue*, const void**))                                 \
  X(384, SyncStream_GetHandle, void*(OrtSyncStream*))                                              \
  X(390, TensorTypeAndShape_HasShape, bool(const OrtTensorTypeAndShapeInfo*))                      \
  X(414, GetTensorElementTypeAndShapeDataReference,                                                \
    OrtStatus*(const OrtValue*, int*, const int64_t**, size_t*))

// Null in versions of ORT that do not have them yet.
#define TRACEA_ORT_27_FUNCTIONS(X) \
  X(420, GetSessionExecutionMode, OrtStatus*(const OrtSessionOptions*, int*))

#define TRACEA_ORT_EP_FUNCTIONS(X)                                                                 \
  X(0, CreateEpDevice,                                                                             \
    OrtStatus*(OrtEpFactory*, const OrtHardwareDevice*, const OrtKeyValuePairs*,                   \
               const OrtKeyValuePairs*, OrtEpDevice**))                                            \
  X(2, EpGraphSupportInfo_AddNodesToFuse,                                                          \
    OrtStatus*(OrtEpGraphSupportInfo*, const OrtNode* const*, size_t,                              \
               const OrtNodeFusionOptions*))                                                       \
  X(3, EpGraphSupportInfo_AddSingleNode, OrtStatus*(OrtEpGraphSupportInfo*, const OrtNode*))       \
  X(5, EpDevice_AddAllocatorInfo, OrtStatus*(OrtEpDevice*, const OrtMemoryInfo*))                  \
  X(7, Value_GetMemoryDevice, const OrtMemoryDevice*(const OrtValue*))                             \
  X(9, MemoryDevice_GetDeviceType, int(const OrtMemoryDevice*))                                    \
  X(10, MemoryDevice_GetMemoryType, int(const OrtMemoryDevice*))                                   \
  X(11, MemoryDevice_GetVendorId, uint32_t(const OrtMemoryDevice*))                                \
  X(12, MemoryDevice_GetDeviceId, uint32_t(const OrtMemoryDevice*))                                \
  X(16, CreateHardwareDevice,                                                                      \
    OrtStatus*(int, uint32_t, uint32_t, const char*, const OrtKeyValuePairs*,                      \
               OrtHardwareDevice**))                                                               \
  X(17, ReleaseHardwareDevice, void(OrtHardwareDevice*))                                           \
  X(18, CreateKernelRegistry, OrtStatus*(OrtKernelRegistry**))                                     \
  X(19, ReleaseKernelRegistry, void(OrtKernelRegistry*))                                           \
  X(20, KernelRegistry_AddKernel,                                                                  \
    OrtStatus*(OrtKernelRegistry*, const OrtKernelDef*, OrtKernelCreateFunc::Pointer, void*))      \
  X(21, CreateKernelDefBuilder, OrtStatus*(OrtKernelDefBuilder**))                                 \
  X(22, ReleaseKernelDefBuilder, void(OrtKernelDefBuilder*))                                       \
  X(23, KernelDefBuilder_SetOperatorType, OrtStatus*(OrtKernelDefBuilder*, const char*))           \
  X(24, KernelDefBuilder_SetDomain, OrtStatus*(OrtKernelDefBuilder*, const char*))                 \
  X(25, KernelDefBuilder_SetSinceVersion, OrtStatus*(OrtKernelDefBuilder*, int, int))              \
  X(26, KernelDefBuilder_SetExecutionProvider, OrtStatus*(OrtKernelDefBuilder*, const char*))      \
  X(27, KernelDefBuilder_SetInputMemType, OrtStatus*(OrtKernelDefBuilder*, size_t, int))           \
  X(28, KernelDefBuilder_SetOutputMemType, OrtStatus*(OrtKernelDefBuilder*, size_t, int))          \
  X(29, KernelDefBuilder_AddTypeConstraint,                                                        \
    OrtStatus*(OrtKernelDefBuilder*, const char*, const OrtDataType* const*, size_t))              \
  X(32, KernelDefBuilder_Build, OrtStatus*(OrtKernelDefBuilder*, OrtKernelDef**))                  \
  X(33, ReleaseKernelDef, void(OrtKernelDef*))                                                     \
  X(40, GetTensorDataType, OrtStatus*(int, const OrtDataType**))                                   \
  X(41, EpGraphSupportInfo_LookUpKernel,                                                           \
    OrtStatus*(OrtEpGraphSupportInfo*, const OrtNode*, const OrtKernelDef**))                      \
  X(45, CreateIfKernel, OrtStatus*(const OrtKernelInfo*, OrtKernelImpl**))                         \
  X(46, CreateLoopKernel, OrtStatus*(const OrtKernelInfo*, OrtLoopKernelHelper*, OrtKernelImpl**)) \
  X(47, CreateScanKernel, OrtStatus*(const OrtKernelInfo*, OrtScanKernelHelper*, OrtKernelImpl**))

#define TRACEA_ORT_EDITOR_FUNCTIONS(X)                                                          \
  X(6, CreateNode,                                                                              \
    OrtStatus*(const char* op, const char* domain, const char* name, const char* const* inputs, \
               size_t, const char* const* outputs, size_t, OrtOpAttr** attributes, size_t,      \
               OrtNode**))

namespace tracea {

constexpr uint32_t kMinAbi = 24, kMaxAbi = 29;

// The tables with typed members; filled once by `attach`.
struct Ort {
#define TRACEA_X(slot, name, ...) \
  using name##_t = __VA_ARGS__;   \
  name##_t* name = nullptr;
  TRACEA_ORT_FUNCTIONS(TRACEA_X)
  TRACEA_ORT_27_FUNCTIONS(TRACEA_X)
  TRACEA_ORT_EP_FUNCTIONS(TRACEA_X)
  TRACEA_ORT_EDITOR_FUNCTIONS(TRACEA_X)
#undef TRACEA_X
  uint32_t abi = 0;  // the API version both sides agreed on

  void attach(const OrtApi* api, uint32_t version) {
    abi = version;
    auto table = reinterpret_cast<void* const*>(api);
#define TRACEA_X(slot, name, ...) name = reinterpret_cast<name##_t*>(table[slot]);
    TRACEA_ORT_FUNCTIONS(TRACEA_X)
    if (version >= 27) {
      TRACEA_ORT_27_FUNCTIONS(TRACEA_X)
    }
    table = reinterpret_cast<void* const*>(GetEpApi());
    TRACEA_ORT_EP_FUNCTIONS(TRACEA_X)
    table = reinterpret_cast<void* const*>(GetModelEditorApi());  // null in a minimal build
    if (table) {
      TRACEA_ORT_EDITOR_FUNCTIONS(TRACEA_X)
    }
#undef TRACEA_X
  }
};
extern Ort ort;

}  // namespace tracea
