// The inner loops of filters: 64 rows of a column to one word of a mask. All of them add to what the mask holds already.
//
// x86-64's own SSE2 is enough, and so there is no choice by CPU here: the loops read memory faster than wider vectors
// would save, and looking verdicts up is no faster with the gather instructions of AVX2 and AVX-512 (measured: slower).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kalos {

// Rows whose code is this one.
void mask_code(const uint32_t* codes, size_t words, uint32_t code, uint64_t* mask);
// Rows whose code's verdict is 1; verdicts are 0 or 1.
void mask_verdicts(const uint32_t* codes, size_t words, const uint8_t* verdicts, uint64_t* mask);

enum class Comparison { equal, less, less_or_equal, greater, greater_or_equal };
// Rows whose number compares so with x. NaN does not compare.
void mask_numbers(const double* numbers, size_t words, Comparison comparison, double x, uint64_t* mask);

// Numbers to look for. A bitmap in the fastest cache answers for most of those that are not in it.
class NumberSet {
 public:
  explicit NumberSet(std::vector<double> numbers);
  bool has(double number) const;

 private:
  static constexpr int hint_bits = 16;
  static constexpr size_t hint_count = size_t{1} << hint_bits;
  static size_t hint_of(double number);

  std::vector<double> sorted_;
  std::vector<uint64_t> hints_;  // bit hint_of(number)
};
void mask_numbers_in(const double* numbers, size_t words, const NumberSet& set, uint64_t* mask);

}  // namespace kalos
