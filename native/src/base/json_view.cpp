#include "base/json_view.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace kalos {
namespace {

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

void skip_space(std::string_view& text) {
  size_t at = 0;
  while (at < text.size() && is_space(text[at])) ++at;
  text.remove_prefix(at);
}

// The first place from `at` on where `wanted` holds, or the end. Metadata is read this way whenever a filter asks for it,
// so the walk goes 16 bytes at a time where it can.
template <class Wanted>
size_t find_first(std::string_view text, size_t at, Wanted wanted) {
#if defined(__SSE2__)
  for (; text.size() - at >= 16; at += 16) {
    __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(text.data() + at));
    auto found = uint32_t(_mm_movemask_epi8(wanted.among(bytes)));
    if (found != 0) return at + size_t(std::countr_zero(found));
  }
#endif
  while (at < text.size() && !wanted.is(text[at])) ++at;
  return at;
}

// What a string ends with, or goes on after.
struct QuoteOrEscape {
  static bool is(char c) { return c == '"' || c == '\\'; }
#if defined(__SSE2__)
  static __m128i among(__m128i bytes) {
    return _mm_or_si128(_mm_cmpeq_epi8(bytes, _mm_set1_epi8('"')), _mm_cmpeq_epi8(bytes, _mm_set1_epi8('\\')));
  }
#endif
};

// What opens or closes a string, an array or an object. Brackets and braces differ in one bit.
struct Structure {
  static bool is(char c) { return c == '"' || (c | 0x20) == '{' || (c | 0x20) == '}'; }
#if defined(__SSE2__)
  static __m128i among(__m128i bytes) {
    __m128i folded = _mm_or_si128(bytes, _mm_set1_epi8(0x20));
    __m128i open = _mm_cmpeq_epi8(folded, _mm_set1_epi8('{')), close = _mm_cmpeq_epi8(folded, _mm_set1_epi8('}'));
    return _mm_or_si128(_mm_or_si128(open, close), _mm_cmpeq_epi8(bytes, _mm_set1_epi8('"')));
  }
#endif
};

// Where the string that begins at text[0] == '"' ends, past its closing quote, or npos.
size_t string_end(std::string_view text) {
  for (size_t at = 1; at < text.size(); ++at) {
    at = find_first(text, at, QuoteOrEscape{});
    if (at >= text.size()) break;
    if (text[at] == '"') return at + 1;
    ++at;  // what is escaped
  }
  return std::string_view::npos;
}

size_t container_end(std::string_view text) {
  size_t open = 0;
  for (size_t at = 0; (at = find_first(text, at, Structure{})) < text.size(); ++at) {
    char c = text[at];
    if (c == '"') {
      size_t end = string_end(text.substr(at));
      if (end == std::string_view::npos) return end;
      at += end - 1;
    } else if (c == '{' || c == '[') {
      ++open;
    } else if (--open == 0) {
      return at + 1;
    }
  }
  return std::string_view::npos;
}

size_t word_end(std::string_view text) {
  size_t at = 0;
  while (at < text.size() && !is_space(text[at]) && text[at] != ',' && text[at] != ']' && text[at] != '}') ++at;
  return at;
}

// Takes the value at the front of the text.
bool take_value(std::string_view& text, JsonValue& value) {
  skip_space(text);
  if (text.empty()) return false;
  size_t end;
  switch (text[0]) {
    case '"':
      value.kind = JsonKind::string, end = string_end(text);
      break;
    case '{':
      value.kind = JsonKind::object, end = container_end(text);
      break;
    case '[':
      value.kind = JsonKind::array, end = container_end(text);
      break;
    case 't':
    case 'f':
      value.kind = JsonKind::boolean, end = word_end(text);
      break;
    case 'n':
      value.kind = JsonKind::null, end = word_end(text);
      break;
    default:
      value.kind = JsonKind::number, end = word_end(text);
      break;
  }
  if (end == std::string_view::npos || end == 0) return false;
  value.raw = text.substr(0, end);
  text.remove_prefix(end);
  return true;
}

bool take(std::string_view& text, char c) {
  skip_space(text);
  if (text.empty() || text[0] != c) return false;
  text.remove_prefix(1);
  return true;
}

uint32_t hex4(std::string_view digits) {
  uint32_t unit = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), unit, 16);
  return unit;
}

void append_utf8(uint32_t code_point, std::string& to) {
  if (code_point < 0x80) {
    to += char(code_point);
  } else if (code_point < 0x800) {
    to += char(0xC0 | code_point >> 6);
    to += char(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    to += char(0xE0 | code_point >> 12);
    to += char(0x80 | (code_point >> 6 & 0x3F));
    to += char(0x80 | (code_point & 0x3F));
  } else {
    to += char(0xF0 | code_point >> 18);
    to += char(0x80 | (code_point >> 12 & 0x3F));
    to += char(0x80 | (code_point >> 6 & 0x3F));
    to += char(0x80 | (code_point & 0x3F));
  }
}

// Takes \uXXXX, or a pair of them, whose first four digits begin at raw[at]; returns how many bytes it used.
size_t take_unicode_escape(std::string_view raw, size_t at, std::string& to) {
  uint32_t unit = hex4(raw.substr(at, 4));
  bool pair = unit >= 0xD800 && unit < 0xDC00 && raw.substr(at + 4 <= raw.size() ? at + 4 : raw.size(), 2) == "\\u";
  if (pair) unit = 0x10000 + ((unit - 0xD800) << 10) + (hex4(raw.substr(at + 6, 4)) - 0xDC00);
  append_utf8(unit, to);
  return pair ? 10 : 4;
}

int three_way(double a, double b) { return a < b ? -1 : a > b ? 1 : 0; }

int compare_integer_with_real(int64_t integer, double real) {
  constexpr double two_to_63 = 9223372036854775808.0;
  if (real >= two_to_63) return -1;
  if (real < -two_to_63) return 1;
  double whole = std::trunc(real);
  auto truncated = int64_t(whole);
  if (integer != truncated) return integer < truncated ? -1 : 1;
  return three_way(0.0, real - whole);
}

void append_string(std::string_view value, std::string& to) {
  to += 's';
  to += std::to_string(value.size());
  to += ':';
  to += value;
}

void append_canonical_object(JsonValue value, std::string& to) {
  std::vector<std::pair<std::string, std::string>> members;
  std::string_view raw_key;
  JsonValue member;
  std::string scratch;
  for (JsonMembers walk(value); walk.next(raw_key, member);) {
    auto& [key, canonical] = members.emplace_back();
    key = json_unescape(raw_key, scratch);
    append_canonical(member, canonical);
  }
  std::sort(members.begin(), members.end());
  to += '{';
  for (auto& [key, canonical] : members) {
    append_string(key, to);
    to += canonical;
  }
  to += '}';
}

}  // namespace

JsonValue json_root(std::string_view text) {
  JsonValue value;
  return take_value(text, value) ? value : JsonValue{};
}

JsonValue json_object(std::string_view text) {
  skip_space(text);
  return text.empty() || text[0] != '{' ? JsonValue{} : JsonValue{JsonKind::object, text};
}

JsonMembers::JsonMembers(JsonValue object) {
  if (object.kind == JsonKind::object) rest_ = object.raw.substr(1);
}

bool JsonMembers::next(std::string_view& raw_key, JsonValue& value) {
  take(rest_, ',');
  if (rest_.empty() || (skip_space(rest_), rest_.empty()) || rest_[0] != '"') return false;
  size_t end = string_end(rest_);
  if (end == std::string_view::npos) return false;
  raw_key = rest_.substr(1, end - 2);
  rest_.remove_prefix(end);
  return take(rest_, ':') && take_value(rest_, value);
}

JsonItems::JsonItems(JsonValue array) {
  if (array.kind == JsonKind::array) rest_ = array.raw.substr(1);
}

bool JsonItems::next(JsonValue& value) {
  take(rest_, ',');
  skip_space(rest_);
  if (rest_.empty() || rest_[0] == ']') return false;
  return take_value(rest_, value);
}

std::string_view json_unescape(std::string_view raw, std::string& scratch) {
  if (raw.find('\\') == std::string_view::npos) return raw;
  scratch.clear();
  for (size_t at = 0; at < raw.size(); ++at) {
    if (raw[at] != '\\' || at + 1 >= raw.size()) {
      scratch += raw[at];
      continue;
    }
    switch (char c = raw[++at]) {
      case 'b':
        scratch += '\b';
        break;
      case 'f':
        scratch += '\f';
        break;
      case 'n':
        scratch += '\n';
        break;
      case 'r':
        scratch += '\r';
        break;
      case 't':
        scratch += '\t';
        break;
      case 'u':
        at += at + 4 < raw.size() ? take_unicode_escape(raw, at + 1, scratch) : 0;
        break;
      default:
        scratch += c;
        break;
    }
  }
  return scratch;
}

std::string_view json_string(JsonValue value, std::string& scratch) {
  return json_unescape(value.raw.substr(1, value.raw.size() - 2), scratch);
}

JsonNumber json_number(JsonValue value) {
  JsonNumber number;
  const char* first = value.raw.data();
  const char* last = first + value.raw.size();
  auto whole = std::from_chars(first, last, number.integer);
  if (whole.ec == std::errc() && whole.ptr == last) {
    number.is_integer = true;
    return number;
  }
  auto parsed = std::from_chars(first, last, number.real);
  // Beyond float64 was refused when it came, so that out of range is too small to be told from zero.
  if (parsed.ec != std::errc()) number.real = 0;
  return number;
}

int compare(const JsonNumber& a, const JsonNumber& b) {
  if (a.is_integer && b.is_integer) return a.integer < b.integer ? -1 : a.integer > b.integer ? 1 : 0;
  if (a.is_integer) return compare_integer_with_real(a.integer, b.real);
  if (b.is_integer) return -compare_integer_with_real(b.integer, a.real);
  return three_way(a.real, b.real);
}

void append_canonical(JsonValue value, std::string& to) {
  switch (value.kind) {
    case JsonKind::missing:
      to += '?';
      break;
    case JsonKind::null:
      to += 'n';
      break;
    case JsonKind::boolean:
      to += value.is_true() ? 't' : 'f';
      break;
    case JsonKind::number: {
      JsonNumber number = json_number(value);
      constexpr double two_to_63 = 9223372036854775808.0;
      bool whole = number.is_integer ||
                   (number.real >= -two_to_63 && number.real < two_to_63 && std::trunc(number.real) == number.real);
      if (whole) {
        to += 'i' + std::to_string(number.is_integer ? number.integer : int64_t(number.real)) + ';';
      } else {
        to += 'd' + std::to_string(std::bit_cast<uint64_t>(number.real)) + ';';
      }
      break;
    }
    case JsonKind::string: {
      std::string scratch;
      append_string(json_string(value, scratch), to);
      break;
    }
    case JsonKind::array: {
      to += '[';
      JsonValue item;
      for (JsonItems walk(value); walk.next(item);) append_canonical(item, to);
      to += ']';
      break;
    }
    case JsonKind::object:
      append_canonical_object(value, to);
      break;
  }
}

std::optional<JsonNumber> number_of_canonical(std::string_view canonical) {
  if (canonical.empty() || (canonical[0] != 'i' && canonical[0] != 'd')) return std::nullopt;
  const char* first = canonical.data() + 1;
  const char* last = canonical.data() + canonical.size();
  JsonNumber number;
  number.is_integer = canonical[0] == 'i';
  if (number.is_integer) {
    std::from_chars(first, last, number.integer);
  } else {
    uint64_t bits = 0;
    std::from_chars(first, last, bits);
    number.real = std::bit_cast<double>(bits);
  }
  return number;
}

}  // namespace kalos
