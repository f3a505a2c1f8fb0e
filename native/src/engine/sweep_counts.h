// How far searches had to look.
#pragma once

#include <cstdint>

namespace kalos {

struct SweepCounts {
  uint64_t scanned = 0;   // rows whose high plane was read
  uint64_t narrowed = 0;  // rows whose low plane was read
  uint64_t scored = 0;    // rows whose vector was read

  void operator+=(const SweepCounts& more) {
    scanned += more.scanned;
    narrowed += more.narrowed;
    scored += more.scored;
  }
};

}  // namespace kalos
