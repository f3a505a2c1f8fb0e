#include "engine/coding.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace kalos {
namespace {

constexpr double least_norm = 0x1p-50, greatest_norm = 0x1p50;
constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr double more = 1 + 0x1p-38;        // a sum of 8192 squares in double errs by less
constexpr double float_rounding = 0x1p-19;  // of the tests in float32, likewise
constexpr double least_scale = 0x1p-3, greatest_scale = 0x1p12;
constexpr uint64_t rows_to_judge_by = 1024;

float up(double value) {
  auto narrow = float(value);
  return double(narrow) < value ? std::nextafter(narrow, infinity) : narrow;
}
float down(double value) { return -up(-value); }

// Sums that the compiler may keep in one register. The order is of no matter: bounds allow for it.
constexpr size_t parts = 8;

inline double total(const double (&partial)[parts]) {
  double sum = 0;
  for (double part : partial) sum += part;
  return sum;
}

template <class Term>
inline double sum(size_t count, Term term) {
  double partial[parts] = {};
  for (size_t i = 0; i < count; i += parts) {
    for (size_t j = 0; j < parts; ++j) partial[j] += term(i + j);
  }
  return total(partial);
}

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define KALOS_FAST_CLONES __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define KALOS_FAST_CLONES
#endif

// scaled := centred / D; returns the largest magnitude.
KALOS_FAST_CLONES float scale_down(const double* centred, const float* inverse_scale, size_t count, float* scaled) {
  float largest[parts] = {};
  for (size_t i = 0; i < count; i += parts) {
    for (size_t j = 0; j < parts; ++j) {
      scaled[i + j] = float(centred[i + j]) * inverse_scale[i + j];
      float magnitude = std::fabs(scaled[i + j]);
      largest[j] = magnitude > largest[j] ? magnitude : largest[j];
    }
  }
  return *std::max_element(largest, largest + parts);
}

// codes := round(scaled * factor) + 128, in [1, 255].
KALOS_FAST_CLONES void round_to_codes(const float* scaled, float factor, size_t count, uint8_t* codes) {
  for (size_t i = 0; i < count; ++i) {
    auto rounded = int32_t(scaled[i] * factor + 128.5f);  // never negative, so that cutting off rounds
    codes[i] = uint8_t(std::min(std::max(rounded, 1), 255));
  }
}

struct Distances {
  double error = 0, high_error = 0;    // squared: of c, of c'
  double length = 0, high_length = 0;  // |c|^2, |c'|^2
  double square = 0, high_square = 0;  // |s D c|^2, |s D c'|^2
};

KALOS_FAST_CLONES Distances distances(const double* centred, const float* scale, double row_scale, size_t count,
                                      const uint8_t* codes) {
  double sums[6][parts] = {};
  for (size_t i = 0; i < count; i += parts) {
    for (size_t j = 0; j < parts; ++j) {
      double code = double(codes[i + j]) - 128;
      double high = double(codes[i + j] & 0xf0) + 7.5 - 128;
      double step = row_scale * double(scale[i + j]);
      double value = step * code, high_value = step * high;
      double error = centred[i + j] - value, high_error = centred[i + j] - high_value;
      sums[0][j] += error * error;
      sums[1][j] += high_error * high_error;
      sums[2][j] += code * code;
      sums[3][j] += high * high;
      sums[4][j] += value * value;
      sums[5][j] += high_value * high_value;
    }
  }
  return {total(sums[0]), total(sums[1]), total(sums[2]), total(sums[3]), total(sums[4]), total(sums[5])};
}

// codes := scaled / step, rounded; returns the sum of the squares of what is left.
KALOS_FAST_CLONES double quantize(const double* scaled, double step, double inverse_step, size_t count, double* codes) {
  constexpr double rounder = 0x1.8p52;  // what is added to it is rounded to a whole number
  double left[parts] = {};
  for (size_t i = 0; i < count; i += parts) {
    for (size_t j = 0; j < parts; ++j) {
      double code = (scaled[i + j] * inverse_step + rounder) - rounder;
      double difference = scaled[i + j] - step * code;
      codes[i + j] = code;
      left[j] += difference * difference;
    }
  }
  return total(left);
}

void write_planes(const uint8_t* codes, uint32_t quads, const CodePlace& place) {
  uint8_t* high = place.group + place.row_of_group * 4;
  uint8_t* low = place.low;
  for (uint32_t quad = 0; quad < quads; ++quad, codes += 8, low += 4, high += 4 * rows_a_group) {
    for (uint32_t b = 0; b < 4; ++b) {
      high[b] = uint8_t((codes[b] >> 4) | (codes[b + 4] & 0xf0));
      low[b] = uint8_t((codes[b] & 0x0f) | (codes[b + 4] << 4));
    }
  }
}

// That changes nothing.
std::shared_ptr<Coding> neutral_coding(size_t width) {
  auto coding = std::make_shared<Coding>();
  coding->mean.assign(width, 0);
  coding->scale.assign(width, 1);
  coding->inverse_scale.assign(width, 1);
  return coding;
}

}  // namespace

Coder::Coder(uint32_t dimension, kalos_metric metric) : dimension_(dimension), metric_(metric) {
  coding_ = neutral_coding(padded());
  centred_.resize(padded());
  scaled_.resize(padded());
  codes_.resize(padded());
}

void Coder::learn(std::span<const SampleRow> rows) {
  ++times_learned_;
  const size_t width = padded();
  auto coding = neutral_coding(width);
  std::vector<double> squares(width, 0), spread(width, 0);
  size_t taken = 0;
  for (const SampleRow& row : rows) {
    if (!(row.norm >= least_norm && row.norm <= greatest_norm)) continue;
    double factor = metric_ == KALOS_METRIC_COSINE ? 1 / row.norm : 1;
    for (size_t i = 0; i < width; ++i) {
      double y = row.vector[i] * factor;
      coding->mean[i] += y;
      squares[i] += y * y;
    }
    ++taken;
  }
  if (taken != 0) {
    std::vector<double> known;
    for (size_t i = 0; i < width; ++i) {
      coding->mean[i] /= double(taken);
      spread[i] = std::sqrt(std::max(0.0, squares[i] / double(taken) - coding->mean[i] * coding->mean[i]));
      if (spread[i] > 0) known.push_back(spread[i]);
    }
    if (!known.empty()) {
      auto middle = known.begin() + std::ptrdiff_t(known.size() / 2);
      std::nth_element(known.begin(), middle, known.end());
      for (size_t i = 0; i < dimension_; ++i) {
        double wanted = spread[i] > 0 ? std::clamp(spread[i] / *middle, least_scale, greatest_scale) : least_scale;
        coding->scale[i] = float(std::exp2(std::round(std::log2(wanted))));
        coding->inverse_scale[i] = 1 / coding->scale[i];
      }
    }
  }
  double squared = sum(width, [&](size_t i) { return coding->mean[i] * coding->mean[i]; });
  coding->mean_norm = std::sqrt(squared) * more;
  coding_ = coding;
  // How far rows are from such codes, before any is written.
  recent_error_ = 0;
  recent_rows_ = 0;
  std::vector<uint8_t> group(shape().group_bytes()), low(shape().low_bytes());
  CodeBounds bounds;
  float reach = 0;
  for (const SampleRow& row : rows)
    encode(*coding, row.vector, row.norm, {group.data(), 0, low.data(), &bounds}, reach);
  coding->typical_error = recent_rows_ == 0 ? 0 : recent_error_ / double(recent_rows_);
  recent_error_ = 0;
  recent_rows_ = 0;
}

bool Coder::has_drifted() const {
  return recent_rows_ >= rows_to_judge_by && recent_error_ / double(recent_rows_) > 1.5 * coding_->typical_error;
}

// Fills centred_ and scaled_; returns s, or 0 where the row has no code but zeros.
double Coder::prepare(const Coding& coding, const float* vector, double norm) {
  const size_t width = padded();
  const double factor = metric_ == KALOS_METRIC_COSINE ? 1 / norm : 1;
  for (size_t i = 0; i < width; ++i) centred_[i] = double(vector[i]) * factor - coding.mean[i];
  float largest = scale_down(centred_.data(), coding.inverse_scale.data(), width, scaled_.data());
  float row_scale = largest / 127;
  return row_scale >= std::numeric_limits<float>::min() ? row_scale : 0;
}

void Coder::encode(const Coding& coding, const float* vector, double norm, const CodePlace& place, float& reach) {
  const size_t width = padded();
  auto* columns = reinterpret_cast<float*>(place.group + shape().columns_at()) + place.row_of_group;
  const bool squares = shape().squares;
  double longest = metric_ == KALOS_METRIC_COSINE ? 1 : norm;
  bool can = norm <= greatest_norm && (metric_ != KALOS_METRIC_COSINE || norm >= least_norm);
  double row_scale = can ? prepare(coding, vector, norm) : 0;
  if (row_scale != 0) {
    round_to_codes(scaled_.data(), 1 / float(row_scale), width, codes_.data());
  } else {
    std::fill(codes_.begin(), codes_.end(), uint8_t{128});
  }
  write_planes(codes_.data(), shape().quads, place);
  if (!can) {
    // Nothing is known of this row: it always passes, and is scored.
    columns[0] = 0;
    columns[rows_a_group] = infinity;
    if (squares) columns[2 * rows_a_group] = 0;
    *place.bounds = {0, infinity, 0, 0};
    return;
  }
  Distances found = distances(centred_.data(), coding.scale.data(), row_scale, width, codes_.data());
  double roundings = code_rounding * (longest + coding.mean_norm);
  columns[0] = float(row_scale);
  columns[rows_a_group] = up(std::sqrt(found.high_error) * more + roundings);
  if (squares) columns[2 * rows_a_group] = float(found.high_square);
  double length = row_scale * std::sqrt(found.length);
  *place.bounds = {float(row_scale), up(std::sqrt(found.error) * more + roundings), up(length * more),
                   float(found.square)};
  reach = std::max(reach, up(row_scale * std::sqrt(found.high_length) * more));
  if (length > 0) {
    recent_error_ += std::sqrt(found.error);
    ++recent_rows_;
    if (recent_rows_ == 2 * rows_to_judge_by) {
      recent_error_ /= 2;
      recent_rows_ /= 2;
    }
  }
}

bool CodedQuery::can_be_bounded(kalos_metric metric, const PreparedQuery& query) {
  return query.norm <= greatest_norm && (metric == KALOS_METRIC_L2 || query.norm >= least_norm);
}

CodedQuery::CodedQuery(const Coder& coder, const Coding& coding, const PreparedQuery& query)
    : metric_(coder.metric()), coding_(&coding) {
  const size_t width = coder.padded();
  std::vector<double> scaled(width);
  const double factor = metric_ == KALOS_METRIC_COSINE ? 1 / query.norm : 1;
  double largest = 0;
  for (size_t i = 0; i < width; ++i) {
    double component = query.components[i] * factor;
    if (metric_ == KALOS_METRIC_L2) component -= coding_->mean[i];
    scaled[i] = component * double(coding_->scale[i]);
    largest = std::max(largest, std::fabs(scaled[i]));
  }
  if (metric_ == KALOS_METRIC_L2) {
    at_mean_ = sum(width, [&](size_t i) {
      double difference = query.components[i] - coding_->mean[i];
      return difference * difference;
    });
  } else {
    at_mean_ = sum(width, [&](size_t i) { return query.components[i] * factor * coding_->mean[i]; });
  }
  weight_ = metric_ == KALOS_METRIC_DOT ? query.norm : 1;
  step_ = largest / 127;
  // Below this the steps themselves would lose their precision; the query counts as zero, all of it as slack.
  if (step_ < 0x1p-100) step_ = 0;
  std::vector<double> codes(width);
  const double rest = quantize(scaled.data(), step_, step_ == 0 ? 0 : 1 / step_, width, codes.data());
  const double length = sum(width, [&](size_t i) { return scaled[i] * scaled[i]; });
  halves_.assign(width, 0);
  int8_t* low = halves_.data();
  int8_t* high = halves_.data() + width / 2;
  for (size_t quad = 0; quad < width / 8; ++quad) {
    for (size_t b = 0; b < 4; ++b) {
      low[quad * 4 + b] = int8_t(codes[quad * 8 + b]);
      high[quad * 4 + b] = int8_t(codes[quad * 8 + 4 + b]);
      code_query_.sum += low[quad * 4 + b] + high[quad * 4 + b];
    }
  }
  slack_ = std::sqrt(rest) * more + float_rounding * std::sqrt(length);
  code_query_.shape = coder.shape();
  code_query_.low_halves = low;
  code_query_.high_halves = high;
}

BoundTerms CodedQuery::terms(double reach) const {
  // Every rounding in float32 is relative to what is added: the row's part, at most reach * |q'| (slack_ has 2^-19 of
  // it); its error times the weight (raised by 2^-19); the base (raised by as much of itself).
  BoundTerms terms;
  terms.weight = up(weight_ * (1 + float_rounding));
  if (metric_ != KALOS_METRIC_L2) {
    terms.step = float(step_ / 2);
    double base = at_mean_ + reach * slack_;
    terms.base = up(base + float_rounding * (std::fabs(at_mean_) + reach * slack_) + 0x1p-100);
    return terms;
  }
  // The square of the distance from the middle of the code is at_mean + square - 2 s t P; 2^-19 of the first two is
  // more than all roundings of them and of the root.
  terms.step = float(step_);
  terms.base = down(at_mean_ * (1 - float_rounding) - 2 * reach * slack_ - 0x1p-100);
  terms.keep = down(1 - float_rounding);
  terms.shrink = down(1 - float_rounding);
  return terms;
}

float CodedQuery::threshold(double key) {
  // Keys that are bounded at all are far above the lowest float; -infinity is the bound of rows that do not count.
  return std::max(down(key), std::numeric_limits<float>::lowest());
}

}  // namespace kalos
