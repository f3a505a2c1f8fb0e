// The writer: one thread that takes writes from a queue, commits what waits as one group, publishes it in the index, and
// only then acknowledges.
//
//   queue -> look (checks, no disk) -> transaction -> COMMIT -> publish under the engine lock -> done()
//
// A write that needs the published state (a delete by filter, a batch with reads, a new or dropped collection) ends the
// group before it and is a group of its own. When the SQL of a group fails, or there is no memory for it, its writes are
// tried again one by one, so that only the guilty one fails. Between groups the thread deletes expired rows and
// checkpoints; with nothing pending it sleeps without a timeout.
//
// Where memory runs out: before the commit the write is undone and answered OVERLOADED. What publishing may need is set
// aside before the commit, so that it runs out there if it does. Should it run out between commit and publication all the
// same, the rows are on disk and the index cannot take them: the collections that they belong to are taken out of the
// index and loaded again from the store. The write is acknowledged, since no search can miss it: until they are loaded,
// searches are answered LOADING.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "engine/index.h"
#include "engine/jobs.h"
#include "store/fair_mutex.h"
#include "store/memory_reserve.h"
#include "store/store.h"
#include "store/write_queue.h"
#include "store/write_task.h"

namespace kalos {

struct WriterOptions {
  uint64_t memory_limit_bytes = 0;  // 0: none
  bool text_in_file = false;        // texts cost no memory
  int64_t checkpoint_interval_ms = 60'000;
  uint64_t queue_limit_bytes = uint64_t{1} << 30;
};

class Writer {
 public:
  Writer(Store& store, Index& index, FairMutex& engine, WriterOptions options);
  ~Writer();  // stops

  void start();
  // Queues. `lane`: whose it is, for a fair share. `done` is called from the writer's thread; from this one where the
  // write is not taken (too much waits, or after stop()).
  void submit(std::unique_ptr<WriteJob> job, uint64_t lane = 0);
  // Finishes what is queued, checkpoints, ends the thread.
  void stop();

  // After rows came into the index by another way than a write (a load), with the engine lock held.
  void index_changed();
  // Memory that loads in progress will need: counted as used.
  void reserve(uint64_t bytes) { reserved_bytes_ += bytes; }
  void release(uint64_t bytes) { reserved_bytes_ -= bytes; }

  uint64_t published_sequence() const { return published_sequence_; }  // without the engine lock
  void on_publish(std::function<void(uint64_t)> listener);
  // Called with the number of collections that were taken out of the index and are LOADING: the listener sees to it that
  // they come back. Before start().
  void on_lost(std::function<void(size_t)> listener) { lost_listener_ = std::move(listener); }

  struct Counters {
    std::atomic<uint64_t> writes{0};  // acknowledged
    std::atomic<uint64_t> commits{0};
    std::atomic<uint64_t> write_errors{0};  // answered with anything but OK
    std::atomic<uint64_t> checkpoints{0};
    std::atomic<uint64_t> expired_rows{0};
    std::atomic<uint64_t> reloads{0};  // collections that had to be loaded again, for want of memory
  };
  const Counters& counters() const { return counters_; }

 private:
  struct SentWrite {
    WriteId id{};
    Hash128 digest{};
    bool operator==(const SentWrite&) const = default;
  };
  // A group between its execution and its end: whatever the commit and what follows need, taken before it.
  struct Publication {
    std::vector<Change> changes;
    std::vector<const CollectionInfo*> collections;  // whose rows are changed
    std::optional<CollectionInfo> added;   // of such a change, which is alone; as long as it may be tried again
    uint64_t dropped = 0;                  // likewise
    std::vector<SentWrite> sent;           // of the writes that have a write id
    std::optional<MemoryReserve> reserve;  // given back when the index is changed
    bool changed = false;                  // else there is nothing to commit
  };

  void run();
  void serve_group() noexcept;
  void look_and_commit();
  void commit_together(std::span<WriteTask*> tasks);
  void commit_group(std::span<WriteTask*> tasks, const std::optional<MemoryRoom>& room);
  void commit_alone(std::span<WriteTask*> tasks);
  Result<> execute_group(std::span<WriteTask*> tasks, const std::optional<MemoryRoom>& room, Publication& publication);
  void set_aside(Publication& publication);
  void settle_unknown(std::span<WriteTask*> tasks, std::vector<SentWrite> sent, const Error& error);
  void finish(WriteTask& task);
  void publish(Publication publication) noexcept;
  size_t apply(Publication& publication, uint64_t sequence) noexcept;
  std::optional<MemoryRoom> room() const;
  std::optional<MemoryRoom> short_room(uint64_t bytes);

  bool expiry_is_due() const;
  void delete_expired() noexcept;
  Result<> delete_expired_rows(int64_t now_us);
  bool checkpoint_is_due() const;
  void checkpoint() noexcept;
  void wait(std::unique_lock<std::mutex>& lock);

  Store& store_;
  Index& index_;
  FairMutex& engine_;
  const WriterOptions options_;
  WriteRunner runner_;
  Counters counters_;

  // The writer's thread only.
  WriteQueue::Tasks group_;           // that is being served
  std::vector<SentWrite> unknown_;    // writes whose outcome nobody knows; a resend is told so
  int64_t checkpoint_at_ns_ = 0;      // 0: nothing was committed since the last one
  int64_t expiry_not_before_us_ = 0;  // after a failure

  std::atomic<uint64_t> published_sequence_{0};
  std::atomic<uint64_t> index_bytes_{0};
  std::atomic<int64_t> next_expiry_us_{0};
  std::atomic<uint64_t> reserved_bytes_{0};

  std::mutex mutex_;  // of everything below
  std::condition_variable wake_;
  WriteQueue queue_;
  bool index_changed_ = false;
  bool stopping_ = false;
  bool stopped_ = false;

  std::mutex listener_mutex_;
  std::function<void(uint64_t)> listener_;
  std::function<void(size_t)> lost_listener_;
  // Of what was lost, until somebody loads it and says how far it is.
  const std::shared_ptr<const std::atomic<uint32_t>> lost_percent_ = std::make_shared<std::atomic<uint32_t>>(0);

  std::thread thread_;
};

}  // namespace kalos
