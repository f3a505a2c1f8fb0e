#include "store/write_answer.h"

#include <cstring>

#include "engine/reply.h"

namespace kalos {

Bytes pack_answers(std::span<const Bytes> messages) {
  Bytes packed;
  for (const Bytes& message : messages) {
    auto bytes = static_cast<uint32_t>(message.size());
    const auto* head = reinterpret_cast<const std::byte*>(&bytes);
    packed.insert(packed.end(), head, head + sizeof bytes);
    packed.insert(packed.end(), message.begin(), message.end());
  }
  return packed;
}

Result<std::vector<Bytes>> unpack_answers(std::span<const std::byte> packed) {
  std::vector<Bytes> messages;
  while (!packed.empty()) {
    uint32_t bytes = 0;
    if (packed.size() < sizeof bytes) return Error{KALOS_STATUS_INTERNAL, "a remembered answer is damaged"};
    std::memcpy(&bytes, packed.data(), sizeof bytes);
    packed = packed.subspan(sizeof bytes);
    if (packed.size() < bytes) return Error{KALOS_STATUS_INTERNAL, "a remembered answer is damaged"};
    messages.emplace_back(packed.begin(), packed.begin() + bytes);
    packed = packed.subspan(bytes);
  }
  return messages;
}

Result<Bytes> answer_message(const WriteTask& task, std::span<const Bytes> writes, uint64_t commit_sequence) {
  const WriteJob& job = *task.job;
  if (!job.is_batch) return writes.empty() ? Bytes{} : writes[0];
  std::vector<Bytes> replies(job.reads.size() + job.operations.size());
  for (size_t i = 0; i < job.reads.size(); ++i) replies[job.read_positions[i]] = task.read_replies[i];
  for (size_t i = 0; i < job.operations.size(); ++i) replies[job.write_positions[i]] = writes[i];
  return encode_batch_reply(commit_sequence, replies);
}

Bytes to_message(std::string_view text) {
  Bytes message(text.size());
  if (!text.empty()) std::memcpy(message.data(), text.data(), text.size());
  return message;
}

std::unique_ptr<Row> new_row(std::string_view namespace_key, const UpsertRow& from) {
  auto row = std::make_unique<Row>();
  row->namespace_key = namespace_key;
  row->id = from.id;
  row->vector.assign(from.vector.begin(), from.vector.end());
  row->has_text = from.text.has_value();
  if (from.text) row->text = *from.text;
  row->has_metadata = from.metadata.has_value();
  if (from.metadata) row->metadata = *from.metadata;
  row->expires_us = from.expires_us;
  return row;
}

}  // namespace kalos
