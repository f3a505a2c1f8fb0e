#include "store/writer.h"

#include <algorithm>
#include <chrono>
#include <string>

#include "base/clock.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "engine/reply.h"

namespace kalos {

namespace {

// A group holds its rows twice (in messages and on their way into the index) and is published in one piece.
constexpr uint64_t kMaxGroupBytes = uint64_t{64} << 20;
constexpr size_t kMaxGroupJobs = 4096;
constexpr size_t kExpiredAtOnce = 1000;
constexpr int64_t kRetryAfterUs = 5'000'000;
// The log grows until a checkpoint: beyond this it is moved into the file between two groups.
constexpr uint64_t kMaxLogBytes = uint64_t{64} << 20;

uint64_t cost_of(const WriteJob& job) { return job.message.size() + 1024; }

uint64_t nanoseconds_between(int64_t from, int64_t to) { return to > from ? static_cast<uint64_t>(to - from) : 0; }

}  // namespace

Writer::Writer(Store& store, Index& index, FairMutex& engine, WriterOptions options)
    : store_(store),
      index_(index),
      engine_(engine),
      options_(options),
      runner_(store, index, engine, options.text_in_file) {
  published_sequence_ = store_.commit_sequence();
  // What a kill left in the log may hold deleted bytes.
  if (store_.wal_bytes() > 0) checkpoint_at_ns_ = monotonic_ns() + options_.checkpoint_interval_ms * 1'000'000;
}

Writer::~Writer() { stop(); }

void Writer::start() {
  thread_ = std::thread([this] { run(); });
}

void Writer::submit(std::unique_ptr<WriteJob> job) {
  std::unique_lock lock(mutex_);
  if (stopped_) {
    lock.unlock();
    job->done(error_reply({KALOS_STATUS_DRAINING, "kalosd is ending; nothing was done; connect again"}));
    return;
  }
  uint64_t cost = cost_of(*job);
  if (queued_bytes_ + cost > options_.queue_limit_bytes && queued_bytes_ > 0) {
    Error error{KALOS_STATUS_OVERLOADED, "writes of " + bytes_in_words(queued_bytes_) +
                                             " wait to be committed already, the most that may wait is " +
                                             bytes_in_words(options_.queue_limit_bytes) +
                                             "; nothing was done; try again later"};
    job->operations.clear();
    job->reads.clear();
    job->message = {};
    rejected_.emplace_back(std::move(job), std::move(error));
  } else {
    queued_bytes_ += cost;
    queue_.push_back(std::move(job));
  }
  wake_.notify_one();
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
  std::lock_guard lock(mutex_);
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
    if (!queue_.empty() || !rejected_.empty()) {
      Jobs jobs = std::move(queue_);
      queue_.clear();
      lock.unlock();
      serve(std::move(jobs));
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
  auto woken = [this] { return !queue_.empty() || !rejected_.empty() || stopping_ || index_changed_; };
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

void Writer::serve(Jobs jobs) {
  answer_rejected();
  std::vector<std::unique_ptr<WriteJob>> taken(std::make_move_iterator(jobs.begin()),
                                               std::make_move_iterator(jobs.end()));
  std::span<std::unique_ptr<WriteJob>> rest(taken);
  while (!rest.empty()) {
    size_t count = 0;
    uint64_t bytes = 0;
    while (count < rest.size() && count < kMaxGroupJobs) {
      bool alone = WriteRunner::stands_alone(*rest[count]);
      bytes += cost_of(*rest[count]);
      if (count > 0 && (alone || bytes > kMaxGroupBytes)) break;
      ++count;
      if (alone) break;
    }
    serve_group(rest.first(count));
    rest = rest.subspan(count);
    answer_rejected();
  }
}

void Writer::answer_rejected() {
  std::unique_lock lock(mutex_);
  auto rejected = std::move(rejected_);
  rejected_.clear();
  lock.unlock();
  for (auto& [job, error] : rejected) {
    ++counters_.write_errors;
    job->done(error_reply(error));
  }
}

void Writer::serve_group(std::span<std::unique_ptr<WriteJob>> jobs) {
  std::vector<std::unique_ptr<WriteTask>> tasks;
  std::vector<WriteTask*> open;
  std::vector<WriteTask*> resent;  // of a write in this very group: answered after it
  std::set<WriteId> ids;
  for (auto& job : jobs) {
    tasks.push_back(std::make_unique<WriteTask>(std::move(job)));
    WriteTask& task = *tasks.back();
    const WriteId& id = task.job->write_id;
    if (id != WriteId{} && !ids.insert(id).second) {
      resent.push_back(&task);
      continue;
    }
    runner_.look(task);
    if (!task.answered) open.push_back(&task);
  }
  if (!open.empty()) commit_together(open);
  for (WriteTask* task : resent) {
    runner_.look(*task);
    WriteTask* alone[] = {task};
    if (!task->answered) commit_together(alone);
  }
  for (auto& task : tasks) finish(*task);
}

void Writer::finish(WriteTask& task) {
  WriteJob& job = *task.job;
  ++(task.reply.status == KALOS_STATUS_OK ? counters_.writes : counters_.write_errors);
  task.reply.timings.queue_ns = nanoseconds_between(job.received_ns, task.started_ns);
  task.reply.timings.search_ns = nanoseconds_between(task.started_ns, monotonic_ns());
  uint64_t cost = cost_of(job);
  job.done(std::move(task.reply));
  task.job.reset();
  std::lock_guard lock(mutex_);
  queued_bytes_ -= cost;
}

// ---- commits -------------------------------------------------------------------------------------------------------

std::optional<MemoryRoom> Writer::room() const {
  if (options_.memory_limit_bytes == 0) return std::nullopt;
  uint64_t used = index_bytes_ + reserved_bytes_;
  uint64_t limit = options_.memory_limit_bytes;
  return MemoryRoom{limit, used < limit ? limit - used : 0};
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
      if (unknown_.contains(task->job->write_id)) {
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
  // A group that fails before its commit is tried again write by write; a write that fails alone is answered.
  auto give_up = [&](const Error& error) {
    if (tasks.size() > 1) return commit_alone(tasks);
    tasks[0]->fail(error);
  };
  if (auto begun = store_.begin(durability); !begun) {
    for (WriteTask* task : tasks) task->fail(begun.error());
    return;
  }
  bool changed = false;
  for (WriteTask* task : tasks) {
    auto executed = runner_.execute(*task, changed, room);
    if (!executed) {
      store_.rollback();
      for (WriteTask* undone : tasks) undone->answered = false;
      return give_up(executed.error());
    }
    changed = changed || task->changed_store;
  }
  if (!changed) return store_.rollback();
  if (auto committed = store_.commit(); !committed) {
    for (WriteTask* undone : tasks) undone->answered = false;
    if (committed.error().status == KALOS_STATUS_UNKNOWN_OUTCOME) return settle_unknown(tasks, committed.error());
    return give_up(committed.error());
  }
  ++counters_.commits;
  std::vector<Change> changes;
  for (WriteTask* task : tasks) {
    std::move(task->changes.begin(), task->changes.end(), std::back_inserter(changes));
    task->changes.clear();
  }
  publish(std::move(changes));
}

void Writer::settle_unknown(std::span<WriteTask*> tasks, const Error& error) {
  for (WriteTask* task : tasks) {
    if (task->job->write_id != WriteId{}) unknown_.insert(task->job->write_id);
    task->fail(error);
  }
}

void Writer::publish(std::vector<Change> changes) {
  uint64_t sequence = store_.commit_sequence();
  {
    std::lock_guard lock(engine_);
    index_.apply(std::move(changes), sequence);
    index_bytes_ = index_.bytes();
    next_expiry_us_ = index_.next_expiry_us();
    published_sequence_ = sequence;
  }
  failpoint("after_publish");
  if (checkpoint_at_ns_ == 0) checkpoint_at_ns_ = monotonic_ns() + options_.checkpoint_interval_ms * 1'000'000;
  std::function<void(uint64_t)> listener;
  {
    std::lock_guard lock(mutex_);
    listener = listener_;
  }
  if (listener) listener(sequence);
}

// ---- between writes ------------------------------------------------------------------------------------------------

bool Writer::expiry_is_due() const {
  int64_t expiry_us = next_expiry_us_;
  return expiry_us != 0 && !store_.poisoned() && wall_us() >= std::max(expiry_us, expiry_not_before_us_);
}

void Writer::delete_expired() {
  int64_t now_us = wall_us();
  std::vector<Index::Expired> rows;
  {
    std::lock_guard lock(engine_);
    rows = index_.expired(now_us, kExpiredAtOnce);
    next_expiry_us_ = index_.next_expiry_us();
  }
  if (rows.empty()) {
    // Nothing to do after all: not asked again at once, so that a wrong answer cannot make this thread spin.
    expiry_not_before_us_ = now_us + kRetryAfterUs;
    return;
  }
  auto deleted = delete_expired_rows(std::move(rows), now_us);
  if (deleted) return;
  store_.rollback();
  expiry_not_before_us_ = now_us + kRetryAfterUs;
  log(LogLevel::warning, "expired rows could not be deleted, another try follows: " + deleted.error().words);
}

Result<> Writer::delete_expired_rows(std::vector<Index::Expired> rows, int64_t now_us) {
  if (auto begun = store_.begin(KALOS_DURABILITY_RELAXED); !begun) return begun.error();
  std::vector<Change> changes;
  for (auto& row : rows) {
    auto info = runner_.collection(row.collection_id);
    if (!info) return info.error();
    auto removed = store_.remove(*info, row.namespace_key, row.id, now_us);
    if (!removed) return removed.error();
    changes.push_back(RowChange{row.collection_id, nullptr, std::move(row.namespace_key), std::move(row.id)});
  }
  if (auto committed = store_.commit(); !committed) return committed.error();
  ++counters_.commits;
  counters_.expired_rows += changes.size();
  publish(std::move(changes));
  return Unit{};
}

bool Writer::checkpoint_is_due() const {
  if (checkpoint_at_ns_ == 0 || store_.poisoned()) return false;
  return monotonic_ns() >= checkpoint_at_ns_ || store_.wal_bytes() > kMaxLogBytes;
}

void Writer::checkpoint() {
  bool due = monotonic_ns() >= checkpoint_at_ns_;
  auto done = store_.checkpoint(/*truncate=*/true);
  if (done && *done) {
    ++counters_.checkpoints;
    checkpoint_at_ns_ = 0;
    return;
  }
  if (!done) log(LogLevel::warning, "a checkpoint failed, another try follows: " + done.error().words);
  // A collection that is being loaded reads from the log: soon again.
  if (due || !done)
    checkpoint_at_ns_ = monotonic_ns() + std::min<int64_t>(options_.checkpoint_interval_ms, 1000) * 1'000'000;
}

}  // namespace kalos
