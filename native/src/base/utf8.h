// Is this well-formed UTF-8 (Unicode 15, table 3-7)? Surrogates, overlong forms and values above U+10FFFF are not.
#pragma once

#include <string>
#include <string_view>

namespace kalos {

bool valid_utf8(std::string_view bytes);

// Well-formed: each byte that belongs to no sequence becomes U+FFFD. For words that quote a path, which may be any bytes.
std::string to_utf8(std::string_view bytes);

}  // namespace kalos
