// A collection in memory: its namespaces, and the rows of each.
//
//   arena       ids, texts and metadata of all rows (engine/arena.h)
//   namespaces  by key; each has its rows (engine/namespaces.h, engine/rows.h); one without rows does not exist
//   expiries    rows that expire some day, by when
//   coder       how vectors become codes (engine/coding.h)
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "engine/arena.h"
#include "engine/coding.h"
#include "engine/namespaces.h"
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
  explicit Collection(CollectionInfo info, TextBacking backing = {});
  ~Collection();

  const CollectionInfo& info() const;
  void set_info(CollectionInfo info);

  // Inserts the row, or replaces the row with the same namespace and id.
  void put(std::unique_ptr<Row> row);
  // False where there is no such row. Its memory is given back and its bytes are overwritten.
  bool remove(std::string_view namespace_key, std::string_view id);

  uint64_t row_count() const;
  uint64_t bytes() const;  // of memory, columns included; texts that lie in files are not counted
  // Gives back what the columns of filters take. They come again when they are asked for.
  void drop_columns();

  // What a row costs in memory, overheads included: the writer sums it before it acknowledges a batch.
  static uint64_t bytes_of(uint32_t dimension, size_t id_bytes, size_t text_bytes, size_t metadata_bytes);

  // The rows that a delete means, against what is published: (namespace key, id). Errors: a filter that does not parse.
  struct RowName {
    std::string namespace_key;
    std::string id;
  };
  Result<std::vector<RowName>> select(const DeleteRequest& request, int64_t now_us) const;

  const NamespaceMap& namespaces() const;
  const Coder& coder() const;

  // Names of rows with 0 < expires_us <= now, at most `limit`, the earliest first.
  std::vector<RowName> expired(int64_t now_us, size_t limit) const;
  int64_t next_expiry_us() const;  // 0: none expires

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kalos
