// Chooses how a pass is run from what passes of its size have cost lately.
//
// For each size (in powers of two of the bytes that are read) and each plan, the planner keeps an exponential average
// of the time. It takes the plan with the lower average, stays with the one that it has unless the other is better by a
// fifth, and tries the other now and then, because a machine changes: a thread that had a CPU to itself may have lost
// it to somebody's model.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace kalos {

enum class Plan : uint8_t { one_thread, all_threads };

std::string_view plan_name(Plan plan);

class Planner {
 public:
  // threads: that a pass can have.
  explicit Planner(uint32_t threads) : threads_(threads) {}

  // can_share: the pass may be given to several threads.
  Plan choose(uint64_t bytes, bool can_share);
  // What it cost.
  void report(Plan plan, uint64_t bytes, int64_t elapsed_ns);

  // What a pass of this size is expected to take, in ns, by plan; 0: it was never tried.
  double expected_ns(Plan plan, uint64_t bytes) const { return sizes_[class_of(bytes)].average_ns[size_t(plan)]; }
  // How often each plan was run.
  uint64_t runs(Plan plan) const { return runs_[size_t(plan)]; }

 private:
  struct Size {
    Plan present = Plan::one_thread;
    double average_ns[2] = {0, 0};
    uint32_t since_trial = 0;
  };
  static size_t class_of(uint64_t bytes);

  uint32_t threads_;
  std::array<Size, 64> sizes_{};
  uint64_t runs_[2] = {0, 0};
};

}  // namespace kalos
