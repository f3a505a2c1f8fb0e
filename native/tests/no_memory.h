// operator new that finds no memory on demand, as SQLite's tests do it: the first n allocations of the chosen threads
// succeed, the next ones fail, all later ones succeed again. One file of a program includes this.
#pragma once

#include <atomic>
#include <cstdlib>
#include <new>

namespace no_memory {

inline thread_local bool chosen = false;  // does this thread's allocations count?
inline std::atomic<long> succeed{0};      // allocations of chosen threads that succeed before the others fail
inline std::atomic<long> fail{0};         // that fail then
inline std::atomic<long> failed{0};       // that did
inline std::atomic<size_t> too_large{0};  // on any thread: as many bytes or more are not to be had; 0: all are

inline void arm(long successes, long failures) {
  failed = 0;
  succeed = successes;
  fail = failures;
}
inline long disarm() {
  fail = 0;
  return failed;
}

inline void* allocate(size_t bytes, size_t alignment) {
  if (size_t limit = too_large; limit != 0 && bytes >= limit) throw std::bad_alloc();
  if (chosen && fail > 0 && --succeed < 0) {
    --fail;
    ++failed;
    throw std::bad_alloc();
  }
  void* at = alignment == 0 ? std::malloc(bytes == 0 ? 1 : bytes)
                            : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (at == nullptr) throw std::bad_alloc();
  return at;
}

}  // namespace no_memory

void* operator new(size_t bytes) { return no_memory::allocate(bytes, 0); }
void* operator new[](size_t bytes) { return no_memory::allocate(bytes, 0); }
void* operator new(size_t bytes, std::align_val_t to) { return no_memory::allocate(bytes, size_t(to)); }
void* operator new[](size_t bytes, std::align_val_t to) { return no_memory::allocate(bytes, size_t(to)); }
// A sanitizer's own ones would not know of free() below.
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return std::malloc(bytes == 0 ? 1 : bytes); }
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept { return std::malloc(bytes == 0 ? 1 : bytes); }
void operator delete(void* at) noexcept { std::free(at); }
void operator delete[](void* at) noexcept { std::free(at); }
void operator delete(void* at, size_t) noexcept { std::free(at); }
void operator delete[](void* at, size_t) noexcept { std::free(at); }
void operator delete(void* at, std::align_val_t) noexcept { std::free(at); }
void operator delete[](void* at, std::align_val_t) noexcept { std::free(at); }
void operator delete(void* at, size_t, std::align_val_t) noexcept { std::free(at); }
void operator delete[](void* at, size_t, std::align_val_t) noexcept { std::free(at); }
