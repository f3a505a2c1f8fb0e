// The canonical sums (compute/cpu/portable/canonical.h) with AVX2 and FMA: the 32 partial sums are eight registers of
// four.
#if defined(__x86_64__)

#include <immintrin.h>

#include "compute/cpu/kernels.h"

#define KALOS_AVX2 __attribute__((target("avx2,fma")))

namespace kalos {
namespace {

KALOS_AVX2 inline __m256d widen(const float* four) { return _mm256_cvtps_pd(_mm_loadu_ps(four)); }

// Partial sums j + 16, j + 8, j + 4, j + 2, j + 1, in that order: `sums` holds lanes 0-3, 4-7, ... 28-31.
KALOS_AVX2 inline double tree(const __m256d* sums) {
  __m256d a0 = _mm256_add_pd(sums[0], sums[4]), a1 = _mm256_add_pd(sums[1], sums[5]);
  __m256d a2 = _mm256_add_pd(sums[2], sums[6]), a3 = _mm256_add_pd(sums[3], sums[7]);
  __m256d b0 = _mm256_add_pd(a0, a2), b1 = _mm256_add_pd(a1, a3);
  __m256d c = _mm256_add_pd(b0, b1);
  __m128d d = _mm_add_pd(_mm256_castpd256_pd128(c), _mm256_extractf128_pd(c, 1));
  return _mm_cvtsd_f64(_mm_add_sd(d, _mm_unpackhi_pd(d, d)));
}

KALOS_AVX2 void dot(const float* rows, size_t stride, size_t count, const double* query, double* sums) {
  for (size_t row = 0; row < count; ++row) {
    const float* x = rows + row * stride;
    __m256d partial[8];
    for (auto& sum : partial) sum = _mm256_setzero_pd();
    size_t i = 0;
    for (; i + 32 <= stride; i += 32) {
#pragma GCC unroll 8
      for (size_t j = 0; j < 8; ++j) {
        partial[j] = _mm256_fmadd_pd(widen(x + i + 4 * j), _mm256_loadu_pd(query + i + 4 * j), partial[j]);
      }
    }
#pragma GCC unroll 3
    for (size_t group = 0; group < 3; ++group, i += 8) {
      if (i >= stride) break;
      __m256d& low = partial[2 * group];
      __m256d& high = partial[2 * group + 1];
      low = _mm256_fmadd_pd(widen(x + i), _mm256_loadu_pd(query + i), low);
      high = _mm256_fmadd_pd(widen(x + i + 4), _mm256_loadu_pd(query + i + 4), high);
    }
    sums[row] = tree(partial);
  }
}

KALOS_AVX2 void squared_distance(const float* rows, size_t stride, size_t count, const double* query, double* sums) {
  for (size_t row = 0; row < count; ++row) {
    const float* x = rows + row * stride;
    __m256d partial[8];
    for (auto& sum : partial) sum = _mm256_setzero_pd();
    size_t i = 0;
    for (; i + 32 <= stride; i += 32) {
#pragma GCC unroll 8
      for (size_t j = 0; j < 8; ++j) {
        __m256d difference = _mm256_sub_pd(widen(x + i + 4 * j), _mm256_loadu_pd(query + i + 4 * j));
        partial[j] = _mm256_fmadd_pd(difference, difference, partial[j]);
      }
    }
#pragma GCC unroll 3
    for (size_t group = 0; group < 3; ++group, i += 8) {
      if (i >= stride) break;
      __m256d& low = partial[2 * group];
      __m256d& high = partial[2 * group + 1];
      __m256d first = _mm256_sub_pd(widen(x + i), _mm256_loadu_pd(query + i));
      __m256d second = _mm256_sub_pd(widen(x + i + 4), _mm256_loadu_pd(query + i + 4));
      low = _mm256_fmadd_pd(first, first, low);
      high = _mm256_fmadd_pd(second, second, high);
    }
    sums[row] = tree(partial);
  }
}

}  // namespace

CanonicalKernels avx2_canonical_kernels() { return {dot, squared_distance}; }

}  // namespace kalos

#endif
