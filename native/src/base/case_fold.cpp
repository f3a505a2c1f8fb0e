#include "base/case_fold.h"

#include <algorithm>
#include <iterator>

#include "base/case_fold_table.h"

namespace kalos {
namespace {

// Bytes of the sequence that begins with `first`, by its first byte alone.
size_t sequence_bytes(unsigned char first) { return first < 0xC0 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4; }

uint32_t decode(std::string_view sequence) {
  auto byte = [&](size_t i) { return static_cast<unsigned char>(sequence[i]); };
  switch (sequence.size()) {
    case 2:
      return uint32_t(byte(0) & 0x1F) << 6 | (byte(1) & 0x3F);
    case 3:
      return uint32_t(byte(0) & 0x0F) << 12 | uint32_t(byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
    default:
      return uint32_t(byte(0) & 0x07) << 18 | uint32_t(byte(1) & 0x3F) << 12 | uint32_t(byte(2) & 0x3F) << 6 |
             (byte(3) & 0x3F);
  }
}

void append(uint32_t code_point, std::string& to) {
  if (code_point < 0x80) {
    to += char(code_point);
    return;
  }
  if (code_point < 0x800) {
    to += char(0xC0 | code_point >> 6);
  } else {
    if (code_point < 0x10000) {
      to += char(0xE0 | code_point >> 12);
    } else {
      to += char(0xF0 | code_point >> 18);
      to += char(0x80 | (code_point >> 12 & 0x3F));
    }
    to += char(0x80 | (code_point >> 6 & 0x3F));
  }
  to += char(0x80 | (code_point & 0x3F));
}

}  // namespace

uint32_t fold_case(uint32_t code_point) {
  auto run = std::upper_bound(std::begin(case_fold_runs), std::end(case_fold_runs), code_point,
                              [](uint32_t point, const CaseFoldRun& candidate) { return point < candidate.first; });
  if (run == std::begin(case_fold_runs)) return code_point;
  --run;
  bool folds = code_point <= run->last && (code_point - run->first) % run->stride == 0;
  return folds ? uint32_t(int64_t{code_point} + run->difference) : code_point;
}

std::string fold_case(std::string_view text) {
  std::string folded;
  folded.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    auto first = static_cast<unsigned char>(text[at]);
    if (first < 0x80) {
      folded += first >= 'A' && first <= 'Z' ? char(first + 32) : char(first);
      ++at;
      continue;
    }
    size_t bytes = sequence_bytes(first);
    if (bytes == 1 || at + bytes > text.size()) {
      folded += text[at++];
      continue;
    }
    append(fold_case(decode(text.substr(at, bytes))), folded);
    at += bytes;
  }
  return folded;
}

}  // namespace kalos
