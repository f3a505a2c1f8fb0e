// What is done with a write before its transaction: everything that can refuse it without touching the disk.
#include <cmath>
#include <cstring>
#include <new>
#include <set>

#include "base/clock.h"
#include "engine/filter.h"
#include "engine/reply.h"
#include "store/exception_reply.h"
#include "store/write_answer.h"
#include "store/write_task.h"

namespace kalos {

namespace {

bool needs_selection(const DeleteRequest& request) {
  return request.filter.has_value() || request.everything || (request.by_ids && request.scope.subtree);
}

bool is_given(const WriteId& id) { return id != WriteId{}; }

std::string in_quotes(std::string_view id) { return "\"" + std::string(id) + "\""; }

// In a batch a failure says which operation it was.
Error placed(const WriteJob& job, uint32_t position, Error error) {
  if (job.is_batch) error.words = "operation " + std::to_string(position) + " of the batch: " + error.words;
  return error;
}

}  // namespace

Hash128 WriteTask::digest_of(const WriteJob& job) {
  if (!is_given(job.write_id)) return {};
  // It is kept in the store: these numbers do not change.
  kalos_opcode opcode = KALOS_OP_BATCH;
  if (!job.is_batch && !job.operations.empty()) {
    opcode = std::holds_alternative<DeleteRequest>(job.operations[0]) ? KALOS_OP_DELETE : KALOS_OP_UPSERT;
  }
  return hash_128(job.message, opcode);
}

void WriteTask::fail(const Error& error) noexcept {
  undo();
  answered = true;
  try {
    reply = error_reply(error);
  } catch (const std::bad_alloc&) {  // then without words
    reply.status = error.status;
  }
}

void WriteTask::fail_by_exception() noexcept {
  undo();
  answered = true;
  reply = exception_reply();
}

void WriteTask::undo() noexcept {
  answered = false;
  reply = Reply{};
  changes.clear();
}

bool WriteRunner::stands_alone(const WriteJob& job) {
  if (!job.reads.empty()) return true;
  for (const WriteOperation& operation : job.operations) {
    const auto* remove = std::get_if<DeleteRequest>(&operation);
    if (remove != nullptr ? needs_selection(*remove) : !std::holds_alternative<UpsertRequest>(operation)) return true;
  }
  return false;
}

Result<CollectionInfo> WriteRunner::collection(uint64_t collection_id) {
  if (auto found = ready_.find(collection_id); found != ready_.end()) return found->second;
  std::lock_guard lock(engine_);
  auto found = index_.find(collection_id);
  if (!found) return found.error();
  return ready_.emplace(collection_id, (*found)->info()).first->second;
}

Result<> WriteRunner::is_ready(uint64_t collection_id) {
  if (collection_id == 0 || ready_.contains(collection_id)) return Unit{};
  auto found = collection(collection_id);
  return found ? Result<>(Unit{}) : Result<>(found.error());
}

void WriteRunner::look(WriteTask& task) {
  const WriteJob& job = *task.job;
  task.started_ns = monotonic_ns();
  if (job.deadline_ns != 0 && task.started_ns >= job.deadline_ns) {
    return task.fail({KALOS_STATUS_EXPIRED, "the deadline passed before the write began; nothing was changed"});
  }
  if (is_given(job.write_id)) {
    if (auto recalled = recall(task); !recalled) return task.fail(recalled.error());
    if (task.answered) return;
  }
  task.infos.resize(job.operations.size());
  task.selected.resize(job.operations.size());
  for (size_t i = 0; i < job.operations.size(); ++i) {
    if (auto checked = check(task, i); !checked) {
      return task.fail(placed(job, job.is_batch ? job.write_positions[i] : 0, checked.error()));
    }
  }
  if (!stands_alone(job)) return;
  if (auto looked = look_at_index(task); !looked) task.fail(looked.error());
}

// A write that was done before is answered as it was then. The reads of a batch are the exception: they see the present
// state, because what they found then may have been deleted since, and deleted rows are kept nowhere.
Result<> WriteRunner::recall(WriteTask& task) {
  const WriteJob& job = *task.job;
  auto remembered = store_.recall_write(job.write_id, wall_us());
  if (!remembered) return remembered.error();
  if (!remembered->has_value()) return Unit{};
  const uint64_t commit_sequence = (*remembered)->commit_sequence;
  auto answer = unpack_answer((*remembered)->reply);
  if (!answer) return answer.error();
  // Of an older kalosd there is no digest.
  if (answer->messages.size() != job.operations.size() || (answer->digest && *answer->digest != task.digest)) {
    return invalid("this write id was used before, for another request (commit sequence " +
                   std::to_string(commit_sequence) +
                   "); this one was not done: make a new write id for each write, and send a write again as the same "
                   "bytes");
  }
  if (!job.reads.empty()) {
    if (auto read = look_at_index(task); !read) {
      return Error{KALOS_STATUS_REPLY_GONE, "the batch was written (commit sequence " +
                                                std::to_string(commit_sequence) +
                                                "), but its reads cannot be answered any more: " + read.error().words};
    }
  }
  auto message = answer_message(task, answer->messages, commit_sequence);
  if (!message) return message.error();
  task.answer(std::move(*message));
  return Unit{};
}

// The reads of a batch, and the rows that its deletes mean: all against the same published state.
Result<> WriteRunner::look_at_index(WriteTask& task) {
  const WriteJob& job = *task.job;
  int64_t now_us = wall_us();
  std::lock_guard lock(engine_);
  task.read_replies.clear();
  uint64_t bytes_of_batch = 0;
  for (size_t i = 0; i < job.reads.size(); ++i) {
    Reply reply = index_.read_one(job.reads[i], job.deadline_ns);
    if (reply.status != KALOS_STATUS_OK) {
      std::string words(reinterpret_cast<const char*>(reply.message.data()), reply.message.size());
      return placed(job, job.read_positions[i], {reply.status, std::move(words)});
    }
    if (auto room = count_in_batch(&bytes_of_batch, reply.message.size()); !room) {
      return placed(job, job.read_positions[i], room.error());
    }
    task.read_replies.push_back(std::move(reply.message));
  }
  for (size_t i = 0; i < task.selected.size(); ++i) {
    const auto* request = std::get_if<DeleteRequest>(&job.operations[i]);
    if (request == nullptr || !needs_selection(*request)) continue;
    auto names = select(task, i, now_us);
    if (!names) return placed(job, job.is_batch ? job.write_positions[i] : 0, names.error());
    task.selected[i] = std::move(*names);
  }
  return Unit{};
}

// The published rows that a delete means, as the batch's operations before it will have changed them: those it touched
// are judged by what it made of them.
Result<std::vector<Collection::RowName>> WriteRunner::select(const WriteTask& task, size_t operation, int64_t now_us) {
  const auto& request = std::get<DeleteRequest>(task.job->operations[operation]);
  auto published = index_.find(request.collection_id);
  if (!published) return published.error();
  auto names = (*published)->select(request, now_us);
  if (!names || operation == 0) return names;

  Collection pending(task.infos[operation]);
  std::set<std::pair<std::string, std::string>> touched;
  for (size_t i = 0; i < operation; ++i) {
    if (const auto* upsert = std::get_if<UpsertRequest>(&task.job->operations[i])) {
      if (upsert->collection_id != request.collection_id) continue;
      for (const UpsertRow& row : upsert->rows) {
        touched.emplace(upsert->namespace_key, row.id);
        auto made = new_row(upsert->namespace_key, row);
        made->sequence = touched.size();  // any, but of its own
        pending.put(std::move(made));
      }
    } else if (const auto* remove = std::get_if<DeleteRequest>(&task.job->operations[i])) {
      if (remove->collection_id != request.collection_id) continue;
      if (needs_selection(*remove)) {
        for (const auto& name : task.selected[i]) pending.remove(name.namespace_key, name.id);
      } else {
        for (std::string_view id : remove->ids) pending.remove(remove->scope.namespace_key, id);
      }
    }
  }
  if (touched.empty()) return names;
  std::erase_if(*names, [&](const auto& name) { return touched.contains({name.namespace_key, name.id}); });
  auto made = pending.select(request, now_us);
  if (!made) return made;
  for (auto& name : *made) names->push_back(std::move(name));
  return names;
}

// ---- checks --------------------------------------------------------------------------------------------------------

Result<> WriteRunner::check(WriteTask& task, size_t operation) {
  const WriteOperation& given = task.job->operations[operation];
  if (const auto* request = std::get_if<UpsertRequest>(&given)) {
    auto info = collection(request->collection_id);
    if (!info) return info.error();
    task.infos[operation] = *info;
    return check_upsert(*request, task.infos[operation], task);
  }
  const auto* request = std::get_if<DeleteRequest>(&given);
  if (request == nullptr) return Unit{};
  if (!request->by_ids && !request->filter.has_value() && !request->everything) {
    return invalid("a delete was given neither ids nor a filter; to delete every row in scope say everything=True");
  }
  if (request->filter && !request->by_ids && !request->everything) {
    auto filter = Filter::parse(*request->filter);
    if (!filter) return filter.error();
    if (filter->matches_all()) {
      return invalid("a delete was given a filter that says nothing; to delete every row in scope say everything=True");
    }
  }
  auto info = collection(request->collection_id);
  if (!info) return info.error();
  task.infos[operation] = *info;
  return Unit{};
}

Result<> WriteRunner::check_upsert(const UpsertRequest& request, const CollectionInfo& info, WriteTask& task) {
  if (request.dimension != 0 && request.dimension != info.dimension) {
    return invalid("the vectors have dimension " + std::to_string(request.dimension) + ", collection \"" + info.name +
                   "\" has dimension " + std::to_string(info.dimension));
  }
  for (const UpsertRow& row : request.rows) {
    if (!row.vector.empty() && row.vector.size() != info.dimension) {
      return invalid("the vector of row " + in_quotes(row.id) + " has " + std::to_string(row.vector.size()) +
                     " components, collection \"" + info.name + "\" has dimension " + std::to_string(info.dimension));
    }
    for (size_t i = 0; i < row.vector.size(); ++i) {
      if (std::isfinite(row.vector[i])) continue;
      return invalid("component " + std::to_string(i) + " of the vector of row " + in_quotes(row.id) + " is " +
                     std::to_string(row.vector[i]) + "; vectors must be finite");
    }
    task.bytes_at_most += row_bytes(info, !row.vector.empty(), row.id.size(), row.text ? row.text->size() : 0,
                                    row.metadata ? row.metadata->size() : 0);
  }
  return Unit{};
}

}  // namespace kalos
