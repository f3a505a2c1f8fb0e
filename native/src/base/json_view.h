// Reading JSON in place: values are views of text that was checked when it came (base/json_check.h). No tree is built.
//
// Nothing here trusts the text for memory safety: what is not well-formed ends the walk, never reads past the end.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kalos {

enum class JsonKind : uint8_t { missing, null, boolean, number, string, array, object };

// A value in the text; `raw` is its bytes without surrounding white space.
struct JsonValue {
  JsonKind kind = JsonKind::missing;
  std::string_view raw;

  bool is_true() const { return raw.size() == 4; }  // of a boolean
};

// The value that the text is, or missing.
JsonValue json_root(std::string_view text);

// The object that the text begins with, or missing. Its end is not looked for, which is enough to walk its members: `raw`
// is all of the text.
JsonValue json_object(std::string_view text);

// Walks the members of an object in the order of the text; of any other value there are none.
class JsonMembers {
 public:
  explicit JsonMembers(JsonValue object);
  // raw_key: between the quotes, escapes as they stand.
  bool next(std::string_view& raw_key, JsonValue& value);

 private:
  std::string_view rest_;
};

class JsonItems {
 public:
  explicit JsonItems(JsonValue array);
  bool next(JsonValue& value);

 private:
  std::string_view rest_;
};

// What a raw string means. A view of the text where nothing is escaped, else of `scratch`.
std::string_view json_unescape(std::string_view raw, std::string& scratch);
// Of a value of kind string.
std::string_view json_string(JsonValue value, std::string& scratch);

// A number exactly: an integer where the token is one and fits int64, else a double.
struct JsonNumber {
  bool is_integer = false;
  int64_t integer = 0;
  double real = 0;
};
JsonNumber json_number(JsonValue value);

// -1, 0, 1. Exact between int64 and double: 2^53 + 1 does not equal the double 2^53.
int compare(const JsonNumber& a, const JsonNumber& b);

// Equal for two values exactly if they are equal as JSON: numbers by value (1 and 1.0), true is not 1, arrays item by
// item, objects as sets of pairs.
void append_canonical(JsonValue value, std::string& to);
// The number with this canonical form; nothing where it is that of another value.
std::optional<JsonNumber> number_of_canonical(std::string_view canonical);

}  // namespace kalos
