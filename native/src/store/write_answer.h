// Answers of writes: put together for the client, and packed for the store's memory of write ids.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "engine/collection.h"
#include "engine/jobs.h"
#include "store/write_task.h"

namespace kalos {

// What is kept with a write id: which request it was, and a reply message for each of its writes.
//
//   u32 0x80000001, which no length is: the form
//   16 bytes: the request's digest
//   for each message its u32 length and its bytes
//
// Of the first form there are only the messages; an answer that is still in it has no digest.
struct RememberedAnswer {
  std::optional<Hash128> digest;
  std::vector<Bytes> messages;
};
Bytes pack_answer(const Hash128& digest, std::span<const Bytes> messages);
Result<RememberedAnswer> unpack_answer(std::span<const std::byte> packed);

// The reply message of a task: its one operation's own, or the batch's with reads and writes in their places.
Result<Bytes> answer_message(const WriteTask& task, std::span<const Bytes> writes, uint64_t commit_sequence);

Bytes to_message(std::string_view text);

// The row that an upsert asks for, without what the store decides (sequence, times).
std::unique_ptr<Row> new_row(std::string_view namespace_key, const UpsertRow& from);

}  // namespace kalos
