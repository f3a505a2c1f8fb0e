// The distinct JSON values of a metadata field, each with a code and the number of rows that have it.
//
// Values that are equal as JSON (1 and 1.0) are one value. It is kept as it was first written, in memory of its own that
// is overwritten when the last row with it goes: what is deleted is gone. Codes of values that went are used again.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_view.h"

namespace kalos {

class ValueDictionary {
 public:
  // Lower codes are those of no value; a column gives them their meanings.
  static constexpr uint32_t first_code = 2;

  ValueDictionary() = default;
  ~ValueDictionary();
  ValueDictionary(const ValueDictionary&) = delete;
  ValueDictionary& operator=(const ValueDictionary&) = delete;

  // One more row has the value. If memory runs out (std::bad_alloc) nothing has changed.
  uint32_t add(JsonValue value);
  // One row less.
  void release(uint32_t code) noexcept;

  // The code of the value with this canonical form (append_canonical), or 0.
  uint32_t find(std::string_view canonical) const;

  // Every code is lower than this; not every lower one stands for a value.
  uint32_t end_code() const { return first_code + uint32_t(entries_.size()); }
  bool has(uint32_t code) const { return entries_[code - first_code].rows != 0; }
  JsonValue value(uint32_t code) const;

  uint32_t size() const { return size_; }
  uint32_t number_count() const { return number_count_; }  // of these, numbers
  uint64_t bytes() const;

 private:
  struct Entry {
    std::unique_ptr<char[]> raw;
    uint32_t raw_bytes = 0;
    uint32_t rows = 0;  // 0: free
    uint32_t hash = 0;  // free: the next free code, 0 at the end
    JsonKind kind = JsonKind::missing;
  };

  static uint32_t hash_of(std::string_view canonical);
  bool equals(const Entry& entry, uint32_t hash, std::string_view canonical) const;
  // The slot of the value, or the empty one where it would go.
  size_t slot_of(uint32_t hash, std::string_view canonical) const;
  void grow();
  void erase(uint32_t code) noexcept;

  std::vector<Entry> entries_;
  std::vector<uint32_t> slots_;  // codes, 0: empty; open addressing, linear probing, at most three quarters full
  uint32_t first_free_ = 0;
  uint32_t size_ = 0;
  uint32_t number_count_ = 0;
  uint64_t raw_bytes_ = 0;
};

}  // namespace kalos
