// The namespaces of a collection, by key bytes: a subtree is a range of the map.
//
// A key is (u16 big-endian length, bytes) for each segment, so that a key is a byte prefix of another one exactly where
// its segments are the first segments of the other: ("a",) is no prefix of ("ab",).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/column_set.h"
#include "engine/requests.h"
#include "engine/rows.h"

namespace kalos {

// A row of a namespace: its number in one of the two tables. Good until the next change.
struct RowCode {
  uint32_t value = 0;

  static RowCode of(uint32_t row, bool has_vector) { return {row * 2 + (has_vector ? 1u : 0u)}; }
  uint32_t row() const { return value / 2; }
  bool has_vector() const { return value % 2 != 0; }
  bool operator==(const RowCode&) const = default;
};

class Namespace {
 public:
  Namespace(std::string key, Coder& coder, ColumnMemory& column_memory);

  const std::string& key() const { return key_; }
  const RowTable& vectors() const { return vectors_; }
  const RowTable& plain() const { return plain_; }
  uint32_t row_count() const { return vectors_.size() + plain_.size(); }
  uint32_t expiring_count() const { return expiring_; }  // rows that expire some day
  uint64_t visible_count(int64_t now_us) const;
  bool any_visible(int64_t now_us) const;
  uint64_t bytes() const;  // without columns, which ColumnMemory counts

  std::optional<RowCode> find(std::string_view id) const;
  const RowEntry& entry(RowCode code) const;
  const float* vector(RowCode code) const { return code.has_vector() ? vectors_.vector(code.row()) : nullptr; }

  // The columns of one of the two tables. Reads build them: they are a cache of what the rows say.
  ColumnSet& columns(bool has_vector) const { return has_vector ? vector_columns_ : plain_columns_; }

  // Codes the rows of a run anew if they must be; how many that were (RowTable::recode).
  uint32_t recode(size_t run) { return vectors_.recode(run); }

  // The record's owner and row are set. The id must not be there yet.
  void add(const RowEntry& entry, std::span<const float> vector);
  // The record is the caller's to release.
  void remove(RowCode code);
  void set_record(RowCode code, Record* record);

 private:
  // Open addressing, linear probing, at most three quarters full, no tombstones.
  struct IdSlot {
    uint32_t hash = 0;
    uint32_t code_plus_1 = 0;  // 0: empty
  };

  RowTable& table(RowCode code) { return code.has_vector() ? vectors_ : plain_; }
  const RowTable& table(RowCode code) const { return code.has_vector() ? vectors_ : plain_; }
  size_t slot_of(RowCode code) const;
  void place(IdSlot slot);
  void erase(size_t slot);
  void resize_ids(size_t slots);

  std::string key_;
  RowTable vectors_;
  RowTable plain_;
  mutable ColumnSet vector_columns_;
  mutable ColumnSet plain_columns_;
  uint32_t expiring_ = 0;
  std::vector<IdSlot> ids_;
};

using NamespaceMap = std::map<std::string, std::unique_ptr<Namespace>, std::less<>>;

// The namespaces that a read or a delete means, in key order. A scope that does not exist is nothing.
std::vector<const Namespace*> in_scope(const NamespaceMap& namespaces, const Scope& scope);

// The first `segments` segments of a key, or all of it.
std::string_view cut_key(std::string_view key, uint32_t segments);
// Do the last segments of the key equal those of `suffix`?
bool key_ends_with(std::string_view key, std::string_view suffix);
// The key as people write it: ("alice", "notes").
std::string readable_key(std::string_view key);

}  // namespace kalos
