#include "engine/scan_pool.h"

#include <system_error>
#include <utility>

#include "base/cpus.h"

namespace kalos {
namespace {

constexpr int polls_before_sleeping = 2000;

}  // namespace

ScanPool::~ScanPool() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

void ScanPool::start() {
  try {
    while (helpers_.size() + 1 < threads_) {
      auto number = uint32_t(helpers_.size() + 1);
      helpers_.emplace_back([this, number] { help(number); });
    }
  } catch (const std::system_error&) {
    // As many as the system gives: a pass is whole with none.
  }
}

void ScanPool::run(const std::function<void(uint32_t)>& work) {
  if (helpers_.size() + 1 < threads_) start();
  {
    std::lock_guard lock(mutex_);
    work_ = &work;
    ++pass_;
    thrown_ = nullptr;
  }
  wake_.notify_all();
  std::exception_ptr thrown = try_to(work, 0);
  std::unique_lock lock(mutex_);
  work_ = nullptr;
  lock.unlock();
  // The others have a moment left at most: sleeping would cost more.
  for (int i = 0; i < polls_before_sleeping && inside_.load(std::memory_order_acquire) != 0; ++i) relax();
  lock.lock();
  left_.wait(lock, [this] { return inside_ == 0; });
  if (!thrown) thrown = std::exchange(thrown_, nullptr);
  if (thrown) std::rethrow_exception(thrown);
}

std::exception_ptr ScanPool::try_to(const std::function<void(uint32_t)>& work, uint32_t number) noexcept {
  try {
    work(number);
    return nullptr;
  } catch (...) {
    return std::current_exception();
  }
}

void ScanPool::help(uint32_t number) {
  uint64_t done = 0;
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return stopping_ || (work_ && pass_ != done); });
    if (stopping_) return;
    done = pass_;
    const auto& work = *work_;
    ++inside_;
    lock.unlock();
    std::exception_ptr thrown = try_to(work, number);
    lock.lock();
    if (thrown) thrown_ = std::move(thrown);
    if (--inside_ == 0) left_.notify_one();
  }
}

}  // namespace kalos
