// Requests as the engine sees them: decoded and bounded, but not yet checked against the collection.
//
// Views point into the message that the job owns (a private copy of what the client wrote), so decoding copies nothing.
// serve/messages.h makes these from bytes; engine/reply.h makes bytes from the answers.
#pragma once

#include <kalos/abi.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace kalos {

// Bytes of a message. operator new gives 16-byte alignment, so spans at multiples of 8 are aligned.
using Bytes = std::vector<std::byte>;

struct Scope {
  std::string_view namespace_key;  // a valid key: checked by the decoder
  bool subtree = false;
};

struct SearchRequest {
  uint64_t collection_id = 0;
  Scope scope;
  uint32_t include = 0;
  uint32_t query_count = 0;
  uint32_t dimension = 0;
  uint32_t k = 0;
  uint32_t skip = 0;
  bool explain = false;
  std::optional<double> min_score;
  std::optional<double> max_distance;
  uint64_t min_sequence = 0;
  std::optional<std::string_view> filter;  // JSON
  std::optional<std::string_view> group_by;
  std::span<const float> vectors;  // query_count x dimension; may hold non-finite numbers
};

struct GetRequest {
  uint64_t collection_id = 0;
  Scope scope;  // never a subtree
  uint32_t include = 0;
  uint64_t min_sequence = 0;
  std::vector<std::string_view> ids;
};

struct CountRequest {
  uint64_t collection_id = 0;
  Scope scope;
  uint64_t min_sequence = 0;
  std::optional<std::string_view> filter;
};

struct ScanRequest {
  uint64_t collection_id = 0;
  Scope scope;
  uint32_t include = 0;
  kalos_order order = KALOS_ORDER_INSERTION;
  uint32_t page_limit = 0;
  uint64_t skip = 0;
  uint64_t page_bytes = 0;  // 0: the engine's choice
  bool has_cursor = false;
  uint64_t cursor_sequence = 0;
  int64_t cursor_updated_us = 0;
  uint64_t min_sequence = 0;
  std::optional<std::string_view> filter;
};

struct NamespacesRequest {
  uint64_t collection_id = 0;
  uint32_t max_depth = 0;
  uint32_t limit = 0;
  uint64_t skip = 0;
  uint64_t min_sequence = 0;
  std::optional<std::string_view> prefix;
  std::optional<std::string_view> suffix;
};

using ReadRequest = std::variant<SearchRequest, GetRequest, CountRequest, ScanRequest, NamespacesRequest>;

struct UpsertRow {
  std::string_view id;
  std::optional<std::string_view> text;
  std::optional<std::string_view> metadata;  // JSON, checked by the decoder: see base/json.h
  std::span<const float> vector;             // empty: none; may hold non-finite numbers
  int64_t expires_us = 0;                    // 0: never
};

struct UpsertRequest {
  uint64_t collection_id = 0;
  std::string_view namespace_key;
  uint32_t dimension = 0;  // of the vectors given, 0 where there are none
  std::vector<UpsertRow> rows;
};

struct DeleteRequest {
  uint64_t collection_id = 0;
  Scope scope;
  bool everything = false;
  bool by_ids = false;
  std::vector<std::string_view> ids;
  std::optional<std::string_view> filter;
};

// Creates the collection, or opens it where it exists: then a dimension, metric or embedder that is given must agree.
struct OpenCollectionRequest {
  std::string name;
  uint32_t dimension = 0;              // 0: not given, must exist
  std::optional<kalos_metric> metric;  // not given: cosine when created
  std::string embedder_name;           // empty: not given
  std::string embedder_fingerprint;    // empty: unknown
};

struct DropCollectionRequest {
  std::string name;
};

using WriteOperation = std::variant<UpsertRequest, DeleteRequest, OpenCollectionRequest, DropCollectionRequest>;

using WriteId = std::array<uint8_t, 16>;

// What the store and `collections()` know of a collection.
struct CollectionInfo {
  uint64_t id = 0;
  std::string name;
  uint32_t dimension = 0;
  kalos_metric metric = KALOS_METRIC_COSINE;
  std::string embedder_name;
  std::string embedder_fingerprint;
  int64_t created_us = 0;
};

}  // namespace kalos
