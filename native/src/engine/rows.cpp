#include "engine/rows.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <new>

#include "compute/cpu/portable/canonical.h"

namespace kalos {
namespace {

constexpr uint64_t largest_chunk_bytes = 2 << 20;
constexpr uint32_t most_rows_a_chunk = 16384;
constexpr size_t cache_line = 64;

void free_floats(float* floats) { std::free(floats); }

}  // namespace

RowTable::RowTable(uint32_t dimension) : dimension_(dimension), stride_(padded_dimension(dimension)) {
  uint64_t rows = most_rows_a_chunk;
  if (stride_ != 0) rows = std::clamp<uint64_t>(largest_chunk_bytes / (stride_ * sizeof(float)), 64, most_rows_a_chunk);
  chunk_bits_ = uint32_t(std::bit_width(rows) - 1);
}

RowTable::~RowTable() {
  // Freed memory must not keep what was deleted.
  for (size_t i = 0; i < chunks_.size(); ++i) {
    if (stride_) explicit_bzero(chunks_[i].vectors.get(), uint64_t{capacity(i)} * stride_ * sizeof(float));
  }
}

RowTable::Place RowTable::place(uint32_t row) const {
  uint32_t rows = 1u << chunk_bits_;
  if (row >= rows) return {chunk_bits_ + (row >> chunk_bits_), row & (rows - 1)};
  if (row == 0) return {0, 0};
  size_t chunk = size_t(std::bit_width(row));
  return {chunk, row - (1u << (chunk - 1))};
}

uint32_t RowTable::capacity(size_t chunk) const {
  if (chunk == 0) return 1;
  return 1u << std::min<size_t>(chunk - 1, chunk_bits_);
}

uint64_t RowTable::chunk_bytes(size_t chunk) const {
  uint64_t row = sizeof(RowEntry) + (stride_ ? stride_ * sizeof(float) + sizeof(double) : 0);
  return capacity(chunk) * row + sizeof(Chunk);
}

void RowTable::add_chunk() {
  uint32_t rows = capacity(chunks_.size());
  Chunk chunk{{nullptr, free_floats}, nullptr, std::make_unique<RowEntry[]>(rows)};
  if (stride_) {
    size_t bytes = (size_t{rows} * stride_ * sizeof(float) + cache_line - 1) / cache_line * cache_line;
    auto* floats = static_cast<float*>(std::aligned_alloc(cache_line, bytes));
    if (!floats) throw std::bad_alloc();
    std::memset(floats, 0, bytes);  // padding is part of every sum
    chunk.vectors.reset(floats);
    chunk.norms = std::make_unique<double[]>(rows);
  }
  bytes_ += chunk_bytes(chunks_.size());
  chunks_.push_back(std::move(chunk));
}

uint32_t RowTable::append(const RowEntry& entry, std::span<const float> vector) {
  Place at = place(size_);
  if (at.chunk == chunks_.size()) add_chunk();
  chunks_[at.chunk].entries[at.offset] = entry;
  uint32_t row = size_++;
  if (stride_) set_vector(row, vector);
  return row;
}

void RowTable::set_vector(uint32_t row, std::span<const float> vector) {
  Place at = place(row);
  Chunk& chunk = chunks_[at.chunk];
  std::memcpy(chunk.vectors.get() + size_t{at.offset} * stride_, vector.data(), dimension_ * sizeof(float));
  chunk.norms[at.offset] = canonical_norm(vector.first(dimension_));
}

void RowTable::remove(uint32_t row) {
  Place hole = place(row);
  Place last = place(size_ - 1);
  if (row != size_ - 1) {
    Chunk& to = chunks_[hole.chunk];
    Chunk& from = chunks_[last.chunk];
    to.entries[hole.offset] = from.entries[last.offset];
    if (stride_) {
      std::memcpy(to.vectors.get() + size_t{hole.offset} * stride_, from.vectors.get() + size_t{last.offset} * stride_,
                  stride_ * sizeof(float));
      to.norms[hole.offset] = from.norms[last.offset];
    }
  }
  clear(last);
  --size_;
  if (last.offset == 0) {
    bytes_ -= chunk_bytes(chunks_.size() - 1);
    chunks_.pop_back();
  }
}

void RowTable::clear(Place at) {
  Chunk& chunk = chunks_[at.chunk];
  chunk.entries[at.offset] = RowEntry{};
  if (!stride_) return;
  explicit_bzero(chunk.vectors.get() + size_t{at.offset} * stride_, stride_ * sizeof(float));
  chunk.norms[at.offset] = 0;
}

RowEntry& RowTable::entry(uint32_t row) {
  Place at = place(row);
  return chunks_[at.chunk].entries[at.offset];
}

const RowEntry& RowTable::entry(uint32_t row) const {
  Place at = place(row);
  return chunks_[at.chunk].entries[at.offset];
}

const float* RowTable::vector(uint32_t row) const {
  if (!stride_) return nullptr;
  Place at = place(row);
  return chunks_[at.chunk].vectors.get() + size_t{at.offset} * stride_;
}

RowTable::Run RowTable::run(size_t chunk) const {
  Run run;
  run.first = chunk == 0 ? 0 : chunk <= chunk_bits_ ? 1u << (chunk - 1) : uint32_t(chunk - chunk_bits_) << chunk_bits_;
  run.count = std::min(size_ - run.first, capacity(chunk));
  run.entries = chunks_[chunk].entries.get();
  if (stride_) run.block = {chunks_[chunk].vectors.get(), chunks_[chunk].norms.get(), stride_, run.count};
  return run;
}

}  // namespace kalos
