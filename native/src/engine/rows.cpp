#include "engine/rows.h"

#include <malloc.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "compute/cpu/portable/canonical.h"

namespace kalos {
namespace {

constexpr size_t cache_line = 64;
constexpr size_t page = 4096;
constexpr size_t huge_page = 2 << 20;
constexpr uint32_t most_rows_a_chunk = 16384;
constexpr uint32_t fewest_coded_rows = 32;

constexpr size_t rounded(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

constexpr size_t least_mapped_bytes = 64 << 10;

// Memory that fills a huge page gets one: a scan over 4 KiB pages spends its time on their table. Smaller pieces do not,
// or they would take all of it.
std::byte* map(size_t bytes) {
  if (bytes <= huge_page - huge_page / 8) {
    void* start = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) return nullptr;
    madvise(start, bytes, MADV_NOHUGEPAGE);
    return static_cast<std::byte*>(start);
  }
  // Twice as much has an aligned stretch in it somewhere.
  void* start = mmap(nullptr, bytes + huge_page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED) return nullptr;
  auto* from = static_cast<std::byte*>(start);
  size_t before = (huge_page - reinterpret_cast<uintptr_t>(from) % huge_page) % huge_page;
  if (before != 0) munmap(from, before);
  if (before != huge_page) munmap(from + before + bytes, huge_page - before);
  madvise(from + before, bytes, MADV_HUGEPAGE);
  return from + before;
}

// Small pieces that many tables grow out of leave holes all over the heap, which malloc keeps. Now and then it is told to
// give their pages back.
void give_back(size_t freed) {
#if defined(__GLIBC__)
  constexpr size_t worth_a_search = 64 << 20;
  static std::atomic<size_t> since_the_last = 0;
  if ((since_the_last += freed) < worth_a_search) return;
  since_the_last = 0;
  malloc_trim(0);
#else
  (void)freed;
#endif
}

}  // namespace

RowTable::Memory::Memory(size_t bytes) : bytes_(rounded(bytes, cache_line)) {
  if (bytes >= least_mapped_bytes) {
    bytes_ = rounded(bytes, bytes <= huge_page - huge_page / 8 ? page : huge_page);
    data_ = map(bytes_);
    mapped_ = data_ != nullptr;
  }
  // A process may have too many mappings; it has the heap still.
  if (!data_) data_ = static_cast<std::byte*>(std::aligned_alloc(cache_line, bytes_));
  if (!data_) throw std::bad_alloc();
  if (!mapped_) std::memset(data_, 0, bytes_);
}

RowTable::Memory::~Memory() {
  if (!data_) return;
  if (mapped_) {
    munmap(data_, bytes_);
  } else {
    explicit_bzero(data_, bytes_);
    std::free(data_);
    give_back(bytes_);
  }
}

RowTable::Memory::Memory(Memory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)), mapped_(other.mapped_) {}

RowTable::Memory& RowTable::Memory::operator=(Memory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(mapped_, other.mapped_);
  return *this;
}

RowTable::RowTable(Coder* coder)
    : coder_(coder), stride_(coder ? coder->padded() : 0), shape_(coder ? coder->shape() : CodeShape{}) {
  row_bytes_ = sizeof(RowEntry);
  if (coder_) {
    row_bytes_ += stride_ * sizeof(float) + sizeof(double) + shape_.group_bytes() / rows_a_group + shape_.low_bytes() +
                  sizeof(CodeBounds);
  }
  auto rows = uint32_t(std::min<size_t>((huge_page - 6 * cache_line) / row_bytes_, most_rows_a_chunk));
  rows_a_chunk_ = std::max(rows / rows_a_block, 1u) * rows_a_block;
}

RowTable::~RowTable() = default;

RowTable::Chunk RowTable::make_chunk(uint32_t capacity) const {
  bool coded = coder_ && capacity >= fewest_coded_rows;
  size_t at = 0;
  auto part = [&](size_t bytes) { return std::exchange(at, at + rounded(bytes, cache_line)); };
  size_t groups = part(coded ? capacity / rows_a_group * shape_.group_bytes() : 0);
  size_t low = part(coded ? capacity * shape_.low_bytes() : 0);
  size_t bounds = part(coded ? capacity * sizeof(CodeBounds) : 0);
  size_t vectors = part(size_t{capacity} * stride_ * sizeof(float));
  size_t norms = part(coder_ ? capacity * sizeof(double) : 0);
  size_t entries = part(capacity * sizeof(RowEntry));
  Chunk chunk;
  chunk.memory = Memory(at);
  chunk.capacity = capacity;
  std::byte* start = chunk.memory.data();
  chunk.entries = reinterpret_cast<RowEntry*>(start + entries);
  if (coder_) {
    chunk.vectors = reinterpret_cast<float*>(start + vectors);
    chunk.norms = reinterpret_cast<double*>(start + norms);
  }
  if (coded) {
    chunk.coding = coder_->coding();
    chunk.groups = reinterpret_cast<uint8_t*>(start + groups);
    chunk.low = reinterpret_cast<uint8_t*>(start + low);
    chunk.bounds = reinterpret_cast<CodeBounds*>(start + bounds);
  }
  return chunk;
}

// How many rows the chunk should have room for, to hold `rows`.
uint32_t RowTable::capacity_for(size_t chunk, uint32_t rows) const {
  uint64_t before = uint64_t{rows_a_chunk_} * chunk;
  if (before == 0 && rows < fewest_coded_rows) {
    uint32_t wanted = rows + rows / 4;
    return wanted < fewest_coded_rows ? wanted : fewest_coded_rows;
  }
  uint64_t step = std::max<uint64_t>((before + rows) / 4, rows_a_group);
  return uint32_t(std::min<uint64_t>(rounded(rows - 1 + step, rows_a_group), rows_a_chunk_));
}

uint32_t RowTable::rows_of(size_t chunk) const {
  return std::min(size_ - uint32_t(chunk) * rows_a_chunk_, rows_a_chunk_);
}

void RowTable::resize_last(uint32_t capacity) {
  Chunk& old = chunks_.back();
  uint32_t rows = rows_of(chunks_.size() - 1);
  Chunk chunk = make_chunk(capacity);
  if (chunk.coding && old.coding) {
    chunk.coding = old.coding;
    chunk.reach = old.reach;
    size_t groups = (rows + rows_a_group - 1) / rows_a_group;
    std::memcpy(chunk.groups, old.groups, groups * shape_.group_bytes());
    std::memcpy(chunk.low, old.low, rows * shape_.low_bytes());
    std::memcpy(chunk.bounds, old.bounds, rows * sizeof(CodeBounds));
  }
  if (coder_) {
    std::memcpy(chunk.vectors, old.vectors, size_t{rows} * stride_ * sizeof(float));
    std::memcpy(chunk.norms, old.norms, rows * sizeof(double));
  }
  std::copy_n(old.entries, rows, chunk.entries);
  if (chunk.coding && !old.coding) {
    for (uint32_t row = 0; row < rows; ++row) encode(chunk, row);
  }
  old = std::move(chunk);
}

uint64_t RowTable::bytes() const {
  if (chunks_.empty()) return 0;
  // All but the last are of one size.
  const Memory& last = chunks_.back().memory;
  uint64_t bytes = (chunks_.size() - 1) * chunks_.front().memory.size() + chunks_.size() * sizeof(Chunk);
  if (!last.is_mapped()) return bytes + last.size();
  constexpr uint64_t pages_begun = 6;  // of the parts of a chunk
  return bytes +
         std::min<uint64_t>(last.size(), uint64_t{rows_of(chunks_.size() - 1)} * row_bytes_ + pages_begun * page / 2);
}

uint32_t RowTable::append(const RowEntry& entry, std::span<const float> vector) {
  size_t index = size_ / rows_a_chunk_;
  uint32_t row = size_ % rows_a_chunk_;
  if (index == chunks_.size()) {
    chunks_.push_back(make_chunk(capacity_for(index, 1)));
  } else if (row == chunks_[index].capacity) {
    resize_last(capacity_for(index, row + 1));
  }
  Chunk& chunk = chunks_[index];
  chunk.entries[row] = entry;
  if (coder_) {
    std::memcpy(chunk.vectors + size_t{row} * stride_, vector.data(), coder_->dimension() * sizeof(float));
    chunk.norms[row] = canonical_norm(vector.first(coder_->dimension()));
    if (chunk.coding) encode(chunk, row);
  }
  return size_++;
}

void RowTable::remove(uint32_t row) {
  Chunk& to = chunks_[row / rows_a_chunk_];
  Chunk& from = chunks_.back();
  uint32_t last = rows_of(chunks_.size() - 1) - 1;
  if (row != size_ - 1) copy_row(to, row % rows_a_chunk_, from, last);
  clear_row(from, last);
  --size_;
  if (last == 0) {
    chunks_.pop_back();
    return;
  }
  uint32_t wanted = capacity_for(chunks_.size() - 1, last);
  if (wanted + wanted / 2 + rows_a_group < from.capacity) resize_last(wanted);
}

void RowTable::copy_row(Chunk& to, uint32_t to_row, const Chunk& from, uint32_t from_row) {
  to.entries[to_row] = from.entries[from_row];
  if (!coder_) return;
  std::memcpy(to.vectors + size_t{to_row} * stride_, from.vectors + size_t{from_row} * stride_,
              stride_ * sizeof(float));
  to.norms[to_row] = from.norms[from_row];
  if (to.coding) encode(to, to_row);
}

void RowTable::clear_row(Chunk& chunk, uint32_t row) {
  chunk.entries[row] = RowEntry{};
  if (!coder_) return;
  explicit_bzero(chunk.vectors + size_t{row} * stride_, stride_ * sizeof(float));
  chunk.norms[row] = 0;
  if (!chunk.coding) return;
  CodePlace place = code_place(chunk, row);
  for (uint32_t quad = 0; quad < shape_.quads; ++quad) {
    std::memset(place.group + (size_t{quad} * rows_a_group + place.row_of_group) * 4, 0, 4);
  }
  auto* columns = reinterpret_cast<float*>(place.group + shape_.columns_at()) + place.row_of_group;
  for (uint32_t column = 0; column < (shape_.squares ? 3 : 2); ++column) columns[column * rows_a_group] = 0;
  std::memset(place.low, 0, shape_.low_bytes());
  *place.bounds = {};
}

CodePlace RowTable::code_place(const Chunk& chunk, uint32_t row) const {
  return {chunk.groups + row / rows_a_group * shape_.group_bytes(), row % rows_a_group,
          chunk.low + row * shape_.low_bytes(), chunk.bounds + row};
}

void RowTable::encode(Chunk& chunk, uint32_t row) {
  coder_->encode(*chunk.coding, chunk.vectors + size_t{row} * stride_, chunk.norms[row], code_place(chunk, row),
                 chunk.reach);
}

uint32_t RowTable::recode(size_t index) {
  Chunk& chunk = chunks_[index];
  if (!chunk.coding || chunk.coding == coder_->coding()) return 0;
  chunk.coding = coder_->coding();
  chunk.reach = 0;
  uint32_t rows = rows_of(index);
  for (uint32_t row = 0; row < rows; ++row) encode(chunk, row);
  return rows;
}

RowEntry& RowTable::entry(uint32_t row) { return chunks_[row / rows_a_chunk_].entries[row % rows_a_chunk_]; }

const RowEntry& RowTable::entry(uint32_t row) const {
  return chunks_[row / rows_a_chunk_].entries[row % rows_a_chunk_];
}

const float* RowTable::vector(uint32_t row) const {
  if (!coder_) return nullptr;
  return chunks_[row / rows_a_chunk_].vectors + size_t{row % rows_a_chunk_} * stride_;
}

RowBlock RowTable::block(uint32_t row) const {
  return {vector(row), chunks_[row / rows_a_chunk_].norms + row % rows_a_chunk_, stride_, 1};
}

RowTable::Run RowTable::run(size_t index) const {
  const Chunk& chunk = chunks_[index];
  Run run;
  run.first = uint32_t(index) * rows_a_chunk_;
  run.count = rows_of(index);
  run.entries = chunk.entries;
  if (coder_) run.block = {chunk.vectors, chunk.norms, stride_, run.count};
  run.coding = chunk.coding.get();
  run.groups = chunk.groups;
  run.low = chunk.low;
  run.bounds = chunk.bounds;
  run.reach = chunk.reach;
  return run;
}

}  // namespace kalos
