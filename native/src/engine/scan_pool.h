// Threads that help a pass over many rows. They sleep between passes, and are made when first asked for.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace kalos {

class ScanPool {
 public:
  // threads: of a pass, its own thread included.
  explicit ScanPool(uint32_t threads) : threads_(threads) {}
  ~ScanPool();
  ScanPool(const ScanPool&) = delete;
  ScanPool& operator=(const ScanPool&) = delete;

  uint32_t threads() const { return threads_; }

  // Calls work(0) on this thread and work(1), work(2), ... on as many others as come in time: one that wakes up after
  // work(0) has returned is not waited for, so the work has to be shared out as it is done. One pass at a time. Throws
  // what one of them threw, once all have returned.
  void run(const std::function<void(uint32_t)>& work);

 private:
  void start();
  void help(uint32_t number);
  // Calls it; what it threw, or null.
  static std::exception_ptr try_to(const std::function<void(uint32_t)>& work, uint32_t number) noexcept;

  const uint32_t threads_;
  std::vector<std::thread> helpers_;
  std::mutex mutex_;
  std::condition_variable wake_, left_;
  const std::function<void(uint32_t)>* work_ = nullptr;  // null: no pass, or one that nobody may join any more
  uint64_t pass_ = 0;
  std::atomic<uint32_t> inside_ = 0;
  std::exception_ptr thrown_;  // by a helper, in this pass
  bool stopping_ = false;
};

}  // namespace kalos
