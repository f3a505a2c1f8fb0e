// Bytes on the control socket: cut into pieces at the lengths that the first byte of each piece says, as a socket may
// deliver them; every frame that comes out is read as a HELLO too.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "serve/control.h"
#include "serve/hello.h"

using namespace kalos;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0) return 0;
  {
    Connection connection(ends[0]);
    bool alive = true;
    for (size_t at = 0; alive && at < size;) {
      size_t piece = std::min<size_t>(size - at - 1, data[at] == 255 ? size : data[at]);
      ++at;
      if (piece > 0 && write(ends[1], data + at, piece) != static_cast<ssize_t>(piece)) break;
      at += piece;
      alive = connection.receive();
      while (alive) {
        auto frame = connection.next();
        if (!frame) {
          if (frame.error().words.empty()) __builtin_trap();
          alive = false;
        } else if (!*frame) {
          break;
        } else if (auto hello = parse_hello((*frame)->body); hello && hello->lane) {
          const LaneShape& shape = *hello->lane;
          if (shape.slot_count < KALOS_MIN_SLOT_COUNT || shape.slot_count > KALOS_MAX_SLOT_COUNT) __builtin_trap();
          if (shape.slot_bytes < KALOS_MIN_SLOT_BYTES || shape.slot_bytes > KALOS_MAX_SLOT_BYTES) __builtin_trap();
          alive = connection.send(KALOS_CONTROL_WELCOME, {{"client", hello->client}});
        }
      }
    }
  }
  close(ends[1]);
  return 0;
}
