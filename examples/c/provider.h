// A session on the tracea-onnx provider through ONNX Runtime's C API, for models with one float
// input. A program that has onnxruntime_c_api.h calls the functions by name; here they are looked
// up by their slots in the table, so that the example builds on any machine.
#pragma once
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef struct {
  const void* const* api;  // OrtApi
  void *env, *options, *session, *allocator, *memory, *input, *output;
  char *input_name, *output_name;
  char error[1024];
} Provider;

// A function of the table that returns a status.
#define ORT(slot, ...) ((void* (*)(__VA_ARGS__))p->api[slot])

static int provider_fails(Provider* p, void* status) {
  if (!status) return 0;
  const char* text = ((const char* (*)(void*))p->api[2])(status);  // GetErrorMessage
  snprintf(p->error, sizeof p->error, "%s", text);
  ((void (*)(void*))p->api[93])(status);  // ReleaseStatus
  return 1;
}

// Registers the provider's library by its path, and loads a model on the provider's first device,
// the host. pack: its compiled Plans, or "" for a compiled model, or where the provider is to start
// a Python that compiles. Returns 0, or 1 with `error` set.
static int provider_open(Provider* p, const char* runtime, const char* library, const char* model,
                         const char* pack) {
  void* loaded = dlopen(runtime, RTLD_NOW | RTLD_LOCAL);
  if (!loaded) return snprintf(p->error, sizeof p->error, "%s", dlerror()), 1;
  struct {
    const void* const* (*GetApi)(uint32_t);
    const char* (*GetVersionString)(void);
  } const* base;
  *(void**)&base = ((void* (*)(void))dlsym(loaded, "OrtGetApiBase"))();
  p->api = base->GetApi(24);
  if (!p->api)
    return snprintf(p->error, sizeof p->error, "ONNX Runtime %s is older than 1.24",
                    base->GetVersionString()),
           1;
  const void *const *devices, *device = NULL;
  size_t n = 0;
  if (provider_fails(p, ORT(3 /* CreateEnv */, int, const char*, void**)(2, "example", &p->env)) ||
      provider_fails(p, ORT(301 /* RegisterExecutionProviderLibrary */, void*, const char*,
                            const char*)(p->env, "tracea", library)) ||
      provider_fails(p, ORT(303 /* GetEpDevices */, void*, const void* const**, size_t*)(
                            p->env, &devices, &n)))
    return 1;
  for (size_t k = n; k-- > 0;)
    if (!strcmp(((const char* (*)(const void*))p->api[312 /* EpDevice_EpName */])(devices[k]),
                "TraceaExecutionProvider"))
      device = devices[k];
  if (!device) return snprintf(p->error, sizeof p->error, "the provider offers no device"), 1;
  const char* key = "kernel_pack";
  return provider_fails(p, ORT(10 /* CreateSessionOptions */, void**)(&p->options)) ||
         provider_fails(p, ORT(304 /* SessionOptionsAppendExecutionProvider_V2 */, void*, void*,
                               const void**, size_t, const char**, const char**, size_t)(
                               p->options, p->env, &device, 1, &key, &pack, *pack ? 1 : 0)) ||
         provider_fails(p, ORT(7 /* CreateSession */, void*, const char*, void*, void**)(
                               p->env, model, p->options, &p->session)) ||
         provider_fails(p, ORT(78 /* GetAllocatorWithDefaultOptions */, void**)(&p->allocator)) ||
         provider_fails(p, ORT(69 /* CreateCpuMemoryInfo */, int, int, void**)(0, 0, &p->memory)) ||
         provider_fails(p, ORT(36 /* SessionGetInputName */, void*, size_t, void*, char**)(
                               p->session, 0, p->allocator, &p->input_name)) ||
         provider_fails(p, ORT(37 /* SessionGetOutputName */, void*, size_t, void*, char**)(
                               p->session, 0, p->allocator, &p->output_name));
}

// The rank of the input, and its dims; those of symbols are -1.
static int provider_input_dims(Provider* p, int64_t dims[8], size_t* rank) {
  void* type = NULL;
  const void* tensor = NULL;
  int element = 0;
  if (provider_fails(
          p, ORT(33 /* SessionGetInputTypeInfo */, void*, size_t, void**)(p->session, 0, &type)))
    return 1;
  int bad =
      provider_fails(p,
                     ORT(55 /* CastTypeInfoToTensorInfo */, void*, const void**)(type, &tensor)) ||
      provider_fails(p, ORT(60 /* GetTensorElementType */, const void*, int*)(tensor, &element)) ||
      provider_fails(p, ORT(61 /* GetDimensionsCount */, const void*, size_t*)(tensor, rank));
  if (!bad && (element != 1 || *rank > 8)) {
    bad = 1;
    snprintf(p->error, sizeof p->error, "the model's input is not one of floats");
  }
  bad = bad || provider_fails(p, ORT(62 /* GetDimensions */, const void*, int64_t*, size_t)(
                                     tensor, dims, *rank));
  ((void (*)(void*))p->api[98])(type);  // ReleaseTypeInfo
  return bad;
}

// Runs the model on `count` floats. The result is valid until the next run.
static int provider_run(Provider* p, float* data, size_t count, const int64_t* dims, size_t rank,
                        const float** result, const int64_t** result_dims, size_t* result_rank) {
  void (*release)(void*) = (void (*)(void*))p->api[96];  // ReleaseValue
  release(p->input), release(p->output);
  p->input = p->output = NULL;
  int element = 0;
  if (provider_fails(p, ORT(49 /* CreateTensorWithDataAsOrtValue */, void*, void*, size_t,
                            const int64_t*, size_t, int, void**)(
                            p->memory, data, count * sizeof *data, dims, rank, 1, &p->input)) ||
      provider_fails(p, ORT(9 /* Run */, void*, void*, const char* const*, void* const*, size_t,
                            const char* const*, size_t,
                            void**)(p->session, NULL, (const char* const*)&p->input_name, &p->input,
                                    1, (const char* const*)&p->output_name, 1, &p->output)) ||
      provider_fails(
          p, ORT(414 /* GetTensorElementTypeAndShapeDataReference */, void*, int*, const int64_t**,
                 size_t*)(p->output, &element, result_dims, result_rank)) ||
      provider_fails(p,
                     ORT(51 /* GetTensorMutableData */, void*, void**)(p->output, (void**)result)))
    return 1;
  if (element == 1) return 0;
  return snprintf(p->error, sizeof p->error, "the model's output is not one of floats"), 1;
}

static void provider_close(Provider* p) {
  if (!p->api) return;
  const struct {
    int slot;
    void* what;
  } released[] = {
      {96, p->input}, {96, p->output}, {94, p->memory}, {95, p->session}, {100, p->options}};
  for (size_t k = 0; k < sizeof released / sizeof *released; k++)
    ((void (*)(void*))p->api[released[k].slot])(released[k].what);
  if (p->input_name) ORT(76 /* AllocatorFree */, void*, void*)(p->allocator, p->input_name);
  if (p->output_name) ORT(76, void*, void*)(p->allocator, p->output_name);
  if (p->env)
    provider_fails(
        p, ORT(302 /* UnregisterExecutionProviderLibrary */, void*, const char*)(p->env, "tracea"));
  ((void (*)(void*))p->api[92])(p->env);  // ReleaseEnv
}
