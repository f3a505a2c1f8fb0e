#include "engine/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>

namespace kalos {
namespace {

constexpr uint64_t smallest_chunk = 64 << 10;
constexpr uint64_t largest_chunk = 4 << 20;
constexpr uint64_t page = 4096;

constexpr uint64_t rounded(uint64_t bytes, uint64_t multiple) { return (bytes + multiple - 1) / multiple * multiple; }

std::byte* map_memory(uint64_t bytes) {
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return at == MAP_FAILED ? nullptr : static_cast<std::byte*>(at);
}

// A file that is unlinked before its first byte is written: it goes when the mapping goes, whatever ends the process.
std::byte* map_file(const std::string& directory, uint64_t bytes) {
  std::string path = directory + "/kalos-texts-XXXXXX";
  int file = mkostemp(path.data(), O_CLOEXEC);
  if (file < 0) return nullptr;
  unlink(path.c_str());
  void* at = MAP_FAILED;
  // Allocated up front: a full disk must be an answer here, not a SIGBUS later.
  if (posix_fallocate(file, 0, off_t(bytes)) == 0)
    at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  return at == MAP_FAILED ? nullptr : static_cast<std::byte*>(at);
}

}  // namespace

Arena::Arena(TextBacking backing) : backing_(std::move(backing)) {}

Arena::~Arena() {
  for (Chunk& chunk : chunks_) {
    if (chunk.start) unmap(chunk);
  }
}

uint64_t Arena::record_bytes(size_t id_bytes, size_t text_bytes, size_t metadata_bytes) {
  return rounded(sizeof(Record) + id_bytes + text_bytes + metadata_bytes, alignof(Record));
}

Record* Arena::add(const RecordParts& parts) {
  size_t text_bytes = parts.text ? parts.text->size() : 0;
  size_t metadata_bytes = parts.metadata ? parts.metadata->size() : 0;
  uint64_t total = record_bytes(parts.id.size(), text_bytes, metadata_bytes);
  uint32_t chunk = 0;
  std::byte* at = allocate(total, chunk);
  auto* record = new (at) Record{};
  record->total_bytes = uint32_t(total);
  record->text_bytes = uint32_t(text_bytes);
  record->metadata_bytes = uint32_t(metadata_bytes);
  record->id_bytes = uint16_t(parts.id.size());
  record->has_text = parts.text.has_value();
  record->has_metadata = parts.metadata.has_value();
  record->chunk = chunk;
  std::byte* bytes = at + sizeof(Record);
  std::memcpy(bytes, parts.id.data(), parts.id.size());
  if (metadata_bytes) std::memcpy(bytes + parts.id.size(), parts.metadata->data(), metadata_bytes);
  if (text_bytes) std::memcpy(bytes + parts.id.size() + metadata_bytes, parts.text->data(), text_bytes);
  return record;
}

void Arena::release(Record* record) {
  uint32_t total = record->total_bytes;
  uint32_t index = record->chunk;
  explicit_bzero(static_cast<void*>(record), total);
  record->total_bytes = total;  // so that a walk over the chunk can step over it
  chunks_[index].dead += total;
  consider(index);
}

void Arena::tidy(const std::function<void(Record*)>& moved) {
  while (!to_tidy_.empty()) {
    uint32_t index = to_tidy_.back();
    to_tidy_.pop_back();
    // The same chunk may be named twice, and its slot may hold another one by now.
    if (!chunks_[index].start || index == newest_ || chunks_[index].dead * 2 <= chunks_[index].used) continue;
    std::byte* start = chunks_[index].start;
    uint64_t used = chunks_[index].used;
    for (uint64_t at = 0; at < used;) {
      auto* record = reinterpret_cast<Record*>(start + at);
      at += record->total_bytes;
      if (!record->owner) continue;
      uint32_t chunk = 0;
      std::byte* place = allocate(record->total_bytes, chunk);
      std::memcpy(place, static_cast<void*>(record), record->total_bytes);
      auto* copy = std::launder(reinterpret_cast<Record*>(place));
      copy->chunk = chunk;
      explicit_bzero(static_cast<void*>(record), sizeof(Record));
      moved(copy);
    }
    drop_chunk(index);
  }
}

std::byte* Arena::allocate(uint64_t bytes, uint32_t& chunk) {
  if (bytes > largest_chunk / 4) {
    // A chunk of its own: given back at once when the row goes, never moved.
    chunk = add_chunk(rounded(bytes, page));
    chunks_[chunk].used = bytes;
    return chunks_[chunk].start;
  }
  if (newest_ == none || chunks_[newest_].capacity - chunks_[newest_].used < bytes) {
    uint64_t capacity = std::clamp(std::bit_floor(bytes_ / 4 + 1), smallest_chunk, largest_chunk);
    uint32_t sealed = newest_;
    newest_ = add_chunk(std::max(capacity, rounded(bytes, page)));
    if (sealed != none) consider(sealed);
  }
  chunk = newest_;
  std::byte* at = chunks_[newest_].start + chunks_[newest_].used;
  chunks_[newest_].used += bytes;
  return at;
}

void Arena::consider(uint32_t index) {
  const Chunk& chunk = chunks_[index];
  if (chunk.dead == chunk.used && index == newest_) newest_ = none;  // nothing lives in it
  if (index != newest_ && chunk.dead * 2 > chunk.used) to_tidy_.push_back(index);
}

uint32_t Arena::add_chunk(uint64_t capacity) {
  Chunk chunk;
  chunk.capacity = capacity;
  if (backing_.file) {
    chunk.start = map_file(backing_.directory, capacity);
    chunk.in_memory = chunk.start == nullptr;
  }
  // A full disk must not lose a commit that is acknowledged: then memory carries the chunk.
  if (!chunk.start) chunk.start = map_memory(capacity);
  if (!chunk.start) throw std::bad_alloc();
  bytes_ += capacity;
  if (chunk.in_memory) memory_bytes_ += capacity;
  uint32_t index = uint32_t(chunks_.size());
  if (free_slots_.empty()) {
    chunks_.push_back(chunk);
  } else {
    index = free_slots_.back();
    free_slots_.pop_back();
    chunks_[index] = chunk;
  }
  return index;
}

void Arena::drop_chunk(uint32_t index) {
  free_slots_.push_back(index);  // first: it may find no memory
  Chunk& chunk = chunks_[index];
  bytes_ -= chunk.capacity;
  if (chunk.in_memory) memory_bytes_ -= chunk.capacity;
  unmap(chunk);
  chunk = Chunk{};
  if (newest_ == index) newest_ = none;
}

void Arena::unmap(const Chunk& chunk) {
  // The kernel clears anonymous pages before anyone gets them; a file's blocks it only frees.
  if (!chunk.in_memory) explicit_bzero(chunk.start, chunk.used);
  munmap(chunk.start, chunk.capacity);
}

}  // namespace kalos
