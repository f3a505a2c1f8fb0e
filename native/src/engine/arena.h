// Where the bytes of rows lie: id, text and metadata of a row are one record in a chunk of its collection's arena.
//
// Records are appended to the newest chunk. A record that is released is overwritten with zeros at once; a chunk more
// than half of whose bytes are dead has its live records moved to the newest chunk and is given back. A chunk is
// anonymous memory, or a mapping of a file that has no name (TextBacking::file), so that texts may exceed the memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kalos {

class Namespace;

struct TextBacking {
  bool file = false;      // false: memory
  std::string directory;  // of the nameless files
};

// The head of a record; id, metadata and text follow.
struct Record {
  Namespace* owner;  // null: dead
  uint32_t row;      // RowCode of the owner
  uint32_t total_bytes;
  uint32_t text_bytes;
  uint32_t metadata_bytes;
  uint16_t id_bytes;
  uint8_t has_text;
  uint8_t has_metadata;
  uint32_t chunk;

  std::string_view id() const { return {bytes(), id_bytes}; }
  // Empty where there is none, which no metadata is.
  std::string_view metadata() const { return {bytes() + id_bytes, metadata_bytes}; }
  std::optional<std::string_view> text() const {
    if (!has_text) return std::nullopt;
    return std::string_view(bytes() + id_bytes + metadata_bytes, text_bytes);
  }

 private:
  const char* bytes() const { return reinterpret_cast<const char*>(this + 1); }
};

struct RecordParts {
  std::string_view id;
  std::optional<std::string_view> text;
  std::optional<std::string_view> metadata;
};

class Arena {
 public:
  explicit Arena(TextBacking backing);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Copies the parts in. The caller sets owner and row before it calls tidy().
  Record* add(const RecordParts& parts);
  void release(Record* record);

  // Moves live records out of chunks that are more than half dead. `moved` learns each record's new place (its owner
  // and row are set); the old place is zeros already.
  void tidy(const std::function<void(Record*)>& moved);

  uint64_t bytes() const { return bytes_; }                // mapped: of memory or, with file backing, of files
  uint64_t memory_bytes() const { return memory_bytes_; }  // of these, anonymous memory

  static uint64_t record_bytes(size_t id_bytes, size_t text_bytes, size_t metadata_bytes);

 private:
  struct Chunk {
    std::byte* start = nullptr;  // null: given back, the slot is free
    uint64_t capacity = 0;
    uint64_t used = 0;
    uint64_t dead = 0;
    bool in_memory = true;
  };
  static constexpr uint32_t none = UINT32_MAX;

  std::byte* allocate(uint64_t bytes, uint32_t& chunk);
  uint32_t add_chunk(uint64_t capacity);
  void drop_chunk(uint32_t index);
  static void unmap(const Chunk& chunk);
  void consider(uint32_t index);

  TextBacking backing_;
  std::vector<Chunk> chunks_;
  std::vector<uint32_t> free_slots_;
  std::vector<uint32_t> to_tidy_;
  uint32_t newest_ = none;
  uint64_t bytes_ = 0;
  uint64_t memory_bytes_ = 0;
};

}  // namespace kalos
