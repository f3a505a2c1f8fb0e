// What all reads of one pass share: the state that they see, and the bounds on their time.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "compute/device.h"
#include "engine/collection.h"
#include "engine/reply.h"
#include "engine/sweep_counts.h"

namespace kalos {

class ScanPool;
class Planner;

struct Snapshot {
  uint64_t commit_sequence = 0;
  int64_t now_us = 0;  // rows that expired by then do not exist
  const Device* device = nullptr;
  ScanPool* pool = nullptr;
  Planner* planner = nullptr;
  SweepCounts* totals = nullptr;  // of all passes
};

// A deadline that is looked at every 64k rows: reading the clock for each row would cost more than the row.
class Deadline {
 public:
  explicit Deadline(int64_t deadline_ns) : deadline_ns_(deadline_ns) {}

  bool passed() const { return deadline_ns_ != 0 && monotonic_ns() >= deadline_ns_; }
  // After `rows` more rows of work: has it passed?
  bool passed_after(uint64_t rows) {
    rows_ += rows;
    if (rows_ < rows_between_looks) return false;
    rows_ = 0;
    return passed();
  }

 private:
  static constexpr uint64_t rows_between_looks = 65536;
  int64_t deadline_ns_;
  uint64_t rows_ = 0;
};

// Asking a filter of one row is worth this many rows of plain work.
inline constexpr uint64_t rows_a_filter_costs = 16;

inline Error expired_error() {
  return {KALOS_STATUS_EXPIRED, "the deadline passed before the answer was complete; nothing was changed"};
}

// A row that a read chose. Good until the next change of the index.
struct RowRef {
  const Namespace* owner = nullptr;
  RowCode code;

  const RowEntry& entry() const { return owner->entry(code); }
};

// The row as a hit, with the columns that `include` (enum kalos_include) asks for.
Hit make_hit(const RowRef& row, uint32_t include);

}  // namespace kalos
