#include "engine/index.h"

#include <algorithm>
#include <set>

#include "compute/cpu/kernels.h"
#include "engine/pass.h"
#include "engine/planner.h"
#include "engine/reply.h"
#include "engine/scan_pool.h"
#include "engine/search.h"
#include "engine/select.h"

namespace kalos {
namespace {

// A collection in whatever state it is.
struct Entry {
  CollectionInfo info;
  std::unique_ptr<Collection> collection;  // null: loading or cold
  std::shared_ptr<const std::atomic<uint32_t>> percent;
  std::string cold_words;
};

Error unavailable(const Entry& entry) {
  if (!entry.cold_words.empty()) return {KALOS_STATUS_STORE_ERROR, entry.cold_words};
  uint32_t percent = entry.percent ? entry.percent->load(std::memory_order_relaxed) : 0;
  return {KALOS_STATUS_LOADING, "loading, " + std::to_string(percent) + " %"};
}

uint64_t min_sequence(const ReadRequest& request) {
  return std::visit([](const auto& read) { return read.min_sequence; }, request);
}

uint64_t collection_of(const ReadRequest& request) {
  return std::visit([](const auto& read) { return read.collection_id; }, request);
}

// Answers everything but a search.
Result<Bytes> answer(const Collection& collection, const Snapshot& snapshot, const ReadRequest& request,
                     Deadline deadline) {
  if (auto* read = std::get_if<GetRequest>(&request)) return get(collection, snapshot, *read);
  if (auto* read = std::get_if<CountRequest>(&request)) return count(collection, snapshot, *read, deadline);
  if (auto* read = std::get_if<ScanRequest>(&request)) return scan(collection, snapshot, *read, deadline);
  return list_namespaces(collection, snapshot, std::get<NamespacesRequest>(request));
}

// A read with where its answer goes.
struct Pending {
  const ReadRequest* request = nullptr;
  int64_t deadline_ns = 0;
  Reply* reply = nullptr;
  Collection* collection = nullptr;  // of a search that passed its checks
  bool grouped = false;              // served already
  uint64_t* bytes_of_batch = nullptr;
};

// `answer`, unless the read's batch has more to answer with already than it may.
Result<Bytes> answer_in_batch(const Collection& collection, const Snapshot& snapshot, const Pending& read) {
  if (auto room = count_in_batch(read.bytes_of_batch, 0); !room) return room.error();
  auto message = answer(collection, snapshot, *read.request, Deadline(read.deadline_ns));
  if (!message) return message;
  if (auto room = count_in_batch(read.bytes_of_batch, message->size()); !room) return room.error();
  return message;
}

bool same_walk(const Pending& a, const Pending& b) {
  const Scope& x = std::get<SearchRequest>(*a.request).scope;
  const Scope& y = std::get<SearchRequest>(*b.request).scope;
  return a.collection == b.collection && x.subtree == y.subtree && x.namespace_key == y.namespace_key;
}

}  // namespace

struct Index::State {
  State(TextBacking given, uint32_t threads)
      : backing(std::move(given)), device(make_cpu_device()), pool(threads), planner(threads) {}

  Snapshot snapshot() { return {commit_sequence, wall_us(), device.get(), &pool, &planner, &totals}; }

  Result<Collection*> find(uint64_t collection_id) const {
    auto at = entries.find(collection_id);
    if (at == entries.end()) {
      return Error{KALOS_STATUS_NOT_FOUND, "there is no collection with id " + std::to_string(collection_id) +
                                               "; it was dropped, or never existed"};
    }
    if (!at->second.collection) return unavailable(at->second);
    return at->second.collection.get();
  }

  // The collection, once nothing stands against the read.
  Result<Collection*> admit(const Pending& read) const {
    if (Deadline(read.deadline_ns).passed()) return expired_error();
    auto collection = find(collection_of(*read.request));
    if (!collection) return collection;
    uint64_t wanted = min_sequence(*read.request);
    if (wanted > commit_sequence) {
      return Error{KALOS_STATUS_BEHIND, "commit " + std::to_string(wanted) + " is not published yet, the latest is " +
                                            std::to_string(commit_sequence)};
    }
    if (auto* search = std::get_if<SearchRequest>(read.request)) {
      if (auto checked = check_search(*search, (*collection)->info()); !checked) return checked.error();
    }
    return collection;
  }

  void serve(std::vector<Pending>& reads) {
    Snapshot now = snapshot();
    for (Pending& read : reads) {
      auto collection = admit(read);
      if (!collection) {
        *read.reply = error_reply(collection.error());
      } else if (std::holds_alternative<SearchRequest>(*read.request)) {
        read.collection = *collection;
      } else {
        serve_other(**collection, now, read);
      }
    }
    for (size_t i = 0; i < reads.size(); ++i) {
      if (reads[i].collection && !reads[i].grouped) serve_searches(now, reads, i);
    }
  }

  void serve_other(const Collection& collection, const Snapshot& now, Pending& read) {
    int64_t started = monotonic_ns();
    auto message = answer_in_batch(collection, now, read);
    if (message) {
      *read.reply = {KALOS_STATUS_OK, std::move(*message), {}};
    } else {
      *read.reply = error_reply(message.error());
    }
    read.reply->timings.search_ns = uint64_t(monotonic_ns() - started);
  }

  // The search at `first` and all later ones that walk the same rows.
  void serve_searches(const Snapshot& now, std::vector<Pending>& reads, size_t first) {
    std::vector<SearchJob> jobs;
    for (size_t i = first; i < reads.size(); ++i) {
      Pending& read = reads[i];
      if (!read.collection || read.grouped || !same_walk(reads[first], read)) continue;
      read.grouped = true;
      *read.reply = {};
      jobs.push_back({&std::get<SearchRequest>(*read.request), read.deadline_ns, read.reply, read.bytes_of_batch});
    }
    search(*reads[first].collection, now, jobs.front().request->scope, jobs);
  }

  TextBacking backing;
  std::unique_ptr<Device> device;
  ScanPool pool;
  Planner planner;
  SweepCounts totals;
  std::map<uint64_t, Entry> entries;
  std::set<uint64_t> dropped;  // while they were loading; ids are never used again
  uint64_t commit_sequence = 0;
};

Index::Index(TextBacking backing, uint32_t threads) : state_(std::make_unique<State>(std::move(backing), threads)) {}
Index::~Index() = default;

void Index::read(std::span<ReadJob* const> jobs) {
  std::vector<Pending> reads;
  reads.reserve(jobs.size());
  for (ReadJob* job : jobs)
    reads.push_back({&job->request, job->deadline_ns, &job->reply, nullptr, false, job->bytes_of_batch});
  // The time in the queue is the caller's to say.
  std::vector<uint64_t> queued;
  for (ReadJob* job : jobs) queued.push_back(job->reply.timings.queue_ns);
  state_->serve(reads);
  for (size_t i = 0; i < jobs.size(); ++i) jobs[i]->reply.timings.queue_ns = queued[i];
}

Reply Index::read_one(const ReadRequest& request, int64_t deadline_ns) {
  Reply reply;
  std::vector<Pending> reads{{&request, deadline_ns, &reply, nullptr, false, nullptr}};
  state_->serve(reads);
  return reply;
}

void Index::apply(std::vector<Change> changes, uint64_t commit_sequence) {
  for (Change& change : changes) {
    if (auto* row = std::get_if<RowChange>(&change)) {
      auto at = state_->entries.find(row->collection_id);
      if (at == state_->entries.end() || !at->second.collection) continue;  // dropped later in the same commit
      if (row->row) {
        at->second.collection->put(std::move(row->row));
      } else {
        at->second.collection->remove(row->namespace_key, row->id);
      }
    } else if (auto* added = std::get_if<CollectionAdded>(&change)) {
      auto [at, is_new] = state_->entries.try_emplace(added->info.id);
      at->second.info = added->info;
      if (is_new) {
        at->second.collection = std::make_unique<Collection>(added->info, state_->backing);
      } else if (at->second.collection) {
        at->second.collection->set_info(added->info);
      }
    } else {
      uint64_t id = std::get<CollectionDropped>(change).collection_id;
      auto at = state_->entries.find(id);
      if (at == state_->entries.end()) continue;
      if (!at->second.collection) state_->dropped.insert(id);
      state_->entries.erase(at);
    }
  }
  state_->commit_sequence = commit_sequence;
}

void Index::set_loading(const CollectionInfo& info, std::shared_ptr<const std::atomic<uint32_t>> percent) {
  Entry entry;
  entry.info = info;
  entry.percent = std::move(percent);
  state_->entries[info.id] = std::move(entry);
}

void Index::set_loaded(std::unique_ptr<Collection> collection) {
  uint64_t id = collection->info().id;
  if (state_->dropped.contains(id)) return;
  auto [at, is_new] = state_->entries.try_emplace(id);
  // Properties may have changed while the rows came.
  if (is_new) at->second.info = collection->info();
  collection->set_info(at->second.info);
  at->second.collection = std::move(collection);
  at->second.percent.reset();
  at->second.cold_words.clear();
}

void Index::set_cold(const CollectionInfo& info, std::string words) {
  if (state_->dropped.contains(info.id)) return;
  Entry& entry = state_->entries[info.id];
  if (entry.info.id == 0) entry.info = info;
  entry.collection.reset();
  entry.percent.reset();
  entry.cold_words = words.empty() ? "the collection is not in memory" : std::move(words);
}

Result<Collection*> Index::find(uint64_t collection_id) const { return state_->find(collection_id); }

Result<CollectionInfo> Index::find_by_name(std::string_view name) const {
  for (const auto& [id, entry] : state_->entries) {
    if (entry.info.name == name) return entry.info;
  }
  return Error{KALOS_STATUS_NOT_FOUND, "there is no collection \"" + std::string(name) + "\""};
}

std::vector<CollectionInfo> Index::collections() const {
  std::vector<CollectionInfo> infos;
  for (const auto& [id, entry] : state_->entries) infos.push_back(entry.info);
  std::sort(infos.begin(), infos.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return infos;
}

Index::SearchReport Index::search_report() const {
  const State& state = *state_;
  return {best_kernels().name, state.pool.threads(), state.planner.runs(Plan::one_thread),
          state.planner.runs(Plan::all_threads), state.totals};
}

uint64_t Index::commit_sequence() const { return state_->commit_sequence; }

uint64_t Index::bytes() const {
  uint64_t bytes = 0;
  for (const auto& [id, entry] : state_->entries) bytes += entry.collection ? entry.collection->bytes() : 0;
  return bytes;
}

void Index::drop_columns() {
  for (auto& [id, entry] : state_->entries) {
    if (entry.collection) entry.collection->drop_columns();
  }
}

uint64_t Index::row_count() const {
  uint64_t rows = 0;
  for (const auto& [id, entry] : state_->entries) rows += entry.collection ? entry.collection->row_count() : 0;
  return rows;
}

std::vector<Index::Expired> Index::expired(int64_t now_us, size_t limit) const {
  std::vector<Expired> rows;
  for (const auto& [id, entry] : state_->entries) {
    if (!entry.collection || rows.size() >= limit) continue;
    for (auto& name : entry.collection->expired(now_us, limit - rows.size())) {
      rows.push_back({id, std::move(name.namespace_key), std::move(name.id)});
    }
  }
  return rows;
}

int64_t Index::next_expiry_us() const {
  int64_t earliest = 0;
  for (const auto& [id, entry] : state_->entries) {
    int64_t next = entry.collection ? entry.collection->next_expiry_us() : 0;
    if (next != 0 && (earliest == 0 || next < earliest)) earliest = next;
  }
  return earliest;
}

}  // namespace kalos
