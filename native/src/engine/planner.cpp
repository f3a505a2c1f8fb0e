#include "engine/planner.h"

#include <algorithm>
#include <bit>

namespace kalos {
namespace {

// Read by one thread in less than a tenth of a millisecond: nothing that waking another would be worth.
constexpr uint64_t least_shared_bytes = 2 << 20;
constexpr double weight_of_the_new = 0.125;
constexpr double worth_changing_for = 0.8;
constexpr uint32_t passes_between_trials = 64;

}  // namespace

std::string_view plan_name(Plan plan) { return plan == Plan::one_thread ? "one thread" : "all threads"; }

size_t Planner::class_of(uint64_t bytes) { return size_t(std::bit_width(std::max<uint64_t>(bytes, 1)) - 1); }

Plan Planner::choose(uint64_t bytes, bool can_share) {
  if (!can_share || threads_ < 2 || bytes < least_shared_bytes) return Plan::one_thread;
  Size& size = sizes_[class_of(bytes)];
  Plan other = size.present == Plan::one_thread ? Plan::all_threads : Plan::one_thread;
  double mine = size.average_ns[size_t(size.present)], its = size.average_ns[size_t(other)];
  if (mine == 0) return size.present;
  if (its == 0) return other;
  if (its < mine * worth_changing_for) size.present = other;
  if (++size.since_trial < passes_between_trials) return size.present;
  size.since_trial = 0;
  return size.present == Plan::one_thread ? Plan::all_threads : Plan::one_thread;
}

void Planner::report(Plan plan, uint64_t bytes, int64_t elapsed_ns) {
  ++runs_[size_t(plan)];
  double& average = sizes_[class_of(bytes)].average_ns[size_t(plan)];
  auto elapsed = double(std::max<int64_t>(elapsed_ns, 1));
  average = average == 0 ? elapsed : average + (elapsed - average) * weight_of_the_new;
}

}  // namespace kalos
