// The engine lock: first come, first served. A plain mutex lets a thread that has just let go take it again before those
// that wait; here the lock is handed to the one that waited longest. Has the names of std::mutex, and takes no memory: what
// was committed must be published whatever there is.
#pragma once

#include <chrono>
#include <condition_variable>
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
    queue_up(self);
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
    queue_up(self);
    if (self.turn.wait_for(guard, time, [&] { return self.granted; })) return true;
    (self.before ? self.before->after : first_) = self.after;
    (self.after ? self.after->before : last_) = self.before;
    return false;
  }

  void unlock() {
    std::lock_guard guard(guard_);
    if (!first_) {
      held_ = false;
      return;
    }
    Waiter* next = first_;
    first_ = next->after;
    (first_ ? first_->before : last_) = nullptr;
    next->granted = true;
    next->turn.notify_one();  // under the guard: the waiter lives on its thread's stack
  }

 private:
  // On the stack of the thread that waits.
  struct Waiter {
    std::condition_variable turn;
    bool granted = false;
    Waiter* before = nullptr;
    Waiter* after = nullptr;
  };

  void queue_up(Waiter& waiter) {
    waiter.before = last_;
    (last_ ? last_->after : first_) = &waiter;
    last_ = &waiter;
  }

  std::mutex guard_;
  bool held_ = false;
  Waiter* first_ = nullptr;
  Waiter* last_ = nullptr;
};

}  // namespace kalos
