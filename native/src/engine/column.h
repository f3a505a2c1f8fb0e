// A metadata field of the rows of one table, as a column of codes, so that a filter looks at 4 bytes and not at JSON.
//
//   codes     uint32[rows]   0: the field is missing; 1: a number that stands in `numbers`; else a code of `values`
//   values    the distinct values (engine/value_dictionary.h)
//   numbers   float64[rows]  once the field has more than most_numbers_in_dictionary distinct numbers, as times and
//                            prices do: then its numbers stand here, NaN where the value is none, and not in `values`
//
// An int64 beyond 2^53 is rounded in `numbers`. Rounding keeps order, so that a comparison with a number x is exact
// wherever the rounded values differ; where they are equal and |x| >= 2^53, the row's own metadata is asked
// (engine/filter_mask.cpp).
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

#include "engine/filter.h"
#include "engine/value_dictionary.h"

namespace kalos {

// A number for each row, in chunks that never move and whose rows are multiples of 64: chunk 0 holds 64 rows, chunk c
// the rows [64 * 2^(c-1), 64 * 2^c), until a chunk holds `largest`. What is beyond the last row is zero.
template <class T>
class PackedRows {
 public:
  PackedRows() = default;
  PackedRows(const PackedRows&) = delete;
  PackedRows& operator=(const PackedRows&) = delete;
  ~PackedRows() {
    for (size_t chunk = 0; chunk < chunks_.size(); ++chunk) explicit_bzero(chunks_[chunk].get(), bytes_of(chunk));
  }

  uint32_t size() const { return size_; }
  uint64_t bytes() const { return bytes_; }

  T get(uint32_t row) const { return *place(row); }
  void set(uint32_t row, T value) { *place(row) = value; }
  void push(T value) {
    reserve_one();
    ++size_;
    set(size_ - 1, value);
  }
  // After this a push cannot fail.
  void reserve_one() {
    if (chunk_of(size_) < chunks_.size()) return;
    size_t chunk = chunks_.size();
    chunks_.reserve(chunk + 1);
    chunks_.push_back(std::make_unique<T[]>(capacity(chunk)));
    bytes_ += bytes_of(chunk);
  }
  void pop() {
    set(--size_, T{});
    if (size_ != first_row(chunks_.size() - 1)) return;
    bytes_ -= bytes_of(chunks_.size() - 1);
    chunks_.pop_back();
  }

  // Calls visit(values, first word, words): the chunks, 64 rows a word.
  template <class Visit>
  void for_each_chunk(Visit visit) const {
    for (size_t chunk = 0; chunk < chunks_.size(); ++chunk) {
      uint32_t first = first_row(chunk);
      if (first >= size_) break;
      uint32_t rows = std::min(size_ - first, capacity(chunk));
      visit(chunks_[chunk].get(), size_t{first / 64}, (size_t{rows} + 63) / 64);
    }
  }

 private:
  static constexpr uint32_t smallest = 64;
  static constexpr uint32_t largest = 16384;
  static constexpr uint32_t growing_chunks = 9;  // 64, 64, 128, 256 … 8192

  static size_t chunk_of(uint32_t row) {
    if (row >= largest) return growing_chunks - 1 + row / largest;
    return size_t(std::bit_width(row / smallest));
  }
  static uint32_t first_row(size_t chunk) {
    if (chunk >= growing_chunks) return uint32_t(chunk - growing_chunks + 1) * largest;
    return chunk == 0 ? 0 : smallest << (chunk - 1);
  }
  static uint32_t capacity(size_t chunk) { return first_row(chunk + 1) - first_row(chunk); }
  static uint64_t bytes_of(size_t chunk) { return uint64_t{capacity(chunk)} * sizeof(T); }
  T* place(uint32_t row) const {
    size_t chunk = chunk_of(row);
    return chunks_[chunk].get() + (row - first_row(chunk));
  }

  std::vector<std::unique_ptr<T[]>> chunks_;
  uint32_t size_ = 0;
  uint64_t bytes_ = 0;
};

class Column {
 public:
  static constexpr uint32_t missing_code = 0;
  static constexpr uint32_t number_code = 1;
  static constexpr uint32_t most_numbers_in_dictionary = 1024;

  explicit Column(const JsonPath& field) : field_(field) {}

  const JsonPath& field() const { return field_; }
  uint32_t size() const {
    return codes_.size();
  }  // rows, from row 0 on: fewer than the table's while it is being built
  uint64_t bytes() const { return sizeof(Column) + codes_.bytes() + numbers_.bytes() + values_.bytes(); }

  // The next row. If memory runs out (std::bad_alloc) the column is of no use any more.
  void append(std::string_view metadata);
  // The last row takes its place.
  void remove(uint32_t row) noexcept;
  // A row has another value: that of this metadata.
  void replace(uint32_t row, std::string_view metadata);

  const PackedRows<uint32_t>& codes() const { return codes_; }
  const PackedRows<double>& numbers() const { return numbers_; }
  bool has_numbers() const { return has_numbers_; }
  const ValueDictionary& values() const { return values_; }

  // Kept by the column's owner: when a filter last used it, and how many writes it has followed since.
  uint64_t used_at = 0;
  uint64_t writes_since_use = 0;

 private:
  struct Cell {
    uint32_t code = missing_code;
    double number = 0;
  };
  Cell cell(JsonValue value);
  void release(uint32_t code) noexcept {
    if (code >= ValueDictionary::first_code) values_.release(code);
  }
  void set(uint32_t row, Cell cell) noexcept;
  void move_numbers();

  JsonPath field_;
  PackedRows<uint32_t> codes_;
  PackedRows<double> numbers_;
  bool has_numbers_ = false;
  ValueDictionary values_;
};

// A number as `numbers` holds it.
inline double as_double(const JsonNumber& number) { return number.is_integer ? double(number.integer) : number.real; }

}  // namespace kalos
