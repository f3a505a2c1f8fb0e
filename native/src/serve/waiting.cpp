#include "serve/waiting.h"

#include <sched.h>

#include <algorithm>

#include "base/clock.h"
#include "base/cpus.h"
#include "serve/lane_semaphore.h"

namespace kalos {
namespace {

constexpr int64_t crowd_memory_ns = 1'000'000;  // another lane that was active this recently counts as active
constexpr int polls_per_yield = 64;

}  // namespace

SpinGovernor::SpinGovernor(int cpus, int64_t limit_us) : cpus_(cpus), limit_ns_(cpus < 2 ? 0 : limit_us * 1000) {}

bool SpinGovernor::crowded(const Lane& lane, int64_t now_ns) const {
  if (cpus_ > 2) return false;
  if (now_ns < crowded_until_ns_.load(std::memory_order_relaxed)) return true;
  return last_lane_.load(std::memory_order_relaxed) != lane.id &&
         now_ns - last_arrival_ns_.load(std::memory_order_relaxed) < crowd_memory_ns;
}

void SpinGovernor::arrived(Lane& lane, int64_t now_ns) {
  if (lane.idle_since_ns != 0) {
    int64_t gap = now_ns - lane.idle_since_ns;
    lane.gap_ns = lane.gap_ns < 0 ? gap : (3 * lane.gap_ns + gap) / 4;
  }
  uint64_t last = last_lane_.load(std::memory_order_relaxed);
  if (last != lane.id) {
    if (last != 0 && now_ns - last_arrival_ns_.load(std::memory_order_relaxed) < crowd_memory_ns) {
      crowded_until_ns_.store(now_ns + crowd_memory_ns, std::memory_order_relaxed);
    }
    last_lane_.store(lane.id, std::memory_order_relaxed);
  }
  last_arrival_ns_.store(now_ns, std::memory_order_relaxed);
}

bool SpinGovernor::spin(Lane& lane, sem_t* semaphore) {
  // Worth it only if the client usually comes back within the window.
  if (limit_ns_ == 0 || lane.gap_ns < 0 || lane.gap_ns > limit_ns_ || crowded(lane, lane.idle_since_ns)) return false;
  uint64_t free = 0;
  if (!token_.compare_exchange_strong(free, lane.id, std::memory_order_acquire)) return false;
  int64_t end_ns = lane.idle_since_ns + std::min(limit_ns_, 2 * lane.gap_ns + 20'000);
  bool taken = false;
  while (true) {
    for (int i = 0; i < polls_per_yield && !taken; ++i) {
      taken = try_take_tokens(semaphore);
      if (!taken) relax();
    }
    if (taken) break;
    int64_t now_ns = monotonic_ns();
    if (now_ns > end_ns || crowded(lane, now_ns)) break;
    sched_yield();
  }
  token_.store(0, std::memory_order_release);
  return taken;
}

void SpinGovernor::wait(Lane& lane, sem_t* semaphore) {
  if (!try_take_tokens(semaphore)) {
    lane.idle_since_ns = monotonic_ns();
    // Not again after a signal: that is how a lane is called that its semaphore cannot reach any more.
    if (!spin(lane, semaphore)) take_tokens(semaphore);
  } else {
    lane.idle_since_ns = 0;  // it had been waiting already: says nothing about how long the client stays away
  }
  arrived(lane, monotonic_ns());
}

}  // namespace kalos
