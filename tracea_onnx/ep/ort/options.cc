#include "ort/options.h"

#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "plan/failure.h"
#include "plan/runtime.h"

namespace tracea {
namespace {

constexpr const char* kLevels[] = {"verbose", "info", "warning", "error", "off"};

// What a session without the option takes from the environment.
std::string option_or(const OrtSessionOptions* session, const char* key, const char* variable) {
  std::string given = option(session, key);
  if (const char* value = given.empty() ? getenv(variable) : nullptr) given = value;
  return given;
}

}  // namespace

std::string session_entry(const OrtSessionOptions* session, const char* name) {
  size_t n = 0;
  if (OrtStatus* s = ort.GetSessionConfigEntry(session, name, nullptr, &n))
    ort.ReleaseStatus(s);  // not set, or "buffer too small" with the size
  if (n <= 1) return "";
  std::string value(n, '\0');
  if (OrtStatus* s = ort.GetSessionConfigEntry(session, name, value.data(), &n)) {
    ort.ReleaseStatus(s);
    return "";
  }
  value.resize(n - 1);  // without the terminator
  return value;
}

std::string option(const OrtSessionOptions* session, const char* key) {
  return session_entry(session, (std::string("ep.traceaexecutionprovider.") + key).c_str());
}

uint64_t number(const char* option, const std::string& text, uint64_t least, uint64_t most,
                bool hexadecimal) {
  const bool hex =
      hexadecimal && text.size() > 2 && text[0] == '0' && (text[1] == 'x' || text[1] == 'X');
  const char* const digits = hex ? "0123456789abcdefABCDEF" : "0123456789";
  const bool plain = text.find_first_not_of(digits, hex ? 2 : 0) == std::string::npos;
  errno = 0;
  const uint64_t n = plain ? strtoull(text.c_str(), nullptr, hex ? 16 : 10) : 0;
  if (!plain || errno || n < least || n > most)
    throw Failure(std::string("provider option ") + option + "='" + text +
                  "' is not a number from " + std::to_string(least) + " to " +
                  std::to_string(most));
  return n;
}

bool flag(const char* option, const std::string& text) {
  if (text != "0" && text != "1")
    throw Failure(std::string("provider option ") + option + "='" + text + "' is not one of: 0, 1");
  return text == "1";
}

Options read_options(const OrtSessionOptions* session) {
  Options o;
  o.kernel_pack = option(session, "kernel_pack");
  o.kernel_pack_sha256 = option(session, "kernel_pack_sha256");
  for (char& c : o.kernel_pack_sha256) c = char(tolower(static_cast<unsigned char>(c)));
  if (const std::string& v = o.kernel_pack_sha256; !v.empty()) {
    if (v.size() != 64 || v.find_first_not_of("0123456789abcdef") != std::string::npos)
      throw Failure("provider option kernel_pack_sha256='" + v +
                    "' is not 64 hexadecimal digits; sha256sum prints those of a file");
    if (o.kernel_pack.empty())
      throw Failure("provider option kernel_pack_sha256 is of a kernel_pack, which is not given");
  }
  o.cache_dir = option_or(session, "cache_dir", "TRACEA_CACHE_DIR");
  o.python = option(session, "python");
  if (const std::string v = option(session, "ep_context"); v == "trust")
    o.trust_context = true;
  else if (!v.empty() && v != "check")
    throw Failure("provider option ep_context='" + v + "' is not one of: check, trust");
  if (const std::string v = option(session, "claim"); !v.empty()) o.claim = v;
  if (o.claim != "auto" && o.claim != "all")
    throw Failure("provider option claim='" + o.claim + "' is not one of: auto, all");
  if (const std::string v = option(session, "specs"); !v.empty()) o.specs = v;
  if (o.specs != "rematch" && o.specs != "trust")
    throw Failure("provider option specs='" + o.specs + "' is not one of: rematch, trust");
  if (const std::string v = option(session, "tf32"); !v.empty()) o.tf32 = flag("tf32", v);
  if (const std::string v = option(session, "bf16"); !v.empty()) o.bf16 = flag("bf16", v);
  if (const std::string v = option(session, "num_threads"); !v.empty())
    o.num_threads = int(number("num_threads", v, 0, 1024));
  o.backend = option(session, "backend");
  if (!o.backend.empty() && !find_runtime(o.backend)) {
    std::string known;
    for (const Runtime* r : runtimes()) known += (known.empty() ? "" : ", ") + r->name;
    throw Failure("provider option backend='" + o.backend + "' is not one of: " + known);
  }
  if (const std::string v = option(session, "device_id"); !v.empty())
    o.device_id = int(number("device_id", v, 0, 1023));
  if (const std::string v = option_or(session, "log_level", "TRACEA_LOG"); !v.empty()) {
    int level = 0;
    while (level <= int(LogLevel::kOff) && v != kLevels[level]) level++;
    if (level > int(LogLevel::kOff))
      throw Failure("log_level='" + v + "' (provider option, or TRACEA_LOG) is not one of: " +
                    "verbose, info, warning, error, off");
    o.stderr_level = LogLevel(level);
  }
  return o;
}

std::string printable(const std::string& text) {
  static const char kHex[] = "0123456789abcdef";
  std::string out;
  const auto escape = [&](unsigned char c) { out += {'\\', 'x', kHex[c >> 4], kHex[c & 15]}; };
  for (size_t k = 0; k < text.size(); k++) {
    const auto c = static_cast<unsigned char>(text[k]);
    const auto next = k + 1 < text.size() ? static_cast<unsigned char>(text[k + 1]) : 0;
    if (c < 0x20 || c == 0x7f)
      escape(c);
    else if (c == 0xc2 && next >= 0x80 &&
             next < 0xa0)  // U+0080 to U+009f, which terminals obey as well
      escape(next), k++;
    else
      out += text[k];
  }
  return out;
}

void Log::operator()(LogLevel level, const std::string& text) const {
  const std::string line = printable(text);
  if (level >= stderr_level && stderr_level != LogLevel::kOff)
    fprintf(stderr, "tracea-onnx: %s: %s\n", kLevels[int(level)], line.c_str());
  if (!logger) return;
  if (OrtStatus* s =
          ort.Logger_LogMessage(logger, int(level), line.c_str(), "tracea_onnx", 0, kProviderName))
    ort.ReleaseStatus(s);
}

}  // namespace tracea
