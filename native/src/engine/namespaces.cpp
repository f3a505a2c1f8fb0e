#include "engine/namespaces.h"

#include <algorithm>
#include <bit>

namespace kalos {
namespace {

constexpr size_t fewest_slots = 4;

uint32_t hash_of(std::string_view id) {
  uint64_t hash = std::hash<std::string_view>{}(id);
  return uint32_t(hash ^ (hash >> 32));
}

// Bytes of the first segment with its length, 0 where the key ends (or is cut short, which no valid key is).
size_t segment_bytes(std::string_view key) {
  if (key.size() < 2) return 0;
  size_t bytes = 2 + (size_t{static_cast<unsigned char>(key[0])} << 8 | static_cast<unsigned char>(key[1]));
  return bytes <= key.size() ? bytes : 0;
}

uint64_t visible_rows(const RowTable& table, int64_t now_us) {
  uint64_t count = 0;
  for (size_t i = 0; i < table.run_count(); ++i) {
    RowTable::Run run = table.run(i);
    for (uint32_t row = 0; row < run.count; ++row) count += run.entries[row].visible(now_us);
  }
  return count;
}

}  // namespace

Namespace::Namespace(std::string key, Coder& coder, ColumnMemory& column_memory)
    : key_(std::move(key)),
      vectors_(&coder),
      plain_(nullptr),
      vector_columns_(column_memory),
      plain_columns_(column_memory) {}

uint64_t Namespace::visible_count(int64_t now_us) const {
  if (expiring_ == 0) return row_count();
  return visible_rows(vectors_, now_us) + visible_rows(plain_, now_us);
}

bool Namespace::any_visible(int64_t now_us) const { return expiring_ < row_count() || visible_count(now_us) > 0; }

uint64_t Namespace::bytes() const {
  return sizeof(Namespace) + key_.size() + vectors_.bytes() + plain_.bytes() + ids_.capacity() * sizeof(IdSlot);
}

const RowEntry& Namespace::entry(RowCode code) const { return table(code).entry(code.row()); }

std::optional<RowCode> Namespace::find(std::string_view id) const {
  if (ids_.empty()) return std::nullopt;
  uint32_t hash = hash_of(id);
  size_t mask = ids_.size() - 1;
  for (size_t slot = hash & mask; ids_[slot].code_plus_1 != 0; slot = (slot + 1) & mask) {
    if (ids_[slot].hash != hash) continue;
    RowCode code{ids_[slot].code_plus_1 - 1};
    if (entry(code).record->id() == id) return code;
  }
  return std::nullopt;
}

void Namespace::add(const RowEntry& entry, std::span<const float> vector) {
  bool has_vector = !vector.empty();
  RowCode code = RowCode::of(has_vector ? vectors_.append(entry, vector) : plain_.append(entry, vector), has_vector);
  columns(has_vector).appended(table(code));
  entry.record->owner = this;
  entry.record->row = code.value;
  if (entry.expires_us != 0) ++expiring_;
  if (row_count() * 4 > ids_.size() * 3) resize_ids(std::max(fewest_slots, ids_.size() * 2));
  place({hash_of(entry.record->id()), code.value + 1});
}

void Namespace::remove(RowCode code) {
  RowTable& rows = table(code);
  if (rows.entry(code.row()).expires_us != 0) --expiring_;
  erase(slot_of(code));
  RowCode last = RowCode::of(rows.size() - 1, code.has_vector());
  if (last != code) {
    ids_[slot_of(last)].code_plus_1 = code.value + 1;
    rows.entry(last.row()).record->row = code.value;
  }
  columns(code.has_vector()).removing(rows, code.row());
  rows.remove(code.row());
  if (ids_.size() > fewest_slots && row_count() * 8 < ids_.size()) resize_ids(ids_.size() / 2);
}

void Namespace::set_record(RowCode code, Record* record) { table(code).entry(code.row()).record = record; }

size_t Namespace::slot_of(RowCode code) const {
  size_t mask = ids_.size() - 1;
  size_t slot = hash_of(entry(code).record->id()) & mask;
  while (ids_[slot].code_plus_1 != code.value + 1) slot = (slot + 1) & mask;
  return slot;
}

void Namespace::place(IdSlot entry) {
  size_t mask = ids_.size() - 1;
  size_t slot = entry.hash & mask;
  while (ids_[slot].code_plus_1 != 0) slot = (slot + 1) & mask;
  ids_[slot] = entry;
}

void Namespace::erase(size_t hole) {
  size_t mask = ids_.size() - 1;
  for (size_t slot = (hole + 1) & mask; ids_[slot].code_plus_1 != 0; slot = (slot + 1) & mask) {
    size_t home = ids_[slot].hash & mask;
    // Moves back what would no longer be found past the hole.
    if (((slot - home) & mask) >= ((slot - hole) & mask)) {
      ids_[hole] = ids_[slot];
      hole = slot;
    }
  }
  ids_[hole] = IdSlot{};
}

void Namespace::resize_ids(size_t slots) {
  std::vector<IdSlot> before(slots);
  before.swap(ids_);
  for (IdSlot slot : before) {
    if (slot.code_plus_1 != 0) place(slot);
  }
}

std::vector<const Namespace*> in_scope(const NamespaceMap& namespaces, const Scope& scope) {
  std::vector<const Namespace*> found;
  if (!scope.subtree) {
    auto at = namespaces.find(scope.namespace_key);
    if (at != namespaces.end()) found.push_back(at->second.get());
    return found;
  }
  for (auto at = namespaces.lower_bound(scope.namespace_key);
       at != namespaces.end() && at->first.starts_with(scope.namespace_key); ++at) {
    found.push_back(at->second.get());
  }
  return found;
}

std::string_view cut_key(std::string_view key, uint32_t segments) {
  size_t end = 0;
  for (uint32_t i = 0; i < segments; ++i) {
    size_t bytes = segment_bytes(key.substr(end));
    if (bytes == 0) break;
    end += bytes;
  }
  return key.substr(0, end);
}

bool key_ends_with(std::string_view key, std::string_view suffix) {
  while (key.size() > suffix.size()) {
    size_t bytes = segment_bytes(key);
    if (bytes == 0) return false;
    key.remove_prefix(bytes);
  }
  return key == suffix;
}

std::string readable_key(std::string_view key) {
  std::string words = "(";
  while (size_t bytes = segment_bytes(key)) {
    words += (words.size() > 1 ? ", \"" : "\"") + std::string(key.substr(2, bytes - 2)) + "\"";
    key.remove_prefix(bytes);
  }
  return words + ")";
}

}  // namespace kalos
