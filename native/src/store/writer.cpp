#include "store/writer.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <exception>
#include <iterator>
#include <map>
#include <set>
#include <string>

#include "base/clock.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "engine/reply.h"
#include "store/exception_reply.h"

namespace kalos {

namespace {

constexpr size_t kExpiredAtOnce = 1000;
constexpr int64_t kRetryAfterUs = 5'000'000;
// The log grows until a checkpoint: beyond this it is moved into the file between two groups.
constexpr uint64_t kMaxLogBytes = uint64_t{64} << 20;

// What publishing takes beside the rows: a chunk of texts and one of rows for a collection, and a part of what is there
// already, where a table of ids doubles. An estimate: what it misses, Writer::apply makes good.
constexpr uint64_t kLeastReserve = uint64_t{16} << 20;
constexpr uint64_t kReservedPartOfIndex = 8;

// Texts lie in chunks, each up to a quarter of those that are there and at most so large (engine/arena.h). A write that
// fits by its own bytes may be the one that needs the next chunk: that much is kept free.
constexpr uint64_t kSmallestChunk = uint64_t{64} << 10;
constexpr uint64_t kLargestChunk = uint64_t{4} << 20;

uint64_t bytes_of(const Row& row) {
  constexpr uint64_t kBesideThem = 512;
  return row.vector.size() * (sizeof(float) + 1) + row.id.size() + row.namespace_key.size() + row.text.size() +
         row.metadata.size() + kBesideThem;
}

std::vector<Change> one_change(Change change) {
  std::vector<Change> changes;
  changes.push_back(std::move(change));
  return changes;
}

void tell(LogLevel level, std::string_view what, std::string_view which) noexcept {
  try {
    log(level, std::string(what).append(": ").append(which));
  } catch (const std::exception&) {  // there was no memory for it
  }
}

uint64_t nanoseconds_between(int64_t from, int64_t to) { return to > from ? static_cast<uint64_t>(to - from) : 0; }

}  // namespace

Writer::Writer(Store& store, Index& index, FairMutex& engine, WriterOptions options)
    : store_(store),
      index_(index),
      engine_(engine),
      options_(options),
      runner_(store, index, engine, options.text_in_file),
      queue_(options.queue_limit_bytes) {
  group_.reserve(WriteQueue::kMaxGroupWrites);
  published_sequence_ = store_.commit_sequence();
  // What a kill left in the log may hold deleted bytes.
  if (store_.wal_bytes() > 0) checkpoint_at_ns_ = monotonic_ns() + options_.checkpoint_interval_ms * 1'000'000;
}

Writer::~Writer() { stop(); }

void Writer::start() {
  thread_ = std::thread([this] { run(); });
}

void Writer::submit(std::unique_ptr<WriteJob> job, uint64_t lane) {
  auto task = std::make_unique<WriteTask>(std::move(job), lane);
  Result<> taken = Unit{};
  {
    std::lock_guard lock(mutex_);
    if (stopped_) {
      taken = Error{KALOS_STATUS_DRAINING, "kalosd is ending; nothing was done; connect again"};
    } else if (taken = queue_.push(task, lane); taken) {
      wake_.notify_one();
      return;
    }
  }
  ++counters_.write_errors;
  task->job->done(error_reply(taken.error()));
}

void Writer::stop() {
  {
    std::lock_guard lock(mutex_);
    if (stopping_) return;
    stopping_ = true;
    wake_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

void Writer::on_publish(std::function<void(uint64_t)> listener) {
  std::lock_guard lock(listener_mutex_);
  listener_ = std::move(listener);
}

void Writer::index_changed() {
  index_bytes_ = index_.bytes();
  next_expiry_us_ = index_.next_expiry_us();
  std::lock_guard lock(mutex_);
  index_changed_ = true;
  wake_.notify_one();
}

// ---- the thread ----------------------------------------------------------------------------------------------------

void Writer::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    if (!queue_.empty()) {
      queue_.take(group_);
      lock.unlock();
      serve_group();
    } else if (stopping_) {
      stopped_ = true;
      break;
    } else {
      wait(lock);
      lock.unlock();
    }
    if (expiry_is_due()) delete_expired();
    if (checkpoint_is_due()) checkpoint();
    lock.lock();
  }
  lock.unlock();
  if (checkpoint_at_ns_ != 0 && !store_.poisoned()) checkpoint();
}

// Until there is work, a row expires or a checkpoint is due; without a timeout where neither is ahead.
void Writer::wait(std::unique_lock<std::mutex>& lock) {
  int64_t expiry_us = next_expiry_us_;
  bool expiry_ahead = expiry_us != 0 && !store_.poisoned();
  int64_t until_expiry_us = std::max(expiry_us, expiry_not_before_us_) - wall_us();
  bool checkpoint_ahead = checkpoint_at_ns_ != 0 && !store_.poisoned();
  int64_t until_checkpoint_us = (checkpoint_at_ns_ - monotonic_ns()) / 1000 + 1;
  auto woken = [this] { return !queue_.empty() || stopping_ || index_changed_; };
  if (expiry_ahead && (!checkpoint_ahead || until_expiry_us < until_checkpoint_us)) {
    // Expiry is a time of the wall clock: when that is set forward, the rows are due.
    auto when = std::chrono::system_clock::now() + std::chrono::microseconds(std::max<int64_t>(until_expiry_us, 0));
    wake_.wait_until(lock, when, woken);
  } else if (checkpoint_ahead) {
    wake_.wait_for(lock, std::chrono::microseconds(std::max<int64_t>(until_checkpoint_us, 0)), woken);
  } else {
    wake_.wait(lock, woken);
  }
  index_changed_ = false;
}

void Writer::serve_group() noexcept {
  try {
    look_and_commit();
  } catch (const std::exception&) {  // nothing of a write that has no answer yet is committed
    for (auto& task : group_) {
      if (!task->answered) task->fail_by_exception();
    }
  }
  for (auto& task : group_) finish(*task);
  group_.clear();
}

void Writer::look_and_commit() {
  auto look = [this](WriteTask& task) {
    try {
      runner_.look(task);
    } catch (const std::exception&) {
      task.fail_by_exception();
    }
  };
  std::vector<WriteTask*> open;
  std::vector<WriteTask*> resent;  // of a write in this very group: answered after it
  std::set<WriteId> ids;
  for (auto& task : group_) {
    const WriteId& id = task->job->write_id;
    if (id != WriteId{} && !ids.insert(id).second) {
      resent.push_back(task.get());
      continue;
    }
    look(*task);
    if (!task->answered) open.push_back(task.get());
  }
  if (!open.empty()) commit_together(open);
  for (WriteTask* task : resent) {
    look(*task);
    WriteTask* alone[] = {task};
    if (!task->answered) commit_together(alone);
  }
}

void Writer::finish(WriteTask& task) {
  WriteJob& job = *task.job;
  ++(task.reply.status == KALOS_STATUS_OK ? counters_.writes : counters_.write_errors);
  task.reply.timings.queue_ns = nanoseconds_between(job.received_ns, task.started_ns);
  task.reply.timings.search_ns = nanoseconds_between(task.started_ns, monotonic_ns());
  job.done(std::move(task.reply));
  task.job.reset();
  std::lock_guard lock(mutex_);
  queue_.release(task.lane, task.queued_bytes);
}

// ---- commits -------------------------------------------------------------------------------------------------------

std::optional<MemoryRoom> Writer::room() const {
  if (options_.memory_limit_bytes == 0) return std::nullopt;
  uint64_t used = index_bytes_ + reserved_bytes_;
  uint64_t limit = options_.memory_limit_bytes;
  uint64_t kept_free =
      options_.text_in_file ? 0 : std::clamp(std::bit_floor(used / 4 + 1), kSmallestChunk, kLargestChunk);
  return MemoryRoom{limit, used + kept_free < limit ? limit - used - kept_free : 0};
}

// The room that is left, where it may not be enough for so many bytes more. Columns give way to rows first.
std::optional<MemoryRoom> Writer::short_room(uint64_t bytes) {
  auto room = this->room();
  if (!room || bytes <= room->left) return std::nullopt;
  {
    std::lock_guard lock(engine_);
    index_.drop_columns();
    index_bytes_ = index_.bytes();
  }
  room = this->room();
  return bytes <= room->left ? std::nullopt : room;
}

void Writer::commit_together(std::span<WriteTask*> tasks) {
  if (store_.poisoned()) {
    for (WriteTask* task : tasks) {
      if (std::ranges::find(unknown_, SentWrite{task->job->write_id, task->digest}) != unknown_.end()) {
        task->fail({KALOS_STATUS_UNKNOWN_OUTCOME,
                    "a flush to disk failed in this write: it may or may not be on disk; resend its write id after "
                    "kalosd was restarted"});
      }
    }
  }
  std::vector<WriteTask*> open;
  uint64_t bytes_at_most = 0;
  for (WriteTask* task : tasks) {
    if (task->answered) continue;
    open.push_back(task);
    bytes_at_most += task->bytes_at_most;
  }
  if (open.empty()) return;
  // Only where memory may run out is it worth knowing what each row replaces; then each write answers for itself.
  if (short_room(bytes_at_most)) return commit_alone(open);
  commit_group(open, std::nullopt);
}

void Writer::commit_alone(std::span<WriteTask*> tasks) {
  for (WriteTask*& task : tasks) {
    int64_t deadline_ns = task->job->deadline_ns;
    if (deadline_ns != 0 && monotonic_ns() >= deadline_ns) {
      task->fail({KALOS_STATUS_EXPIRED, "the deadline passed before the write began; nothing was changed"});
      continue;
    }
    commit_group({&task, 1}, short_room(task->bytes_at_most));
  }
}

void Writer::commit_group(std::span<WriteTask*> tasks, const std::optional<MemoryRoom>& room) {
  kalos_durability durability = KALOS_DURABILITY_RELAXED;
  for (const WriteTask* task : tasks) {
    if (task->job->durability != KALOS_DURABILITY_RELAXED) durability = KALOS_DURABILITY_COMMIT;
  }
  auto undo = [&] {
    store_.rollback();
    for (WriteTask* task : tasks) task->undo();
  };
  Publication publication;
  try {
    if (auto begun = store_.begin(durability); !begun) {
      for (WriteTask* task : tasks) task->fail(begun.error());
      return;
    }
    auto executed = execute_group(tasks, room, publication);
    if (executed && !publication.changed) return store_.rollback();
    if (executed) executed = store_.commit();
    if (executed) return publish(std::move(publication));
    undo();
    if (executed.error().status == KALOS_STATUS_UNKNOWN_OUTCOME) {
      return settle_unknown(tasks, std::move(publication.sent), executed.error());
    }
    if (tasks.size() == 1) return tasks[0]->fail(executed.error());
  } catch (const std::exception&) {
    undo();
    // It became so in the commit, and there was no memory to say it in words.
    if (store_.poisoned()) {
      return settle_unknown(tasks, std::move(publication.sent), {KALOS_STATUS_UNKNOWN_OUTCOME, {}});
    }
    if (tasks.size() == 1) return tasks[0]->fail_by_exception();
  }
  // A group that fails before its commit is tried again write by write; a write that fails alone is answered.
  commit_alone(tasks);
}

// Everything of the group but its commit, in a transaction.
Result<> Writer::execute_group(std::span<WriteTask*> tasks, const std::optional<MemoryRoom>& room,
                               Publication& publication) {
  size_t changes = 0;
  for (WriteTask* task : tasks) {
    for (const CollectionInfo& info : task->infos) {
      // It may have been lost since it was looked at: what is being read from the store must not change meanwhile.
      if (auto ready = runner_.is_ready(info.id); !ready) return ready;
    }
    auto executed = runner_.execute(*task, publication.changed, room);
    if (!executed) return executed;
    publication.changed = publication.changed || task->changed_store;
    changes += task->changes.size();
  }
  publication.changes.reserve(changes);
  for (WriteTask* task : tasks) {
    std::ranges::move(task->changes, std::back_inserter(publication.changes));
    task->changes.clear();
    const WriteId& id = task->job->write_id;
    if (id != WriteId{}) publication.sent.push_back({id, task->digest});
    for (const CollectionInfo& info : task->infos) {
      if (info.id != 0) publication.collections.push_back(&info);
    }
  }
  if (publication.changed) set_aside(publication);
  return Unit{};
}

void Writer::set_aside(Publication& publication) {
  auto& collections = publication.collections;
  std::ranges::sort(collections, {}, &CollectionInfo::id);
  auto same = std::ranges::unique(collections, {}, &CollectionInfo::id);
  collections.erase(same.begin(), same.end());
  uint64_t bytes = kLeastReserve + index_bytes_ / kReservedPartOfIndex;
  for (const Change& change : publication.changes) {
    if (auto* added = std::get_if<CollectionAdded>(&change)) publication.added = added->info;
    if (auto* dropped = std::get_if<CollectionDropped>(&change)) publication.dropped = dropped->collection_id;
    if (auto* row = std::get_if<RowChange>(&change); row != nullptr && row->row) bytes += 2 * bytes_of(*row->row);
  }
  publication.reserve.emplace(bytes);
}

void Writer::settle_unknown(std::span<WriteTask*> tasks, std::vector<SentWrite> sent, const Error& error) {
  unknown_ = std::move(sent);  // once: nothing is committed after it
  for (WriteTask* task : tasks) task->fail(error);
}

void Writer::publish(Publication publication) noexcept {
  ++counters_.commits;
  uint64_t sequence = store_.commit_sequence();
  size_t lost = 0;
  {
    std::lock_guard lock(engine_);
    lost = apply(publication, sequence);
    index_bytes_ = index_.bytes();
    next_expiry_us_ = index_.next_expiry_us();
    published_sequence_ = sequence;
  }
  failpoint("after_publish");
  if (checkpoint_at_ns_ == 0) checkpoint_at_ns_ = monotonic_ns() + options_.checkpoint_interval_ms * 1'000'000;
  counters_.reloads += lost;
  if (lost > 0 && lost_listener_) lost_listener_(lost);
  std::lock_guard lock(listener_mutex_);
  if (listener_) listener_(sequence);
}

// How many collections were lost by it.
size_t Writer::apply(Publication& publication, uint64_t sequence) noexcept {
  publication.reserve.reset();
  try {
    index_.apply(std::move(publication.changes), sequence);
    return 0;
  } catch (const std::exception&) {
  }
  // The commit stands, so this must come to an end, when there is memory again. Nobody could be told anything true
  // meanwhile: the engine stays locked.
  auto insist = [](auto step) {
    while (true) {
      try {
        return step();
      } catch (const std::exception&) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
    }
  };
  size_t lost = 0;
  for (const CollectionInfo* info : publication.collections) {
    // Gives the memory of all its rows back.
    insist([&] { index_.apply(one_change(CollectionDropped{info->id}), sequence); });
    insist([&] { index_.set_loading(*info, lost_percent_); });
    runner_.forget(info->id);
    ++lost;
    tell(LogLevel::error, "there was no memory to publish a write that is on disk: a collection is loaded again",
         info->name);
  }
  if (publication.added) {
    insist([&] { index_.apply(one_change(CollectionAdded{*publication.added}), sequence); });
    if (!index_.find(publication.added->id)) ++lost;  // it got its name before, but no rows
  }
  if (publication.dropped != 0) {
    insist([&] { index_.apply(one_change(CollectionDropped{publication.dropped}), sequence); });
  }
  return lost;
}

// ---- between writes ------------------------------------------------------------------------------------------------

bool Writer::expiry_is_due() const {
  int64_t expiry_us = next_expiry_us_;
  return expiry_us != 0 && !store_.poisoned() && wall_us() >= std::max(expiry_us, expiry_not_before_us_);
}

void Writer::delete_expired() noexcept {
  int64_t now_us = wall_us();
  std::string words;
  try {
    auto deleted = delete_expired_rows(now_us);
    if (deleted) return;
    words = deleted.error().words;
  } catch (const std::exception& fault) {
    words = fault.what();
  }
  store_.rollback();
  expiry_not_before_us_ = now_us + kRetryAfterUs;
  tell(LogLevel::warning, "expired rows could not be deleted, another try follows", words);
}

Result<> Writer::delete_expired_rows(int64_t now_us) {
  std::vector<Index::Expired> rows;
  {
    std::lock_guard lock(engine_);
    rows = index_.expired(now_us, kExpiredAtOnce);
    next_expiry_us_ = index_.next_expiry_us();
  }
  if (rows.empty()) {
    // Nothing to do after all: not asked again at once, so that a wrong answer cannot make this thread spin.
    expiry_not_before_us_ = now_us + kRetryAfterUs;
    return Unit{};
  }
  if (auto begun = store_.begin(KALOS_DURABILITY_RELAXED); !begun) return begun.error();
  std::map<uint64_t, CollectionInfo> infos;
  Publication publication;
  for (auto& row : rows) {
    auto known = infos.find(row.collection_id);
    if (known == infos.end()) {
      auto info = runner_.collection(row.collection_id);
      if (!info) return info.error();
      known = infos.emplace(row.collection_id, std::move(*info)).first;
      publication.collections.push_back(&known->second);
    }
    auto removed = store_.remove(known->second, row.namespace_key, row.id, now_us);
    if (!removed) return removed.error();
    publication.changes.push_back(
        RowChange{row.collection_id, nullptr, std::move(row.namespace_key), std::move(row.id)});
  }
  set_aside(publication);
  size_t count = publication.changes.size();
  if (auto committed = store_.commit(); !committed) return committed.error();
  counters_.expired_rows += count;
  publish(std::move(publication));
  return Unit{};
}

bool Writer::checkpoint_is_due() const {
  if (checkpoint_at_ns_ == 0 || store_.poisoned()) return false;
  return monotonic_ns() >= checkpoint_at_ns_ || store_.wal_bytes() > kMaxLogBytes;
}

void Writer::checkpoint() noexcept {
  bool due = monotonic_ns() >= checkpoint_at_ns_;
  bool failed = false;
  try {
    auto done = store_.checkpoint(/*truncate=*/true);
    if (done && *done) {
      ++counters_.checkpoints;
      checkpoint_at_ns_ = 0;
      return;
    }
    failed = !done;
    if (failed) tell(LogLevel::warning, "a checkpoint failed, another try follows", done.error().words);
  } catch (const std::exception& fault) {
    failed = true;
    tell(LogLevel::warning, "a checkpoint failed, another try follows", fault.what());
  }
  // A collection that is being loaded reads from the log: soon again.
  if (due || failed) {
    checkpoint_at_ns_ = monotonic_ns() + std::min<int64_t>(options_.checkpoint_interval_ms, 1000) * 1'000'000;
  }
}

}  // namespace kalos
