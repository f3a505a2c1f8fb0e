// The inner loops, one table of functions for each instruction set. All give the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "compute/codes.h"

namespace kalos {

// Sums of the canonical arithmetic (compute/cpu/portable/canonical.h).
// rows: float32[count][stride]; query: float64[stride]; stride is a multiple of 8; sums: float64[count].
struct CanonicalKernels {
  // sum of x * q
  void (*dot)(const float* rows, size_t stride, size_t count, const double* query, double* sums);
  // sum of (x - q)^2, by fma
  void (*squared_distance)(const float* rows, size_t stride, size_t count, const double* query, double* sums);
};

// What one query wants to know of a block of rows.
struct BlockScan {
  const CodeQuery* query = nullptr;
  BoundTerms terms;
  uint64_t among = 0;       // bit i: row i is to be looked at; other rows get the upper bound -infinity
  float* upper = nullptr;   // float32[rows], filled: the bound of each row
  int32_t* sums = nullptr;  // int32[rows], filled: S of each row
};

// Scans over codes (compute/codes.h).
struct CodeKernels {
  // Scans 1 to 4 groups for `count` queries, all of one shape.
  void (*scan_similarity)(const uint8_t* groups, uint32_t group_count, BlockScan* scans, uint32_t count);
  void (*scan_distance)(const uint8_t* groups, uint32_t group_count, BlockScan* scans, uint32_t count);
  // Places of the values of at least `threshold`, in rising order; how many they are. places: room for `count` rounded
  // up to 16, of which all may be written.
  uint32_t (*at_least)(const float* values, uint32_t count, float threshold, uint32_t* places);
  // query . (low nibbles of the row), for each of `count` rows of a low plane. sums: int32[count].
  void (*low_sums)(const uint8_t* low, const uint32_t* rows, uint32_t count, const CodeQuery& query, int32_t* sums);
};

struct Kernels {
  const char* name;
  CanonicalKernels canonical;
  CodeKernels codes;
};

// By these names, the best first, KALOS_KERNELS asks for a set.
inline constexpr std::string_view kernel_names[] = {"amx", "avx512", "avx2", "portable"};

const Kernels& portable_kernels();
// Null where the CPU or the build has none.
const Kernels* avx2_kernels();
const Kernels* avx512_kernels();
const Kernels* amx_kernels();
const Kernels& best_kernels();

// Parts of the tables that another instruction set takes over.
CanonicalKernels portable_canonical_kernels();
CodeKernels portable_code_kernels();
CanonicalKernels avx2_canonical_kernels();
CodeKernels avx2_code_kernels();
CodeKernels avx512_code_kernels();
CodeKernels amx_code_kernels();
// Asks the system for the tiles' registers. False: it has none.
bool may_use_tiles();

}  // namespace kalos
