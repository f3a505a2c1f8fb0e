#include "store/database.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <new>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "engine/collections_json.h"
#include "engine/index.h"
#include "store/fair_mutex.h"
#include "store/store.h"
#include "store/writer.h"

namespace kalos {

namespace {

// A collection of the store on its way into the index.
struct Load {
  CollectionInfo info;
  uint64_t rows = 0;
  uint64_t bytes = 0;  // of memory that it will need
  std::shared_ptr<std::atomic<uint32_t>> percent = std::make_shared<std::atomic<uint32_t>>(0);
};

std::string does_not_fit(const CollectionInfo& info, uint64_t need, uint64_t left, uint64_t limit) {
  return "collection \"" + info.name + "\" needs " + bytes_in_words(need) + " of memory, of the limit of " +
         bytes_in_words(limit) + " " + bytes_in_words(left) +
         " are left: its rows are safe on disk but not served; restart kalosd with a larger --memory (KALOS_MEMORY)";
}

}  // namespace

struct Database::State {
  explicit State(DatabaseOptions given)
      : options(std::move(given)), index(TextBacking{options.text_in_file, options.data_dir}) {}

  DatabaseOptions options;
  std::unique_ptr<Store> store;
  FairMutex engine;
  Index index;  // under the engine lock
  std::unique_ptr<Writer> writer;

  std::vector<Load> loads;  // smallest first, once planned; fixed while loaders run
  std::map<uint64_t, std::shared_ptr<const std::atomic<uint32_t>>> percents;  // by collection; fixed after open()
  std::atomic<size_t> next_load{0};
  std::atomic<size_t> loading{0};  // collections that are neither loaded nor cold yet
  std::atomic<bool> stopping{false};
  std::thread planner;               // afterwards it loads again what was lost
  std::vector<std::thread> loaders;  // started and joined by the planner
  std::mutex lost_mutex;             // of the next, and of setting `stopping`
  std::condition_variable wake_planner;
  bool lost = false;

  std::atomic<uint64_t> read_passes{0};
  std::atomic<uint64_t> reads{0};

  std::mutex report_mutex;
  nlohmann::json collections_report = nlohmann::json::object();  // the last one: what is said while the engine is busy

  void plan_and_load();
  void measure();
  void keep_what_fits();
  void load_next();
  void load_lost_ones();
  void load_lost();
  void load(Load& load) noexcept;
  Result<> load_rows(Load& load);
  void leave_cold(const CollectionInfo& info, const std::string& words);
  void read(std::span<ReadJob* const> jobs);
  nlohmann::json collection_report(const CollectionInfo& info);
};

// ---- loading -------------------------------------------------------------------------------------------------------

void Database::State::plan_and_load() {
  // Until the plan stands, new writes must leave room for the whole file.
  uint64_t file_bytes = loads.empty() ? 0 : store->file_bytes();
  writer->reserve(file_bytes);
  measure();
  keep_what_fits();
  for (const Load& load : loads) writer->reserve(load.bytes);
  writer->release(file_bytes);
  size_t cpus = std::max(1u, std::thread::hardware_concurrency());
  for (size_t i = 0; i < std::min(cpus, loads.size()); ++i) loaders.emplace_back([this] { load_next(); });
  for (std::thread& loader : loaders) loader.join();
  load_lost_ones();
}

// How many rows each has, and an order: smallest first.
void Database::State::measure() {
  std::vector<Load> counted;
  for (Load& load : loads) {
    auto rows = store->row_count(load.info);
    if (!rows) {
      leave_cold(load.info, rows.error().words);
      continue;
    }
    load.rows = *rows;
    load.bytes = load.rows * Collection::bytes_of(load.info.dimension, 0, 0, 0);
    counted.push_back(std::move(load));
  }
  loads = std::move(counted);
  std::stable_sort(loads.begin(), loads.end(), [](const Load& a, const Load& b) { return a.bytes < b.bytes; });
}

void Database::State::keep_what_fits() {
  uint64_t limit = options.memory_limit_bytes;
  uint64_t at_most = options.text_in_file ? 0 : store->file_bytes();
  for (const Load& load : loads) at_most += load.bytes;
  if (limit == 0 || at_most <= limit) return;
  // Close: now it is worth reading everything once to know exactly.
  std::vector<Load> fitting;
  uint64_t used = 0;
  for (Load& load : loads) {
    if (!options.text_in_file && !stopping) {
      auto size = store->size_of(load.info);
      if (!size) {
        leave_cold(load.info, size.error().words);
        continue;
      }
      load.bytes += size->id_bytes + size->text_bytes + size->metadata_bytes;
    }
    if (used + load.bytes > limit) {
      leave_cold(load.info, does_not_fit(load.info, load.bytes, limit - used, limit));
      continue;
    }
    used += load.bytes;
    fitting.push_back(std::move(load));
  }
  loads = std::move(fitting);
}

void Database::State::leave_cold(const CollectionInfo& info, const std::string& words) {
  log(LogLevel::warning, words);
  std::lock_guard lock(engine);
  // Its properties may have been changed since by a write (a recorded embedder).
  auto present = index.find_by_name(info.name);
  index.set_cold(present ? *present : info, words);
  --loading;
}

void Database::State::load_next() {
  while (!stopping) {
    size_t next = next_load++;
    if (next >= loads.size()) return;
    load(loads[next]);
  }
}

void Database::State::load(Load& load) noexcept {
  // Where there is no memory for the words either, there will be: that of the rows was given back.
  for (bool settled = false; !settled && !stopping;) {
    try {
      Result<> loaded = Error{};
      try {
        loaded = load_rows(load);
      } catch (const std::bad_alloc&) {
        loaded = Error{KALOS_STATUS_STORE_ERROR,
                       "there was no memory to load collection \"" + load.info.name +
                           "\": its rows are safe on disk but not served; give kalosd more (ulimit -v, the container's "
                           "limit) and restart it"};
      }
      if (!loaded && !stopping) leave_cold(load.info, loaded.error().words);
      settled = true;
    } catch (const std::bad_alloc&) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  writer->release(load.bytes);
}

Result<> Database::State::load_rows(Load& load) {
  TextBacking backing{options.text_in_file, options.data_dir};
  auto collection = std::make_unique<Collection>(load.info, backing);
  auto loaded = store->load(load.info, *load.percent, [&](std::unique_ptr<Row> row) {
    collection->put(std::move(row));
    return !stopping;
  });
  if (!loaded || stopping) return loaded;
  std::lock_guard lock(engine);
  if (auto present = index.find_by_name(load.info.name)) collection->set_info(*present);
  index.set_loaded(std::move(collection));
  writer->index_changed();
  --loading;
  return loaded;
}

// Collections that the writer had to take out of the index (Writer::apply). Writes to one are refused until it is back, so
// what is read from the store is all of it.
void Database::State::load_lost_ones() {
  while (true) {
    {
      std::unique_lock lock(lost_mutex);
      wake_planner.wait(lock, [this] { return lost || stopping; });
      if (stopping) return;
      lost = false;
    }
    try {
      load_lost();
    } catch (const std::bad_alloc&) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      std::lock_guard lock(lost_mutex);
      lost = true;
    }
  }
}

void Database::State::load_lost() {
  // By now everything is loaded or cold but for those.
  std::vector<Load> again;
  {
    std::lock_guard lock(engine);
    for (const CollectionInfo& info : index.collections()) {
      auto found = index.find(info.id);
      if (found || found.error().status != KALOS_STATUS_LOADING) continue;
      Load load;
      load.info = info;
      again.push_back(std::move(load));
    }
    for (const Load& load : again) index.set_loading(load.info, load.percent);
  }
  for (Load& load : again) {
    auto rows = store->row_count(load.info);
    load.bytes = rows ? *rows * Collection::bytes_of(load.info.dimension, 0, 0, 0) : 0;
    writer->reserve(load.bytes);
    this->load(load);
  }
}

// ---- the door ------------------------------------------------------------------------------------------------------

Database::Database(std::unique_ptr<State> state) : state_(std::move(state)) {}

Result<std::unique_ptr<Database>> Database::open(DatabaseOptions options) {
  auto state = std::make_unique<State>(std::move(options));
  auto store = Store::open({.data_dir = state->options.data_dir});
  if (!store) return store.error();
  state->store = std::move(*store);
  auto collections = state->store->collections();
  if (!collections) return collections.error();
  // Everything that the store says of the past, as a commit of its own: the index begins at the store's sequence.
  state->index.apply({}, state->store->commit_sequence());
  for (CollectionInfo& info : *collections) {
    Load load;
    load.info = std::move(info);
    state->index.set_loading(load.info, load.percent);
    state->percents.emplace(load.info.id, load.percent);
    state->loads.push_back(std::move(load));
  }
  state->loading = state->loads.size();
  WriterOptions writer_options;
  writer_options.memory_limit_bytes = state->options.memory_limit_bytes;
  writer_options.queue_limit_bytes = kMaxWaitingWriteBytes;
  writer_options.text_in_file = state->options.text_in_file;
  writer_options.checkpoint_interval_ms = state->options.checkpoint_interval_ms;
  state->writer = std::make_unique<Writer>(*state->store, state->index, state->engine, writer_options);
  State* running = state.get();
  state->writer->on_lost([running](size_t collections) {
    running->loading += collections;
    std::lock_guard lock(running->lost_mutex);
    running->lost = true;
    running->wake_planner.notify_one();
  });
  state->writer->start();
  state->planner = std::thread([running] { running->plan_and_load(); });
  auto database = std::unique_ptr<Database>(new Database(std::move(state)));
  database->report_json();  // the first of all, while the engine is free
  return database;
}

Database::~Database() {
  {
    std::lock_guard lock(state_->lost_mutex);
    state_->stopping = true;
    state_->wake_planner.notify_one();
  }
  if (state_->planner.joinable()) state_->planner.join();
  state_->writer->stop();
}

void Database::serve_reads(std::span<ReadJob* const> jobs) {
  std::lock_guard lock(state_->engine);
  state_->read(jobs);
}

bool Database::try_serve_reads(std::span<ReadJob* const> jobs) {
  std::unique_lock lock(state_->engine, std::try_to_lock);
  if (!lock.owns_lock()) return false;
  state_->read(jobs);
  return true;
}

void Database::submit(std::unique_ptr<WriteJob> job, uint64_t lane) { state_->writer->submit(std::move(job), lane); }

std::vector<CollectionInfo> Database::collections() {
  std::lock_guard lock(state_->engine);
  return state_->index.collections();
}

uint64_t Database::commit_sequence() const { return state_->writer->published_sequence(); }

void Database::on_publish(std::function<void(uint64_t)> listener) { state_->writer->on_publish(std::move(listener)); }

// With the engine lock held.
void Database::State::read(std::span<ReadJob* const> jobs) {
  failpoint("pass");
  int64_t now_ns = monotonic_ns();
  for (ReadJob* job : jobs) {
    job->reply.timings.queue_ns = job->received_ns != 0 ? uint64_t(std::max<int64_t>(0, now_ns - job->received_ns)) : 0;
  }
  index.read(jobs);
  read_passes.fetch_add(1, std::memory_order_relaxed);
  reads.fetch_add(jobs.size(), std::memory_order_relaxed);
}

// ---- the report ----------------------------------------------------------------------------------------------------

// With the engine lock held.
nlohmann::json Database::State::collection_report(const CollectionInfo& info) {
  nlohmann::json report = {{"name", info.name},
                           {"id", info.id},
                           {"dimension", info.dimension},
                           {"metric", metric_name(info.metric)},
                           {"rows", nullptr},
                           {"bytes", nullptr},
                           {"state", "ready"},
                           {"percent", 100},
                           {"words", ""}};
  auto found = index.find(info.id);
  if (found) {
    report["rows"] = (*found)->row_count();
    report["bytes"] = (*found)->bytes();
    return report;
  }
  bool is_loading = found.error().status == KALOS_STATUS_LOADING;
  report["state"] = is_loading ? "loading" : "cold";
  report["words"] = found.error().words;
  auto percent = percents.find(info.id);
  report["percent"] = is_loading && percent != percents.end() ? percent->second->load() : 0;
  return report;
}

std::string Database::report_json() {
  State& state = *state_;
  const Writer::Counters& counters = state.writer->counters();
  nlohmann::json report = {{"ready", state.loading == 0},
                           {"memory_limit", state.options.memory_limit_bytes},
                           {"writes", counters.writes.load()},
                           {"commits", counters.commits.load()},
                           {"write_errors", counters.write_errors.load()},
                           {"expired_rows", counters.expired_rows.load()},
                           {"checkpoints", counters.checkpoints.load()},
                           {"reloads", counters.reloads.load()},
                           {"read_passes", state.read_passes.load()},
                           {"reads", state.reads.load()},
                           {"store",
                            {{"path", state.store->path()},
                             {"bytes", state.store->file_bytes()},
                             {"wal_bytes", state.store->wal_bytes()},
                             {"poisoned", state.store->poisoned()}}},
                           {"commit_sequence", state.writer->published_sequence()}};
  // Whoever asks is the control thread, on which all clients depend: a long pass must not hold it.
  std::unique_lock engine(state.engine, std::defer_lock);
  bool busy = !state.engine.try_lock_for(std::chrono::milliseconds(20));
  std::lock_guard lock(state.report_mutex);
  if (!busy) {
    engine = std::unique_lock(state.engine, std::adopt_lock);
    state.collections_report = {
        {"collections", nlohmann::json::array()}, {"rows", state.index.row_count()}, {"bytes", state.index.bytes()}};
    for (const CollectionInfo& info : state.index.collections()) {
      state.collections_report["collections"].push_back(state.collection_report(info));
    }
    Index::SearchReport search = state.index.search_report();
    state.collections_report["search"] = {{"kernels", search.kernels},
                                          {"threads", search.threads},
                                          {"passes_on_one_thread", search.passes_on_one_thread},
                                          {"passes_on_all_threads", search.passes_on_all_threads},
                                          {"rows_scanned", search.rows.scanned},
                                          {"rows_narrowed", search.rows.narrowed},
                                          {"rows_scored", search.rows.scored}};
    engine.unlock();
  }
  report["engine_busy"] = busy;
  report.update(state.collections_report);
  // The store's path may be any bytes.
  return report.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace kalos
