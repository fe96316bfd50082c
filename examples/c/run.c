// Runs a model with one float input on the tracea-onnx provider from C.
//
//   run LIBONNXRUNTIME LIBTRACEA_ONNX MODEL.onnx MODEL.pack|"" [SIZE_OF_SYMBOLIC_DIMS]
//
// The input is filled with a fixed pattern; the output is printed as: name, shape, sum, first
// values. The last line has the provider's counters.
#include "provider.h"

#include <stdlib.h>

static int fail(const Provider *p) { return fprintf(stderr, "%s\n", p->error), 1; }

int main(int argc, char **argv) {
  static Provider p;
  int64_t dims[8];
  size_t rank = 0, count = 1, result_rank = 0;
  if (argc < 5) return fprintf(stderr, "usage: run RUNTIME PROVIDER MODEL PACK [SIZE]\n"), 2;
  if (provider_open(&p, argv[1], argv[2], argv[3], argv[4]) || provider_input_dims(&p, dims, &rank))
    return fail(&p);
  for (size_t k = 0; k < rank; k++) {
    if (dims[k] < 0) dims[k] = argc > 5 ? atoll(argv[5]) : 1;
    count *= (size_t)dims[k];
  }
  float *data = malloc((count ? count : 1) * sizeof *data);
  if (!data) return 1;
  for (size_t k = 0; k < count; k++) data[k] = (float)(k * 7919 % 1000) / 1000.f - 0.5f;

  const float *result = NULL;
  const int64_t *result_dims = NULL;
  if (provider_run(&p, data, count, dims, rank, &result, &result_dims, &result_rank))
    return fail(&p);
  double sum = 0;
  size_t n = 1;
  printf("%s [", p.output_name);
  for (size_t k = 0; k < result_rank; k++) {
    printf(k ? ",%lld" : "%lld", (long long)result_dims[k]);
    n *= (size_t)result_dims[k];
  }
  for (size_t k = 0; k < n; k++) sum += result[k];
  printf("] %.9g", sum);
  for (size_t k = 0; k < n && k < 8; k++) printf(" %.9g", result[k]);

  char counters[2048];
  int (*stats)(char *, size_t);
  *(void **)&stats = dlsym(dlopen(argv[2], RTLD_NOW), "tracea_stats");
  stats(counters, sizeof counters);
  printf("\n%s\n", counters);
  provider_close(&p);
  free(data);
  return 0;
}
