#include "plan/json.h"

#include <cctype>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "plan/failure.h"

namespace tracea {

struct JsonParser {
  const char* p;
  const char* end;
  const char* begin;

  [[noreturn]] void fail(const char* what) const {
    throw Failure("malformed JSON at byte " + std::to_string(p - begin) + ": " + what);
  }

  void space() {
    while (p < end && (*p == ' ' || *p == '\n' || *p == '\t' || *p == '\r')) p++;
  }

  bool word(const char* w) {
    const size_t n = strlen(w);
    if (size_t(end - p) < n || memcmp(p, w, n) != 0) return false;
    p += n;
    return true;
  }

  void expect(char c) {
    space();
    if (p == end || *p != c) fail("unexpected character or end");
    p++;
  }

  Json value(int depth) {
    if (depth > 64) fail("nested too deeply");
    space();
    if (p == end) fail("unexpected end");
    Json v;
    if (*p == '{') {
      v.kind_ = Json::kObject;
      p++, space();
      if (p < end && *p == '}') return p++, v;
      for (;;) {
        space();
        v.keys_.push_back(string());
        expect(':');
        v.items_.push_back(value(depth + 1));
        space();
        if (p < end && *p == ',') {
          p++;
          continue;
        }
        expect('}');
        return v;
      }
    }
    if (*p == '[') {
      v.kind_ = Json::kArray;
      p++, space();
      if (p < end && *p == ']') return p++, v;
      for (;;) {
        v.items_.push_back(value(depth + 1));
        space();
        if (p < end && *p == ',') {
          p++;
          continue;
        }
        expect(']');
        return v;
      }
    }
    if (*p == '"') {
      v.kind_ = Json::kText;
      v.text_ = string();
      return v;
    }
    if (word("null")) return v;
    if (word("true") || word("false")) {
      v.kind_ = Json::kBool;
      v.int_ = p[-3] == 'r';
      return v;
    }
    return number();
  }

  Json number() {
    Json v;
    v.kind_ = Json::kReal;
    const double inf = std::numeric_limits<double>::infinity();
    if (word("NaN")) return v.real_ = std::nan(""), v;
    if (word("Infinity")) return v.real_ = inf, v;
    if (word("-Infinity")) return v.real_ = -inf, v;
    const char* start = p;
    bool real = false;
    while (p < end && strchr("+-0123456789.eE", *p) && *p)
      real |= *p == '.' || *p == 'e' || *p == 'E', p++;
    const std::string s(start, p);
    char* stop = nullptr;
    errno = 0;
    if (real) {
      v.real_ = strtod(s.c_str(), &stop);
    } else {
      v.kind_ = Json::kInt;
      v.int_ = strtoll(s.c_str(), &stop, 10);
      if (errno) fail("integer out of range");
    }
    if (s.empty() || *stop) fail("not a number");
    return v;
  }

  unsigned hex4() {
    if (end - p < 4) fail("truncated escape");
    unsigned u = 0;
    for (int i = 0; i < 4; i++, p++) {
      if (!isxdigit(static_cast<unsigned char>(*p))) fail("bad escape");
      u = u * 16 + hex_digit(*p);
    }
    return u;
  }

  static unsigned hex_digit(char c) {
    return c <= '9' ? unsigned(c - '0') : unsigned((c | 0x20) - 'a' + 10);
  }

  void utf8(std::string& out, unsigned u) {
    if (u < 0x80) {
      out += char(u);
    } else if (u < 0x800) {
      out += char(0xc0 | u >> 6), out += char(0x80 | (u & 63));
    } else if (u < 0x10000) {
      out += char(0xe0 | u >> 12), out += char(0x80 | (u >> 6 & 63)), out += char(0x80 | (u & 63));
    } else {
      out += char(0xf0 | u >> 18), out += char(0x80 | (u >> 12 & 63)),
          out += char(0x80 | (u >> 6 & 63)), out += char(0x80 | (u & 63));
    }
  }

  std::string string() {
    if (p == end || *p != '"') fail("a string was expected");
    p++;
    std::string out;
    for (;;) {
      if (p == end) fail("unterminated string");
      const char c = *p++;
      if (c == '"') return out;
      if (c != '\\') {
        out += c;
        continue;
      }
      if (p == end) fail("truncated escape");
      const char e = *p++;
      if (e == 'u') {
        unsigned u = hex4();
        if (u >= 0xd800 && u < 0xdc00 && word("\\u"))
          u = 0x10000 + ((u - 0xd800) << 10) + (hex4() - 0xdc00);
        utf8(out, u);
        continue;
      }
      static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
      const char* at = e ? strchr(from, e) : nullptr;
      if (!at) fail("bad escape");
      out += to[at - from];
    }
  }
};

Json Json::parse(const char* text, size_t n) {
  JsonParser parser{text, text + n, text};
  Json v = parser.value(0);
  parser.space();
  if (parser.p != parser.end) parser.fail("text after the value");
  return v;
}

static Failure wrong(const char* what, const char* kind) {
  return Failure(std::string(what) + " is not " + kind);
}

int64_t Json::integer(const char* what) const {
  if (kind_ != kInt && kind_ != kBool) throw wrong(what, "an integer");
  return int_;
}

int Json::index(size_t limit, const char* what) const {
  const int64_t k = integer(what);
  if (k < 0 || uint64_t(k) >= limit)
    throw Failure(std::string(what) + " " + std::to_string(k) + " does not exist");
  return int(k);
}

double Json::number(const char* what) const {
  if (kind_ == kInt || kind_ == kBool) return double(int_);
  if (kind_ != kReal) throw wrong(what, "a number");
  return real_;
}

const std::string& Json::text(const char* what) const {
  if (kind_ != kText) throw wrong(what, "a string");
  return text_;
}

const std::vector<Json>& Json::array(const char* what) const {
  if (kind_ != kArray) throw wrong(what, "an array");
  return items_;
}

const Json* Json::find(const char* key) const {
  if (kind_ == kObject)
    for (size_t i = 0; i < keys_.size(); i++)
      if (keys_[i] == key) return &items_[i];
  return nullptr;
}

const Json& Json::at(const char* key) const {
  if (const Json* v = find(key)) return *v;
  throw Failure(std::string("'") + key + "' is missing");
}

std::string Json::dump() const {
  const auto quoted = [](const std::string& text) {
    std::string out = "\"";
    for (const char c : text) {
      char escaped[8];
      if (c == '"' || c == '\\' || static_cast<unsigned char>(c) < 0x20)
        out.append(escaped, size_t(snprintf(escaped, sizeof escaped, "\\u%04x", c)));
      else
        out += c;
    }
    return out + "\"";
  };
  switch (kind_) {
    case kNull: return "null";
    case kBool: return int_ ? "true" : "false";
    case kInt: return std::to_string(int_);
    case kText: return quoted(text_);
    case kReal: {
      if (std::isnan(real_)) return "NaN";
      if (std::isinf(real_)) return real_ < 0 ? "-Infinity" : "Infinity";
      char text[32];
      return std::string(text, size_t(snprintf(text, sizeof text, "%.17g", real_)));
    }
    default: break;
  }
  std::string out;
  for (size_t k = 0; k < items_.size(); k++)
    out += (k ? "," : "") + (kind_ == kObject ? quoted(keys_[k]) + ":" : "") + items_[k].dump();
  return kind_ == kObject ? "{" + out + "}" : "[" + out + "]";
}

}  // namespace tracea
