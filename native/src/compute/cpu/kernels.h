// The inner sums of the canonical arithmetic: one table of functions for each instruction set, all bit-identical.
#pragma once

#include <cstddef>

namespace kalos {

// rows: float32[count][stride]; query: float64[stride]; stride is a multiple of 8; sums: float64[count].
struct Kernels {
  const char* name;
  // sum of x * q
  void (*dot)(const float* rows, size_t stride, size_t count, const double* query, double* sums);
  // sum of (x - q)^2, by fma
  void (*squared_distance)(const float* rows, size_t stride, size_t count, const double* query, double* sums);
};

const Kernels& portable_kernels();
const Kernels* avx2_kernels();  // null where the CPU or the build has none
const Kernels& best_kernels();

}  // namespace kalos
