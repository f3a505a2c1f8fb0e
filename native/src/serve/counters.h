// What kalosd counts about its requests, for STATUS. Relaxed atomics: each is exact, together they are a moment's blur.
#pragma once

#include <kalos/abi.h>

#include <array>
#include <atomic>
#include <cstdint>

namespace kalos {

struct Counters {
  std::atomic<uint64_t> requests{0};
  std::array<std::atomic<uint64_t>, 128> by_opcode{};
  std::atomic<uint64_t> errors{0};
  std::atomic<uint64_t> expired{0};
  std::atomic<uint64_t> passes{0};    // over the engine, for reads
  std::atomic<uint64_t> combined{0};  // reads that shared a pass with another request's
  std::atomic<uint64_t> parts{0};     // posts that were one part of a longer message or reply
  std::atomic<uint64_t> bytes_in{0};
  std::atomic<uint64_t> bytes_out{0};
  std::atomic<uint64_t> in_flight{0};     // requests taken and not yet answered
  std::atomic<uint64_t> staged_bytes{0};  // of requests still arriving in parts

  void count(std::atomic<uint64_t>& counter, uint64_t by = 1) { counter.fetch_add(by, std::memory_order_relaxed); }
};

}  // namespace kalos
