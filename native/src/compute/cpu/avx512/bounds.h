// From the sums of a block to the bounds of its rows, 16 at a time: what the scans with AVX-512 and with tiles share.
#pragma once

#if defined(__x86_64__)

// GCC 12 sees an uninitialised variable in its own intrinsics (GCC bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#include <immintrin.h>

#include "compute/cpu/kernels.h"

#define KALOS_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni")))

namespace kalos {

// Upper bounds of 16 rows. raised: error * weight.
struct Similarity {
  __m512 step, base;
  KALOS_AVX512 explicit Similarity(const BoundTerms& terms)
      : step(_mm512_set1_ps(terms.step)), base(_mm512_set1_ps(terms.base)) {}
  KALOS_AVX512 __m512 upper(const float* columns, __m512 sum, __m512 raised) const {
    __m512 estimate = _mm512_mul_ps(_mm512_loadu_ps(columns), _mm512_mul_ps(sum, step));
    return _mm512_add_ps(estimate, _mm512_add_ps(raised, base));
  }
};

struct Distance {
  __m512 step, base, keep, shrink;
  KALOS_AVX512 explicit Distance(const BoundTerms& terms)
      : step(_mm512_set1_ps(terms.step)),
        base(_mm512_set1_ps(terms.base)),
        keep(_mm512_set1_ps(terms.keep)),
        shrink(_mm512_set1_ps(terms.shrink)) {}
  KALOS_AVX512 __m512 upper(const float* columns, __m512 sum, __m512 raised) const {
    __m512 square = _mm512_loadu_ps(columns + 2 * rows_a_group);
    __m512 squared = _mm512_sub_ps(_mm512_add_ps(_mm512_mul_ps(square, keep), base),
                                   _mm512_mul_ps(_mm512_loadu_ps(columns), _mm512_mul_ps(sum, step)));
    __m512 distance = _mm512_sqrt_ps(_mm512_max_ps(squared, _mm512_setzero_ps()));
    return _mm512_sub_ps(raised, _mm512_mul_ps(distance, shrink));
  }
};

// Fills a scan of `count` groups. sums[g]: S of the 16 rows of group g.
template <uint32_t count, class Bounds>
KALOS_AVX512 inline void store_bounds(const uint8_t* groups, const Bounds& bounds, const __m512i* sums,
                                      BlockScan& scan) {
  const CodeShape& shape = scan.query->shape;
  const __m512 nothing = _mm512_set1_ps(-__builtin_inff()), weight = _mm512_set1_ps(scan.terms.weight);
#pragma GCC unroll 4
  for (uint32_t g = 0; g < count; ++g) {
    const auto* columns = reinterpret_cast<const float*>(groups + g * shape.group_bytes() + shape.columns_at());
    __m512 raised = _mm512_mul_ps(_mm512_loadu_ps(columns + rows_a_group), weight);
    __m512 bound = bounds.upper(columns, _mm512_cvtepi32_ps(sums[g]), raised);
    bound = _mm512_mask_mov_ps(nothing, __mmask16(scan.among >> (g * rows_a_group)), bound);
    _mm512_storeu_ps(scan.upper + g * rows_a_group, bound);
    _mm512_storeu_si512(scan.sums + g * rows_a_group, sums[g]);
  }
}

}  // namespace kalos

#endif
