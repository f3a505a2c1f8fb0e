#include "engine/collection.h"

#include <cstring>
#include <map>

namespace kalos {

struct Collection::State {
  struct Expiring {
    Namespace* owner;
    std::string id;
  };
  using ExpiryKey = std::pair<int64_t, uint64_t>;  // expires_us, row sequence

  State(CollectionInfo given, TextBacking backing) : info(std::move(given)), arena(std::move(backing)) {}

  Namespace& name_space(std::string_view key) {
    auto at = namespaces.find(key);
    if (at == namespaces.end()) {
      std::string owned(key);
      at = namespaces.emplace(owned, std::make_unique<Namespace>(owned, info.dimension)).first;
      namespace_bytes += at->second->bytes();
    }
    return *at->second;
  }

  void remove(Namespace& owner, RowCode code) {
    RowEntry entry = owner.entry(code);
    if (entry.expires_us != 0) {
      auto at = expiries.find({entry.expires_us, entry.sequence});
      explicit_bzero(at->second.id.data(), at->second.id.size());
      expiries.erase(at);
    }
    namespace_bytes -= owner.bytes();
    owner.remove(code);
    namespace_bytes += owner.bytes();
    arena.release(entry.record);
    --rows;
  }

  void drop_if_empty(Namespace& owner) {
    if (owner.row_count() != 0) return;
    namespace_bytes -= owner.bytes();
    namespaces.erase(namespaces.find(owner.key()));
  }

  void tidy() {
    arena.tidy([](Record* record) { record->owner->set_record(RowCode{record->row}, record); });
  }

  CollectionInfo info;
  Arena arena;
  NamespaceMap namespaces;
  std::map<ExpiryKey, Expiring> expiries;
  uint64_t rows = 0;
  uint64_t namespace_bytes = 0;
};

Collection::Collection(CollectionInfo info, TextBacking backing)
    : state_(std::make_unique<State>(std::move(info), std::move(backing))) {}

Collection::~Collection() = default;

const CollectionInfo& Collection::info() const { return state_->info; }
void Collection::set_info(CollectionInfo info) { state_->info = std::move(info); }
const NamespaceMap& Collection::namespaces() const { return state_->namespaces; }
uint64_t Collection::row_count() const { return state_->rows; }
uint64_t Collection::bytes() const { return state_->namespace_bytes + state_->arena.memory_bytes(); }

void Collection::put(std::unique_ptr<Row> row) {
  State& state = *state_;
  Namespace& owner = state.name_space(row->namespace_key);
  if (auto code = owner.find(row->id)) state.remove(owner, *code);
  RowEntry entry;
  entry.sequence = row->sequence;
  entry.created_us = row->created_us;
  entry.updated_us = row->updated_us;
  entry.expires_us = row->expires_us;
  RecordParts parts{row->id, std::nullopt, std::nullopt};
  if (row->has_text) parts.text = row->text;
  if (row->has_metadata) parts.metadata = row->metadata;
  entry.record = state.arena.add(parts);
  state.namespace_bytes -= owner.bytes();
  owner.add(entry, row->vector);
  state.namespace_bytes += owner.bytes();
  if (entry.expires_us != 0) {
    state.expiries.insert_or_assign({entry.expires_us, entry.sequence}, State::Expiring{&owner, row->id});
  }
  ++state.rows;
  state.tidy();
}

bool Collection::remove(std::string_view namespace_key, std::string_view id) {
  State& state = *state_;
  auto at = state.namespaces.find(namespace_key);
  if (at == state.namespaces.end()) return false;
  Namespace& owner = *at->second;
  auto code = owner.find(id);
  if (!code) return false;
  state.remove(owner, *code);
  state.drop_if_empty(owner);
  state.tidy();
  return true;
}

uint64_t Collection::bytes_of(uint32_t dimension, size_t id_bytes, size_t text_bytes, size_t metadata_bytes) {
  constexpr uint64_t bytes_of_an_id_slot = 8;
  constexpr uint64_t slots_a_row = 3;  // at most: just after the table of ids doubled
  uint64_t vector = dimension == 0 ? 0 : padded_dimension(dimension) * sizeof(float) + sizeof(double);
  return vector + sizeof(RowEntry) + slots_a_row * bytes_of_an_id_slot +
         Arena::record_bytes(id_bytes, text_bytes, metadata_bytes);
}

std::vector<Collection::RowName> Collection::expired(int64_t now_us, size_t limit) const {
  std::vector<RowName> names;
  for (const auto& [key, row] : state_->expiries) {
    if (key.first > now_us || names.size() >= limit) break;
    names.push_back({row.owner->key(), row.id});
  }
  return names;
}

int64_t Collection::next_expiry_us() const {
  return state_->expiries.empty() ? 0 : state_->expiries.begin()->first.first;
}

}  // namespace kalos
