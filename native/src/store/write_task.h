// One write on its way through the writer's thread: looked at before the transaction, executed in it, answered after it.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/hash128.h"
#include "base/result.h"
#include "engine/index.h"
#include "engine/jobs.h"
#include "store/fair_mutex.h"
#include "store/store.h"

namespace kalos {

struct WriteTask {
  // Reads the whole message: not for the writer's thread.
  WriteTask(std::unique_ptr<WriteJob> given, uint64_t of_lane)
      : job(std::move(given)), lane(of_lane), queued_bytes(job->message.size() + 1024), digest(digest_of(*job)) {}

  std::unique_ptr<WriteJob> job;
  const uint64_t lane;
  const uint64_t queued_bytes;  // what it takes of the queue until it is answered
  // Of what was asked, where there is a write id: the message's bytes and what they are a request of. Of the bytes and not
  // of their meaning, because nothing that they mean can then be forgotten here. A resend has the same.
  const Hash128 digest;
  int64_t started_ns = 0;

  // Found by WriteRunner::look, per operation.
  std::vector<CollectionInfo> infos;
  std::vector<std::vector<Collection::RowName>> selected;  // deletes that need the index: the rows they mean
  std::vector<Bytes> read_replies;
  uint64_t bytes_at_most = 0;  // that the write adds to the index, as if it replaced nothing

  // Made by WriteRunner::execute.
  std::vector<Change> changes;
  bool changed_store = false;

  bool answered = false;
  Reply reply;

  void answer(Bytes message) {
    answered = true;
    reply.status = KALOS_STATUS_OK;
    reply.message = std::move(message);
  }
  void fail(const Error& error) noexcept;
  void fail_by_exception() noexcept;  // in a catch block
  void undo() noexcept;               // what was executed was rolled back, and is not answered

 private:
  static Hash128 digest_of(const WriteJob& job);
};

// How much the index may still grow.
struct MemoryRoom {
  uint64_t limit = 0;
  uint64_t left = 0;
};

// What the tasks are carried out with. The writer's thread only.
class WriteRunner {
 public:
  // text_in_file: ids, texts and metadata lie in files and cost no memory.
  WriteRunner(Store& store, Index& index, FairMutex& engine, bool text_in_file)
      : store_(store), index_(index), engine_(engine), text_in_file_(text_in_file) {}

  // Does the write look at published rows, or change the set of collections? Then everything before it must be published
  // first, and it gets a group of its own.
  static bool stands_alone(const WriteJob& job);

  // Before the transaction: deadline, remembered answer, checks, reads and selections. May answer the task.
  void look(WriteTask& task);

  // In the transaction. `room` is not given where the memory surely suffices. An error
  // leaves a transaction that must be rolled back.
  Result<> execute(WriteTask& task, bool group_changed_store, const std::optional<MemoryRoom>& room);

  // OK, or why the collection cannot be written now.
  Result<CollectionInfo> collection(uint64_t collection_id);
  Result<> is_ready(uint64_t collection_id);  // 0: the operation needs none
  void forget(uint64_t collection_id) { ready_.erase(collection_id); }

 private:
  Result<> check(WriteTask& task, size_t operation);
  Result<> check_upsert(const UpsertRequest& request, const CollectionInfo& info, WriteTask& task);
  Result<> look_at_index(WriteTask& task);
  Result<std::vector<Collection::RowName>> select(const WriteTask& task, size_t operation, int64_t now_us);
  Result<> recall(WriteTask& task);

  // Each returns the reply message of its operation; growth is only counted where `count_growth`.
  struct Step {
    WriteTask& task;
    size_t operation;
    uint64_t commit_sequence;
    int64_t now_us;
    bool count_growth;
    int64_t growth = 0;
  };
  Result<Bytes> run(Step& step, const UpsertRequest& request);
  Result<Bytes> run(Step& step, const DeleteRequest& request);
  Result<Bytes> run(Step& step, const OpenCollectionRequest& request);
  Result<Bytes> run(Step& step, const DropCollectionRequest& request);
  Result<> put(Step& step, const CollectionInfo& info, std::string_view namespace_key, const UpsertRow& from);
  Result<bool> take_out(Step& step, const CollectionInfo& info, std::string_view namespace_key, std::string_view id);
  uint64_t row_bytes(const CollectionInfo& info, bool has_vector, size_t id, size_t text, size_t metadata) const;
  Result<> count_old(Step& step, const CollectionInfo& info, std::string_view namespace_key, std::string_view id);

  Store& store_;
  Index& index_;
  FairMutex& engine_;
  const bool text_in_file_;
  // Collections that are loaded: they stay so until the writer drops them, so a write to one needs no engine lock.
  std::map<uint64_t, CollectionInfo> ready_;
};

// "1.5 GB", for words.
std::string bytes_in_words(uint64_t bytes);

}  // namespace kalos
