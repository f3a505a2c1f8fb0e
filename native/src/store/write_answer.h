// Answers of writes: put together for the client, and packed for the store's memory of write ids.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "engine/collection.h"
#include "engine/jobs.h"
#include "store/write_task.h"

namespace kalos {

// Packed: for each message a little-endian u32 length and its bytes.
Bytes pack_answers(std::span<const Bytes> messages);
Result<std::vector<Bytes>> unpack_answers(std::span<const std::byte> packed);

// The reply message of a task: its one operation's own, or the batch's with reads and writes in their places.
Result<Bytes> answer_message(const WriteTask& task, std::span<const Bytes> writes, uint64_t commit_sequence);

Bytes to_message(std::string_view text);

// The row that an upsert asks for, without what the store decides (sequence, times).
std::unique_ptr<Row> new_row(std::string_view namespace_key, const UpsertRow& from);

}  // namespace kalos
