// How a lane's thread waits for its request semaphore: spin for a learned window, then block.
//
// A spinning lane answers in about a microsecond, a blocked one costs 25 to 60 us of waking. But spinners take the CPU
// from those who have work. So, over all of kalosd, at most one lane spins: the one that holds the token; only where at
// least two CPUs are really ours (affinity and cgroup quota); only for a window learned from how soon the lane's client
// came back before; and with two CPUs not while a second lane is active.
#pragma once

#include <semaphore.h>

#include <atomic>
#include <cstdint>

namespace kalos {

class SpinGovernor {
 public:
  // limit_us: the longest window; 0: never spin.
  SpinGovernor(int cpus, int64_t limit_us);

  // One per lane, used by the lane's thread only.
  struct Lane {
    uint64_t id = 0;
    int64_t idle_since_ns = 0;
    int64_t gap_ns = -1;  // how long the client usually stays away (exponential average); -1: not known yet
  };

  // Takes the semaphore's tokens, however long it takes until there is one. A signal ends the wait too, so that whoever
  // returns from it looks for itself what there is. (A lane that must end gets its semaphore posted, and a signal.)
  void wait(Lane& lane, sem_t* semaphore);

  int64_t limit_us() const { return limit_ns_ / 1000; }

 private:
  bool spin(Lane& lane, sem_t* semaphore);
  bool crowded(const Lane& lane, int64_t now_ns) const;
  void arrived(Lane& lane, int64_t now_ns);

  const int cpus_;
  const int64_t limit_ns_;
  std::atomic<uint64_t> token_{0};  // the id of the lane that may spin; 0: free
  // Who was active last, and when somebody else was before: tells a second active lane from a lone one.
  std::atomic<uint64_t> last_lane_{0};
  std::atomic<int64_t> crowded_until_ns_{0};
  std::atomic<int64_t> last_arrival_ns_{0};
};

}  // namespace kalos
