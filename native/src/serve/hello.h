// What a client says of itself in its HELLO, read from JSON that may hold anything.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "base/result.h"
#include "serve/lane_memory.h"

namespace kalos {

// A string of the body, cut at 200 bytes; empty where there is none.
std::string words_of(const nlohmann::json& body, const char* key);

struct Hello {
  std::string client;
  std::optional<LaneShape> lane;  // as granted: within the bounds of abi.h; none where the client wants none
  int64_t monotonic_ns = 0;
};

// Errors: another major version, or a C library whose semaphores differ.
Result<Hello> parse_hello(const nlohmann::json& body);

}  // namespace kalos
