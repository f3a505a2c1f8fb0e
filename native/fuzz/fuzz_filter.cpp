// A filter and the metadata that it is asked about, with a line feed between them.
#include <algorithm>
#include <string_view>

#include "base/json_check.h"
#include "engine/filter.h"

using namespace kalos;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view input(reinterpret_cast<const char*>(data), size);
  size_t end = std::min(input.find('\n'), size);
  auto filter = Filter::parse(input.substr(0, end));
  if (!filter) {
    if (filter.error().words.empty()) __builtin_trap();
    return 0;
  }
  bool without = filter->matches({});
  if (filter->matches_all() && !without) __builtin_trap();
  if (end == size) return 0;
  std::string_view metadata = input.substr(end + 1);
  if (!check_metadata(metadata)) return 0;
  bool first = filter->matches(metadata);
  if (first != filter->matches(metadata)) __builtin_trap();
  if (filter->matches_all() && !first) __builtin_trap();
  return 0;
}
