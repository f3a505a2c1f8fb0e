// The layout of abi.h as a table: checked at compile time, printed by `kalosd --print-abi`.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace kalos {

// {"abi_major", "abi_minor", "structs": {name: {"bytes", "fields": {name: {"offset", "bytes"}}}}, "constants": {name: value}}
std::string abi_json();

// Of its constants those that are limits: name -> value.
nlohmann::json abi_limits();

}  // namespace kalos
