#include "base/json_check.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace kalos {
namespace {

constexpr size_t longest_key_in_words = 80;

// Collects the keys of the objects that are open, and stops the parser (by returning false) at the first fault.
class Checker {
 public:
  Checker(std::string_view what, size_t max_depth) : what_(what), max_depth_(max_depth) {}

  bool null() { return value(); }
  bool boolean(bool) { return value(); }
  bool number_integer(int64_t) { return value(); }
  bool number_unsigned(uint64_t number) {
    if (number > uint64_t(std::numeric_limits<int64_t>::max())) return refuse_integer(std::to_string(number));
    return value();
  }
  bool number_float(double number, const std::string& token) {
    // The parser turns integers beyond 64 bits into floats: only the token tells.
    if (token.find_first_of(".eE") == std::string::npos) return refuse_integer(token);
    if (!(std::abs(number) <= std::numeric_limits<double>::max())) return refuse("is a number beyond float64");
    return value();
  }
  bool string(std::string&) { return value(); }
  bool binary(nlohmann::json::binary_t&) { return refuse("is binary, which JSON text cannot be"); }

  bool start_object(size_t) { return open(true); }
  bool key(std::string& name) {
    keys_.push_back(std::move(name));
    return true;
  }
  bool end_object() {
    auto first = keys_.begin() + std::ptrdiff_t(levels_.back().first_key);
    std::sort(first, keys_.end());
    auto twice = std::adjacent_find(first, keys_.end());
    if (twice != keys_.end()) {
      words_ = std::string(what_) + " has the key " + quoted(*twice) + " twice in one object; keys must be unique";
      return false;
    }
    keys_.erase(first, keys_.end());
    levels_.pop_back();
    return true;
  }
  bool start_array(size_t) { return open(false); }
  bool end_array() {
    levels_.pop_back();
    return true;
  }

  bool parse_error(size_t position, const std::string& last_token, const nlohmann::detail::exception& error) {
    if (error.id == 406) {
      refuse("is a number beyond float64");
      return false;
    }
    words_ = std::string(what_) + " is not valid JSON at byte " + std::to_string(position) + near();
    if (!last_token.empty() && (last_token.back() == 'N' || last_token.back() == 'I')) {
      words_ += "; JSON has no NaN and no Infinity";
    }
    return false;
  }

  std::string take_words() { return std::move(words_); }

 private:
  struct Level {
    bool is_object;
    size_t first_key;
  };

  static std::string quoted(std::string_view key) {
    if (key.size() <= longest_key_in_words) return "\"" + std::string(key) + "\"";
    size_t cut = longest_key_in_words;
    while (cut > 0 && (static_cast<unsigned char>(key[cut]) & 0xC0) == 0x80) --cut;
    return "\"" + std::string(key.substr(0, cut)) + "…\"";
  }
  std::string near() const { return keys_.empty() ? "" : " (key " + quoted(keys_.back()) + ")"; }

  bool value() {
    if (!levels_.empty()) return true;
    words_ = std::string(what_) + " must be a JSON object";
    return false;
  }
  bool open(bool is_object) {
    if (levels_.empty() && !is_object) return value();
    if (levels_.size() >= max_depth_) {
      words_ = std::string(what_) + " is nested more than " + std::to_string(max_depth_) + " deep" + near();
      return false;
    }
    levels_.push_back({is_object, keys_.size()});
    return true;
  }
  bool refuse(std::string_view fault) {
    words_ = std::string(what_) + (keys_.empty() ? " holds what" : " key " + quoted(keys_.back())) + " " +
             std::string(fault);
    return false;
  }
  bool refuse_integer(const std::string& token) {
    return refuse("is the integer " + token.substr(0, 40) +
                  ", outside int64; store it as a string, or as a float if it may lose digits");
  }

  std::string_view what_;
  size_t max_depth_;
  std::vector<Level> levels_;
  std::vector<std::string> keys_;  // of all open objects, one after the other; the last one is the current key
  std::string words_;
};

}  // namespace

Result<> check_json_object(std::string_view json, std::string_view what, size_t max_bytes, size_t max_depth) {
  if (json.size() > max_bytes) {
    return invalid(std::string(what) + " is " + std::to_string(json.size()) + " bytes of JSON, the limit is " +
                   std::to_string(max_bytes));
  }
  // The parser takes a zero byte for the end and skips a byte order mark: neither is JSON.
  if (size_t zero = json.find('\0'); zero != std::string_view::npos) {
    return invalid(std::string(what) + " is not valid JSON at byte " + std::to_string(zero + 1) + ": a zero byte");
  }
  if (json.starts_with("\xEF\xBB\xBF"))
    return invalid(std::string(what) + " begins with a byte order mark; leave it out");
  Checker checker(what, max_depth);
  if (nlohmann::json::sax_parse(json.begin(), json.end(), &checker)) return Unit{};
  return invalid(checker.take_words());
}

Result<> check_metadata(std::string_view json) {
  return check_json_object(json, "metadata", KALOS_MAX_METADATA_BYTES, KALOS_MAX_METADATA_DEPTH);
}

}  // namespace kalos
