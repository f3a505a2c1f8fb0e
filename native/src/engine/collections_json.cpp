#include "engine/collections_json.h"

#include <nlohmann/json.hpp>

namespace kalos {

using nlohmann::json;

const char* metric_name(kalos_metric metric) {
  switch (metric) {
    case KALOS_METRIC_COSINE:
      return "cosine";
    case KALOS_METRIC_DOT:
      return "dot";
    case KALOS_METRIC_L2:
      return "l2";
  }
  return "unknown";
}

json collection_json(const CollectionInfo& info) {
  json embedder = nullptr;
  if (!info.embedder_name.empty() || !info.embedder_fingerprint.empty()) {
    embedder = {{"name", info.embedder_name}, {"fingerprint", info.embedder_fingerprint}};
  }
  return {{"id", info.id},
          {"name", info.name},
          {"dimension", info.dimension},
          {"metric", metric_name(info.metric)},
          {"embedder", std::move(embedder)},
          {"created_us", info.created_us}};
}

std::string collections_json(std::span<const CollectionInfo> collections) {
  json all = json::array();
  for (const CollectionInfo& info : collections) all.push_back(collection_json(info));
  return json{{"collections", std::move(all)}}.dump();
}

}  // namespace kalos
