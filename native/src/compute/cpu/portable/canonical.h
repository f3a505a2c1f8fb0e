// The canonical score arithmetic: part of Kalos's contract, so that a score is the same number on every device.
//
// For a row x and a query q of d float32 components, every operation in IEEE 754 binary64, rounded to nearest even,
// without contraction:
//
//   sum32(t)   32 partial sums, all +0 at first. Partial sum j takes the terms t_i of i = j mod 32 in rising i. Then
//              partial sums j and j + 16 are added for j < 16, of these j and j + 8 for j < 8, then 4, 2, 1.
//   dot        sum32 with acc_j := acc_j + double(x_i) * double(q_i). A product of two floats is exact in double, so
//              that a fused multiply-add gives the same bits.
//   norm       |x| = sqrt(dot(x, x))
//   cosine     dot(x, q) / (|q| * |x|); 0 where |q| or |x| is 0
//   l2         sqrt(sum32) with e := double(x_i) - double(q_i), acc_j := fma(e, e, acc_j), one rounding
//
// Components beyond d count as zero: adding the product of zeros changes no partial sum. No sum is ever -0.
#pragma once

#include <kalos/abi.h>

#include <span>

#include "compute/device.h"

namespace kalos {

PreparedQuery prepare_query(std::span<const float> query);

// |x| of a vector of any length.
double canonical_norm(std::span<const float> vector);

// One score, by the portable kernels.
double canonical_score(kalos_metric metric, std::span<const float> query, std::span<const float> vector);

}  // namespace kalos
