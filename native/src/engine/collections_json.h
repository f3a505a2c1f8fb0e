// Collections as the JSON of docs/abi.md, section 4. Written by hand: an nlohmann object takes memory when it is
// destroyed, and ends the process where there is none.
#pragma once

#include <span>
#include <string>

#include "engine/requests.h"

namespace kalos {

const char* metric_name(kalos_metric metric);
std::string collection_json(const CollectionInfo& info);
std::string collections_json(std::span<const CollectionInfo> collections);

}  // namespace kalos
