// The best rows of a query so far: a bounded heap whose top is the worst of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "engine/pass.h"

namespace kalos {

struct Candidate {
  double key = 0;  // higher is better: the score, or the negated distance
  uint64_t sequence = 0;
  RowRef row;
};

// The order of results. Of equal keys the lower sequence is better.
inline bool better(const Candidate& a, const Candidate& b) {
  return a.key > b.key || (a.key == b.key && a.sequence < b.sequence);
}

class TopK {
 public:
  // least_key: what is lower is not wanted at all.
  TopK(size_t capacity, double least_key) : capacity_(capacity), threshold_(least_key) {}

  // A row whose key is lower than this cannot enter; one whose key equals it may.
  double threshold() const { return threshold_; }
  bool takes(double key, uint64_t sequence) const {
    if (heap_.size() < capacity_) return key >= threshold_;
    return capacity_ != 0 && better({key, sequence, {}}, heap_.front());
  }
  void add(const Candidate& candidate) {
    if (heap_.size() == capacity_) {
      std::pop_heap(heap_.begin(), heap_.end(), better);
      heap_.back() = candidate;
    } else {
      heap_.push_back(candidate);
    }
    std::push_heap(heap_.begin(), heap_.end(), better);
    if (heap_.size() == capacity_) threshold_ = heap_.front().key;
  }
  // The best first.
  std::vector<Candidate> take_sorted() {
    std::sort_heap(heap_.begin(), heap_.end(), better);
    return std::move(heap_);
  }

 private:
  size_t capacity_;
  double threshold_;
  std::vector<Candidate> heap_;
};

}  // namespace kalos
