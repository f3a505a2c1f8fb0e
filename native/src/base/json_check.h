// Metadata as the ABI wants it: one JSON object, at most KALOS_MAX_METADATA_BYTES and KALOS_MAX_METADATA_DEPTH deep, keys
// unique within each object, integers within int64, numbers finite, strings well-formed.
#pragma once

#include <string_view>

#include "base/result.h"

namespace kalos {

// OK, or InvalidRequest with words that name what is wrong and, where there is one, the key.
Result<> check_metadata(std::string_view json);

}  // namespace kalos
