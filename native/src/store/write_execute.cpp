// What is done with a write in its transaction.
#include <cstdio>
#include <unordered_map>

#include "base/clock.h"
#include "base/failpoint.h"
#include "base/utf8.h"
#include "engine/collections_json.h"
#include "engine/reply.h"
#include "store/write_answer.h"
#include "store/write_task.h"

namespace kalos {

namespace {

// Positions of the rows to write: one for each id, in the order of the ids' first places, with their last values.
std::vector<size_t> distinct_rows(const std::vector<UpsertRow>& rows) {
  std::vector<size_t> positions;
  positions.reserve(rows.size());
  std::unordered_map<std::string_view, size_t> places;
  places.reserve(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    auto [place, is_new] = places.try_emplace(rows[i].id, positions.size());
    if (is_new) {
      positions.push_back(i);
    } else {
      positions[place->second] = i;
    }
  }
  return positions;
}

Error mismatch(const OpenCollectionRequest& request, const std::string& what, const std::string& has,
               const std::string& given) {
  return {KALOS_STATUS_COLLECTION_MISMATCH, "collection \"" + request.name + "\" has " + what + " " + has + ", " +
                                                given +
                                                " was given; open it as it is, choose another name, or drop it first"};
}

Result<> check_agrees(const OpenCollectionRequest& request, const CollectionInfo& info) {
  if (request.dimension != 0 && request.dimension != info.dimension) {
    return mismatch(request, "dimension", std::to_string(info.dimension), std::to_string(request.dimension));
  }
  if (request.metric && *request.metric != info.metric) {
    return mismatch(request, "metric", metric_name(info.metric), metric_name(*request.metric));
  }
  bool both_known = !request.embedder_fingerprint.empty() && !info.embedder_fingerprint.empty();
  if (both_known && request.embedder_fingerprint != info.embedder_fingerprint) {
    return mismatch(request, "embedder", info.embedder_name + " (" + info.embedder_fingerprint + ")",
                    request.embedder_name + " (" + request.embedder_fingerprint + ")");
  }
  return Unit{};
}

Result<CollectionInfo> new_collection(const OpenCollectionRequest& request, int64_t now_us) {
  if (request.name.empty() || request.name.size() > KALOS_MAX_COLLECTION_NAME_BYTES || !valid_utf8(request.name)) {
    return invalid("a collection's name must be 1 to " + std::to_string(KALOS_MAX_COLLECTION_NAME_BYTES) +
                   " bytes of UTF-8");
  }
  if (request.dimension == 0) {
    return Error{KALOS_STATUS_NOT_FOUND,
                 "there is no collection \"" + request.name + "\"; give a dimension to create it"};
  }
  if (request.dimension > KALOS_MAX_DIMENSION) {
    return invalid("dimension " + std::to_string(request.dimension) + " is too large: at most " +
                   std::to_string(KALOS_MAX_DIMENSION));
  }
  CollectionInfo info;
  info.name = request.name;
  info.dimension = request.dimension;
  info.metric = request.metric.value_or(KALOS_METRIC_COSINE);
  info.embedder_name = request.embedder_name;
  info.embedder_fingerprint = request.embedder_fingerprint;
  info.created_us = now_us;
  return info;
}

}  // namespace

std::string bytes_in_words(uint64_t bytes) {
  const char* units[] = {"bytes", "kB", "MB", "GB", "TB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1000 && unit < 4; ++unit) value /= 1000;
  char words[32];
  std::snprintf(words, sizeof words, unit == 0 ? "%.0f %s" : "%.1f %s", value, units[unit]);
  return words;
}

Result<> WriteRunner::execute(WriteTask& task, bool group_changed_store, const std::optional<MemoryRoom>& room) {
  const WriteJob& job = *task.job;
  task.changes.clear();
  task.changed_store = false;
  // Where nothing changes there is no commit, and the last one is named.
  uint64_t next = store_.next_commit_sequence();
  bool is_given = job.write_id != WriteId{};
  int64_t growth = 0;
  std::vector<Bytes> replies;
  for (size_t i = 0; i < job.operations.size(); ++i) {
    Step step{task, i, next, wall_us(), room.has_value(), 0};
    auto reply = std::visit([&](const auto& request) { return run(step, request); }, job.operations[i]);
    if (!reply) {
      Error error = reply.error();
      if (job.is_batch) {
        error.words = "operation " + std::to_string(job.write_positions[i]) + " of the batch: " + error.words;
      }
      return error;
    }
    growth += step.growth;
    replies.push_back(std::move(*reply));
    failpoint("mid_transaction");
  }
  if (room && growth > 0 && static_cast<uint64_t>(growth) > room->left) {
    return Error{KALOS_STATUS_STORE_ERROR, "the write needs " + bytes_in_words(static_cast<uint64_t>(growth)) +
                                               " more memory, of the limit of " + bytes_in_words(room->limit) + " " +
                                               bytes_in_words(room->left) +
                                               " are left; nothing was changed; delete rows, or restart kalosd with a "
                                               "larger --memory (KALOS_MEMORY)"};
  }
  bool commits = group_changed_store || task.changed_store || is_given;
  auto message = answer_message(task, replies, commits ? next : store_.commit_sequence());
  if (!message) return message.error();
  if (is_given) {
    task.changed_store = true;
    Store::Remembered answer{next, pack_answer(task.digest, replies)};
    if (auto kept = store_.remember_write(job.write_id, answer, wall_us()); !kept) return kept;
  }
  task.answer(std::move(*message));
  return Unit{};
}

// ---- rows ----------------------------------------------------------------------------------------------------------

Result<Bytes> WriteRunner::run(Step& step, const UpsertRequest& request) {
  const CollectionInfo& info = step.task.infos[step.operation];
  std::vector<size_t> positions = distinct_rows(request.rows);
  for (size_t position : positions) {
    if (auto done = put(step, info, request.namespace_key, request.rows[position]); !done) return done.error();
  }
  return encode_write_reply(step.commit_sequence, positions.size());
}

Result<> WriteRunner::put(Step& step, const CollectionInfo& info, std::string_view namespace_key,
                          const UpsertRow& from) {
  auto row = new_row(namespace_key, from);
  if (step.count_growth) {
    if (auto counted = count_old(step, info, namespace_key, from.id); !counted) return counted;
    step.growth += static_cast<int64_t>(
        row_bytes(info, !row->vector.empty(), row->id.size(), row->text.size(), row->metadata.size()));
  }
  if (auto done = store_.upsert(info, *row, step.now_us); !done) return done;
  step.task.changed_store = true;
  step.task.changes.push_back(RowChange{info.id, std::move(row), {}, {}});
  return Unit{};
}

Result<Bytes> WriteRunner::run(Step& step, const DeleteRequest& request) {
  const CollectionInfo& info = step.task.infos[step.operation];
  uint64_t count = 0;
  auto take = [&](std::string_view namespace_key, std::string_view id) -> Result<> {
    auto live = take_out(step, info, namespace_key, id);
    if (!live) return live.error();
    count += *live ? 1 : 0;
    return Unit{};
  };
  if (request.filter || request.everything || request.scope.subtree) {
    for (const auto& name : step.task.selected[step.operation]) {
      if (auto done = take(name.namespace_key, name.id); !done) return done.error();
    }
  } else {
    for (std::string_view id : request.ids) {
      if (auto done = take(request.scope.namespace_key, id); !done) return done.error();
    }
  }
  return encode_write_reply(step.commit_sequence, count);
}

// True where a row that was there for readers is gone now.
Result<bool> WriteRunner::take_out(Step& step, const CollectionInfo& info, std::string_view namespace_key,
                                   std::string_view id) {
  if (step.count_growth) {
    if (auto counted = count_old(step, info, namespace_key, id); !counted) return counted.error();
  }
  auto removed = store_.remove(info, namespace_key, id, step.now_us);
  if (!removed) return removed.error();
  if (*removed == Store::Removal::ABSENT) return false;
  step.task.changed_store = true;
  step.task.changes.push_back(RowChange{info.id, nullptr, std::string(namespace_key), std::string(id)});
  return *removed == Store::Removal::LIVE;
}

Result<> WriteRunner::count_old(Step& step, const CollectionInfo& info, std::string_view namespace_key,
                                std::string_view id) {
  auto old = store_.row_size(info, namespace_key, id);
  if (!old) return old.error();
  if (!old->has_value()) return Unit{};
  const Store::RowSize& size = **old;
  step.growth -=
      static_cast<int64_t>(row_bytes(info, size.has_vector, id.size(), size.text_bytes, size.metadata_bytes));
  return Unit{};
}

uint64_t WriteRunner::row_bytes(const CollectionInfo& info, bool has_vector, size_t id, size_t text,
                                size_t metadata) const {
  uint32_t dimension = has_vector ? info.dimension : 0;
  return text_in_file_ ? Collection::bytes_of(dimension, 0, 0, 0) : Collection::bytes_of(dimension, id, text, metadata);
}

// ---- collections ---------------------------------------------------------------------------------------------------

Result<Bytes> WriteRunner::run(Step& step, const OpenCollectionRequest& request) {
  std::unique_lock lock(engine_);
  auto found = index_.find_by_name(request.name);
  lock.unlock();
  if (!found && found.error().status != KALOS_STATUS_NOT_FOUND) return found.error();
  if (found) {
    if (auto agrees = check_agrees(request, *found); !agrees) return agrees.error();
    bool records = found->embedder_name.empty() && found->embedder_fingerprint.empty() &&
                   !(request.embedder_name.empty() && request.embedder_fingerprint.empty());
    if (!records) return to_message(collection_json(*found));
    found->embedder_name = request.embedder_name;
    found->embedder_fingerprint = request.embedder_fingerprint;
    auto set = store_.set_embedder(found->id, request.embedder_name, request.embedder_fingerprint);
    if (!set) return set.error();
  } else {
    auto wanted = new_collection(request, step.now_us);
    if (!wanted) return wanted.error();
    found = store_.create_collection(std::move(*wanted));
    if (!found) return found.error();
  }
  step.task.changed_store = true;
  ready_.erase(found->id);
  step.task.changes.push_back(CollectionAdded{*found});
  return to_message(collection_json(*found));
}

Result<Bytes> WriteRunner::run(Step& step, const DropCollectionRequest& request) {
  std::unique_lock lock(engine_);
  auto info = index_.find_by_name(request.name);
  if (!info) return info.error();
  auto state = index_.find(info->id);
  lock.unlock();
  // One that is cold may go: dropping it is a way to make room. One that is being read from disk may not.
  if (!state && state.error().status == KALOS_STATUS_LOADING) return state.error();
  if (auto dropped = store_.drop_collection(info->id); !dropped) return dropped.error();
  step.task.changed_store = true;
  ready_.erase(info->id);
  step.task.changes.push_back(CollectionDropped{info->id});
  return to_message("{\"commit_sequence\":" + std::to_string(step.commit_sequence) + "}");
}

}  // namespace kalos
