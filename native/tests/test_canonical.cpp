// The canonical arithmetic, bit for bit, against the words of canonical.h followed literally.
#include "compute/cpu/portable/canonical.h"

#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "check.h"
#include "compute/cpu/kernels.h"

using namespace kalos;

namespace {

double naive_sum(const std::vector<float>& x, const std::vector<float>& q, bool squared_distance) {
  double partial[32] = {};
  for (size_t i = 0; i < x.size(); ++i) {
    if (squared_distance) {
      double difference = double(x[i]) - double(q[i]);
      partial[i % 32] = std::fma(difference, difference, partial[i % 32]);
    } else {
      partial[i % 32] = partial[i % 32] + double(x[i]) * double(q[i]);
    }
  }
  for (int j = 0; j < 16; ++j) partial[j] = partial[j] + partial[j + 16];
  for (int j = 0; j < 8; ++j) partial[j] = partial[j] + partial[j + 8];
  for (int j = 0; j < 4; ++j) partial[j] = partial[j] + partial[j + 4];
  for (int j = 0; j < 2; ++j) partial[j] = partial[j] + partial[j + 2];
  return partial[0] + partial[1];
}

double naive_score(kalos_metric metric, const std::vector<float>& x, const std::vector<float>& q) {
  if (metric == KALOS_METRIC_L2) return std::sqrt(naive_sum(x, q, true));
  double dot = naive_sum(x, q, false);
  if (metric == KALOS_METRIC_DOT) return dot;
  double norm_q = std::sqrt(naive_sum(q, q, false)), norm_x = std::sqrt(naive_sum(x, x, false));
  return norm_q == 0 || norm_x == 0 ? 0.0 : dot / (norm_q * norm_x);
}

bool same_bits(double a, double b) { return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b); }

std::vector<float> any_vector(std::mt19937& random, size_t d, int spread) {
  std::uniform_real_distribution<float> mantissa(-1, 1);
  std::uniform_int_distribution<int> exponent(-spread, spread);
  std::vector<float> vector(d);
  for (float& x : vector) x = std::ldexp(mantissa(random), exponent(random));
  if (d > 3) vector[d / 2] = -0.0f;
  return vector;
}

const kalos_metric metrics[] = {KALOS_METRIC_COSINE, KALOS_METRIC_DOT, KALOS_METRIC_L2};

}  // namespace

TEST(every_kernel_gives_the_bits_of_the_definition_for_every_dimension) {
  std::mt19937 random(1);
  auto device = make_cpu_device();
  std::cout << "kernels of the device: " << best_kernels().name << "\n";
  std::vector<size_t> dimensions;
  for (size_t d = 1; d <= 130; ++d) dimensions.push_back(d);
  for (size_t d : {383, 384, 768, 1000, 1536, 8191, 8192}) dimensions.push_back(d);
  int wrong = 0;
  for (size_t d : dimensions) {
    for (int spread : {0, 5, 120}) {
      auto q = any_vector(random, d, spread);
      size_t stride = padded_dimension(uint32_t(d));
      constexpr size_t rows = 5;
      std::vector<float> matrix(rows * stride);
      std::vector<std::vector<float>> vectors;
      std::vector<double> norms;
      for (size_t r = 0; r < rows; ++r) {
        vectors.push_back(r == 3 ? std::vector<float>(d) : any_vector(random, d, spread));
        std::copy(vectors[r].begin(), vectors[r].end(), matrix.begin() + std::ptrdiff_t(r * stride));
        norms.push_back(canonical_norm(vectors[r]));
      }
      PreparedQuery query = prepare_query(q);
      for (kalos_metric metric : metrics) {
        double scores[rows];
        device->score(metric, {matrix.data(), norms.data(), uint32_t(stride), rows}, query, scores);
        for (size_t r = 0; r < rows; ++r) {
          double expected = naive_score(metric, vectors[r], q);
          wrong += !same_bits(expected, scores[r]);
          wrong += !same_bits(expected, canonical_score(metric, q, vectors[r]));
        }
      }
    }
  }
  CHECK_EQ(0, wrong);
}

TEST(the_order_of_summing_matters_so_the_test_above_can_fail) {
  std::mt19937 random(2);
  int different = 0;
  for (int i = 0; i < 100; ++i) {
    auto x = any_vector(random, 384, 3), q = any_vector(random, 384, 3);
    double plain = 0;
    for (size_t j = 0; j < x.size(); ++j) plain += double(x[j]) * double(q[j]);
    different += plain != naive_score(KALOS_METRIC_DOT, x, q);
  }
  CHECK(different > 30);
}

TEST(zero_vectors_score_zero_and_never_minus_zero) {
  std::vector<float> zero(7), minus(7, -0.0f), one(7, 1.0f), minus_one(7, -1.0f);
  CHECK(same_bits(0.0, canonical_score(KALOS_METRIC_COSINE, zero, one)));
  CHECK(same_bits(0.0, canonical_score(KALOS_METRIC_COSINE, one, minus)));
  CHECK(same_bits(0.0, canonical_score(KALOS_METRIC_DOT, minus, minus_one)));
  CHECK(same_bits(0.0, canonical_score(KALOS_METRIC_L2, minus, zero)));
}

TEST(the_largest_and_the_smallest_floats_give_finite_scores) {
  std::vector<float> large(8192, 3.4028235e38f), small(8192, 1e-45f);
  for (kalos_metric metric : metrics) {
    CHECK(std::isfinite(canonical_score(metric, large, large)));
    CHECK(std::isfinite(canonical_score(metric, large, small)));
    CHECK(std::isfinite(canonical_score(metric, small, small)));
  }
  CHECK(canonical_score(KALOS_METRIC_DOT, small, small) > 0);
  CHECK(std::abs(canonical_score(KALOS_METRIC_COSINE, small, large) - 1) < 1e-12);
}

TEST_MAIN
