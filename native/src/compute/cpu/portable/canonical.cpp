#include "compute/cpu/portable/canonical.h"

#include <algorithm>
#include <cmath>

#include "compute/cpu/kernels.h"

namespace kalos {
namespace {

constexpr size_t lanes = 32;

double tree(double* partial) {
  for (size_t width = lanes / 2; width >= 1; width /= 2) {
    for (size_t j = 0; j < width; ++j) partial[j] += partial[j + width];
  }
  return partial[0];
}

void dot(const float* rows, size_t stride, size_t count, const double* query, double* sums) {
  for (size_t row = 0; row < count; ++row) {
    const float* x = rows + row * stride;
    double partial[lanes] = {};
    size_t i = 0;
    for (; i + lanes <= stride; i += lanes) {
      for (size_t j = 0; j < lanes; ++j) partial[j] += double(x[i + j]) * query[i + j];
    }
    for (size_t j = 0; i + j < stride; ++j) partial[j] += double(x[i + j]) * query[i + j];
    sums[row] = tree(partial);
  }
}

void squared_distance(const float* rows, size_t stride, size_t count, const double* query, double* sums) {
  for (size_t row = 0; row < count; ++row) {
    const float* x = rows + row * stride;
    double partial[lanes] = {};
    for (size_t i = 0; i < stride; ++i) {
      double difference = double(x[i]) - query[i];
      partial[i % lanes] = std::fma(difference, difference, partial[i % lanes]);
    }
    sums[row] = tree(partial);
  }
}

}  // namespace

CanonicalKernels portable_canonical_kernels() { return {dot, squared_distance}; }

PreparedQuery prepare_query(std::span<const float> query) {
  PreparedQuery prepared;
  prepared.components.resize(padded_dimension(uint32_t(query.size())));
  std::copy(query.begin(), query.end(), prepared.components.begin());
  prepared.norm = canonical_norm(query);
  return prepared;
}

double canonical_norm(std::span<const float> vector) {
  double partial[lanes] = {};
  size_t i = 0;
  for (; i + lanes <= vector.size(); i += lanes) {
    for (size_t j = 0; j < lanes; ++j) partial[j] += double(vector[i + j]) * double(vector[i + j]);
  }
  for (size_t j = 0; i + j < vector.size(); ++j) partial[j] += double(vector[i + j]) * double(vector[i + j]);
  return std::sqrt(tree(partial));
}

double canonical_score(kalos_metric metric, std::span<const float> query, std::span<const float> vector) {
  PreparedQuery prepared = prepare_query(query);
  std::vector<float> padded(prepared.components.size());
  std::copy(vector.begin(), vector.end(), padded.begin());
  const CanonicalKernels kernels = portable_canonical_kernels();
  double sum = 0;
  if (metric == KALOS_METRIC_L2) {
    kernels.squared_distance(padded.data(), padded.size(), 1, prepared.components.data(), &sum);
    return std::sqrt(sum);
  }
  kernels.dot(padded.data(), padded.size(), 1, prepared.components.data(), &sum);
  if (metric == KALOS_METRIC_DOT) return sum;
  double norm = canonical_norm(vector);
  return prepared.norm == 0 || norm == 0 ? 0.0 : sum / (prepared.norm * norm);
}

}  // namespace kalos
