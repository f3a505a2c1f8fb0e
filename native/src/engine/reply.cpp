#include "engine/reply.h"

#include <cstring>

namespace kalos {
namespace {

constexpr uint64_t aligned(uint64_t offset) { return (offset + 7) & ~uint64_t{7}; }

Error too_long(uint64_t bytes) {
  return invalid("the reply would be " + std::to_string(bytes) + " bytes, the limit of one reply is " +
                 std::to_string(KALOS_MAX_MESSAGE_BYTES) +
                 "; ask for fewer rows or queries at once, or leave text, metadata or vector out of include");
}

// Puts one part after the other into a message whose size was counted before.
class Writer {
 public:
  explicit Writer(uint64_t bytes) : message_(bytes) {}

  void skip(uint64_t bytes) { at_ += bytes; }
  kalos_span column(const void* data, uint64_t bytes) {
    at_ = aligned(at_);
    return put(data, bytes);
  }
  kalos_span put(std::string_view bytes) { return put(bytes.data(), bytes.size()); }
  // Room that is filled in later.
  kalos_span reserve(uint64_t bytes) {
    at_ = aligned(at_);
    kalos_span span{uint32_t(at_), uint32_t(bytes)};
    at_ += bytes;
    return span;
  }
  std::byte* at(kalos_span span) { return message_.data() + span.offset; }
  Bytes finish(const void* header, uint64_t bytes) {
    message_.resize(at_);  // padding was counted generously
    std::memcpy(message_.data(), header, bytes);
    return std::move(message_);
  }

 private:
  kalos_span put(const void* data, uint64_t bytes) {
    kalos_span span{uint32_t(at_), uint32_t(bytes)};
    if (bytes != 0) std::memcpy(message_.data() + at_, data, bytes);
    at_ += bytes;
    return span;
  }

  Bytes message_;
  uint64_t at_ = 0;
};

constexpr uint64_t columns_bytes_of_a_hit = sizeof(kalos_hit_fields) + 3 * 8;  // fields, score, created, updated

uint64_t message_bytes(const HitsAnswer& answer) {
  uint64_t bytes = sizeof(kalos_hits_reply);
  bytes = aligned(bytes + answer.groups.size() * sizeof(uint32_t));
  bytes += answer.hits.size() * (columns_bytes_of_a_hit - (answer.has_scores ? 0 : 8));
  if (answer.explain) bytes = aligned(bytes + answer.explain->size());
  uint64_t vector_bytes = aligned(uint64_t{answer.dimension} * sizeof(float));
  std::string_view last_namespace;
  bool any = false;
  for (const Hit& hit : answer.hits) {
    if (!hit.found) continue;
    if (hit.vector) bytes += vector_bytes;
    bytes += hit.id.size() + (hit.text ? hit.text->size() : 0) + (hit.metadata ? hit.metadata->size() : 0);
    if (!any || hit.namespace_key != last_namespace) bytes += hit.namespace_key.size();
    last_namespace = hit.namespace_key;
    any = true;
  }
  return bytes;
}

}  // namespace

uint64_t hit_bytes(const Hit& hit, uint32_t dimension) {
  return columns_bytes_of_a_hit + (hit.vector ? aligned(uint64_t{dimension} * sizeof(float)) : 0) + hit.id.size() +
         hit.namespace_key.size() + (hit.text ? hit.text->size() : 0) + (hit.metadata ? hit.metadata->size() : 0);
}

Result<Bytes> encode_hits(const HitsAnswer& answer) {
  uint64_t bytes = message_bytes(answer);
  if (bytes > KALOS_MAX_MESSAGE_BYTES) return too_long(bytes);
  size_t count = answer.hits.size();
  Writer writer(bytes);
  writer.skip(sizeof(kalos_hits_reply));
  kalos_hits_reply header{};
  header.commit_sequence = answer.commit_sequence;
  header.row_count = uint32_t(count);
  header.group_count = uint32_t(answer.groups.size() - 1);
  header.include = answer.include;
  header.dimension = answer.dimension;
  header.has_cursor = answer.has_cursor;
  header.cursor_sequence = answer.cursor_sequence;
  header.cursor_updated_us = answer.cursor_updated_us;
  header.groups = writer.column(answer.groups.data(), answer.groups.size() * sizeof(uint32_t));
  if (answer.has_scores) header.scores = writer.reserve(count * 8);
  header.created = writer.reserve(count * 8);
  header.updated = writer.reserve(count * 8);
  header.fields = writer.reserve(count * sizeof(kalos_hit_fields));
  if (answer.explain) header.explain = writer.column(answer.explain->data(), answer.explain->size());

  std::byte* scores = answer.has_scores ? writer.at(header.scores) : nullptr;
  std::byte* created = writer.at(header.created);
  std::byte* updated = writer.at(header.updated);
  std::byte* fields = writer.at(header.fields);
  // Vectors first, so that they need no padding between the strings.
  std::vector<kalos_span> vectors(count);
  for (size_t i = 0; i < count; ++i) {
    const Hit& hit = answer.hits[i];
    if (hit.found && hit.vector) vectors[i] = writer.column(hit.vector, uint64_t{answer.dimension} * sizeof(float));
  }
  kalos_span name_space{};
  std::string_view last_namespace;
  for (size_t i = 0; i < count; ++i) {
    const Hit& hit = answer.hits[i];
    if (!hit.found) continue;
    if (scores) std::memcpy(scores + i * 8, &hit.score, 8);
    std::memcpy(created + i * 8, &hit.created_us, 8);
    std::memcpy(updated + i * 8, &hit.updated_us, 8);
    kalos_hit_fields row{};
    row.id = writer.put(hit.id);
    if (name_space.offset == 0 || hit.namespace_key != last_namespace) name_space = writer.put(hit.namespace_key);
    last_namespace = hit.namespace_key;
    row.name_space = name_space;
    if (hit.text) row.text = writer.put(*hit.text);
    if (hit.metadata) row.metadata = writer.put(*hit.metadata);
    row.vector = vectors[i];
    std::memcpy(fields + i * sizeof row, &row, sizeof row);
  }
  return writer.finish(&header, sizeof header);
}

Result<Bytes> encode_namespaces(uint64_t commit_sequence, std::span<const std::string_view> keys) {
  uint64_t bytes = sizeof(kalos_namespaces_reply) + keys.size() * sizeof(kalos_span);
  for (std::string_view key : keys) bytes += key.size();
  if (bytes > KALOS_MAX_MESSAGE_BYTES) return too_long(bytes);
  Writer writer(bytes);
  writer.skip(sizeof(kalos_namespaces_reply));
  kalos_namespaces_reply header{};
  header.commit_sequence = commit_sequence;
  header.count = uint32_t(keys.size());
  header.keys = writer.reserve(keys.size() * sizeof(kalos_span));
  std::byte* column = writer.at(header.keys);
  for (size_t i = 0; i < keys.size(); ++i) {
    kalos_span key = writer.put(keys[i]);
    std::memcpy(column + i * sizeof key, &key, sizeof key);
  }
  return writer.finish(&header, sizeof header);
}

Bytes encode_count_reply(uint64_t commit_sequence, uint64_t count) {
  kalos_count_reply reply{commit_sequence, count};
  Bytes message(sizeof reply);
  std::memcpy(message.data(), &reply, sizeof reply);
  return message;
}

Bytes encode_write_reply(uint64_t commit_sequence, uint64_t count) {
  kalos_write_reply reply{commit_sequence, count};
  Bytes message(sizeof reply);
  std::memcpy(message.data(), &reply, sizeof reply);
  return message;
}

Result<Bytes> encode_batch_reply(uint64_t commit_sequence, std::span<const Bytes> replies) {
  uint64_t bytes = sizeof(kalos_batch_reply) + replies.size() * sizeof(kalos_span);
  for (const Bytes& reply : replies) bytes = aligned(bytes) + reply.size();
  if (bytes > KALOS_MAX_MESSAGE_BYTES) return too_long(bytes);
  Writer writer(bytes);
  writer.skip(sizeof(kalos_batch_reply));
  kalos_batch_reply header{};
  header.commit_sequence = commit_sequence;
  header.operation_count = uint32_t(replies.size());
  header.replies = writer.reserve(replies.size() * sizeof(kalos_span));
  std::byte* column = writer.at(header.replies);
  for (size_t i = 0; i < replies.size(); ++i) {
    kalos_span reply = writer.column(replies[i].data(), replies[i].size());
    std::memcpy(column + i * sizeof reply, &reply, sizeof reply);
  }
  return writer.finish(&header, sizeof header);
}

Result<> count_in_batch(uint64_t* bytes_of_batch, uint64_t reply_bytes) {
  if (bytes_of_batch == nullptr) return Unit{};
  *bytes_of_batch += reply_bytes;
  if (*bytes_of_batch > KALOS_MAX_MESSAGE_BYTES) return too_long(*bytes_of_batch);
  return Unit{};
}

Reply error_reply(const Error& error) {
  Reply reply;
  reply.status = error.status;
  reply.message.resize(error.words.size());
  std::memcpy(reply.message.data(), error.words.data(), error.words.size());
  return reply;
}

}  // namespace kalos
