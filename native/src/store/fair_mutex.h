// The engine lock: first come, first served. A plain mutex lets a thread that has just let go take it again before those
// that wait; here the lock is handed to the one that waited longest. Has the names of std::mutex.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>

namespace kalos {

class FairMutex {
 public:
  void lock() {
    std::unique_lock guard(guard_);
    if (!held_) {
      held_ = true;
      return;
    }
    Waiter self;
    waiters_.push_back(&self);
    self.turn.wait(guard, [&] { return self.granted; });
  }

  // Never overtakes a waiter: while there is one, the lock is held.
  bool try_lock() {
    std::lock_guard guard(guard_);
    if (held_) return false;
    held_ = true;
    return true;
  }

  // In its turn, but waits no longer than this. False: not locked.
  bool try_lock_for(std::chrono::milliseconds time) {
    std::unique_lock guard(guard_);
    if (!held_) {
      held_ = true;
      return true;
    }
    Waiter self;
    waiters_.push_back(&self);
    if (self.turn.wait_for(guard, time, [&] { return self.granted; })) return true;
    waiters_.erase(std::find(waiters_.begin(), waiters_.end(), &self));
    return false;
  }

  void unlock() {
    std::lock_guard guard(guard_);
    if (waiters_.empty()) {
      held_ = false;
      return;
    }
    Waiter* next = waiters_.front();
    waiters_.pop_front();
    next->granted = true;
    next->turn.notify_one();  // under the guard: the waiter lives on its thread's stack
  }

 private:
  struct Waiter {
    std::condition_variable turn;
    bool granted = false;
  };
  std::mutex guard_;
  bool held_ = false;
  std::deque<Waiter*> waiters_;
};

}  // namespace kalos
