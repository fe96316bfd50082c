#include "options.h"

#include <cstdio>
#include <cstdlib>

#include "failure.h"
#include "registry.h"

namespace tracea {
namespace {

constexpr const char* kGraphModes[] = {"0", "1", "session"};
constexpr const char* kLevels[] = {"verbose", "info", "warning", "error", "off"};

std::string entry(const OrtSessionOptions* session, const char* key) {
  const std::string name = std::string("ep.traceaexecutionprovider.") + key;
  size_t n = 0;
  if (OrtStatus* s = ort.GetSessionConfigEntry(session, name.c_str(), nullptr, &n)) ort.ReleaseStatus(s);  // not set, or "buffer too small" with the size
  if (n <= 1) return "";
  std::string value(n, '\0');
  if (OrtStatus* s = ort.GetSessionConfigEntry(session, name.c_str(), value.data(), &n)) {
    ort.ReleaseStatus(s);
    return "";
  }
  value.resize(n - 1);  // without the terminator
  return value;
}

int number(const char* option, const std::string& text, long most) {
  char* stop = nullptr;
  const long n = strtol(text.c_str(), &stop, 10);
  if (*stop || n < 0 || n > most) throw Failure(std::string("provider option ") + option + "='" + text + "' is not a number from 0 to " + std::to_string(most));
  return int(n);
}

std::string available_isas() {
  std::string out;
  for (const IsaKernels* k = kIsaKernels; k->isa; k++)
    if (isa_available(k->isa)) out += (out.empty() ? "" : ", ") + std::string(k->isa);
  return out;
}

}  // namespace

Options read_options(const OrtSessionOptions* session) {
  Options o;
  o.kernel_pack = entry(session, "kernel_pack");
  o.cache_dir = entry(session, "cache_dir");
  o.isa = entry(session, "isa");
  if (o.isa.empty()) o.isa = best_isa();
  if (!isa_available(o.isa.c_str())) throw Failure("provider option isa='" + o.isa + "' is not available on this machine; use one of: " + available_isas());
  if (const std::string v = entry(session, "precision"); !v.empty()) o.precision = v;
  if (o.precision != "keep" && o.precision != "bf16" && o.precision != "fp16") throw Failure("provider option precision='" + o.precision + "' is not one of: keep, bf16, fp16");
  if (const std::string v = entry(session, "claim"); !v.empty()) o.claim = v;
  if (o.claim != "auto" && o.claim != "all") throw Failure("provider option claim='" + o.claim + "' is not one of: auto, all");
  if (const std::string v = entry(session, "tf32"); !v.empty()) {
    if (v != "0" && v != "1") throw Failure("provider option tf32='" + v + "' is not one of: 0, 1");
    o.tf32 = v == "1";
  }
  if (const std::string v = entry(session, "num_threads"); !v.empty()) o.num_threads = number("num_threads", v, 1024);
  o.backend = entry(session, "backend");
  if (!o.backend.empty() && o.backend != "cpu" && o.backend != "cuda") throw Failure("provider option backend='" + o.backend + "' is not one of: cpu, cuda");
  if (const std::string v = entry(session, "device_id"); !v.empty()) o.device_id = number("device_id", v, 1023);
  if (const std::string v = entry(session, "enable_cuda_graph"); !v.empty()) {
    int mode = 0;
    while (mode < 3 && v != kGraphModes[mode]) mode++;
    if (mode == 3) throw Failure("provider option enable_cuda_graph='" + v + "' is not one of: 0, 1, session");
    o.cuda_graph = GraphMode(mode);
  }
  if (const std::string v = entry(session, "log_level"); !v.empty()) {
    int level = 0;
    while (level <= int(LogLevel::kOff) && v != kLevels[level]) level++;
    if (level > int(LogLevel::kOff)) throw Failure("provider option log_level='" + v + "' is not one of: verbose, info, warning, error, off");
    o.stderr_level = LogLevel(level);
  }
  return o;
}

void Log::operator()(LogLevel level, const std::string& line) const {
  if (level >= stderr_level && stderr_level != LogLevel::kOff) fprintf(stderr, "tracea-onnx: %s: %s\n", kLevels[int(level)], line.c_str());
  if (!logger) return;
  if (OrtStatus* s = ort.Logger_LogMessage(logger, int(level), line.c_str(), "tracea_onnx", 0, kProviderName)) ort.ReleaseStatus(s);
}

}  // namespace tracea
