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

namespace {

std::string quoted(const std::string& text) { return json(text).dump(-1, ' ', false, json::error_handler_t::replace); }

}  // namespace

std::string collection_json(const CollectionInfo& info) {
  std::string text = "{\"id\":" + std::to_string(info.id) + ",\"name\":" + quoted(info.name) +
                     ",\"dimension\":" + std::to_string(info.dimension) + ",\"metric\":\"" + metric_name(info.metric) +
                     "\",\"embedder\":";
  if (info.embedder_name.empty() && info.embedder_fingerprint.empty()) {
    text += "null";
  } else {
    text += "{\"name\":" + quoted(info.embedder_name) + ",\"fingerprint\":" + quoted(info.embedder_fingerprint) + "}";
  }
  return text + ",\"created_us\":" + std::to_string(info.created_us) + "}";
}

std::string collections_json(std::span<const CollectionInfo> collections) {
  std::string text = "{\"collections\":[";
  for (const CollectionInfo& info : collections) {
    if (&info != collections.data()) text += ',';
    text += collection_json(info);
  }
  return text + "]}";
}

}  // namespace kalos
