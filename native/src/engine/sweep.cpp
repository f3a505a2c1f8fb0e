#include "engine/sweep.h"

#include <algorithm>
#include <functional>
#include <limits>

namespace kalos {
namespace {

// Enough that scoring in between is rare, little enough that 64 queries over a million equal rows stay in bounds.
constexpr size_t fewest_survivors_kept = 16384;
// Rows of a window that are narrowed by their bounds, before the others: about so many, by a sample of the bounds. The
// first window is what raises the threshold from nothing.
constexpr uint32_t first_in_order = 128, then_in_order = 32;
constexpr uint32_t sampled = 64;
constexpr size_t most_kept = 16384;

}  // namespace

Sweep::Sweep(const Device& device, const Coder& coder, const PreparedQuery& query, size_t wanted, double least_key,
             uint32_t window, Admission* admission)
    : device_(device),
      coder_(coder),
      query_(query),
      kernels_(best_kernels().codes),
      admission_(admission),
      wanted_(wanted),
      has_bounds_(CodedQuery::can_be_bounded(coder.metric(), query)),
      threshold_(least_key),
      in_order_(uint32_t(std::max<size_t>(first_in_order, 2 * wanted))),
      most_survivors_(std::max(fewest_survivors_kept, 4 * wanted)),
      window_(window),
      bounds_(wanted),
      best_(wanted, least_key) {}

void Sweep::LowerBounds::add(double key) {
  if (keys_.size() == wanted_) {
    if (wanted_ == 0 || key <= keys_.front()) return;
    std::pop_heap(keys_.begin(), keys_.end(), std::greater<>());
    keys_.back() = key;
  } else {
    keys_.push_back(key);
  }
  std::push_heap(keys_.begin(), keys_.end(), std::greater<>());
}

void Sweep::at_least(double key) {
  bounds_.add(key);
  if (wanted_ != 0 && bounds_.full()) raise_threshold(bounds_.worst());
}

const CodedQuery& Sweep::coded(const Coding& coding) {
  for (const auto& known : coded_) {
    if (known->coding() == &coding) return *known;
  }
  coded_.push_back(std::make_unique<CodedQuery>(coder_, coding, query_));
  return *coded_.back();
}

void Sweep::scan(std::span<const Share> shares, const Namespace& owner, const RowTable::Run& run, uint32_t at,
                 uint32_t count, BlockScan* scans) {
  for (size_t i = 0; i < shares.size(); ++i) {
    scans[i] = shares[i].sweep->begin_scan(owner, run, at, count, shares[i].among);
  }
  const Sweep& any = *shares.front().sweep;
  const uint32_t groups = (count + rows_a_group - 1) / rows_a_group;
  auto kernel = any.coder_.metric() == KALOS_METRIC_L2 ? any.kernels_.scan_distance : any.kernels_.scan_similarity;
  kernel(run.groups + at / rows_a_group * any.coder_.shape().group_bytes(), groups, scans, uint32_t(shares.size()));
  for (const Share& share : shares) share.sweep->end_scan(count);
}

BlockScan Sweep::begin_scan(const Namespace& owner, const RowTable::Run& run, uint32_t at, uint32_t count,
                            uint64_t among) {
  const uint32_t groups = (count + rows_a_group - 1) / rows_a_group;
  if (filled_ + groups * rows_a_group > window_) narrow_best();
  if (!upper_) {
    upper_ = std::make_unique_for_overwrite<float[]>(window_);
    sums_ = std::make_unique_for_overwrite<int32_t[]>(window_);
    places_ = std::make_unique_for_overwrite<uint32_t[]>(window_);
    ordered_ = std::make_unique_for_overwrite<uint32_t[]>(window_);
  }
  bool goes_on = !stretches_.empty() && stretches_.back().run.groups == run.groups &&
                 stretches_.back().first_row + (filled_ - stretches_.back().start) == at;
  if (!goes_on) {
    const CodedQuery& query = coded(*run.coding);
    stretches_.push_back({&owner, run, &query, at, filled_});
    terms_ = query.terms(run.reach);
  }
  if (count < rows_a_block) among &= (uint64_t{1} << count) - 1;
  return {&stretches_.back().query->code_query(), terms_, among, upper_.get() + filled_, sums_.get() + filled_};
}

void Sweep::end_scan(uint32_t count) {
  filled_ += (count + rows_a_group - 1) / rows_a_group * rows_a_group;
  counts_.scanned += count;
}

void Sweep::narrow_best() {
  if (filled_ == 0) return;
  const float threshold = CodedQuery::threshold(threshold_);
  float bound = threshold;
  uint32_t found = kernels_.at_least(upper_.get(), filled_, bound, places_.get());
  while (found > 2 * in_order_) {
    const float higher = bound_of_the_best(found);
    if (!(higher > bound)) break;  // thousands have one and the same bound
    bound = higher;
    found = kernels_.at_least(upper_.get(), filled_, bound, places_.get());
  }
  const bool few = found <= 2 * in_order_;
  if (few) {
    order(found);
    narrow(ordered_.get(), found);
    for (uint32_t i = 0; i < found; ++i) upper_[ordered_[i]] = -std::numeric_limits<float>::infinity();
  }
  if (!few || bound > threshold) {
    keep(kernels_.at_least(upper_.get(), filled_, CodedQuery::threshold(threshold_), places_.get()));
  }
  in_order_ = uint32_t(std::max<size_t>(then_in_order, 2 * wanted_));
  stretches_.clear();
  filled_ = 0;
}

// What about in_order_ of the places found reach, or some more where they are very many.
float Sweep::bound_of_the_best(uint32_t found) const {
  float bounds[sampled];
  for (uint32_t i = 0; i < sampled; ++i) bounds[i] = upper_[places_[uint64_t{i} * found / sampled]];
  const uint32_t rank = uint32_t(uint64_t{in_order_} * sampled / found);
  std::nth_element(bounds, bounds + rank, bounds + sampled, std::greater<>());
  return bounds[rank];
}

// Those that the best have not ruled out may be many. They wait for what other windows do to the threshold.
void Sweep::keep(uint32_t found) {
  if (kept_.size() + found > most_kept) {
    narrow_rest();
    narrow(places_.get(), found);
    return;
  }
  const Stretch* stretch = nullptr;
  uint32_t end = 0;  // of the stretch
  for (uint32_t i = 0; i < found; ++i) {
    const uint32_t place = places_[i];
    if (place >= end) {
      stretch = &stretch_of(place);
      end = stretch == &stretches_.back() ? filled_ : stretch[1].start;
      kept_stretches_.push_back(*stretch);
      kept_stretches_.back().start = uint32_t(kept_.size());
    }
    kept_.push_back({upper_[place], sums_[place], stretch->first_row + (place - stretch->start)});
  }
}

// They are read as they lie in memory: in the order of their bounds, each would be a cache miss.
void Sweep::narrow_rest() {
  for (size_t s = 0; s < kept_stretches_.size(); ++s) {
    const size_t end = s + 1 == kept_stretches_.size() ? kept_.size() : kept_stretches_[s + 1].start;
    for (size_t i = kept_stretches_[s].start; i < end;) {
      const float threshold = CodedQuery::threshold(threshold_);
      Few few;
      for (; i < end && few.count < few.most; ++i) {
        if (kept_[i].upper >= threshold) few.add(kept_[i].row, kept_[i].sum);
      }
      narrow(kept_stretches_[s], few);
    }
  }
  kept_.clear();
  kept_stretches_.clear();
}

// A few at a time: the low planes of some are on their way while others are summed.
void Sweep::narrow(const uint32_t* places, uint32_t count) {
  for (uint32_t i = 0; i < count;) {
    const float threshold = CodedQuery::threshold(threshold_);
    const Stretch* stretch = nullptr;
    uint32_t start = 0, end = window_;  // of the stretch
    Few few;
    for (; i < count && few.count < few.most; ++i) {
      const uint32_t place = places[i];
      if (upper_[place] < threshold) continue;
      if (!stretch) {
        stretch = &stretch_of(place);
        start = stretch->start;
        end = stretch == &stretches_.back() ? filled_ : stretch[1].start;
      } else if (place < start || place >= end) {
        break;
      }
      few.add(stretch->first_row + (place - start), sums_[place]);
    }
    if (stretch) narrow(*stretch, few);
  }
}

// ordered_ := the places found, higher bounds before lower ones, roughly: by which of many equal steps between the
// least and the greatest a bound is in. A sort would take longer than all that follows.
void Sweep::order(uint32_t found) {
  constexpr uint32_t steps = 256;
  constexpr float highest = std::numeric_limits<float>::max();
  float least = highest, greatest = -highest;
  for (uint32_t i = 0; i < found; ++i) {
    float bound = upper_[places_[i]];
    least = std::min(least, bound);
    if (bound <= highest) greatest = std::max(greatest, bound);
  }
  const float range = greatest - least;
  const float scale = range > 0 && range <= highest ? float(steps - 1) / range : 0;
  // Infinity, which is the bound of rows of which nothing is known, is in the first step, as the greatest are.
  auto step_of = [&](float bound) {
    return bound >= greatest ? 0 : std::min(uint32_t((greatest - bound) * scale), steps - 1);
  };
  uint32_t starts[steps + 1] = {};
  for (uint32_t i = 0; i < found; ++i) ++starts[step_of(upper_[places_[i]]) + 1];
  for (uint32_t step = 0; step < steps; ++step) starts[step + 1] += starts[step];
  for (uint32_t i = 0; i < found; ++i) ordered_[starts[step_of(upper_[places_[i]])]++] = places_[i];
}

const Sweep::Stretch& Sweep::stretch_of(uint32_t place) const {
  if (stretches_.size() == 1) return stretches_.front();
  auto after = std::upper_bound(stretches_.begin(), stretches_.end(), place,
                                [](uint32_t at, const Stretch& stretch) { return at < stretch.start; });
  return *std::prev(after);
}

void Sweep::narrow(const Stretch& stretch, const Few& few) {
  if (few.count == 0) return;
  int32_t low[Few::most];
  kernels_.low_sums(stretch.run.low, few.rows, few.count, stretch.query->code_query(), low);
  counts_.narrowed += few.count;
  for (uint32_t i = 0; i < few.count; ++i) {
    auto range = stretch.query->range(few.sums[i], low[i], stretch.run.bounds[few.rows[i]]);
    if (range.upper < threshold_) continue;
    RowRef row{stretch.owner, RowCode::of(stretch.run.first + few.rows[i], true)};
    if (!admits(row)) continue;
    survivors_.push_back({range.upper, row});
    at_least(range.lower);
  }
  if (survivors_.size() > most_survivors_) score_survivors();
}

void Sweep::add(const Candidate& candidate) {
  at_least(candidate.key);
  best_.add(candidate);
  raise_threshold(best_.threshold());
}

double Sweep::key_of(const RowRef& row) const {
  double score = 0;
  device_.score(coder_.metric(), row.owner->vectors().block(row.code.row()), query_, &score);
  return coder_.metric() == KALOS_METRIC_L2 ? -score : score;
}

void Sweep::score_survivors() {
  std::erase_if(survivors_, [&](const Survivor& survivor) { return survivor.upper < threshold_; });
  std::sort(survivors_.begin(), survivors_.end(),
            [](const Survivor& a, const Survivor& b) { return a.upper > b.upper; });
  for (const Survivor& survivor : survivors_) {
    // Rows that could only tie with the worst of the best are looked at too: the sequence decides.
    if (survivor.upper < threshold_ || survivor.upper < best_.threshold()) break;
    ++counts_.scored;
    double key = key_of(survivor.row);
    uint64_t sequence = survivor.row.entry().sequence;
    if (best_.takes(key, sequence)) best_.add({key, sequence, survivor.row});
  }
  survivors_.clear();
  raise_threshold(best_.threshold());
}

void Sweep::take_over(Sweep& other) {
  other.raise_threshold(threshold_);
  other.narrow();
  raise_threshold(other.threshold_);
  survivors_.insert(survivors_.end(), other.survivors_.begin(), other.survivors_.end());
  for (double key : other.bounds_.keys()) at_least(key);
  for (const Candidate& candidate : other.best_.take_sorted()) {
    if (best_.takes(candidate.key, candidate.sequence)) best_.add(candidate);
  }
  counts_ += other.counts_;
  raise_threshold(best_.threshold());
}

std::vector<Candidate> Sweep::finish() {
  narrow();
  score_survivors();
  return best_.take_sorted();
}

}  // namespace kalos
