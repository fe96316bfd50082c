// A reader for the JSON header of a pack. Accepts what Python's json module writes, NaN and
// Infinity included.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace tracea {

class Json {
 public:
  enum Kind { kNull, kBool, kInt, kReal, kText, kArray, kObject };

  // Throws Failure with the position of the first error.
  static Json parse(const char* text, size_t n);

  // Accessors throw Failure when the value is of another kind; `what` names the value in the
  // message.
  int64_t integer(const char* what) const;
  double number(const char* what) const;            // integers too
  int index(size_t limit, const char* what) const;  // an integer from 0 to limit - 1
  const std::string& text(const char* what) const;
  const std::vector<Json>& array(const char* what) const;
  const Json& at(const char* key) const;    // throws when the object has no such key
  const Json* find(const char* key) const;  // null when the object has no such key
  bool is_null() const { return kind_ == kNull; }
  std::string dump() const;  // the value as JSON

 private:
  friend struct JsonParser;
  Kind kind_ = kNull;
  int64_t int_ = 0;
  double real_ = 0;
  std::string text_;
  std::vector<Json> items_;  // of an array, or the values of an object
  std::vector<std::string> keys_;
};

}  // namespace tracea
