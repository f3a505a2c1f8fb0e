#include "engine/value_dictionary.h"

#include <algorithm>
#include <cstring>
#include <functional>

namespace kalos {
namespace {

constexpr size_t fewest_slots = 8;
constexpr uint64_t allocation_overhead = 16;

// A canonical form that does not outlive its use.
struct Canonical {
  explicit Canonical(JsonValue value) { append_canonical(value, text); }
  ~Canonical() { explicit_bzero(text.data(), text.size()); }
  std::string text;
};

}  // namespace

ValueDictionary::~ValueDictionary() {
  for (Entry& entry : entries_) {
    if (entry.rows != 0) explicit_bzero(entry.raw.get(), entry.raw_bytes);
  }
}

uint32_t ValueDictionary::hash_of(std::string_view canonical) {
  uint64_t hash = std::hash<std::string_view>{}(canonical);
  return uint32_t(hash ^ (hash >> 32));
}

JsonValue ValueDictionary::value(uint32_t code) const {
  const Entry& entry = entries_[code - first_code];
  return {entry.kind, {entry.raw.get(), entry.raw_bytes}};
}

uint64_t ValueDictionary::bytes() const {
  return entries_.capacity() * sizeof(Entry) + slots_.capacity() * sizeof(uint32_t) + raw_bytes_ +
         size_ * allocation_overhead;
}

bool ValueDictionary::equals(const Entry& entry, uint32_t hash, std::string_view canonical) const {
  if (entry.hash != hash) return false;
  Canonical own({entry.kind, {entry.raw.get(), entry.raw_bytes}});
  return own.text == canonical;
}

size_t ValueDictionary::slot_of(uint32_t hash, std::string_view canonical) const {
  size_t mask = slots_.size() - 1;
  size_t slot = hash & mask;
  while (slots_[slot] != 0 && !equals(entries_[slots_[slot] - first_code], hash, canonical)) slot = (slot + 1) & mask;
  return slot;
}

uint32_t ValueDictionary::find(std::string_view canonical) const {
  return slots_.empty() ? 0 : slots_[slot_of(hash_of(canonical), canonical)];
}

uint32_t ValueDictionary::add(JsonValue value) {
  if ((size_t{size_} + 1) * 4 > slots_.size() * 3) grow();
  Canonical canonical(value);
  uint32_t hash = hash_of(canonical.text);
  size_t slot = slot_of(hash, canonical.text);
  if (slots_[slot] != 0) {
    ++entries_[slots_[slot] - first_code].rows;
    return slots_[slot];
  }
  auto raw = std::make_unique<char[]>(value.raw.size());
  std::memcpy(raw.get(), value.raw.data(), value.raw.size());
  uint32_t code = first_free_;
  if (code == 0) {
    code = end_code();
    entries_.emplace_back();
  } else {
    first_free_ = entries_[code - first_code].hash;
  }
  entries_[code - first_code] = {std::move(raw), uint32_t(value.raw.size()), 1, hash, value.kind};
  slots_[slot] = code;
  ++size_;
  number_count_ += value.kind == JsonKind::number;
  raw_bytes_ += value.raw.size();
  return code;
}

void ValueDictionary::release(uint32_t code) noexcept {
  Entry& entry = entries_[code - first_code];
  if (--entry.rows != 0) return;
  erase(code);
  --size_;
  number_count_ -= entry.kind == JsonKind::number;
  raw_bytes_ -= entry.raw_bytes;
  explicit_bzero(entry.raw.get(), entry.raw_bytes);
  entry = {};
  entry.hash = first_free_;
  first_free_ = code;
  if (size_ == 0) {
    entries_.clear();
    first_free_ = 0;
  }
}

void ValueDictionary::grow() {
  std::vector<uint32_t> before(std::max(fewest_slots, slots_.size() * 2));
  before.swap(slots_);
  size_t mask = slots_.size() - 1;
  for (uint32_t code : before) {
    if (code == 0) continue;
    size_t slot = entries_[code - first_code].hash & mask;
    while (slots_[slot] != 0) slot = (slot + 1) & mask;
    slots_[slot] = code;
  }
}

void ValueDictionary::erase(uint32_t code) noexcept {
  size_t mask = slots_.size() - 1;
  size_t hole = entries_[code - first_code].hash & mask;
  while (slots_[hole] != code) hole = (hole + 1) & mask;
  for (size_t slot = (hole + 1) & mask; slots_[slot] != 0; slot = (slot + 1) & mask) {
    size_t home = entries_[slots_[slot] - first_code].hash & mask;
    // Moves back what would no longer be found past the hole.
    if (((slot - home) & mask) >= ((slot - hole) & mask)) {
      slots_[hole] = slots_[slot];
      hole = slot;
    }
  }
  slots_[hole] = 0;
}

}  // namespace kalos
