#include "store/write_answer.h"

#include <cstring>

#include "engine/reply.h"

namespace kalos {

namespace {

// The top bit tells it from a length: no message has 2 GiB.
constexpr uint32_t kFormWithDigest = 0x80000001;

// Takes the first bytes off. False where there are not so many.
bool take(std::span<const std::byte>& packed, void* into, size_t bytes) {
  if (packed.size() < bytes) return false;
  std::memcpy(into, packed.data(), bytes);
  packed = packed.subspan(bytes);
  return true;
}

}  // namespace

Bytes pack_answer(const Hash128& digest, std::span<const Bytes> messages) {
  size_t total = sizeof kFormWithDigest + digest.size();
  for (const Bytes& message : messages) total += sizeof(uint32_t) + message.size();
  Bytes packed(total);
  std::byte* at = packed.data();
  auto put = [&at](const void* data, size_t bytes) {
    if (bytes != 0) std::memcpy(at, data, bytes);
    at += bytes;
  };
  put(&kFormWithDigest, sizeof kFormWithDigest);
  put(digest.data(), digest.size());
  for (const Bytes& message : messages) {
    auto bytes = static_cast<uint32_t>(message.size());
    put(&bytes, sizeof bytes);
    put(message.data(), message.size());
  }
  return packed;
}

Result<RememberedAnswer> unpack_answer(std::span<const std::byte> packed) {
  const Error damaged{KALOS_STATUS_INTERNAL, "the remembered answer of this write id is damaged; nothing was done"};
  RememberedAnswer answer;
  uint32_t head = 0;
  if (packed.size() >= sizeof head) std::memcpy(&head, packed.data(), sizeof head);
  if (head == kFormWithDigest) {
    packed = packed.subspan(sizeof head);
    if (!take(packed, answer.digest.emplace().data(), sizeof(Hash128))) return damaged;
  }
  while (!packed.empty()) {
    uint32_t bytes = 0;
    if (!take(packed, &bytes, sizeof bytes) || packed.size() < bytes) return damaged;
    answer.messages.emplace_back(packed.begin(), packed.begin() + bytes);
    packed = packed.subspan(bytes);
  }
  return answer;
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
