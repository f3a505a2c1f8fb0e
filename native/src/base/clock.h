// The two clocks: a steady one for deadlines and durations, the wall clock for created_at, updated_at and expiry.
#pragma once

#include <time.h>

#include <cstdint>

namespace kalos {

inline int64_t monotonic_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// Microseconds since 1970 UTC.
inline int64_t wall_us() {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return int64_t{now.tv_sec} * 1'000'000 + now.tv_nsec / 1'000;
}

}  // namespace kalos
