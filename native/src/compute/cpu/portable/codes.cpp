// Scans over codes in plain C++: what the other instruction sets must agree with.
#include <algorithm>
#include <cmath>
#include <limits>

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

template <class Upper>
void scan(const uint8_t* groups, uint32_t group_count, BlockScan& scan, Upper upper_of) {
  const CodeShape& shape = scan.query->shape;
  for (uint32_t i = 0; i < group_count; ++i) {
    const uint8_t* group = groups + i * shape.group_bytes();
    high_sums(group, *scan.query, scan.sums + i * rows_a_group);
    const auto* columns = reinterpret_cast<const float*>(group + shape.columns_at());
    for (uint32_t row = 0; row < rows_a_group; ++row) {
      uint32_t at = i * rows_a_group + row;
      float raised = columns[rows_a_group + row] * scan.terms.weight;
      float upper = upper_of(columns + row, float(scan.sums[at]) * scan.terms.step, raised);
      if (!(scan.among >> at & 1)) upper = -std::numeric_limits<float>::infinity();
      scan.upper[at] = upper;
    }
  }
}

void scan_similarity(const uint8_t* groups, uint32_t group_count, BlockScan* scans, uint32_t count) {
  for (BlockScan* one = scans; one != scans + count; ++one) {
    scan(groups, group_count, *one, [&](const float* columns, float product, float raised) {
      return columns[0] * product + (raised + one->terms.base);
    });
  }
}

void scan_distance(const uint8_t* groups, uint32_t group_count, BlockScan* scans, uint32_t count) {
  for (BlockScan* one = scans; one != scans + count; ++one) {
    scan(groups, group_count, *one, [&](const float* columns, float product, float raised) {
      float squared = (columns[2 * rows_a_group] * one->terms.keep + one->terms.base) - columns[0] * product;
      return raised - std::sqrt(std::max(squared, 0.0f)) * one->terms.shrink;
    });
  }
}

uint32_t at_least(const float* values, uint32_t count, float threshold, uint32_t* places) {
  uint32_t found = 0;
  for (uint32_t i = 0; i < count; ++i) {
    places[found] = i;
    found += values[i] >= threshold;
  }
  return found;
}

void low_sums(const uint8_t* low, const uint32_t* rows, uint32_t count, const CodeQuery& query, int32_t* sums) {
  const size_t bytes = query.shape.low_bytes();
  for (uint32_t i = 0; i < count; ++i) {
    const uint8_t* row = low + rows[i] * bytes;
    sums[i] = 0;
    for (size_t at = 0; at < bytes; ++at) {
      sums[i] += (row[at] & 15) * query.low_halves[at] + (row[at] >> 4) * query.high_halves[at];
    }
  }
}

}  // namespace

CodeKernels portable_code_kernels() { return {scan_similarity, scan_distance, at_least, low_sums}; }

}  // namespace kalos
