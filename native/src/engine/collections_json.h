// Collections as the JSON of docs/abi.md, section 4.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "engine/requests.h"

namespace kalos {

const char* metric_name(kalos_metric metric);
nlohmann::json collection_json(const CollectionInfo& info);
std::string collections_json(std::span<const CollectionInfo> collections);

}  // namespace kalos
