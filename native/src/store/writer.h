// The writer: one thread that takes writes from a queue, commits what waits as one group, publishes it in the index, and
// only then acknowledges.
//
//   queue -> look (checks, no disk) -> transaction -> COMMIT -> publish under the engine lock -> done()
//
// A write that needs the published state (a delete by filter, a batch with reads, a new or dropped collection) ends the
// group before it and is a group of its own. When the SQL of a group fails, its writes are tried again one by one, so
// that only the guilty one fails. Between writes the thread deletes expired rows and checkpoints; with nothing pending it
// sleeps without a timeout.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <thread>
#include <vector>

#include "engine/index.h"
#include "engine/jobs.h"
#include "store/fair_mutex.h"
#include "store/store.h"
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
  // Queues. `done` is called from the writer's thread; after stop(), from this one.
  void submit(std::unique_ptr<WriteJob> job);
  // Finishes what is queued, checkpoints, ends the thread.
  void stop();

  // After rows came into the index by another way than a write (a load), with the engine lock held.
  void index_changed();
  // Memory that loads in progress will need: counted as used.
  void reserve(uint64_t bytes) { reserved_bytes_ += bytes; }
  void release(uint64_t bytes) { reserved_bytes_ -= bytes; }

  uint64_t published_sequence() const { return published_sequence_; }  // without the engine lock
  void on_publish(std::function<void(uint64_t)> listener);

  struct Counters {
    std::atomic<uint64_t> writes{0};  // acknowledged
    std::atomic<uint64_t> commits{0};
    std::atomic<uint64_t> write_errors{0};  // answered with anything but OK
    std::atomic<uint64_t> checkpoints{0};
    std::atomic<uint64_t> expired_rows{0};
  };
  const Counters& counters() const { return counters_; }

 private:
  using Jobs = std::deque<std::unique_ptr<WriteJob>>;

  void run();
  void serve(Jobs jobs);
  void serve_group(std::span<std::unique_ptr<WriteJob>> jobs);
  void commit_together(std::span<WriteTask*> tasks);
  void commit_group(std::span<WriteTask*> tasks, const std::optional<MemoryRoom>& room);
  void commit_alone(std::span<WriteTask*> tasks);
  void settle_unknown(std::span<WriteTask*> tasks, const Error& error);
  void finish(WriteTask& task);
  void publish(std::vector<Change> changes);
  void answer_rejected();
  std::optional<MemoryRoom> room() const;
  std::optional<MemoryRoom> short_room(uint64_t bytes);

  bool expiry_is_due() const;
  void delete_expired();
  Result<> delete_expired_rows(std::vector<Index::Expired> rows, int64_t now_us);
  bool checkpoint_is_due() const;
  void checkpoint();
  void wait(std::unique_lock<std::mutex>& lock);

  Store& store_;
  Index& index_;
  FairMutex& engine_;
  const WriterOptions options_;
  WriteRunner runner_;
  Counters counters_;

  // The writer's thread only.
  std::set<WriteId> unknown_;         // writes whose outcome nobody knows; a resend is told so
  int64_t checkpoint_at_ns_ = 0;      // 0: nothing was committed since the last one
  int64_t expiry_not_before_us_ = 0;  // after a failure

  std::atomic<uint64_t> published_sequence_{0};
  std::atomic<uint64_t> index_bytes_{0};
  std::atomic<int64_t> next_expiry_us_{0};
  std::atomic<uint64_t> reserved_bytes_{0};

  std::mutex mutex_;  // of everything below
  std::condition_variable wake_;
  Jobs queue_;
  uint64_t queued_bytes_ = 0;  // also of jobs that are being served
  std::vector<std::pair<std::unique_ptr<WriteJob>, Error>> rejected_;
  std::function<void(uint64_t)> listener_;
  bool index_changed_ = false;
  bool stopping_ = false;
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace kalos
