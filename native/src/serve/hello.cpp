#include "serve/hello.h"

#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace kalos {
namespace {

using nlohmann::json;

int64_t number_of(const json& body, const char* key, int64_t otherwise) {
  auto found = body.find(key);
  return found != body.end() && found->is_number_integer() ? found->get<int64_t>() : otherwise;
}

}  // namespace

std::string words_of(const json& body, const char* key) {
  auto found = body.find(key);
  return found != body.end() && found->is_string() ? found->get<std::string>().substr(0, 200) : std::string();
}

Result<Hello> parse_hello(const json& body) {
  int64_t major = number_of(body, "abi_major", -1);
  if (major != KALOS_ABI_MAJOR) {
    return Error{KALOS_STATUS_UNSUPPORTED, "the client speaks ABI " + std::to_string(major) +
                                               ", this kalosd (" KALOS_VERSION ", pid " + std::to_string(getpid()) +
                                               ") speaks ABI " + std::to_string(KALOS_ABI_MAJOR) +
                                               "; end it with `kalos stop` and let the client start its own"};
  }
  std::string libc = words_of(body, "libc");
  if (libc.rfind("glibc", 0) != 0) {
    return Error{KALOS_STATUS_UNSUPPORTED, "the client's C library is \"" + libc +
                                               "\", this kalosd uses glibc: their semaphores differ. "
                                               "Use an image of the Debian or Ubuntu family for both"};
  }
  Hello hello;
  hello.client = words_of(body, "client");
  hello.monotonic_ns = number_of(body, "monotonic_ns", 0);
  int64_t slot_count = number_of(body, "slot_count", KALOS_DEFAULT_SLOT_COUNT);
  int64_t slot_bytes = number_of(body, "slot_bytes", KALOS_DEFAULT_SLOT_BYTES);
  if (slot_count == 0) return hello;
  LaneShape shape;
  shape.slot_count = static_cast<uint32_t>(std::clamp<int64_t>(slot_count, KALOS_MIN_SLOT_COUNT, KALOS_MAX_SLOT_COUNT));
  shape.slot_bytes =
      static_cast<uint32_t>(std::clamp<int64_t>(slot_bytes, KALOS_MIN_SLOT_BYTES, KALOS_MAX_SLOT_BYTES) / 4096 * 4096);
  hello.lane = shape;
  return hello;
}

}  // namespace kalos
