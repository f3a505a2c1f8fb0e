// Metadata: what the check lets through, a full parser must read too, and the views must find in it what that finds.
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/json_check.h"
#include "base/json_view.h"

using namespace kalos;

namespace {

void compare_all(JsonValue seen, const nlohmann::json& parsed) {
  std::string scratch;
  switch (parsed.type()) {
    case nlohmann::json::value_t::object: {
      if (seen.kind != JsonKind::object) __builtin_trap();
      JsonMembers members(seen);
      std::string_view raw_key;
      JsonValue value;
      size_t count = 0;
      while (members.next(raw_key, value)) {
        ++count;
        std::string key(json_unescape(raw_key, scratch));
        auto found = parsed.find(key);
        if (found == parsed.end()) __builtin_trap();
        compare_all(value, *found);
      }
      if (count != parsed.size()) __builtin_trap();
      return;
    }
    case nlohmann::json::value_t::array: {
      if (seen.kind != JsonKind::array) __builtin_trap();
      JsonItems items(seen);
      JsonValue value;
      size_t count = 0;
      while (items.next(value)) {
        if (count >= parsed.size()) __builtin_trap();
        compare_all(value, parsed[count++]);
      }
      if (count != parsed.size()) __builtin_trap();
      return;
    }
    case nlohmann::json::value_t::string:
      if (seen.kind != JsonKind::string) __builtin_trap();
      if (json_string(seen, scratch) != parsed.get_ref<const std::string&>()) __builtin_trap();
      return;
    case nlohmann::json::value_t::boolean:
      if (seen.kind != JsonKind::boolean || seen.is_true() != parsed.get<bool>()) __builtin_trap();
      return;
    case nlohmann::json::value_t::null:
      if (seen.kind != JsonKind::null) __builtin_trap();
      return;
    default: {
      if (seen.kind != JsonKind::number) __builtin_trap();
      JsonNumber number = json_number(seen);
      if (number.is_integer && parsed.is_number_integer() && number.integer != parsed.get<int64_t>()) __builtin_trap();
      if (!number.is_integer && number.real != parsed.get<double>()) __builtin_trap();
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  auto checked = check_metadata(text);
  if (!checked) {
    if (checked.error().words.empty()) __builtin_trap();
    return 0;
  }
  auto parsed = nlohmann::json::parse(text, nullptr, false);
  if (!parsed.is_object()) __builtin_trap();
  compare_all(json_root(text), parsed);
  std::string canonical;
  append_canonical(json_root(text), canonical);
  return 0;
}
