// A collection in memory: its namespaces, and the rows of each.
//
// To be filled in: see the engine's own headers (rows, namespaces) for the layout. This is what the writer and the loader need.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "engine/requests.h"

namespace kalos {

// A row as it enters the index.
struct Row {
  uint64_t sequence = 0;  // the tie order; an upsert keeps it
  std::string namespace_key;
  std::string id;
  std::vector<float> vector;  // empty: none
  bool has_text = false;
  std::string text;
  bool has_metadata = false;
  std::string metadata;  // JSON, the bytes that came
  int64_t created_us = 0;
  int64_t updated_us = 0;
  int64_t expires_us = 0;  // 0: never
};

class Collection {
 public:
  explicit Collection(CollectionInfo info);
  ~Collection();

  const CollectionInfo& info() const;
  void set_info(CollectionInfo info);

  // Inserts the row, or replaces the row with the same namespace and id.
  void put(std::unique_ptr<Row> row);
  // False where there is no such row. Its memory is given back and its bytes are overwritten.
  bool remove(std::string_view namespace_key, std::string_view id);

  uint64_t row_count() const;
  uint64_t bytes() const;

  // What a row costs in memory, overheads included: the writer sums it before it acknowledges a batch.
  static uint64_t bytes_of(uint32_t dimension, size_t id_bytes, size_t text_bytes, size_t metadata_bytes);

  // The rows that a delete means, against what is published: (namespace key, id). Errors: a filter that does not parse.
  struct RowName {
    std::string namespace_key;
    std::string id;
  };
  Result<std::vector<RowName>> select(const DeleteRequest& request, int64_t now_us) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kalos
