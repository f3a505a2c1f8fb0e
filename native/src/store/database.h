// The database: store, index and writer behind one door. What the lanes talk to.
//
//   reads    serve_reads() under the engine lock, one pass at a time (serve/combining.h decides who calls it)
//   writes   submit() to the writer's thread: group commit, publish under the engine lock, acknowledge
//
// Locks: the engine lock (fair: first come, first served) is held by a pass of reads or by the publication of a commit.
// Never across a disk access.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/result.h"
#include "engine/jobs.h"

namespace kalos {

// Messages of writes that wait to be committed, of all lanes; of one lane half.
constexpr uint64_t kMaxWaitingWriteBytes = uint64_t{1} << 30;

struct DatabaseOptions {
  std::string data_dir;
  uint64_t memory_limit_bytes = 0;  // --memory; 0: none
  int64_t checkpoint_interval_ms = 60'000;
  bool text_in_file = false;  // --text=file: texts and metadata in an unlinked, mapped file instead of RAM
};

class Database {
 public:
  // Opens the store and returns at once; the collections load in threads of their own, smallest first.
  static Result<std::unique_ptr<Database>> open(DatabaseOptions options);
  // Finishes the writes that are queued, checkpoints, closes.
  ~Database();

  // One pass over all jobs, waiting for the engine first. Every job gets its reply.
  void serve_reads(std::span<ReadJob* const> jobs);
  // The same if the engine is free right now; false where it is not.
  bool try_serve_reads(std::span<ReadJob* const> jobs);

  // Queues; `done` is called from the writer's thread, or from this one where the write is not taken: OVERLOADED beyond
  // kMaxWaitingWriteBytes.
  void submit(std::unique_ptr<WriteJob> job, uint64_t lane = 0);

  std::vector<CollectionInfo> collections();
  uint64_t commit_sequence() const;

  // For STATUS: a JSON object {"ready": bool, "collections": [{name, id, dimension, metric, rows, bytes, state, percent,
  // words}], "rows", "bytes", "engine_busy", "memory_limit", "commit_sequence", "writes", "commits", "write_errors",
  // "read_passes", "reads", "checkpoints", "reloads", "store": {"path", "bytes", "wal_bytes", "poisoned"}}. Waits at most 20 ms for
  // the engine: where it is busy for longer, collections, rows and bytes are those of the report before.
  std::string report_json();

  // Calls `listener` (from the writer's thread) after each publication with the new commit sequence.
  void on_publish(std::function<void(uint64_t)> listener);

 private:
  struct State;
  explicit Database(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace kalos
