#include "serve/fault_guard.h"

#include <signal.h>
#include <string.h>
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <cstdint>

namespace kalos {
namespace {

// Read in a signal handler: no lock, no allocation.
struct Range {
  std::atomic<uintptr_t> base{0};
  std::atomic<size_t> bytes{0};
};
std::array<Range, 65536> ranges;

void on_bus_error(int number, siginfo_t* info, void*) {
  auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  for (Range& range : ranges) {
    uintptr_t base = range.base.load(std::memory_order_acquire);
    size_t bytes = range.bytes.load(std::memory_order_relaxed);
    if (base == 0 || address < base || address >= base + bytes) continue;
    void* fresh = mmap(reinterpret_cast<void*>(base), bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (fresh != MAP_FAILED) return;
  }
  // Not a lane's: the fault is ours, and dies as it would have.
  signal(number, SIG_DFL);
}

}  // namespace

void install_fault_guard() {
  struct sigaction action{};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  sigaction(SIGBUS, &action, nullptr);
}

bool guard_range(void* base, size_t bytes) {
  for (Range& range : ranges) {
    uintptr_t free = 0;
    // The size first counts as nothing, so that a range is never seen with another's.
    if (range.base.load(std::memory_order_relaxed) == 0 &&
        range.base.compare_exchange_strong(free, reinterpret_cast<uintptr_t>(base), std::memory_order_acq_rel)) {
      range.bytes.store(bytes, std::memory_order_release);
      return true;
    }
  }
  return false;
}

void unguard_range(void* base) {
  for (Range& range : ranges) {
    if (range.base.load(std::memory_order_relaxed) != reinterpret_cast<uintptr_t>(base)) continue;
    range.bytes.store(0, std::memory_order_release);
    range.base.store(0, std::memory_order_release);
    return;
  }
}

}  // namespace kalos
