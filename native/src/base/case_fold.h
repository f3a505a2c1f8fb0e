// Simple case folding of Unicode (code point by code point): what $icontains compares. All scripts; one to one, so that
// "ß" does not match "ss".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kalos {

uint32_t fold_case(uint32_t code_point);

// `text` is UTF-8; what is not well-formed stays as it is.
std::string fold_case(std::string_view text);

}  // namespace kalos
