#include "engine/sweep.h"

#include <algorithm>
#include <functional>
#include <limits>

namespace kalos {
namespace {

// Enough that scoring in between is rare, little enough that 64 queries over a million equal rows stay in bounds.
constexpr size_t fewest_kept = 16384;

}  // namespace

Sweep::Sweep(const Device& device, const Coder& coder, const PreparedQuery& query, size_t wanted, double least_key)
    : device_(device),
      coder_(coder),
      query_(query),
      kernels_(best_kernels().codes),
      wanted_(wanted),
      has_bounds_(CodedQuery::can_be_bounded(coder.metric(), query)),
      threshold_(least_key),
      most_survivors_(std::max(fewest_kept, 4 * wanted)),
      best_(wanted, least_key) {
  lower_bounds_.reserve(wanted);
}

const CodedQuery& Sweep::coded(const RowTable::Run& run) {
  if (current_ && current_->coding() == run.coding) return *current_;
  for (const auto& known : coded_) {
    if (known->coding() == run.coding) return *(current_ = known.get());
  }
  coded_.push_back(std::make_unique<CodedQuery>(coder_, *run.coding, query_));
  return *(current_ = coded_.back().get());
}

uint64_t Sweep::scan_block(const RowTable::Run& run, uint32_t at, uint32_t count) {
  const CodedQuery& query = coded(run);
  uint32_t groups = (count + rows_a_group - 1) / rows_a_group;
  const uint8_t* start = run.groups + at / rows_a_group * query.code_query().shape.group_bytes();
  uint64_t passed =
      coder_.metric() == KALOS_METRIC_L2
          ? kernels_.scan_distance(start, groups, query.code_query(), query.distance_test(threshold_, run.reach), sums_)
          : kernels_.scan_similarity(start, groups, query.code_query(), query.similarity_test(threshold_, run.reach),
                                     sums_);
  counts_.scanned += count;
  return count == rows_a_block ? passed : passed & ((uint64_t{1} << count) - 1);
}

CodedQuery::Range Sweep::narrow(const RowTable::Run& run, uint32_t at, uint32_t i) {
  ++counts_.narrowed;
  const CodeQuery& query = current_->code_query();
  int32_t low = kernels_.low_sum(run.low + (at + i) * query.shape.low_bytes(), query);
  return current_->range(sums_[i], low, run.bounds[at + i]);
}

void Sweep::survive(CodedQuery::Range range, const RowRef& row) {
  survivors_.push_back({range.upper, row});
  at_least(range.lower);
}

// One more row whose key is at least this.
void Sweep::at_least(double key) {
  if (wanted_ == 0) return;
  if (lower_bounds_.size() == wanted_) {
    if (key <= lower_bounds_.front()) return;
    std::pop_heap(lower_bounds_.begin(), lower_bounds_.end(), std::greater<>());
    lower_bounds_.back() = key;
  } else {
    lower_bounds_.push_back(key);
  }
  std::push_heap(lower_bounds_.begin(), lower_bounds_.end(), std::greater<>());
  if (lower_bounds_.size() == wanted_) raise_threshold(lower_bounds_.front());
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
  raise_threshold(other.threshold_);
  survivors_.insert(survivors_.end(), other.survivors_.begin(), other.survivors_.end());
  for (double key : other.lower_bounds_) at_least(key);
  for (const Candidate& candidate : other.best_.take_sorted()) {
    if (best_.takes(candidate.key, candidate.sequence)) best_.add(candidate);
  }
  counts_.scanned += other.counts_.scanned;
  counts_.narrowed += other.counts_.narrowed;
  counts_.scored += other.counts_.scored;
  raise_threshold(best_.threshold());
}

std::vector<Candidate> Sweep::finish() {
  score_survivors();
  return best_.take_sorted();
}

}  // namespace kalos
