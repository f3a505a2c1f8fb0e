// Memory that is set aside: mapped and not touched, so that it costs no page, but counts against what the process may map
// (ulimit -v) and what the system promises (vm.overcommit_memory=2). Where there is less, its maker learns it in time.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <new>
#include <utility>

namespace kalos {

class MemoryReserve {
 public:
  explicit MemoryReserve(size_t bytes) : bytes_(bytes) {
    at_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at_ == MAP_FAILED) throw std::bad_alloc();
  }
  ~MemoryReserve() {
    if (at_ != MAP_FAILED) munmap(at_, bytes_);
  }
  MemoryReserve(MemoryReserve&& other) noexcept : at_(std::exchange(other.at_, MAP_FAILED)), bytes_(other.bytes_) {}
  MemoryReserve& operator=(MemoryReserve&&) = delete;

 private:
  void* at_;
  size_t bytes_;
};

}  // namespace kalos
