// Rows of one namespace, dense: what a search reads lies together, in chunks of at most 2 MiB.
//
// All chunks but the last are full. The last one grows with the table, a quarter at a time, and of large ones only the
// pages in use are real, so that thousands of small namespaces take little more memory than one large one. Each chunk is
// one piece of memory: codes (compute/codes.h), vectors, norms, entries. A removed row is overwritten by the last one; the place that the last one leaves is zeroed.
// Rows move only while the index is changed, never under a read.
//
// A chunk of fewer than 32 rows has no codes: scoring so few is faster than ruling them out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "compute/device.h"
#include "engine/arena.h"
#include "engine/coding.h"

namespace kalos {

struct RowEntry {
  uint64_t sequence = 0;
  int64_t created_us = 0;
  int64_t updated_us = 0;
  int64_t expires_us = 0;  // 0: never
  Record* record = nullptr;

  bool visible(int64_t now_us) const { return expires_us == 0 || expires_us > now_us; }
};

class RowTable {
 public:
  explicit RowTable(Coder* coder);  // null: rows without vectors
  ~RowTable();
  RowTable(const RowTable&) = delete;
  RowTable& operator=(const RowTable&) = delete;

  uint32_t size() const { return size_; }
  uint64_t bytes() const;

  uint32_t append(const RowEntry& entry, std::span<const float> vector);
  // The last row takes its place.
  void remove(uint32_t row);

  RowEntry& entry(uint32_t row);
  const RowEntry& entry(uint32_t row) const;
  const float* vector(uint32_t row) const;  // null in a table without vectors
  RowBlock block(uint32_t row) const;       // of this row alone

  // A run of consecutive rows: rows [first, first + count).
  struct Run {
    RowBlock block;  // vectors and norms null in a table without vectors
    const RowEntry* entries = nullptr;
    uint32_t first = 0;
    uint32_t count = 0;
    // Where the rows have codes, else null.
    const Coding* coding = nullptr;
    const uint8_t* groups = nullptr;
    const uint8_t* low = nullptr;
    const CodeBounds* bounds = nullptr;
    float reach = 0;
  };
  size_t run_count() const { return chunks_.size(); }
  Run run(size_t chunk) const;

  // Codes the rows of a run anew if they were coded by another coding than the coder's present one. The number of rows
  // coded.
  uint32_t recode(size_t chunk);

 private:
  // Owned memory, zeroed when it is made. When it goes, so does what it held: it is overwritten, or unmapped.
  class Memory {
   public:
    Memory() = default;
    explicit Memory(size_t bytes);
    ~Memory();
    Memory(Memory&& other) noexcept;
    Memory& operator=(Memory&& other) noexcept;
    std::byte* data() const { return data_; }
    size_t size() const { return bytes_; }
    bool is_mapped() const { return mapped_; }  // then pages that were never written take no memory

   private:
    std::byte* data_ = nullptr;
    size_t bytes_ = 0;
    bool mapped_ = false;
  };
  struct Chunk {
    Memory memory;
    uint32_t capacity = 0;
    float reach = 0;
    std::shared_ptr<const Coding> coding;  // null: no codes
    // Within memory.
    uint8_t* groups = nullptr;
    uint8_t* low = nullptr;
    CodeBounds* bounds = nullptr;
    float* vectors = nullptr;
    double* norms = nullptr;
    RowEntry* entries = nullptr;
  };

  Chunk make_chunk(uint32_t capacity) const;
  uint32_t capacity_for(size_t chunk, uint32_t rows) const;
  uint32_t rows_of(size_t chunk) const;
  void resize_last(uint32_t capacity);
  void encode(Chunk& chunk, uint32_t row);
  CodePlace code_place(const Chunk& chunk, uint32_t row) const;
  void copy_row(Chunk& to, uint32_t to_row, const Chunk& from, uint32_t from_row);
  void clear_row(Chunk& chunk, uint32_t row);

  Coder* coder_;
  uint32_t stride_;
  CodeShape shape_;
  uint32_t row_bytes_;
  uint32_t rows_a_chunk_;
  uint32_t size_ = 0;
  std::vector<Chunk> chunks_;
};

}  // namespace kalos
