// Rows of one namespace, dense: what a search reads lies together, in chunks that never move.
//
// Chunk 0 holds row 0, chunk c the rows [2^(c-1), 2^c), until a chunk holds 2^chunk_bits_ rows; from there on all are
// of that size. So a namespace of one row costs little, one of millions lies in large runs, and growth copies nothing.
// Each chunk holds float32[rows][stride] vectors, float64[rows] norms and RowEntry[rows]. A removed row is overwritten
// by the last one; the place that the last one leaves is zeroed and an empty chunk given back.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "compute/device.h"
#include "engine/arena.h"

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
  explicit RowTable(uint32_t dimension);  // 0: rows without vectors
  ~RowTable();
  RowTable(const RowTable&) = delete;
  RowTable& operator=(const RowTable&) = delete;

  uint32_t size() const { return size_; }
  uint64_t bytes() const { return bytes_; }

  uint32_t append(const RowEntry& entry, std::span<const float> vector);
  void set_vector(uint32_t row, std::span<const float> vector);
  // The last row takes its place.
  void remove(uint32_t row);

  RowEntry& entry(uint32_t row);
  const RowEntry& entry(uint32_t row) const;
  const float* vector(uint32_t row) const;  // null in a table without vectors

  // A run of consecutive rows: rows [first, first + count).
  struct Run {
    RowBlock block;  // vectors and norms null in a table without vectors
    const RowEntry* entries = nullptr;
    uint32_t first = 0;
    uint32_t count = 0;
  };
  size_t run_count() const { return chunks_.size(); }
  Run run(size_t chunk) const;

 private:
  struct Chunk {
    std::unique_ptr<float, void (*)(float*)> vectors;
    std::unique_ptr<double[]> norms;
    std::unique_ptr<RowEntry[]> entries;
  };
  struct Place {
    size_t chunk;
    uint32_t offset;
  };

  Place place(uint32_t row) const;
  uint32_t capacity(size_t chunk) const;
  uint64_t chunk_bytes(size_t chunk) const;
  void add_chunk();
  void clear(Place at);

  uint32_t dimension_;
  uint32_t stride_;
  uint32_t chunk_bits_;  // the largest chunks hold 1 << chunk_bits_ rows
  uint32_t size_ = 0;
  uint64_t bytes_ = 0;
  std::vector<Chunk> chunks_;
};

}  // namespace kalos
