#include "engine/select.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "engine/filter_mask.h"

namespace kalos {
namespace {

constexpr uint64_t default_page_bytes = 1 << 20;

// The filter of a request: absent, or parsed, or an error.
Result<std::optional<Filter>> parse_filter(const std::optional<std::string_view>& json) {
  if (!json) return std::optional<Filter>();
  auto filter = Filter::parse(*json);
  if (!filter) return filter.error();
  if (filter->matches_all()) return std::optional<Filter>();
  return std::optional<Filter>(std::move(*filter));
}

// Calls `take` for each visible row of a namespace that the filter matches. False: the deadline passed before the last.
template <class Take>
bool for_each_row(const Namespace& owner, std::optional<Filter>& filter, int64_t now_us, Deadline& deadline,
                  Take take) {
  for (bool has_vector : {true, false}) {
    const RowTable& rows = has_vector ? owner.vectors() : owner.plain();
    FilterMask mask;
    if (filter) {
      auto matched = match_rows(*filter, owner.columns(has_vector), rows, deadline);
      if (!matched) return false;
      if (matched->matches == 0) continue;
      mask = std::move(*matched);
    }
    for (size_t chunk = 0; chunk < rows.run_count(); ++chunk) {
      RowTable::Run run = rows.run(chunk);
      for (uint32_t i = 0; i < run.count; ++i) {
        uint32_t row = run.first + i;
        if ((filter && !mask[row]) || !run.entries[i].visible(now_us)) continue;
        take(run.entries[i], RowCode::of(row, has_vector));
        if (deadline.passed_after(1)) return false;
      }
    }
  }
  return true;
}

// How many rows that would be.
Result<uint64_t> count_rows(const Namespace& owner, std::optional<Filter>& filter, int64_t now_us, Deadline& deadline) {
  if (!filter) return owner.visible_count(now_us);
  uint64_t count = 0;
  if (owner.expiring_count() != 0) {
    if (!for_each_row(owner, filter, now_us, deadline, [&](const RowEntry&, RowCode) { ++count; })) {
      return expired_error();
    }
    return count;
  }
  for (bool has_vector : {true, false}) {
    auto mask = match_rows(*filter, owner.columns(has_vector), has_vector ? owner.vectors() : owner.plain(), deadline);
    if (!mask) return mask.error();
    count += mask->matches;
  }
  return count;
}

// A row in the order of a scan. `rank` and `tie` rise.
struct Place {
  int64_t rank = 0;  // for UPDATED the complement of the time, which falls as it rises
  uint64_t tie = 0;  // the sequence, or for UPDATED what falls as it rises
  RowRef row;

  bool operator<(const Place& other) const { return rank < other.rank || (rank == other.rank && tie < other.tie); }
};

Place place_of(kalos_order order, int64_t updated_us, uint64_t sequence) {
  if (order == KALOS_ORDER_INSERTION) return {0, sequence, {}};
  return {~updated_us, std::numeric_limits<uint64_t>::max() - sequence, {}};
}

// The first `capacity` places after the cursor, and whether there were more.
class Page {
 public:
  Page(const ScanRequest& request, size_t capacity) : capacity_(capacity), has_cursor_(request.has_cursor) {
    if (has_cursor_) cursor_ = place_of(request.order, request.cursor_updated_us, request.cursor_sequence);
  }

  // Would the row be on the page, as far as is known?
  bool wants(const Place& place) const {
    if (has_cursor_ && !(cursor_ < place)) return false;
    return heap_.size() < capacity_ || place < heap_.front();
  }
  void add(const Place& place) {
    heap_.push_back(place);
    std::push_heap(heap_.begin(), heap_.end());
    if (heap_.size() <= capacity_) return;
    std::pop_heap(heap_.begin(), heap_.end());
    heap_.pop_back();
  }
  std::vector<Place> take_sorted() {
    std::sort_heap(heap_.begin(), heap_.end());
    return std::move(heap_);
  }

 private:
  size_t capacity_;
  bool has_cursor_;
  Place cursor_;
  std::vector<Place> heap_;  // the last place on top
};

uint64_t page_bytes(const ScanRequest& request) {
  constexpr uint64_t room_for_the_header = 65536;
  if (request.page_bytes == 0) return default_page_bytes;
  return std::min<uint64_t>(request.page_bytes, KALOS_MAX_MESSAGE_BYTES - room_for_the_header);
}

uint64_t rows_of(const std::vector<const Namespace*>& scope) {
  uint64_t rows = 0;
  for (const Namespace* owner : scope) rows += owner->row_count();
  return rows;
}

// Turns the places of a page into an answer: leaves out the skipped ones and ends at the bound on bytes.
HitsAnswer page_answer(const std::vector<Place>& places, const Collection& collection, const Snapshot& snapshot,
                       const ScanRequest& request) {
  HitsAnswer answer;
  answer.commit_sequence = snapshot.commit_sequence;
  answer.include = request.include;
  answer.dimension = collection.info().dimension;
  uint64_t most_bytes = page_bytes(request);
  uint64_t bytes = 0;
  size_t at = size_t(std::min<uint64_t>(request.skip, places.size()));
  for (; at < places.size() && answer.hits.size() < request.page_limit; ++at) {
    Hit hit = make_hit(places[at].row, request.include);
    bytes += hit_bytes(hit, answer.dimension);
    if (bytes > most_bytes && !answer.hits.empty()) break;
    answer.hits.push_back(hit);
  }
  answer.has_cursor = at < places.size();
  if (answer.has_cursor) {
    const RowEntry& last = places[at - 1].row.entry();
    answer.cursor_sequence = last.sequence;
    answer.cursor_updated_us = last.updated_us;
  }
  answer.groups = {0, uint32_t(answer.hits.size())};
  return answer;
}

}  // namespace

Hit make_hit(const RowRef& row, uint32_t include) {
  const RowEntry& entry = row.entry();
  const Record& record = *entry.record;
  Hit hit;
  hit.created_us = entry.created_us;
  hit.updated_us = entry.updated_us;
  hit.id = record.id();
  hit.namespace_key = row.owner->key();
  if (include & KALOS_INCLUDE_TEXT) hit.text = record.text();
  if ((include & KALOS_INCLUDE_METADATA) && record.has_metadata) hit.metadata = record.metadata();
  if (include & KALOS_INCLUDE_VECTOR) hit.vector = row.owner->vector(row.code);
  return hit;
}

Result<Bytes> get(const Collection& collection, const Snapshot& snapshot, const GetRequest& request) {
  HitsAnswer answer;
  answer.commit_sequence = snapshot.commit_sequence;
  answer.include = request.include;
  answer.dimension = collection.info().dimension;
  auto at = collection.namespaces().find(request.scope.namespace_key);
  const Namespace* owner = at == collection.namespaces().end() ? nullptr : at->second.get();
  for (std::string_view id : request.ids) {
    auto code = owner ? owner->find(id) : std::nullopt;
    if (code && owner->entry(*code).visible(snapshot.now_us)) {
      answer.hits.push_back(make_hit({owner, *code}, request.include));
    } else {
      answer.hits.emplace_back().found = false;
    }
  }
  answer.groups = {0, uint32_t(answer.hits.size())};
  return encode_hits(answer);
}

Result<Bytes> count(const Collection& collection, const Snapshot& snapshot, const CountRequest& request,
                    Deadline deadline) {
  auto filter = parse_filter(request.filter);
  if (!filter) return filter.error();
  uint64_t rows = 0;
  for (const Namespace* owner : in_scope(collection.namespaces(), request.scope)) {
    auto counted = count_rows(*owner, *filter, snapshot.now_us, deadline);
    if (!counted) return counted.error();
    rows += *counted;
  }
  return encode_count_reply(snapshot.commit_sequence, rows);
}

Result<Bytes> scan(const Collection& collection, const Snapshot& snapshot, const ScanRequest& request,
                   Deadline deadline) {
  if (request.order != KALOS_ORDER_INSERTION && request.order != KALOS_ORDER_UPDATED) {
    return invalid("order is " + std::to_string(request.order) + ", expected 1 (insertion) or 2 (updated)");
  }
  if (request.page_limit == 0) return invalid("page_limit is 0, expected 1 or more rows a page");
  auto filter = parse_filter(request.filter);
  if (!filter) return filter.error();
  std::vector<const Namespace*> scope = in_scope(collection.namespaces(), request.scope);
  // One more than the page can hold tells whether rows remain.
  uint64_t rows = rows_of(scope);
  uint64_t rows_a_page = std::min<uint64_t>(request.page_limit, page_bytes(request) / sizeof(kalos_hit_fields) + 1);
  uint64_t capacity = request.skip >= rows ? rows : std::min(rows, request.skip + rows_a_page + 1);
  Page page(request, size_t(capacity));
  for (const Namespace* owner : scope) {
    bool in_time = for_each_row(*owner, *filter, snapshot.now_us, deadline, [&](const RowEntry& entry, RowCode code) {
      Place place = place_of(request.order, entry.updated_us, entry.sequence);
      if (!page.wants(place)) return;
      place.row = {owner, code};
      page.add(place);
    });
    if (!in_time) return expired_error();
  }
  return encode_hits(page_answer(page.take_sorted(), collection, snapshot, request));
}

Result<Bytes> list_namespaces(const Collection& collection, const Snapshot& snapshot,
                              const NamespacesRequest& request) {
  std::vector<std::string_view> keys;
  uint64_t skipped = 0;
  bool any = false;
  std::string_view last;
  for (const Namespace* owner : in_scope(collection.namespaces(), {request.prefix.value_or(""), true})) {
    if (request.suffix && !key_ends_with(owner->key(), *request.suffix)) continue;
    std::string_view key = request.max_depth == 0 ? owner->key() : cut_key(owner->key(), request.max_depth);
    // Keys that are equal once cut follow each other: they share a byte prefix.
    if (any && key == last) continue;
    if (!owner->any_visible(snapshot.now_us)) continue;
    any = true;
    last = key;
    if (skipped < request.skip) {
      ++skipped;
      continue;
    }
    keys.push_back(key);
    if (request.limit != 0 && keys.size() == request.limit) break;
  }
  return encode_namespaces(snapshot.commit_sequence, keys);
}

Result<std::vector<Collection::RowName>> Collection::select(const DeleteRequest& request, int64_t now_us) const {
  if (!request.by_ids && !request.filter && !request.everything) {
    return invalid("nothing says what to delete: give ids, a filter, or everything=True for all rows of the scope");
  }
  auto filter = parse_filter(request.filter);
  if (!filter) return filter.error();
  if (!request.by_ids && !*filter && !request.everything) {
    return invalid("the filter {} means every row of the scope; say everything=True if that is meant");
  }
  std::vector<RowName> names;
  Deadline none(0);
  for (const Namespace* owner : in_scope(namespaces(), request.scope)) {
    if (!request.by_ids) {
      for_each_row(*owner, *filter, now_us, none, [&](const RowEntry& entry, RowCode) {
        names.push_back({owner->key(), std::string(entry.record->id())});
      });
      continue;
    }
    std::vector<std::string_view> ids(request.ids);
    std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    for (std::string_view id : ids) {
      auto code = owner->find(id);
      if (!code || !owner->entry(*code).visible(now_us)) continue;
      if (*filter && !(*filter)->matches(owner->entry(*code).record->metadata())) continue;
      names.push_back({owner->key(), std::string(id)});
    }
  }
  return names;
}

}  // namespace kalos
