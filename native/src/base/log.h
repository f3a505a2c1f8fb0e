// The log: one line to stderr, with a level defined by who reads it.
//
//   error    someone must act: data or service is at risk
//   warning  someone should know: the service goes on with less
//   info     what happened: start, stop, clients that could not be served
//   debug    for whoever works on kalosd
#pragma once

#include <string>
#include <string_view>

namespace kalos {

enum class LogLevel { error = 0, warning = 1, info = 2, debug = 3 };

void set_log_level(LogLevel level);
bool parse_log_level(std::string_view name, LogLevel& level);
void log(LogLevel level, const std::string& words);

}  // namespace kalos
