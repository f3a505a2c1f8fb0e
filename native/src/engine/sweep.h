// One query on its way over rows: what has been ruled out, what may still be among the best, and what is known.
//
//   scan     the high plane of each block; a row stays whose upper bound reaches the threshold
//   narrow   the low plane of such a row gives tighter bounds; if it stays, it is a survivor
//   finish   survivors are scored from their vectors, the highest upper bound first, until none left can enter
//
// The threshold is the k-th best lower bound so far, so that at least k rows reach it: a row whose upper bound is lower
// is not among the k best, whatever its score. Bounds decide only what is looked at; every answer is a canonical score.
// Survivors are few (13 of a million, typically); where they are not (equal rows by the thousand), they are scored in
// between, so that memory stays bounded.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "compute/cpu/kernels.h"
#include "engine/coding.h"
#include "engine/pass.h"
#include "engine/top_k.h"

namespace kalos {

struct SweepCounts {
  uint64_t scanned = 0;   // rows whose high plane was read
  uint64_t narrowed = 0;  // rows whose low plane was read
  uint64_t scored = 0;    // rows whose vector was read
};

class Sweep {
 public:
  // wanted: how many of the best rows; least_key: what is lower is not wanted at all.
  Sweep(const Device& device, const Coder& coder, const PreparedQuery& query, size_t wanted, double least_key);

  bool has_bounds() const { return has_bounds_; }

  // Rows [at, at + count) of a run with codes, at most rows_a_block, `at` a multiple of that. `admits(i)` says whether
  // row at + i counts at all (it is visible, and the filter matches); it is asked only of rows that may be among the
  // best. among: bit i clear: row at + i is known not to count.
  template <class Admits>
  void scan(const Namespace& owner, const RowTable::Run& run, uint32_t at, uint32_t count, uint64_t among,
            Admits admits) {
    uint64_t passed = scan_block(run, at, count) & among;
    while (passed != 0) {
      auto i = uint32_t(__builtin_ctzll(passed));
      passed &= passed - 1;
      auto range = narrow(run, at, i);
      if (range.upper < threshold_ || !admits(i)) continue;
      survive(range, {&owner, RowCode::of(run.first + at + i, true)});
    }
    if (survivors_.size() > most_survivors_) score_survivors();
  }

  // A row that is scored already, and counts.
  bool takes(double key, uint64_t sequence) const { return key >= threshold_ && best_.takes(key, sequence); }
  void add(const Candidate& candidate);

  // The k-th best lower bound so far: no row below it is wanted.
  double threshold() const { return threshold_; }
  // What another thread found out about the same query.
  void raise_threshold(double key) { threshold_ = key > threshold_ ? key : threshold_; }
  void take_over(Sweep& other);

  // The best first. The sweep is done with.
  std::vector<Candidate> finish();
  const SweepCounts& counts() const { return counts_; }

 private:
  struct Survivor {
    double upper = 0;
    RowRef row;
  };

  uint64_t scan_block(const RowTable::Run& run, uint32_t at, uint32_t count);
  CodedQuery::Range narrow(const RowTable::Run& run, uint32_t at, uint32_t i);
  void survive(CodedQuery::Range range, const RowRef& row);
  void at_least(double key);
  void score_survivors();
  double key_of(const RowRef& row) const;
  const CodedQuery& coded(const RowTable::Run& run);

  const Device& device_;
  const Coder& coder_;
  const PreparedQuery& query_;
  const CodeKernels& kernels_;
  size_t wanted_;
  bool has_bounds_;
  double threshold_;
  size_t most_survivors_;
  std::vector<double> lower_bounds_;  // the `wanted_` best of distinct rows, the worst on top
  std::vector<Survivor> survivors_;
  TopK best_;                                       // of the rows that are scored
  std::vector<std::unique_ptr<CodedQuery>> coded_;  // the query for each coding met
  const CodedQuery* current_ = nullptr;
  SweepCounts counts_;
  alignas(64) int32_t sums_[rows_a_block];
};

}  // namespace kalos
