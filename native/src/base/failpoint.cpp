#include "base/failpoint.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <string>

namespace kalos {

namespace {

std::string& armed_name() {
  static std::string name;
  return name;
}
std::string& gate_path() {
  static std::string path;
  return path;
}
std::atomic<long> passes_left{0};

bool arm_from_environment() {
  const char* value = std::getenv("KALOS_FAILPOINT");
  if (value != nullptr) arm_failpoint(value);
  return failpoints_armed;
}

}  // namespace

bool failpoints_armed = arm_from_environment();

void arm_failpoint(std::string_view name_and_count) {
  gate_path().clear();
  if (size_t at = name_and_count.find('@'); at != std::string_view::npos) {
    armed_name() = name_and_count.substr(0, at);
    gate_path() = name_and_count.substr(at + 1);
    failpoints_armed = true;
    return;
  }
  size_t colon = name_and_count.find(':');
  long count = 1;
  if (colon != std::string_view::npos) count = std::atol(std::string(name_and_count.substr(colon + 1)).c_str());
  armed_name() = name_and_count.substr(0, colon);
  passes_left = count < 1 ? 1 : count;
  failpoints_armed = !armed_name().empty();
}

void pass_failpoint(std::string_view name) {
  if (name != armed_name()) return;
  if (!gate_path().empty()) {
    while (access(gate_path().c_str(), F_OK) == 0) usleep(500);
    return;
  }
  if (--passes_left > 0) return;
  kill(getpid(), SIGKILL);
  while (true) pause();  // the signal may take a moment: nothing after this point may happen
}

}  // namespace kalos
