// Scans over codes in plain C++: what the other instruction sets must agree with.
#include <cstring>

#include "compute/cpu/kernels.h"

namespace kalos {
namespace {

void high_sums(const uint8_t* group, const CodeQuery& query, int32_t* sums) {
  for (uint32_t row = 0; row < rows_a_group; ++row) sums[row] = 0;
  for (uint32_t quad = 0; quad < query.shape.quads; ++quad) {
    const uint8_t* bytes = group + size_t{quad} * 4 * rows_a_group;
    const int8_t* low = query.low_halves + quad * 4;
    const int8_t* high = query.high_halves + quad * 4;
    for (uint32_t row = 0; row < rows_a_group; ++row) {
      for (uint32_t b = 0; b < 4; ++b) {
        uint8_t two = bytes[row * 4 + b];
        sums[row] += (two & 15) * low[b] + (two >> 4) * high[b];
      }
    }
  }
  for (uint32_t row = 0; row < rows_a_group; ++row) sums[row] = 32 * sums[row] - twice_the_middle * query.sum;
}

template <class Passes>
uint64_t scan(const uint8_t* groups, uint32_t group_count, const CodeQuery& query, int32_t* sums, Passes passes) {
  uint64_t mask = 0;
  for (uint32_t i = 0; i < group_count; ++i) {
    const uint8_t* group = groups + i * query.shape.group_bytes();
    high_sums(group, query, sums + i * rows_a_group);
    const auto* columns = reinterpret_cast<const float*>(group + query.shape.columns_at());
    for (uint32_t row = 0; row < rows_a_group; ++row) {
      uint32_t bit = i * rows_a_group + row;
      mask |= uint64_t{passes(columns + row, float(sums[bit]))} << bit;
    }
  }
  return mask;
}

uint64_t scan_similarity(const uint8_t* groups, uint32_t group_count, const CodeQuery& query,
                         const SimilarityTest& test, int32_t* sums) {
  return scan(groups, group_count, query, sums, [&](const float* columns, float sum) {
    float scale = columns[0], error = columns[rows_a_group];
    return scale * (sum * test.step) + error * test.weight >= test.threshold;
  });
}

uint64_t scan_distance(const uint8_t* groups, uint32_t group_count, const CodeQuery& query, const DistanceTest& test,
                       int32_t* sums) {
  return scan(groups, group_count, query, sums, [&](const float* columns, float sum) {
    float scale = columns[0], error = columns[rows_a_group], square = columns[2 * rows_a_group];
    float radius = error + test.limit;
    return (test.base + square * test.keep) - scale * (sum * test.step) <= radius * radius;
  });
}

int32_t low_sum(const uint8_t* low, const CodeQuery& query) {
  int32_t sum = 0;
  for (size_t i = 0; i < query.shape.low_bytes(); ++i) {
    sum += (low[i] & 15) * query.low_halves[i] + (low[i] >> 4) * query.high_halves[i];
  }
  return sum;
}

}  // namespace

CodeKernels portable_code_kernels() { return {scan_similarity, scan_distance, low_sum}; }

}  // namespace kalos
