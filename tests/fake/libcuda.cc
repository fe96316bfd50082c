// A stand-in for NVIDIA's driver on a machine without a GPU: device memory is host memory, streams
// keep their work until something waits for it (so that a missing wait gives wrong results), and a
// few kernels with known names compute on the host. Environment: FAKE_CUDA_DEVICES (1),
// FAKE_CUDA_MEMORY (bytes a device has, 1 GiB), FAKE_CUDA_INIT (result of cuInit, 0), FAKE_CUDA_ANY
// (0; 1: kernels of other names are taken, too, and compute nothing in a time that depends on their
// launch), FAKE_CUDA_CLUSTER (16, blocks of the largest cluster), FAKE_CUDA_NVML (1; 0: the
// management library does not start). `fake_cuda_fail` makes calls fail, `fake_cuda_lose` the
// context. It is libnvidia-ml.so.1, too.
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#define API extern "C" __attribute__((visibility("default"))) int

namespace {

constexpr int kInvalidValue = 1, kOutOfMemory = 2, kNotInitialized = 3, kInvalidContext = 201,
              kNoBinary = 209, kNotFound = 500, kCaptureInvalid = 901;
constexpr unsigned kFreeShared = 48 * 1024, kPortableCluster = 8;

using Op = std::function<void()>;
struct Graph {
  std::vector<Op> ops;
};
struct Stream {
  void* context;
  bool blocking;
  std::deque<Op> ops;
  std::unique_ptr<Graph> recording;
  long given = 0, done = 0;
};
struct Function {
  std::string symbol;
  unsigned shared = kFreeShared, cluster = kPortableCluster;
};
struct Module {
  std::map<std::string, std::unique_ptr<Function>> functions;
};
struct Event {
  double us = -1;
  Stream* stream = nullptr;
  long position = 0;
  bool timed = true;
};  // position: how much its stream had been given when it was recorded
struct Attribute {
  int id;
  char pad[4];
  union {
    char bytes[64];
    unsigned xyz[3];
    int flag;
  } value;
};
struct Config {
  unsigned grid[3], block[3], shared;
  Stream* stream;
  Attribute* attributes;
  unsigned n;
};

std::recursive_mutex lock;
std::string text;
double clock_us = 0;
size_t used = 0;
std::map<uint64_t, size_t> device_memory, pinned_memory;
std::vector<Stream*> streams;
thread_local std::vector<void*> contexts;
struct Failing {
  int result, after, times;
};
std::map<std::string, Failing> failing;  // by the name of the call
int lost = 0;                            // what every call in a context gives
bool initialised = false;
int owner = 0;

// The failure that a call is to have, or 0.
int failure(const char* call) {
  const auto it = failing.find(call);
  if (it == failing.end()) return 0;
  if (it->second.after-- > 0) return 0;
  const int result = it->second.result;
  if (--it->second.times <= 0) failing.erase(it);
  return result;
}

size_t setting(const char* name, size_t otherwise) {
  const char* v = getenv(name);
  return v ? size_t(atoll(v)) : otherwise;
}

void say(const std::string& line) { text += line + "\n"; }

bool inside(const std::map<uint64_t, size_t>& memory, uint64_t p) {
  auto it = memory.upper_bound(p);
  return it != memory.begin() && (--it, p < it->first + it->second);
}

// What the stream was given first, up to `position`.
void finish(Stream* s, long position) {
  while (s->done < position && !s->ops.empty()) {
    Op op = std::move(s->ops.front());
    s->ops.pop_front();
    op();
    s->done++;
  }
}

void finish(Stream* s) { finish(s, s->given); }

void need_owner(const char* call) {
  if (!initialised || owner == int(getpid())) return;
  fprintf(stderr, "%s in a child of the process that initialised the driver\n", call);
  abort();
}

bool alive(const Stream* s) {
  return std::find(streams.begin(), streams.end(), s) != streams.end();
}

// A driver may crash with a stream that was destroyed, or take another one for it.
void need_stream(const Stream* s, const char* call) {
  if (!s || alive(s)) return;
  fprintf(stderr, "%s of a stream that was destroyed\n", call);
  abort();
}

void finish_all(bool blocking_only) {
  for (Stream* s : streams)
    if (s->blocking || !blocking_only) finish(s);
}

// Null is the legacy default stream: ordered with all blocking streams, and here done at once.
void enqueue(Stream* s, Op op) {
  need_stream(s, "work");
  if (!s) {
    finish_all(true);
    op();
  } else if (s->recording) {
    s->recording->ops.push_back(std::move(op));
  } else {
    s->ops.push_back(std::move(op));
    s->given++;
  }
}

// --- kernels: the kinds of their arguments, and what they do with them

struct Arguments {
  std::vector<std::vector<char>> v;
  template <class T>
  T at(size_t k) const {
    T t;
    memcpy(&t, v[k].data(), sizeof t);
    return t;
  }
  float* p(size_t k) const { return reinterpret_cast<float*>(at<uint64_t>(k)); }
  int i(size_t k) const { return at<int>(k); }
};
struct Kernel {
  const char* kinds;
  void (*run)(const Arguments&);
};

const std::map<std::string, Kernel> kKernels = {
    {"add",
     {"pppi",
      [](const Arguments& a) {
        for (int k = 0; k < a.i(3); k++) a.p(2)[k] = a.p(0)[k] + (a.p(1) ? a.p(1)[k] : 0);
      }}},
    {"mul",
     {"pppi",
      [](const Arguments& a) {
        for (int k = 0; k < a.i(3); k++) a.p(2)[k] = a.p(0)[k] * a.p(1)[k];
      }}},
    {"scale",
     {"ppif",
      [](const Arguments& a) {
        for (int k = 0; k < a.i(2); k++) a.p(1)[k] = a.p(0)[k] * a.at<float>(3);
      }}},
    {"add_row",
     {"pppii",
      [](const Arguments& a) {
        for (int r = 0; r < a.i(3); r++)
          for (int c = 0; c < a.i(4); c++)
            a.p(2)[r * a.i(4) + c] = a.p(0)[r * a.i(4) + c] + a.p(1)[c];
      }}},
    {"from_map",
     {"tpi",
      [](const Arguments& a) {
        for (int k = 0; k < a.i(2); k++) a.p(1)[k] = reinterpret_cast<float*>(a.at<uint64_t>(0))[k];
      }}},
    {"check",
     {"pie",
      [](const Arguments& a) {
        for (int k = 0; k < a.i(1); k++)
          if (a.p(0)[k] < 0) *reinterpret_cast<uint32_t*>(a.at<uint64_t>(2)) = 1;
      }}},
    // y = x, as long as the words (their number, too) are 0 at first; they are not at the end.
    {"meet",
     {"ppipi",
      [](const Arguments& a) {
        auto* const words = reinterpret_cast<uint32_t*>(a.p(3));
        float before = 0;
        for (int k = 0; k < a.i(4); k++) before += float(words[k]), words[k] = uint32_t(k + 1);
        for (int k = 0; k < a.i(2); k++) a.p(1)[k] = a.p(0)[k] + before;
      }}},
    {"write_long",
     {"pl",
      [](const Arguments& a) {
        const auto v = a.at<int64_t>(1);
        memcpy(a.p(0), &v, sizeof v);
      }}},
};

const Kernel kNothing = {"", [](const Arguments&) {}};

}  // namespace

// A driver that was initialised before a fork may crash in the child, so any call but the first is
// a fault of the caller there.
#define LOCKED                                             \
  const std::lock_guard<std::recursive_mutex> guard(lock); \
  need_owner(__func__)
#define NEED_CONTEXT                            \
  LOCKED;                                       \
  if (contexts.empty()) return kInvalidContext; \
  if (lost) return lost;                        \
  if (const int planned = failure(__func__)) return planned

extern "C" __attribute__((visibility("default"))) const char* fake_cuda_log() {
  return text.c_str();
}
extern "C" __attribute__((visibility("default"))) void fake_cuda_clear() { text.clear(); }
extern "C" __attribute__((visibility("default"))) size_t fake_cuda_used() { return used; }

// The call `name` gives `result` the next `times` times, after `after` calls that work.
extern "C" __attribute__((visibility("default"))) void fake_cuda_fail(const char* name, int result,
                                                                      int after, int times) {
  failing[name] = {result, after, times};
}
extern "C" __attribute__((visibility("default"))) void fake_cuda_lose(int result) { lost = result; }

API cuInit(unsigned) {
  const std::lock_guard<std::recursive_mutex> guard(lock);
  if (initialised && owner != int(getpid())) return kNotInitialized;
  say("initialise");
  initialised = true;
  owner = int(getpid());
  return int(setting("FAKE_CUDA_INIT", 0));
}
API cuDriverGetVersion(int* v) { return *v = 13000, 0; }
API cuGetErrorString(int r, const char** out) {
  static const std::map<int, const char*> names = {
      {kInvalidValue, "invalid argument"},
      {kOutOfMemory, "out of memory"},
      {kNotInitialized, "initialization error"},
      {700, "an illegal memory access was encountered"},
      {100, "no CUDA-capable device is detected"},
      {kInvalidContext, "invalid device context"},
      {kNoBinary, "no kernel image is available for execution on the device"},
      {kNotFound, "named symbol not found"}};
  const auto it = names.find(r);
  return *out = it == names.end() ? "unknown error" : it->second, 0;
}
API cuDeviceGetCount(int* n) {
  LOCKED;
  return *n = int(setting("FAKE_CUDA_DEVICES", 1)), 0;
}
API cuDeviceGet(int* d, int ordinal) {
  LOCKED;
  return *d = ordinal, 0;
}
API cuDeviceGetName(char* out, int n, int d) {
  return snprintf(out, size_t(n), "Fake GPU %d", d), 0;
}
API cuDeviceGetPCIBusId(char* out, int n, int d) {
  return snprintf(out, size_t(n), "0000:0%d:00.0", d + 1), 0;
}
// Those of an H200.
API cuDeviceGetAttribute(int* v, int which, int) {
  static const std::map<int, int> facts = {
      {13, 1980000}, {16, 132},    {36, 3201000}, {37, 6144},   {38, 62914560}, {75, 9},
      {76, 0},       {81, 233472}, {82, 65536},   {97, 232448}, {120, 1}};
  const auto it = facts.find(which);
  return *v = it == facts.end() ? 0 : it->second, 0;
}
API cuDeviceTotalMem_v2(size_t* n, int) { return *n = size_t(150754820096), 0; }
API cuOccupancyMaxActiveClusters(int* n, Function* f, const Config* c) {
  const unsigned size = c->attributes[0].value.xyz[0];
  return *n = size > setting("FAKE_CUDA_CLUSTER", 16) || size > f->cluster ? 0 : int(132 / size), 0;
}
API cuDevicePrimaryCtxRetain(void** c, int d) {
  LOCKED;
  say("context " + std::to_string(d));
  return *c = reinterpret_cast<void*>(intptr_t(d + 1)), 0;
}
API cuCtxPushCurrent_v2(void* c) {
  LOCKED;
  return contexts.push_back(c), 0;
}
API cuCtxPopCurrent_v2(void** c) {
  LOCKED;
  return *c = contexts.back(), contexts.pop_back(), 0;
}
API cuCtxSynchronize() {
  NEED_CONTEXT;
  say("synchronize device");
  return finish_all(false), 0;
}

API cuMemGetInfo_v2(size_t* free, size_t* total) {
  LOCKED;
  *total = setting("FAKE_CUDA_MEMORY", size_t(1) << 30);
  return *free = *total - used, 0;
}
API cuMemAlloc_v2(uint64_t* p, size_t n) {
  NEED_CONTEXT;
  if (!n) return kInvalidValue;
  if (used + n > setting("FAKE_CUDA_MEMORY", size_t(1) << 30)) return kOutOfMemory;
  void* m = aligned_alloc(512, (n + 511) / 512 * 512);
  memset(m, 0xcd, n);
  *p = uint64_t(m);
  device_memory[*p] = n;
  used += n;
  say("allocate " + std::to_string(n));
  return 0;
}
API cuMemFree_v2(uint64_t p) {
  NEED_CONTEXT;
  const auto it = device_memory.find(p);
  if (it == device_memory.end()) return kInvalidValue;
  finish_all(false);
  used -= it->second;
  memset(reinterpret_cast<void*>(p), 0xdd, it->second);
  free(reinterpret_cast<void*>(p));
  device_memory.erase(it);
  return 0;
}
API cuMemHostAlloc(void** p, size_t n, unsigned) {
  NEED_CONTEXT;
  *p = malloc(n);
  pinned_memory[uint64_t(*p)] = n;
  say("pin " + std::to_string(n));
  return 0;
}
API cuMemFreeHost(void* p) {
  NEED_CONTEXT;
  finish_all(false);
  pinned_memory.erase(uint64_t(p));
  free(p);
  return 0;
}
API cuMemcpy(uint64_t to, uint64_t from, size_t n) {
  NEED_CONTEXT;
  finish_all(true);
  memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), n);
  say("copy " + std::to_string(n));
  return 0;
}
API cuMemcpyAsync(uint64_t to, uint64_t from, size_t n, Stream* s) {
  NEED_CONTEXT;
  const bool pageable = !inside(device_memory, from) && !inside(pinned_memory, from);
  say("copy " + std::to_string(n) +
      (pageable || inside(pinned_memory, from) ? " to device"
       : inside(device_memory, to)             ? " on device"
                                               : " to host"));
  if (pageable) {  // the driver has read it when the call returns
    auto taken = std::make_shared<std::vector<char>>(n);
    memcpy(taken->data(), reinterpret_cast<void*>(from), n);
    enqueue(s, [=] { memcpy(reinterpret_cast<void*>(to), taken->data(), n); });
  } else {
    enqueue(s, [=] { memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), n); });
  }
  return 0;
}
API cuMemsetD8Async(uint64_t p, unsigned char v, size_t n, Stream* s) {
  NEED_CONTEXT;
  enqueue(s, [=] { memset(reinterpret_cast<void*>(p), v, n); });
  return 0;
}

API cuModuleLoadData(Module** m, const void* image) {
  NEED_CONTEXT;
  const std::string bytes(static_cast<const char*>(image));
  if (bytes.find("fake kernels") == std::string::npos &&
      bytes.find("tracea_empty") == std::string::npos && !setting("FAKE_CUDA_ANY", 0))
    return kNoBinary;
  say("load module");
  return *m = new Module(), 0;
}
API cuModuleUnload(Module* m) {
  NEED_CONTEXT;
  say("unload module");
  delete m;
  return 0;
}
API cuModuleGetFunction(Function** f, Module* m, const char* symbol) {
  NEED_CONTEXT;
  if (!kKernels.count(symbol) && strcmp(symbol, "tracea_empty") && !setting("FAKE_CUDA_ANY", 0))
    return kNotFound;
  auto& slot = m->functions[symbol];
  if (!slot) slot.reset(new Function{symbol});
  return *f = slot.get(), 0;
}
API cuFuncSetAttribute(Function* f, int which, int v) {
  NEED_CONTEXT;
  say("attribute " + f->symbol + " " + std::to_string(which) + "=" + std::to_string(v));
  if (which == 8) f->shared = unsigned(v);
  if (which == 14) f->cluster = 16;
  return 0;
}

API cuLaunchKernelEx(const Config* c, Function* f, void** arguments, void**) {
  NEED_CONTEXT;
  unsigned cluster = 1;
  bool programmatic = false;
  for (unsigned k = 0; k < c->n; k++) {
    if (c->attributes[k].id == 4) cluster = c->attributes[k].value.xyz[0];
    if (c->attributes[k].id == 6) programmatic = c->attributes[k].value.flag;
  }
  if (!c->grid[0] || !c->grid[1] || !c->grid[2] || c->shared > f->shared || cluster > f->cluster ||
      c->grid[0] % cluster)
    return kInvalidValue;
  const auto known = kKernels.find(f->symbol);
  const Kernel& kernel = known == kKernels.end() ? kNothing : known->second;
  const double us = known == kKernels.end()
                        ? 10 + (c->grid[0] * 3 + c->block[0] / 32 + c->shared / 1024) % 17
                        : 1;
  auto copied = std::make_shared<Arguments>();
  for (size_t k = 0; kernel.kinds[k]; k++) {
    const char kind = kernel.kinds[k];
    const char* p = static_cast<const char*>(arguments[k]);
    copied->v.emplace_back(p, p + (kind == 't' ? 128 : kind == 'i' || kind == 'f' ? 4 : 8));
  }
  char line[256];
  snprintf(line, sizeof line, "launch %s grid=%u,%u,%u block=%u smem=%u cluster=%u pdl=%d%s",
           f->symbol.c_str(), c->grid[0], c->grid[1], c->grid[2], c->block[0], c->shared, cluster,
           programmatic, c->stream && c->stream->recording ? " recorded" : "");
  say(line);
  enqueue(c->stream, [&kernel, copied, us] {
    kernel.run(*copied);
    clock_us += us;
  });
  return 0;
}

// The map's words: address, flags, type | rank << 8 | swizzle << 16 | im2col << 24, dims (5),
// strides (4), then box or corners.
static int encode(uint64_t* map, int type, uint32_t rank, void* address, const uint64_t* dims,
                  const uint64_t* strides, int swizzle, int promotion, bool im2col) {
  NEED_CONTEXT;
  if (uint64_t(address) % 16 || rank < 1 || rank > 5) return kInvalidValue;
  memset(map, 0, 128);
  map[0] = uint64_t(address);
  map[1] = ~uint64_t(0);
  map[2] = uint64_t(type) | uint64_t(rank) << 8 | uint64_t(swizzle) << 16 | uint64_t(im2col) << 24;
  std::string line = std::string("encode ") + (im2col ? "im2col" : "tiled") +
                     " type=" + std::to_string(type) + " swizzle=" + std::to_string(swizzle) +
                     " together=" + std::to_string(promotion) + " dims=";
  for (uint32_t k = 0; k < rank; k++) {
    if (!dims[k] || (k && (!strides[k - 1] || strides[k - 1] % 16))) return kInvalidValue;
    line += (k ? "," : "") + std::to_string(dims[k]);
  }
  line += " strides=";
  for (uint32_t k = 1; k < rank; k++) line += (k > 1 ? "," : "") + std::to_string(strides[k - 1]);
  say(line);
  return 0;
}
API cuTensorMapEncodeTiled(uint64_t* map, int type, uint32_t rank, void* address,
                           const uint64_t* dims, const uint64_t* strides, const uint32_t* box,
                           const uint32_t* steps, int, int swizzle, int promotion, int) {
  const int r = encode(map, type, rank, address, dims, strides, swizzle, promotion, false);
  if (r) return r;
  std::string line = "box=";
  for (uint32_t k = 0; k < rank; k++)
    line += (k ? "," : "") + std::to_string(box[k]) + "/" + std::to_string(steps[k]);
  LOCKED;
  say(line);
  return 0;
}
API cuTensorMapEncodeIm2col(uint64_t* map, int type, uint32_t rank, void* address,
                            const uint64_t* dims, const uint64_t* strides, const int* lower,
                            const int* upper, uint32_t channels, uint32_t pixels,
                            const uint32_t* steps, int, int swizzle, int promotion, int) {
  const int r = encode(map, type, rank, address, dims, strides, swizzle, promotion, true);
  if (r) return r;
  std::string line = "window=" + std::to_string(channels) + "x" + std::to_string(pixels);
  for (uint32_t k = 0; k + 2 < rank; k++)
    line += " " + std::to_string(lower[k]) + ":" + std::to_string(upper[k]);
  for (uint32_t k = 0; k < rank; k++) line += (k ? "," : " steps=") + std::to_string(steps[k]);
  LOCKED;
  say(line);
  return 0;
}

API cuStreamCreate(Stream** s, unsigned flags) {
  NEED_CONTEXT;
  streams.push_back(*s = new Stream{contexts.back(), flags == 0, {}, nullptr, 0, 0});
  say("stream");
  return 0;
}
API cuStreamDestroy_v2(Stream* s) {
  NEED_CONTEXT;
  need_stream(s, __func__);
  finish(s);
  for (auto& other : streams)
    if (other == s) {
      other = streams.back();
      streams.pop_back();
      break;
    }
  delete s;
  return 0;
}
API cuStreamSynchronize(Stream* s) {
  NEED_CONTEXT;
  need_stream(s, __func__);
  say("synchronize");
  if (!s)
    finish_all(true);
  else if (s->recording)
    return kCaptureInvalid;
  else
    finish(s);
  return 0;
}
API cuStreamGetCtx(Stream* s, void** c) {
  NEED_CONTEXT;
  for (Stream* known : streams)
    if (known == s) return *c = s->context, 0;
  return kInvalidValue;
}
API cuStreamWaitEvent(Stream* s, Event* e, unsigned) {
  NEED_CONTEXT;
  need_stream(s, __func__);
  if (s == e->stream) return 0;
  enqueue(s, [from = e->stream, position = e->position] {
    if (alive(from)) finish(from, position);
  });  // a stream's work is done before it goes
  say("wait");
  return 0;
}
API cuStreamBeginCapture_v2(Stream* s, int) {
  NEED_CONTEXT;
  need_stream(s, __func__);
  s->recording = std::make_unique<Graph>();
  return 0;
}
API cuStreamEndCapture(Stream* s, Graph** g) {
  LOCKED;
  if (lost) return s->recording.reset(), lost;
  if (const int planned = failure(__func__)) return s->recording.reset(), planned;
  if (!s->recording) return kCaptureInvalid;
  *g = s->recording.release();
  return 0;
}
API cuGraphInstantiateWithFlags(Graph** exec, Graph* g, unsigned long long) {
  NEED_CONTEXT;
  say("instantiate " + std::to_string(g->ops.size()));
  return *exec = new Graph(*g), 0;
}
API cuGraphDestroy(Graph* g) {
  NEED_CONTEXT;
  delete g;
  return 0;
}
API cuGraphExecDestroy(Graph* g) {
  NEED_CONTEXT;
  say("destroy graph");
  finish_all(false);
  delete g;
  return 0;
}
API cuGraphLaunch(Graph* g, Stream* s) {
  NEED_CONTEXT;
  say("replay");
  for (const Op& op : g->ops) enqueue(s, op);
  return 0;
}

API cuEventCreate(Event** e, unsigned flags) {
  NEED_CONTEXT;
  *e = new Event();
  (*e)->timed = !(flags & 2);
  return 0;
}
API cuEventDestroy_v2(Event* e) {
  NEED_CONTEXT;
  delete e;
  return 0;
}
API cuEventRecord(Event* e, Stream* s) {
  NEED_CONTEXT;
  need_stream(s, __func__);
  if (!s) finish_all(true);
  if (e->timed) enqueue(s, [e] { e->us = clock_us; });
  e->stream = s && !s->recording ? s : nullptr;
  e->position = s ? s->given : 0;
  return 0;
}
API cuEventRecordWithFlags(Event* e, Stream* s, unsigned) { return cuEventRecord(e, s); }
API cuEventSynchronize(Event* e) {
  NEED_CONTEXT;
  say("synchronize");
  if (!e->stream)
    finish_all(false);
  else if (alive(e->stream))
    finish(e->stream, e->position);
  return 0;
}
// A microsecond per kernel, of other names more.
API cuEventElapsedTime(float* ms, Event* a, Event* b) {
  NEED_CONTEXT;
  *ms = float((b->us - a->us) * 1e-3);
  return 0;
}

// --- the management library (NVML)

struct PciInfo {
  char legacy[16];
  unsigned domain, bus, device, id, subsystem;
  char bus_id[32];
};
API nvmlInit_v2() { return setting("FAKE_CUDA_NVML", 1) ? 0 : 1; }
API nvmlShutdown() { return 0; }
API nvmlDeviceGetCount_v2(unsigned* n) { return *n = unsigned(setting("FAKE_CUDA_DEVICES", 1)), 0; }
API nvmlDeviceGetHandleByIndex_v2(unsigned k, void** out) {
  return *out = reinterpret_cast<void*>(uintptr_t(k + 1)), 0;
}
API nvmlDeviceGetName(void* d, char* out, unsigned n) {
  return snprintf(out, n, "Fake GPU %d", int(uintptr_t(d)) - 1), 0;
}
API nvmlDeviceGetUUID(void* d, char* out, unsigned n) {
  return snprintf(out, n, "GPU-%08d-fake", int(uintptr_t(d)) - 1), 0;
}
API nvmlDeviceGetPciInfo_v3(void* d, PciInfo* out) {
  return snprintf(out->bus_id, sizeof out->bus_id, "00000000:0%d:00.0", int(uintptr_t(d))), 0;
}
API nvmlDeviceGetCudaComputeCapability(void*, int* major, int* minor) {
  return *major = 9, *minor = 0, 0;
}
