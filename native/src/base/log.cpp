#include "base/log.h"

#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>

namespace kalos {
namespace {

std::atomic<LogLevel> threshold{LogLevel::info};
constexpr const char* names[] = {"error", "warning", "info", "debug"};

}  // namespace

void set_log_level(LogLevel level) { threshold = level; }

bool parse_log_level(std::string_view name, LogLevel& level) {
  for (int i = 0; i < 4; ++i) {
    if (name == names[i]) {
      level = static_cast<LogLevel>(i);
      return true;
    }
  }
  return false;
}

void log(LogLevel level, const std::string& words) {
  if (level > threshold.load(std::memory_order_relaxed)) return;
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  tm utc;
  gmtime_r(&now.tv_sec, &utc);
  char head[64];
  int head_bytes = std::snprintf(head, sizeof head, "%04d-%02d-%02dT%02d:%02d:%02d.%03ldZ %s ", utc.tm_year + 1900,
                                 utc.tm_mon + 1, utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec,
                                 now.tv_nsec / 1'000'000, names[static_cast<int>(level)]);
  std::string line(head, static_cast<size_t>(head_bytes));
  line += words;
  line += '\n';
  // One write, so that lines of several threads do not mix. A log that cannot be written is no reason to fail.
  [[maybe_unused]] ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace kalos
