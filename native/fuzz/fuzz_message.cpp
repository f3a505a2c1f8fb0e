// A request message of any opcode: the first two bytes say which, the rest is the message.
#include <cstring>

#include "serve/messages.h"

using namespace kalos;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  uint16_t opcode;
  std::memcpy(&opcode, data, 2);
  auto bytes = std::as_bytes(std::span(data + 2, size - 2));
  Bytes message(bytes.begin(), bytes.end());
  if (is_write(opcode)) {
    WriteJob job;
    job.message = std::move(message);
    if (auto decoded = decode_write(opcode, job); !decoded && decoded.error().words.empty()) __builtin_trap();
  } else {
    if (auto decoded = decode_read(opcode, message); !decoded && decoded.error().words.empty()) __builtin_trap();
  }
  return 0;
}
