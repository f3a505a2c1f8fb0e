// The columns of one table of rows, built when a filter first names their field, kept current by the table's writes, and
// dropped when they are not worth their memory or their upkeep.
//
// So ingest pays nothing for keys that nobody filters by. A column is dropped
//   - once it has followed as many writes since its last use as its table has rows: upkeep has then cost what building
//     it again would;
//   - when the columns of the collection come to more than ColumnMemory allows: those used longest ago go first. A
//     column that does not fit alone (long strings, each its own) is not tried again until the table has halved or
//     doubled; filters then ask the rows (engine/filter_mask.h);
//   - when the writer needs the memory for rows (Collection::drop_columns).
// A few masks of the filters asked last are kept too, until the next write.
//
// Nothing here locks: reads as well as writes hold the engine exclusively (store/database.h). Reads build columns, and
// so a Namespace hands its sets out from behind const.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/column.h"
#include "engine/rows.h"

namespace kalos {

class ColumnSet;
class Deadline;

// Which rows of a table match a filter; expired ones are not told apart.
struct FilterMask {
  std::vector<uint64_t> words;  // bit i % 64 of word i / 64: row i matches; bits past the last row are 0
  uint64_t matches = 0;         // how many do

  bool operator[](uint32_t row) const { return words[row / 64] >> (row % 64) & 1; }
  // Of rows [first, first + 64) the bits, first anywhere; 0 past the end.
  uint64_t bits(uint32_t first) const {
    size_t word = first / 64, shift = first % 64;
    uint64_t low = word < words.size() ? words[word] >> shift : 0;
    return shift == 0 || word + 1 >= words.size() ? low : low | words[word + 1] << (64 - shift);
  }
};

// How much of a column may be built now.
struct BuildBounds {
  Deadline& deadline;
  uint64_t rows = UINT64_MAX;  // that may still be read
  bool reached = false;        // filled: the time or the rows were not enough
};

// What the columns of a collection take, and may take.
class ColumnMemory {
 public:
  uint64_t bytes() const { return bytes_; }
  // Of what the rows take: a quarter of it, and some megabytes that a small collection may have too.
  void allow_beside(uint64_t bytes_of_rows) { limit_ = bytes_of_rows / 4 + (uint64_t{4} << 20); }
  void drop_all() noexcept;

 private:
  friend class ColumnSet;
  bool over() const { return bytes_ > limit_; }
  void make_room() noexcept;

  std::list<ColumnSet*> sets_;  // those that have columns, the one used last first
  uint64_t uses_ = 0;           // of any set; what is as old as this is in use now
  uint64_t bytes_ = 0;
  uint64_t limit_ = uint64_t{4} << 20;
};

class ColumnSet {
 public:
  explicit ColumnSet(ColumnMemory& memory);
  ~ColumnSet();
  ColumnSet(const ColumnSet&) = delete;
  ColumnSet& operator=(const ColumnSet&) = delete;

  // The table's writes. They cannot fail: a column that finds no memory is dropped.
  // A row was appended.
  void appended(const RowTable& rows) noexcept {
    if (state_) follow_append(rows);
  }
  // A row is about to be removed; the last one will take its place.
  void removing(const RowTable& rows, uint32_t row) noexcept {
    if (state_) follow_remove(rows, row);
  }

  // A filter begins to use the set. Its columns stay until the next one does.
  void begin_use();
  // The column of a field, with all rows. null: it does not fit (ask the rows), or the bounds were reached; then what is
  // built is kept.
  const Column* column(const JsonPath& field, const RowTable& rows, BuildBounds& bounds);

  // The mask of a filter with this text, asked since the last write; or null.
  const FilterMask* find_mask(std::string_view filter);
  void keep_mask(std::string_view filter, const FilterMask& mask);

  void drop() noexcept;

 private:
  friend class ColumnMemory;
  struct State;

  void follow_append(const RowTable& rows) noexcept;
  void follow_remove(const RowTable& rows, uint32_t row) noexcept;
  void drop_unworthy(uint32_t rows) noexcept;
  bool drop_oldest() noexcept;
  void drop_masks() noexcept;
  void count() noexcept;
  bool build(Column& column, const RowTable& rows, BuildBounds& bounds);

  ColumnMemory& memory_;
  std::unique_ptr<State> state_;  // null: no filter has used the set yet
};

}  // namespace kalos
