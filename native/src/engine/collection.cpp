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

  State(CollectionInfo given, TextBacking backing)
      : info(std::move(given)), coder(info.dimension, info.metric), arena(std::move(backing)) {}

  Namespace& name_space(std::string_view key) {
    auto at = namespaces.find(key);
    if (at == namespaces.end()) {
      std::string owned(key);
      at = namespaces.emplace(owned, std::make_unique<Namespace>(owned, coder, columns)).first;
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
    columns.allow_beside(namespace_bytes + arena.bytes());
  }

  // Learns how to code once there are enough rows, again whenever there are eight times as many, or when they have
  // changed and as many as half of them were written since: learning costs in proportion to the rows, so that it stays a
  // small part of writing them. Then codes what was coded otherwise: a chunk at a time, so that no write waits for all.
  void tend_codes() {
    ++written;
    bool changed = coder.has_drifted() && written >= std::max(fewest_writes_of_a_change, rows / 2);
    if (rows >= learn_at || changed) {
      learn();
      learn_at = std::max(learn_at, rows * growth_to_learn_again);
      written = 0;
      stale = true;
      stale_namespace.clear();
      stale_run = 0;
      recode_credit = 0;
    }
    if (!stale) return;
    recode_credit += rows_coded_anew_a_write;
    while (stale && recode_credit > 0) recode_next();
  }

  void learn() {
    std::vector<Coder::SampleRow> sample;
    uint64_t step = std::max<uint64_t>(rows / most_rows_to_learn_from, 1);
    uint64_t skip = 0;
    for (const auto& [key, owner] : namespaces) {
      const RowTable& table = owner->vectors();
      for (; skip < table.size(); skip += step) {
        RowBlock row = table.block(uint32_t(skip));
        sample.push_back({row.vectors, row.norms[0]});
      }
      skip -= table.size();
    }
    coder.learn(sample);
  }

  void recode_next() {
    auto at = namespaces.lower_bound(stale_namespace);
    if (at == namespaces.end()) {
      stale = false;
      return;
    }
    if (at->first != stale_namespace) stale_run = 0;
    stale_namespace = at->first;
    if (stale_run < at->second->vectors().run_count()) {
      recode_credit -= 1 + int64_t{at->second->recode(stale_run++)};
      return;
    }
    stale_namespace.push_back('\0');  // the least key after this one
    stale_run = 0;
  }

  static constexpr uint64_t fewest_rows_to_learn_from = 64, most_rows_to_learn_from = 2048;
  static constexpr uint64_t growth_to_learn_again = 8, fewest_writes_of_a_change = 1024;
  static constexpr int64_t rows_coded_anew_a_write = 32;

  CollectionInfo info;
  Coder coder;
  uint64_t learn_at = fewest_rows_to_learn_from;
  uint64_t written = 0;  // rows, since it learned
  // How far the coding of all rows by the present coding has come.
  bool stale = false;
  std::string stale_namespace;
  size_t stale_run = 0;
  int64_t recode_credit = 0;
  Arena arena;
  ColumnMemory columns;
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
const Coder& Collection::coder() const { return state_->coder; }
uint64_t Collection::row_count() const { return state_->rows; }
uint64_t Collection::bytes() const {
  return state_->namespace_bytes + state_->arena.memory_bytes() + state_->columns.bytes();
}
void Collection::drop_columns() { state_->columns.drop_all(); }

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
  if (!row->vector.empty()) state.tend_codes();
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
  // Vector, codes of as many bytes as components, bounds and norm; a small table may have a quarter to spare.
  constexpr uint64_t bytes_beside_a_vector = sizeof(double) + sizeof(CodeBounds) + 3 * sizeof(float);
  uint64_t vector = 0;
  if (dimension != 0) vector = (padded_dimension(dimension) * (sizeof(float) + 1) + bytes_beside_a_vector) * 5 / 4;
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
