// Coding: how rows become codes (compute/codes.h), and how far a code can be from its row.
//
// Rows are centred and scaled before they are rounded: embeddings share a direction and have outlier dimensions, which
// would take the whole range of 8 bits. For a row y (of cosine: x / |x|), a mean mu and powers of two D:
//
//   c_i = round((y_i - mu_i) / (D_i s)),  s = max_i |y_i - mu_i| / D_i / 127
//
// Any c and s would do: what is exact is the bound. With `error` >= |y - mu - s D c|, for every query q:
//
//   |q.y - q.mu - s (D q).c| <= |q| error            (Cauchy-Schwarz)
//   ||q - y| - |q - mu - s D c|| <= error            (the triangle; l2)
//
// and the query's own rounding D q = t a + r, a in [-127, 127], adds at most s |c| |r|. All bounds hold for the
// canonical scores as computed in double, not only for true ones: errors are raised by 2^-40 of the lengths, where 8192
// components summed in 32 parts err by less than 2^-44. Bounds by norms instead of the triangle would be useless away
// from the origin, where the norms are large and the differences small.
//
// The method is that of a filter-and-refine exact search over a quantized copy (the VA-file: Weber, Schek, Blott, 1998).
#pragma once

#include <kalos/abi.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "compute/codes.h"
#include "compute/device.h"

namespace kalos {

inline constexpr double code_rounding = 0x1p-40;  // of canonical scores and of q . mu, relative to the lengths

// What the codes of a stretch of rows have in common.
struct Coding {
  std::vector<double> mean;          // mu, padded with zeros
  std::vector<float> scale;          // D, powers of two, padded with ones
  std::vector<float> inverse_scale;  // 1 / D
  double mean_norm = 0;              // |mu|, rounded up
  double typical_error = 0;          // of the rows that it was learned from: the mean of |y - mu - s D c|
};

// The bounds of a row that its low plane is judged by.
struct CodeBounds {
  float scale = 0;   // s
  float error = 0;   // of c
  float reach = 0;   // s |c|
  float square = 0;  // |s D c|^2
};

// Where the codes of one row lie.
struct CodePlace {
  uint8_t* group = nullptr;
  uint32_t row_of_group = 0;
  uint8_t* low = nullptr;
  CodeBounds* bounds = nullptr;
};

class Coder {
 public:
  Coder(uint32_t dimension, kalos_metric metric);

  uint32_t dimension() const { return dimension_; }
  uint32_t padded() const { return padded_dimension(dimension_); }
  kalos_metric metric() const { return metric_; }
  CodeShape shape() const { return {padded() / 8, metric_ == KALOS_METRIC_L2}; }

  // What new rows are coded by.
  const std::shared_ptr<const Coding>& coding() const { return coding_; }
  // From now on: learned from `rows`, float32[padded] each.
  struct SampleRow {
    const float* vector = nullptr;
    double norm = 0;
  };
  void learn(std::span<const SampleRow> rows);
  uint64_t times_learned() const { return times_learned_; }
  // Have the rows coded lately been farther from their codes than those learned from, by half?
  bool has_drifted() const;

  // Writes the codes of a row. `reach`: raised to s |c'| of the high plane if that is more; INFINITY is never written.
  void encode(const Coding& coding, const float* vector, double norm, const CodePlace& place, float& reach);

 private:
  double prepare(const Coding& coding, const float* vector, double norm);

  uint32_t dimension_;
  kalos_metric metric_;
  std::shared_ptr<const Coding> coding_;
  double recent_error_ = 0;
  uint64_t recent_rows_ = 0;
  uint64_t times_learned_ = 0;
  std::vector<double> centred_;
  std::vector<float> scaled_;
  std::vector<uint8_t> codes_;
};

// A query against rows of one coding: what the kernels need, and bounds from what they find.
class CodedQuery {
 public:
  // False: no bound can be given (a zero query under cosine, or components beyond 2^50): rows are to be scored instead.
  static bool can_be_bounded(kalos_metric metric, const PreparedQuery& query);
  // The coding is to outlive it.
  CodedQuery(const Coder& coder, const Coding& coding, const PreparedQuery& query);

  const Coding* coding() const { return coding_; }
  const CodeQuery& code_query() const { return code_query_; }

  // A key is a score, or a negated distance: higher is better. With these terms the kernels find upper bounds of keys.
  // reach: the largest s |c'| of the rows.
  BoundTerms terms(double reach) const;
  // A key, rounded so that every row whose key reaches it has an upper bound in float32 that does.
  static float threshold(double key);

  // The key of a row lies within. high_sum: S of the scan; low_sum: of its low plane.
  struct Range {
    double lower = 0;
    double upper = 0;
  };
  Range range(int32_t high_sum, int32_t low_sum, const CodeBounds& bounds) const;

 private:
  Range around(double product, const CodeBounds& bounds) const;

  kalos_metric metric_;
  const Coding* coding_;
  std::vector<int8_t> halves_;
  CodeQuery code_query_;
  double step_ = 0;     // t
  double slack_ = 0;    // >= |r|, raised by the roundings of the float tests
  double weight_ = 0;   // |q|, 1 for cosine
  double at_mean_ = 0;  // q . mu, or |q - mu|^2
};

// ---- what is asked of each row that is looked at: inline ----

inline CodedQuery::Range CodedQuery::range(int32_t high_sum, int32_t low_sum, const CodeBounds& bounds) const {
  // S = 2 * (16 a.h) - 241 sum(a), so that 16 a.h = (S + 241 sum(a)) / 2, and a.c = 16 a.h + a.low - 128 sum(a).
  int64_t high = (int64_t{high_sum} + int64_t{twice_the_middle} * code_query_.sum) / 2;
  return around(double(high + low_sum - 128 * int64_t{code_query_.sum}), bounds);
}

// product: of the query's code and the row's.
inline CodedQuery::Range CodedQuery::around(double product, const CodeBounds& bounds) const {
  double estimate = double(bounds.scale) * step_ * product;
  double slack = double(bounds.reach) * slack_;
  if (metric_ != KALOS_METRIC_L2) {
    double radius = weight_ * (1 + code_rounding) * double(bounds.error) + slack + 0x1p-100;
    return {at_mean_ + estimate - radius, at_mean_ + estimate + radius};
  }
  double squared = at_mean_ + double(bounds.square) - 2 * estimate;
  double slop = 2 * slack + 0x1p-22 * double(bounds.square) + code_rounding * at_mean_ + 0x1p-100;
  double nearest =
      std::sqrt(std::max(0.0, squared - slop)) * (1 - code_rounding) - double(bounds.error) * (1 + code_rounding);
  double farthest =
      std::sqrt(std::max(0.0, squared + slop)) * (1 + code_rounding) + double(bounds.error) * (1 + code_rounding);
  return {-farthest, -nearest};
}

}  // namespace kalos
