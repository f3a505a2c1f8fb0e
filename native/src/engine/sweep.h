// One query on its way over rows: what has been ruled out, what may still be among the best, and what is known.
//
//   scan     the high plane of each block gives every row an upper bound, kept for a window of rows
//   narrow   once the window is full, its best rows by these bounds get tighter ones from their low plane, which raises
//            the threshold; so do, after the last window, the other rows that still reach it. Those whose tighter bound
//            reaches it too are survivors
//   finish   survivors are scored from their vectors, the highest upper bound first, until none left can enter
//
// The threshold is the k-th best lower bound so far, so that at least k rows reach it: a row whose upper bound is lower
// is not among the k best, whatever its score. Bounds decide only what is looked at; every answer is a canonical score.
// Survivors are few, some tens where rows have clusters; where they are not (equal rows by the thousand), they are scored
// in between, so that memory stays bounded.
//
// A sweep first collects bounds and narrows afterwards because the threshold is worth most once all rows have been
// seen: of 10,000 clustered rows, narrowing at once read the low planes of 2,947, narrowing afterwards those of 39.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "compute/cpu/kernels.h"
#include "engine/coding.h"
#include "engine/pass.h"
#include "engine/sweep_counts.h"
#include "engine/top_k.h"

namespace kalos {

// Which rows count at all: those that are visible and that the filter matches. Asked only of rows that may be among the
// best.
class Admission {
 public:
  virtual ~Admission() = default;
  virtual bool admits(const RowRef& row) = 0;
};

class Sweep {
 public:
  // wanted: how many of the best rows; least_key: what is lower is not wanted at all; window: rows whose bounds are
  // kept at a time, a multiple of rows_a_block. admission: null where all rows count.
  Sweep(const Device& device, const Coder& coder, const PreparedQuery& query, size_t wanted, double least_key,
        uint32_t window, Admission* admission);

  // False: no row can be ruled out by bounds (a query of zeros, say); all have to be scored.
  bool has_bounds() const { return has_bounds_; }

  // What one of several sweeps looks at in a block of rows.
  struct Share {
    Sweep* sweep = nullptr;
    uint64_t among = 0;  // bit i clear: row i of the block is known not to count
  };
  // Scans rows [at, at + count) of a run with codes, for sweeps over one collection: at most rows_a_block, `at` a
  // multiple of rows_a_group. scans: room for as many.
  static void scan(std::span<const Share> shares, const Namespace& owner, const RowTable::Run& run, uint32_t at,
                   uint32_t count, BlockScan* scans);

  // A row that is scored already: would it enter the list? If it counts, it is to be added.
  bool takes(double key, uint64_t sequence) const { return key >= threshold_ && best_.takes(key, sequence); }
  void add(const Candidate& candidate);

  // Goes through the window, and through what windows left. The owner of the sweep need not ask for it; but between the
  // two, threads may share their thresholds.
  void narrow_best();
  void narrow_rest();
  // What another thread's sweep with the same query has found. Done with its scans.
  void take_over(Sweep& other);
  // The k-th best lower bound so far: no row below it is wanted.
  double threshold() const { return threshold_; }
  void raise_threshold(double key) { threshold_ = key > threshold_ ? key : threshold_; }

  // The best first. The sweep is done with.
  std::vector<Candidate> finish();
  const SweepCounts& counts() const { return counts_; }
  void count_scored(uint64_t rows) { counts_.scored += rows; }

 private:
  // The best lower bounds of distinct rows.
  class LowerBounds {
   public:
    explicit LowerBounds(size_t wanted) : wanted_(wanted) {}
    void add(double key);
    bool full() const { return keys_.size() == wanted_; }
    double worst() const { return keys_.front(); }
    const std::vector<double>& keys() const { return keys_; }

   private:
    size_t wanted_;
    std::vector<double> keys_;  // a heap, the worst on top
  };
  // A stretch of the window: rows of one run, one after the other.
  struct Stretch {
    const Namespace* owner = nullptr;
    RowTable::Run run;
    const CodedQuery* query = nullptr;
    uint32_t first_row = 0;  // of the run
    uint32_t start = 0;      // in the window, or among the rows that are kept
  };
  // Rows of one stretch that are narrowed together.
  struct Few {
    static constexpr uint32_t most = 16;
    uint32_t count = 0;
    uint32_t rows[most];  // of the run
    int32_t sums[most];   // of their high planes
    void add(uint32_t row, int32_t sum) {
      rows[count] = row;
      sums[count++] = sum;
    }
  };
  // A row that was left by its window.
  struct Kept {
    float upper = 0;
    int32_t sum = 0;
    uint32_t row = 0;  // of the run
  };
  struct Survivor {
    double upper = 0;
    RowRef row;
  };

  const CodedQuery& coded(const Coding& coding);
  BlockScan begin_scan(const Namespace& owner, const RowTable::Run& run, uint32_t at, uint32_t count, uint64_t among);
  void end_scan(uint32_t count);
  void order(uint32_t found);
  float bound_of_the_best(uint32_t found) const;
  const Stretch& stretch_of(uint32_t place) const;
  void keep(uint32_t found);
  void narrow() {
    narrow_best();
    narrow_rest();
  }
  void narrow(const uint32_t* places, uint32_t count);
  void narrow(const Stretch& stretch, const Few& few);
  void at_least(double key);
  void score_survivors();
  double key_of(const RowRef& row) const;
  bool admits(const RowRef& row) const { return !admission_ || admission_->admits(row); }

  const Device& device_;
  const Coder& coder_;
  const PreparedQuery& query_;
  const CodeKernels& kernels_;
  Admission* admission_;
  size_t wanted_;
  bool has_bounds_;
  double threshold_;
  uint32_t in_order_;  // of the next window
  size_t most_survivors_;

  std::vector<std::unique_ptr<CodedQuery>> coded_;  // the query for each coding met
  // The window.
  uint32_t window_;
  uint32_t filled_ = 0;
  std::vector<Stretch> stretches_;
  std::unique_ptr<float[]> upper_;
  std::unique_ptr<int32_t[]> sums_;
  std::unique_ptr<uint32_t[]> places_, ordered_;  // in it
  BoundTerms terms_;                              // of the last stretch
  // What windows left.
  std::vector<Kept> kept_;
  std::vector<Stretch> kept_stretches_;

  LowerBounds bounds_;  // from low planes and scores
  std::vector<Survivor> survivors_;
  TopK best_;  // of the rows that are scored
  SweepCounts counts_;
};

}  // namespace kalos
