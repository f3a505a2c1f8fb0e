// Metadata as the ABI wants it: one JSON object, at most KALOS_MAX_METADATA_BYTES and KALOS_MAX_METADATA_DEPTH deep,
// keys unique within each object, integers within int64, numbers finite, strings well-formed. The outermost object is
// depth 1.
#pragma once

#include <cstddef>
#include <string_view>

#include "base/result.h"

namespace kalos {

// OK, or InvalidRequest with words that name what is wrong and, where there is one, the key.
Result<> check_metadata(std::string_view json);

// The same rules for another kind of object, with bounds of its own. `what` begins the words: "metadata", "filter".
Result<> check_json_object(std::string_view json, std::string_view what, size_t max_bytes, size_t max_depth);

}  // namespace kalos
