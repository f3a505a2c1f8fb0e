// Scans over codes with AVX-512 VNNI. vpdpbusd multiplies unsigned by signed bytes and adds four products to each of 16
// sums: a register of a group's quad is 4 bytes of each of 16 rows, and the query's 4 bytes are broadcast. The high
// half of a byte is not shifted down: its products are 16 times too large, which the sum of the low halves is brought
// up to. Four groups share each broadcast. Single roundings of the float tests need not be those of the portable
// kernel (engine/coding.cpp allows for either), but they are: no fma.
#if defined(__x86_64__)

// GCC 12 sees an uninitialised variable in its own intrinsics (GCC bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#include <immintrin.h>

#include <cstring>

#include "compute/cpu/kernels.h"

#define KALOS_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni")))

namespace kalos {
namespace {

KALOS_AVX512 inline __m512i broadcast(const int8_t* four) {
  int32_t word;
  std::memcpy(&word, four, sizeof word);
  return _mm512_set1_epi32(word);
}

// sums[g]: S of the 16 rows of group g.
template <uint32_t count>
KALOS_AVX512 inline void high_sums(const uint8_t* groups, const CodeQuery& query, __m512i* sums) {
  const __m512i low_mask = _mm512_set1_epi8(0x0f), high_mask = _mm512_set1_epi8(char(0xf0));
  const size_t group_bytes = query.shape.group_bytes();
  __m512i low[count], high[count];
#pragma GCC unroll 4
  for (uint32_t g = 0; g < count; ++g) low[g] = high[g] = _mm512_setzero_si512();
  for (uint32_t quad = 0; quad < query.shape.quads; ++quad) {
    const __m512i low_half = broadcast(query.low_halves + quad * 4);
    const __m512i high_half = broadcast(query.high_halves + quad * 4);
#pragma GCC unroll 4
    for (uint32_t g = 0; g < count; ++g) {
      __m512i bytes = _mm512_loadu_si512(groups + g * group_bytes + size_t{quad} * 64);
      low[g] = _mm512_dpbusd_epi32(low[g], _mm512_and_si512(bytes, low_mask), low_half);
      high[g] = _mm512_dpbusd_epi32(high[g], _mm512_and_si512(bytes, high_mask), high_half);
    }
  }
  const __m512i offset = _mm512_set1_epi32(twice_the_middle * query.sum);
#pragma GCC unroll 4
  for (uint32_t g = 0; g < count; ++g) {
    __m512i sixteenfold = _mm512_add_epi32(_mm512_slli_epi32(low[g], 4), high[g]);
    sums[g] = _mm512_sub_epi32(_mm512_slli_epi32(sixteenfold, 1), offset);
  }
}

struct Similarity {
  __m512 step, weight, threshold;
  KALOS_AVX512 explicit Similarity(const SimilarityTest& test)
      : step(_mm512_set1_ps(test.step)),
        weight(_mm512_set1_ps(test.weight)),
        threshold(_mm512_set1_ps(test.threshold)) {}
  KALOS_AVX512 __mmask16 passes(const float* columns, __m512 sum) const {
    __m512 scale = _mm512_loadu_ps(columns), error = _mm512_loadu_ps(columns + rows_a_group);
    __m512 bound = _mm512_add_ps(_mm512_mul_ps(scale, _mm512_mul_ps(sum, step)), _mm512_mul_ps(error, weight));
    return _mm512_cmp_ps_mask(bound, threshold, _CMP_GE_OQ);
  }
};

struct Distance {
  __m512 base, keep, step, limit;
  KALOS_AVX512 explicit Distance(const DistanceTest& test)
      : base(_mm512_set1_ps(test.base)),
        keep(_mm512_set1_ps(test.keep)),
        step(_mm512_set1_ps(test.step)),
        limit(_mm512_set1_ps(test.limit)) {}
  KALOS_AVX512 __mmask16 passes(const float* columns, __m512 sum) const {
    __m512 scale = _mm512_loadu_ps(columns), error = _mm512_loadu_ps(columns + rows_a_group);
    __m512 square = _mm512_loadu_ps(columns + 2 * rows_a_group);
    __m512 radius = _mm512_add_ps(error, limit);
    __m512 near =
        _mm512_sub_ps(_mm512_add_ps(base, _mm512_mul_ps(square, keep)), _mm512_mul_ps(scale, _mm512_mul_ps(sum, step)));
    return _mm512_cmp_ps_mask(near, _mm512_mul_ps(radius, radius), _CMP_LE_OQ);
  }
};

template <uint32_t count, class Test>
KALOS_AVX512 inline uint64_t scan_groups(const uint8_t* groups, const CodeQuery& query, const Test& test,
                                         int32_t* sums) {
  __m512i found[count];
  high_sums<count>(groups, query, found);
  uint64_t mask = 0;
#pragma GCC unroll 4
  for (uint32_t g = 0; g < count; ++g) {
    _mm512_storeu_si512(sums + g * rows_a_group, found[g]);
    const uint8_t* columns = groups + g * query.shape.group_bytes() + query.shape.columns_at();
    uint64_t passed = test.passes(reinterpret_cast<const float*>(columns), _mm512_cvtepi32_ps(found[g]));
    mask |= passed << (g * rows_a_group);
  }
  return mask;
}

template <class Test>
KALOS_AVX512 inline uint64_t scan(const uint8_t* groups, uint32_t count, const CodeQuery& query, const Test& test,
                                  int32_t* sums) {
  switch (count) {
    case 4:
      return scan_groups<4>(groups, query, test, sums);
    case 3:
      return scan_groups<3>(groups, query, test, sums);
    case 2:
      return scan_groups<2>(groups, query, test, sums);
    default:
      return scan_groups<1>(groups, query, test, sums);
  }
}

KALOS_AVX512 uint64_t scan_similarity(const uint8_t* groups, uint32_t group_count, const CodeQuery& query,
                                      const SimilarityTest& test, int32_t* sums) {
  return scan(groups, group_count, query, Similarity(test), sums);
}

KALOS_AVX512 uint64_t scan_distance(const uint8_t* groups, uint32_t group_count, const CodeQuery& query,
                                    const DistanceTest& test, int32_t* sums) {
  return scan(groups, group_count, query, Distance(test), sums);
}

KALOS_AVX512 int32_t low_sum(const uint8_t* row, const CodeQuery& query) {
  const __m512i low_mask = _mm512_set1_epi8(0x0f), high_mask = _mm512_set1_epi8(char(0xf0));
  const size_t bytes = query.shape.low_bytes();
  __m512i low = _mm512_setzero_si512(), high = low;
  for (size_t at = 0; at < bytes; at += 64) {
    __mmask64 there = bytes - at >= 64 ? ~__mmask64{0} : (__mmask64{1} << (bytes - at)) - 1;
    __m512i two = _mm512_maskz_loadu_epi8(there, row + at);
    low = _mm512_dpbusd_epi32(low, _mm512_and_si512(two, low_mask),
                              _mm512_maskz_loadu_epi8(there, query.low_halves + at));
    high = _mm512_dpbusd_epi32(high, _mm512_and_si512(two, high_mask),
                               _mm512_maskz_loadu_epi8(there, query.high_halves + at));
  }
  return _mm512_reduce_add_epi32(_mm512_add_epi32(low, _mm512_srai_epi32(high, 4)));
}

}  // namespace

CodeKernels avx512_code_kernels() { return {scan_similarity, scan_distance, low_sum}; }

}  // namespace kalos

#endif
