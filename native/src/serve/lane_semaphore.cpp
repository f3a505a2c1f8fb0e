#include "serve/lane_semaphore.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <climits>
#include <cstdint>

namespace kalos {
namespace {

static_assert(sizeof(sem_t) == 32 && std::endian::native == std::endian::little, "glibc's semaphore, on 64 bits");
static_assert(std::atomic_ref<uint64_t>::is_always_lock_free);

constexpr uint64_t one_waiter = uint64_t{1} << 32;

uint32_t value_of(uint64_t data) { return static_cast<uint32_t>(data); }

std::atomic_ref<uint64_t> data_of(sem_t* semaphore) { return std::atomic_ref(*reinterpret_cast<uint64_t*>(semaphore)); }

// Between processes, so never with FUTEX_PRIVATE_FLAG. What the kernel says is a hint: whoever calls looks again.
void futex(sem_t* semaphore, int operation, uint32_t value) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(semaphore), operation, value, nullptr, nullptr, 0);
}

}  // namespace

void post_token(sem_t* semaphore) {
  auto data = data_of(semaphore);
  uint64_t seen = data.load(std::memory_order_relaxed);
  while (value_of(seen) < SEM_VALUE_MAX && !data.compare_exchange_weak(seen, seen + 1, std::memory_order_release)) {
  }
  if (seen >= one_waiter) futex(semaphore, FUTEX_WAKE, 1);
}

bool try_take_tokens(sem_t* semaphore) {
  auto data = data_of(semaphore);
  uint64_t seen = data.load(std::memory_order_relaxed);
  while (value_of(seen) > 0) {
    if (data.compare_exchange_weak(seen, seen - value_of(seen), std::memory_order_acquire)) return true;
  }
  return false;
}

void take_tokens(sem_t* semaphore) {
  if (try_take_tokens(semaphore)) return;
  auto data = data_of(semaphore);
  if (value_of(data.fetch_add(one_waiter, std::memory_order_relaxed)) == 0) futex(semaphore, FUTEX_WAIT, 0);
  data.fetch_sub(one_waiter, std::memory_order_relaxed);
  try_take_tokens(semaphore);
}

}  // namespace kalos
