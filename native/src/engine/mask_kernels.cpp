#include "engine/mask_kernels.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace kalos {
namespace {

static_assert(std::endian::native == std::endian::little, "`gather` takes the first byte for the lowest");

// hits: 64 bytes of 0 or 1. The product moves bit 0 of byte i to bit 56 + i.
uint64_t gather(const uint8_t* hits) {
  uint64_t word = 0;
  for (int i = 0; i < 8; ++i) {
    uint64_t eight;
    std::memcpy(&eight, hits + 8 * i, 8);
    word |= (eight * 0x0102040810204080) >> 56 << (8 * i);
  }
  return word;
}

template <class T, class Test>
inline uint64_t word_where(const T* values, Test test) {
  uint8_t hits[64];
  for (int i = 0; i < 64; ++i) hits[i] = test(values[i]);
  return gather(hits);
}

#if defined(__SSE2__)
// What every x86-64 has. Compilers make three to five times as many instructions of the plain loops.

// Of 16 lanes of 32 bits, all ones or all zeros, a bit each.
inline uint64_t bits_of(__m128i a, __m128i b, __m128i c, __m128i d) {
  __m128i lanes = _mm_packs_epi16(_mm_packs_epi32(a, b), _mm_packs_epi32(c, d));
  return uint32_t(_mm_movemask_epi8(lanes));
}

uint64_t equal_codes(const uint32_t* codes, uint32_t code) {
  const __m128i wanted = _mm_set1_epi32(int(code));
  auto equal = [&](int i) {
    return _mm_cmpeq_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + i)), wanted);
  };
  uint64_t word = 0;
  for (int i = 0; i < 64; i += 16) word |= bits_of(equal(i), equal(i + 4), equal(i + 8), equal(i + 12)) << i;
  return word;
}

template <class Compare>
inline void mask_doubles(const double* numbers, size_t words, uint64_t* mask, double x, Compare compare) {
  const __m128d wanted = _mm_set1_pd(x);
  auto four = [&](const double* at) {  // the lower halves of four lanes of 64 bits
    __m128 low = _mm_castpd_ps(compare(_mm_loadu_pd(at), wanted));
    __m128 high = _mm_castpd_ps(compare(_mm_loadu_pd(at + 2), wanted));
    return _mm_castps_si128(_mm_shuffle_ps(low, high, _MM_SHUFFLE(2, 0, 2, 0)));
  };
  for (size_t w = 0; w < words; ++w, numbers += 64) {
    uint64_t word = 0;
    for (int i = 0; i < 64; i += 16) {
      const double* at = numbers + i;
      word |= bits_of(four(at), four(at + 4), four(at + 8), four(at + 12)) << i;
    }
    mask[w] |= word;
  }
}
#define KALOS_COMPARE(intrinsic, sign) [](__m128d n, __m128d y) { return intrinsic(n, y); }
#else
uint64_t equal_codes(const uint32_t* codes, uint32_t code) {
  return word_where(codes, [=](uint32_t c) { return c == code; });
}

template <class Compare>
inline void mask_doubles(const double* numbers, size_t words, uint64_t* mask, double x, Compare compare) {
  for (size_t w = 0; w < words; ++w, numbers += 64) {
    mask[w] |= word_where(numbers, [=](double n) { return compare(n, x); });
  }
}
#define KALOS_COMPARE(intrinsic, sign) [](double n, double y) { return n sign y; }
#endif

}  // namespace

void mask_code(const uint32_t* codes, size_t words, uint32_t code, uint64_t* mask) {
  for (size_t w = 0; w < words; ++w) mask[w] |= equal_codes(codes + 64 * w, code);
}

void mask_verdicts(const uint32_t* codes, size_t words, const uint8_t* verdicts, uint64_t* mask) {
  for (size_t w = 0; w < words; ++w, codes += 64) {
    uint64_t word = 0;
    for (int i = 0; i < 64; i += 8) {
      uint64_t eight = 0;
      for (int row = i + 7; row >= i; --row) eight = eight << 1 | verdicts[codes[row]];
      word |= eight << i;
    }
    mask[w] |= word;
  }
}

void mask_numbers(const double* numbers, size_t words, Comparison comparison, double x, uint64_t* mask) {
  switch (comparison) {
    case Comparison::equal:
      return mask_doubles(numbers, words, mask, x, KALOS_COMPARE(_mm_cmpeq_pd, ==));
    case Comparison::less:
      return mask_doubles(numbers, words, mask, x, KALOS_COMPARE(_mm_cmplt_pd, <));
    case Comparison::less_or_equal:
      return mask_doubles(numbers, words, mask, x, KALOS_COMPARE(_mm_cmple_pd, <=));
    case Comparison::greater:
      return mask_doubles(numbers, words, mask, x, KALOS_COMPARE(_mm_cmpgt_pd, >));
    case Comparison::greater_or_equal:
      return mask_doubles(numbers, words, mask, x, KALOS_COMPARE(_mm_cmpge_pd, >=));
  }
}

NumberSet::NumberSet(std::vector<double> numbers) : sorted_(std::move(numbers)), hints_(hint_count / 64) {
  for (double& number : sorted_) number += 0.0;  // -0 is 0
  std::sort(sorted_.begin(), sorted_.end());
  for (double number : sorted_) hints_[hint_of(number) / 64] |= uint64_t{1} << hint_of(number) % 64;
}

bool NumberSet::has(double number) const {
  size_t hint = hint_of(number + 0.0);
  if ((hints_[hint / 64] >> hint % 64 & 1) == 0) return false;
  return number == number && std::binary_search(sorted_.begin(), sorted_.end(), number);
}

size_t NumberSet::hint_of(double number) {
  return std::bit_cast<uint64_t>(number) * 0x9e3779b97f4a7c15 >> (64 - hint_bits);
}

void mask_numbers_in(const double* numbers, size_t words, const NumberSet& set, uint64_t* mask) {
  for (size_t w = 0; w < words; ++w) {
    mask[w] |= word_where(numbers + 64 * w, [&](double n) { return set.has(n); });
  }
}

}  // namespace kalos
