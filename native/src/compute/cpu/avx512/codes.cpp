// Scans over codes with AVX-512 VNNI. vpdpbusd multiplies unsigned by signed bytes and adds four products to each of 16
// sums: a register of a group's quad is 4 bytes of each of 16 rows, and the query's 4 bytes are broadcast. The high
// half of a byte is not shifted down: its products are 16 times too large, which the sum of the low halves is brought
// up to. Four groups share each broadcast.
#if defined(__x86_64__)

#include "compute/cpu/avx512/bounds.h"

#include <cstring>

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

template <uint32_t count, class Bounds>
KALOS_AVX512 inline void scan_groups(const uint8_t* groups, const Bounds& bounds, BlockScan& scan) {
  __m512i found[count];
  high_sums<count>(groups, *scan.query, found);
  store_bounds<count>(groups, bounds, found, scan);
}

template <class Bounds>
KALOS_AVX512 inline void scan(const uint8_t* groups, uint32_t count, BlockScan& scan) {
  const Bounds bounds(scan.terms);
  switch (count) {
    case 4:
      return scan_groups<4>(groups, bounds, scan);
    case 3:
      return scan_groups<3>(groups, bounds, scan);
    case 2:
      return scan_groups<2>(groups, bounds, scan);
    default:
      return scan_groups<1>(groups, bounds, scan);
  }
}

KALOS_AVX512 void scan_similarity(const uint8_t* groups, uint32_t group_count, BlockScan* scans, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) scan<Similarity>(groups, group_count, scans[i]);
}

KALOS_AVX512 void scan_distance(const uint8_t* groups, uint32_t group_count, BlockScan* scans, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) scan<Distance>(groups, group_count, scans[i]);
}

KALOS_AVX512 uint32_t at_least(const float* values, uint32_t count, float threshold, uint32_t* places) {
  const __m512 least = _mm512_set1_ps(threshold);
  __m512i place = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  uint32_t found = 0;
  for (uint32_t i = 0; i < count; i += 16, place = _mm512_add_epi32(place, _mm512_set1_epi32(16))) {
    __mmask16 there = count - i >= 16 ? __mmask16(0xffff) : __mmask16((1u << (count - i)) - 1);
    __mmask16 mask = _mm512_mask_cmp_ps_mask(there, _mm512_maskz_loadu_ps(there, values + i), least, _CMP_GE_OQ);
    if (mask == 0) continue;
    _mm512_storeu_si512(places + found, _mm512_maskz_compress_epi32(mask, place));  // found <= i: there is room
    found += uint32_t(__builtin_popcount(mask));
  }
  return found;
}

// The sums of 16 numbers each, of four registers.
KALOS_AVX512 inline __m128i reduce(const __m512i* four) {
  // Pairs of registers side by side, their halves added, until one register holds four numbers of each.
  __m512i ab = _mm512_add_epi32(_mm512_unpacklo_epi32(four[0], four[1]), _mm512_unpackhi_epi32(four[0], four[1]));
  __m512i cd = _mm512_add_epi32(_mm512_unpacklo_epi32(four[2], four[3]), _mm512_unpackhi_epi32(four[2], four[3]));
  __m512i all = _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
  __m256i half = _mm256_add_epi32(_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64(all, 1));
  return _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
}

KALOS_AVX512 void low_sums(const uint8_t* low, const uint32_t* rows, uint32_t count, const CodeQuery& query,
                           int32_t* sums) {
  const __m512i mask = _mm512_set1_epi8(0x0f);
  const size_t bytes = query.shape.low_bytes();
  for (uint32_t i = 0; i < count; i += 4) {
    const uint8_t* row[4];
    for (uint32_t j = 0; j < 4; ++j) row[j] = low + rows[i + j < count ? i + j : i] * bytes;
    __m512i total[4];
    for (auto& one : total) one = _mm512_setzero_si512();
    for (size_t at = 0; at < bytes; at += 64) {
      const __mmask64 there = bytes - at >= 64 ? ~__mmask64{0} : (__mmask64{1} << (bytes - at)) - 1;
      const __m512i low_half = _mm512_maskz_loadu_epi8(there, query.low_halves + at);
      const __m512i high_half = _mm512_maskz_loadu_epi8(there, query.high_halves + at);
#pragma GCC unroll 4
      for (uint32_t j = 0; j < 4; ++j) {
        __m512i two = _mm512_maskz_loadu_epi8(there, row[j] + at);
        total[j] = _mm512_dpbusd_epi32(total[j], _mm512_and_si512(two, mask), low_half);
        total[j] = _mm512_dpbusd_epi32(total[j], _mm512_and_si512(_mm512_srli_epi16(two, 4), mask), high_half);
      }
    }
    alignas(16) int32_t found[4];
    _mm_store_si128(reinterpret_cast<__m128i*>(found), reduce(total));
    for (uint32_t j = 0; j < 4 && i + j < count; ++j) sums[i + j] = found[j];
  }
}

}  // namespace

CodeKernels avx512_code_kernels() { return {scan_similarity, scan_distance, at_least, low_sums}; }

}  // namespace kalos

#endif
