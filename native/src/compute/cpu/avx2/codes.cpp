// Scans over codes with AVX2: vpmaddubsw multiplies unsigned by signed bytes and adds pairs in 16 bits, where eight
// products of a nibble still fit: 2 * 15 * 127 * 8 = 30,480. A group's 16 rows are two registers.
#if defined(__x86_64__)

#include <immintrin.h>

#include <cstring>

#include "compute/cpu/kernels.h"

#define KALOS_AVX2 __attribute__((target("avx2,fma")))

namespace kalos {
namespace {

KALOS_AVX2 inline __m256i broadcast(const int8_t* four) {
  int32_t word;
  std::memcpy(&word, four, sizeof word);
  return _mm256_set1_epi32(word);
}

KALOS_AVX2 inline __m256i load(const uint8_t* bytes) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes));
}

// Products of both halves with the query's, pairs added: 16 sums of 16 bits.
KALOS_AVX2 inline __m256i products(__m256i bytes, __m256i low_half, __m256i high_half) {
  const __m256i mask = _mm256_set1_epi8(0x0f);
  __m256i low = _mm256_maddubs_epi16(_mm256_and_si256(bytes, mask), low_half);
  __m256i high = _mm256_maddubs_epi16(_mm256_and_si256(_mm256_srli_epi16(bytes, 4), mask), high_half);
  return _mm256_add_epi16(low, high);
}

constexpr uint32_t quads_in_16_bits = 4;  // each adds two products of two

KALOS_AVX2 inline void high_sums(const uint8_t* group, const CodeQuery& query, __m256i sums[2]) {
  const __m256i ones = _mm256_set1_epi16(1);
  sums[0] = sums[1] = _mm256_setzero_si256();
  for (uint32_t quad = 0; quad < query.shape.quads;) {
    __m256i first = _mm256_setzero_si256(), second = first;
    uint32_t end = query.shape.quads - quad < quads_in_16_bits ? query.shape.quads : quad + quads_in_16_bits;
    for (; quad < end; ++quad) {
      const uint8_t* bytes = group + size_t{quad} * 64;
      __m256i low_half = broadcast(query.low_halves + quad * 4), high_half = broadcast(query.high_halves + quad * 4);
      first = _mm256_add_epi16(first, products(load(bytes), low_half, high_half));
      second = _mm256_add_epi16(second, products(load(bytes + 32), low_half, high_half));
    }
    sums[0] = _mm256_add_epi32(sums[0], _mm256_madd_epi16(first, ones));
    sums[1] = _mm256_add_epi32(sums[1], _mm256_madd_epi16(second, ones));
  }
  const __m256i offset = _mm256_set1_epi32(twice_the_middle * query.sum);
  for (int half = 0; half < 2; ++half) sums[half] = _mm256_sub_epi32(_mm256_slli_epi32(sums[half], 5), offset);
}

// Upper bounds of 8 rows. raised: error * weight.
struct Similarity {
  __m256 step, base;
  KALOS_AVX2 explicit Similarity(const BoundTerms& terms)
      : step(_mm256_set1_ps(terms.step)), base(_mm256_set1_ps(terms.base)) {}
  KALOS_AVX2 __m256 upper(const float* columns, __m256 sum, __m256 raised) const {
    __m256 estimate = _mm256_mul_ps(_mm256_loadu_ps(columns), _mm256_mul_ps(sum, step));
    return _mm256_add_ps(estimate, _mm256_add_ps(raised, base));
  }
};

struct Distance {
  __m256 step, base, keep, shrink;
  KALOS_AVX2 explicit Distance(const BoundTerms& terms)
      : step(_mm256_set1_ps(terms.step)),
        base(_mm256_set1_ps(terms.base)),
        keep(_mm256_set1_ps(terms.keep)),
        shrink(_mm256_set1_ps(terms.shrink)) {}
  KALOS_AVX2 __m256 upper(const float* columns, __m256 sum, __m256 raised) const {
    __m256 square = _mm256_loadu_ps(columns + 2 * rows_a_group);
    __m256 squared = _mm256_sub_ps(_mm256_add_ps(_mm256_mul_ps(square, keep), base),
                                   _mm256_mul_ps(_mm256_loadu_ps(columns), _mm256_mul_ps(sum, step)));
    __m256 distance = _mm256_sqrt_ps(_mm256_max_ps(squared, _mm256_setzero_ps()));
    return _mm256_sub_ps(raised, _mm256_mul_ps(distance, shrink));
  }
};

// Lanes whose bit is set.
KALOS_AVX2 inline __m256 lanes(uint32_t bits) {
  const __m256i each = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  __m256i mine = _mm256_and_si256(_mm256_set1_epi32(int32_t(bits & 255)), each);
  return _mm256_castsi256_ps(_mm256_cmpeq_epi32(mine, each));
}

template <class Bounds>
KALOS_AVX2 inline void scan(const uint8_t* groups, uint32_t count, const Bounds& bounds, BlockScan& scan) {
  const CodeQuery& query = *scan.query;
  const __m256 nothing = _mm256_set1_ps(-__builtin_inff()), weight = _mm256_set1_ps(scan.terms.weight);
  for (uint32_t g = 0; g < count; ++g) {
    const uint8_t* group = groups + g * query.shape.group_bytes();
    const auto* columns = reinterpret_cast<const float*>(group + query.shape.columns_at());
    __m256i found[2];
    high_sums(group, query, found);
    for (uint32_t half = 0; half < 2; ++half, columns += 8) {
      uint32_t row = g * rows_a_group + half * 8;
      __m256 raised = _mm256_mul_ps(_mm256_loadu_ps(columns + rows_a_group), weight);
      __m256 bound = bounds.upper(columns, _mm256_cvtepi32_ps(found[half]), raised);
      bound = _mm256_blendv_ps(nothing, bound, lanes(uint32_t(scan.among >> row)));
      _mm256_storeu_ps(scan.upper + row, bound);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(scan.sums + row), found[half]);
    }
  }
}

KALOS_AVX2 void scan_similarity(const uint8_t* groups, uint32_t group_count, BlockScan* scans, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) scan(groups, group_count, Similarity(scans[i].terms), scans[i]);
}

KALOS_AVX2 void scan_distance(const uint8_t* groups, uint32_t group_count, BlockScan* scans, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) scan(groups, group_count, Distance(scans[i].terms), scans[i]);
}

KALOS_AVX2 uint32_t at_least(const float* values, uint32_t count, float threshold, uint32_t* places) {
  const __m256 least = _mm256_set1_ps(threshold);
  uint32_t found = 0, i = 0;
  for (; i + 8 <= count; i += 8) {
    auto mask = uint32_t(_mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(values + i), least, _CMP_GE_OQ)));
    for (; mask != 0; mask &= mask - 1) places[found++] = i + uint32_t(__builtin_ctz(mask));
  }
  for (; i < count; ++i) {
    if (values[i] >= threshold) places[found++] = i;
  }
  return found;
}

KALOS_AVX2 int32_t low_sum(const uint8_t* row, const CodeQuery& query) {
  const __m256i ones = _mm256_set1_epi16(1);
  const size_t bytes = query.shape.low_bytes();
  __m256i sums = _mm256_setzero_si256();
  size_t at = 0;
  for (; at + 32 <= bytes; at += 32) {
    __m256i low_half = load(reinterpret_cast<const uint8_t*>(query.low_halves + at));
    __m256i high_half = load(reinterpret_cast<const uint8_t*>(query.high_halves + at));
    sums = _mm256_add_epi32(sums, _mm256_madd_epi16(products(load(row + at), low_half, high_half), ones));
  }
  __m128i four = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1));
  int32_t sum = _mm_cvtsi128_si32(four);
  for (; at < bytes; ++at) sum += (row[at] & 15) * query.low_halves[at] + (row[at] >> 4) * query.high_halves[at];
  return sum;
}

KALOS_AVX2 void low_sums(const uint8_t* low, const uint32_t* rows, uint32_t count, const CodeQuery& query,
                         int32_t* sums) {
  for (uint32_t i = 0; i < count; ++i) sums[i] = low_sum(low + rows[i] * query.shape.low_bytes(), query);
}

}  // namespace

CodeKernels avx2_code_kernels() { return {scan_similarity, scan_distance, at_least, low_sums}; }

}  // namespace kalos

#endif
