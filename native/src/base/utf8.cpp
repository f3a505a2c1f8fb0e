#include "base/utf8.h"

#include <cstdint>
#include <cstring>

namespace kalos {
namespace {

bool is_continuation(unsigned char byte) { return (byte & 0xC0) == 0x80; }

// The length of the well-formed sequence of more than one byte at `at`, or 0.
size_t sequence_bytes(const unsigned char* at, size_t left) {
  unsigned char first = at[0];
  if (first < 0xC2) return 0;  // a continuation byte, or an overlong form of two bytes
  if (first < 0xE0) return left >= 2 && is_continuation(at[1]) ? 2 : 0;
  if (first < 0xF0) {
    if (left < 3 || !is_continuation(at[1]) || !is_continuation(at[2])) return 0;
    if (first == 0xE0 && at[1] < 0xA0) return 0;   // overlong
    if (first == 0xED && at[1] >= 0xA0) return 0;  // a surrogate
    return 3;
  }
  if (first > 0xF4) return 0;
  if (left < 4 || !is_continuation(at[1]) || !is_continuation(at[2]) || !is_continuation(at[3])) return 0;
  if (first == 0xF0 && at[1] < 0x90) return 0;   // overlong
  if (first == 0xF4 && at[1] >= 0x90) return 0;  // above U+10FFFF
  return 4;
}

}  // namespace

bool valid_utf8(std::string_view bytes) {
  auto* at = reinterpret_cast<const unsigned char*>(bytes.data());
  auto* end = at + bytes.size();
  while (at < end) {
    if (*at < 0x80) {
      // Most text is ASCII for long stretches: eight bytes a step.
      uint64_t word;
      while (end - at >= 8 && (std::memcpy(&word, at, 8), (word & 0x8080808080808080ull) == 0)) at += 8;
      while (at < end && *at < 0x80) ++at;
      continue;
    }
    size_t length = sequence_bytes(at, size_t(end - at));
    if (length == 0) return false;
    at += length;
  }
  return true;
}

std::string to_utf8(std::string_view bytes) {
  if (valid_utf8(bytes)) return std::string(bytes);
  std::string text;
  for (size_t at = 0; at < bytes.size();) {
    auto* here = reinterpret_cast<const unsigned char*>(bytes.data()) + at;
    size_t length = *here < 0x80 ? 1 : sequence_bytes(here, bytes.size() - at);
    text += length == 0 ? std::string_view("\xEF\xBF\xBD") : bytes.substr(at, length);
    at += length == 0 ? 1 : length;
  }
  return text;
}

}  // namespace kalos
