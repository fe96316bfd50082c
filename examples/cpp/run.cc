// Runs a model on the tracea-onnx provider from C++. With a pack, the provider's library is all it
// takes; without one ("") the provider starts a Python that has tracea-onnx to compile the model.
//
//   run LIBONNXRUNTIME LIBTRACEA_ONNX MODEL.onnx MODEL.pack|"" [SIZE_OF_SYMBOLIC_DIMS]
//
// A program that has ONNX Runtime's headers uses the same calls by name; here they are looked up by
// their slots, so that the example builds on any machine. Inputs are filled with a fixed pattern;
// every output is printed as: name, shape, sum, first values.
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

struct ApiBase {
  void* const* (*GetApi)(uint32_t);
  const char* (*GetVersionString)();
};
constexpr uint32_t kApiVersion = 24;

using Status = void;  // opaque; null is success
static void* const* api;

template <class Result = Status*, class... Args>
static Result call(int slot, Args... args) {
  return reinterpret_cast<Result (*)(Args...)>(api[slot])(args...);
}

static void check(Status* status, const char* what) {
  if (!status) return;
  fprintf(stderr, "%s: %s\n", what,
          call<const char*>(2 /* GetErrorMessage */, static_cast<const Status*>(status)));
  exit(1);
}

static void* load(const char* path) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) fprintf(stderr, "%s\n", dlerror()), exit(1);
  return library;
}

struct Input {
  std::string name;
  int type;
  std::vector<int64_t> dims;
  std::vector<char> data;
  void* value;
};

static Input make_input(void* session, void* allocator, void* memory, size_t index,
                        int64_t symbolic) {
  Input in{};
  char* name = nullptr;
  check(call(36 /* SessionGetInputName */, static_cast<const void*>(session), index, allocator,
             &name),
        "input name");
  in.name = name;
  check(call(76 /* AllocatorFree */, allocator, static_cast<void*>(name)), "free");
  void* type = nullptr;
  const void* tensor = nullptr;
  check(call(33 /* SessionGetInputTypeInfo */, static_cast<const void*>(session), index, &type),
        "input type");
  check(call(55 /* CastTypeInfoToTensorInfo */, static_cast<const void*>(type), &tensor),
        "tensor type");
  check(call(60 /* GetTensorElementType */, tensor, &in.type), "element type");
  size_t rank = 0, count = 1;
  check(call(61 /* GetDimensionsCount */, tensor, &rank), "rank");
  in.dims.resize(rank);
  check(call(62 /* GetDimensions */, tensor, in.dims.data(), rank), "dims");
  call<void>(98 /* ReleaseTypeInfo */, type);
  for (int64_t& d : in.dims) {
    if (d < 0) d = symbolic;
    count *= size_t(d);
  }
  const size_t size = in.type == 1 ? 4 : in.type == 7 ? 8 : 0;  // float and int64
  if (!size)
    fprintf(stderr, "input %s: only float and int64 inputs are filled by this example\n",
            in.name.c_str()),
        exit(1);
  in.data.resize(count * size);
  for (size_t k = 0; k < count; k++) {
    const float f = float(k * 7919 % 1000) / 1000.f - 0.5f;
    const int64_t i = int64_t(k % 10);
    memcpy(in.data.data() + k * size, size == 4 ? static_cast<const void*>(&f) : &i, size);
  }
  check(call(49 /* CreateTensorWithDataAsOrtValue */, static_cast<const void*>(memory),
             static_cast<void*>(in.data.data()), in.data.size(),
             static_cast<const int64_t*>(in.dims.data()), rank, in.type, &in.value),
        "tensor");
  return in;
}

static void print_output(const char* name, void* value) {
  int type = 0;
  const int64_t* dims = nullptr;
  size_t rank = 0;
  void* data = nullptr;
  check(call(414 /* GetTensorElementTypeAndShapeDataReference */, static_cast<const void*>(value),
             &type, &dims, &rank),
        "output shape");
  check(call(51 /* GetTensorMutableData */, value, &data), "output data");
  size_t count = 1;
  printf("%s [", name);
  for (size_t k = 0; k < rank; k++)
    printf(k ? ",%lld" : "%lld", static_cast<long long>(dims[k])), count *= size_t(dims[k]);
  printf("]");
  if (type == 1) {
    double sum = 0;
    for (size_t k = 0; k < count; k++) sum += static_cast<float*>(data)[k];
    printf(" %.9g", sum);
    for (size_t k = 0; k < count && k < 8; k++)
      printf(" %.9g", double(static_cast<float*>(data)[k]));
  }
  printf("\n");
}

int main(int argc, char** argv) {
  if (argc < 5)
    return fprintf(stderr,
                   "usage: %s LIBONNXRUNTIME LIBTRACEA_ONNX MODEL.onnx MODEL.pack|\"\" "
                   "[SIZE_OF_SYMBOLIC_DIMS]\n",
                   argv[0]),
           2;
  const int64_t symbolic = argc > 5 ? atoll(argv[5]) : 1;
  auto base = reinterpret_cast<const ApiBase* (*)()>(dlsym(load(argv[1]), "OrtGetApiBase"))();
  api = base->GetApi(kApiVersion);
  if (!api)
    return fprintf(stderr, "ONNX Runtime %s is older than 1.24\n", base->GetVersionString()), 1;

  void *environment = nullptr, *options = nullptr, *session = nullptr, *allocator = nullptr,
       *memory = nullptr;
  check(call(3 /* CreateEnv */, 2 /* warnings */, "example", &environment), "environment");
  check(call(301 /* RegisterExecutionProviderLibrary */, environment, "tracea_onnx",
             static_cast<const char*>(argv[2])),
        "register the provider");
  const void* const* devices = nullptr;
  size_t n_devices = 0;
  check(call(303 /* GetEpDevices */, static_cast<const void*>(environment), &devices, &n_devices),
        "devices");
  const void* device = nullptr;  // the provider's first, which is the host
  for (size_t k = 0; k < n_devices && !device; k++)
    if (!strcmp(call<const char*>(312 /* EpDevice_EpName */, devices[k]),
                "TraceaExecutionProvider"))
      device = devices[k];
  if (!device) return fprintf(stderr, "the provider offers no device\n"), 1;

  check(call(10 /* CreateSessionOptions */, &options), "session options");
  const char *keys[] = {"kernel_pack"}, *values[] = {argv[4]};
  check(call(304 /* SessionOptionsAppendExecutionProvider_V2 */, options, environment,
             static_cast<const void* const*>(&device), size_t(1),
             static_cast<const char* const*>(keys), static_cast<const char* const*>(values),
             size_t(*argv[4] ? 1 : 0)),
        "select the provider");
  check(call(7 /* CreateSession */, static_cast<const void*>(environment),
             static_cast<const char*>(argv[3]), static_cast<const void*>(options), &session),
        "load the model");
  check(call(78 /* GetAllocatorWithDefaultOptions */, &allocator), "allocator");
  check(call(69 /* CreateCpuMemoryInfo */, 0, 0, &memory), "memory");

  size_t n_inputs = 0, n_outputs = 0;
  check(call(30 /* SessionGetInputCount */, static_cast<const void*>(session), &n_inputs),
        "inputs");
  check(call(31 /* SessionGetOutputCount */, static_cast<const void*>(session), &n_outputs),
        "outputs");
  std::vector<Input> inputs;
  for (size_t k = 0; k < n_inputs; k++)
    inputs.push_back(make_input(session, allocator, memory, k, symbolic));
  std::vector<const char*> input_names, output_names;
  std::vector<const void*> input_values;
  for (const Input& in : inputs)
    input_names.push_back(in.name.c_str()), input_values.push_back(in.value);
  for (size_t k = 0; k < n_outputs; k++) {
    char* name = nullptr;
    check(
        call(37 /* SessionGetOutputName */, static_cast<const void*>(session), k, allocator, &name),
        "output name");
    output_names.push_back(name);
  }
  std::vector<void*> results(n_outputs, nullptr);
  check(call(9 /* Run */, session, static_cast<const void*>(nullptr),
             static_cast<const char* const*>(input_names.data()),
             static_cast<const void* const*>(input_values.data()), n_inputs,
             static_cast<const char* const*>(output_names.data()), n_outputs, results.data()),
        "run");
  for (size_t k = 0; k < n_outputs; k++) print_output(output_names[k], results[k]);

  char statistics[2048];
  reinterpret_cast<int (*)(char*, size_t)>(dlsym(load(argv[2]), "tracea_stats"))(statistics,
                                                                                 sizeof statistics);
  printf("%s\n", statistics);

  for (void* value : results) call<void>(96 /* ReleaseValue */, value);
  for (const Input& in : inputs) call<void>(96 /* ReleaseValue */, in.value);
  for (const char* name : output_names)
    check(call(76 /* AllocatorFree */, allocator, static_cast<void*>(const_cast<char*>(name))),
          "free");
  call<void>(94 /* ReleaseMemoryInfo */, memory);
  call<void>(95 /* ReleaseSession */, session);
  call<void>(100 /* ReleaseSessionOptions */, options);
  check(call(302 /* UnregisterExecutionProviderLibrary */, environment, "tracea_onnx"),
        "unregister");
  call<void>(92 /* ReleaseEnv */, environment);
  return 0;
}
