// Write jobs and their answers, as tests want them.
#pragma once

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "engine/jobs.h"

namespace write_jobs {

using namespace kalos;

// Copies bytes into the job's message, where the views of its requests may point.
inline std::string_view keep(WriteJob& job, std::string_view bytes) {
  constexpr size_t kRoom = size_t{4} << 20;
  job.message.reserve(kRoom);
  size_t at = (job.message.size() + 7) & ~size_t{7};
  if (at + bytes.size() > kRoom) {
    std::fprintf(stderr, "the test's message is too long\n");
    std::abort();
  }
  job.message.resize(at + bytes.size());
  if (!bytes.empty()) std::memcpy(job.message.data() + at, bytes.data(), bytes.size());
  return {reinterpret_cast<const char*>(job.message.data()) + at, bytes.size()};
}

struct RowSpec {
  std::string id;
  std::optional<std::string> text = std::nullopt;
  std::optional<std::string> metadata = std::nullopt;
  std::vector<float> vector = {1, 2, 3};
  int64_t expires_us = 0;
};

inline std::unique_ptr<WriteJob> new_job(WriteId id = {}) {
  auto job = std::make_unique<WriteJob>();
  job->write_id = id;
  job->received_ns = monotonic_ns();
  return job;
}

inline UpsertRequest upsert(WriteJob& job, uint64_t collection, const std::vector<RowSpec>& rows,
                            const std::string& name_space = "") {
  UpsertRequest request;
  request.collection_id = collection;
  request.namespace_key = keep(job, name_space);
  for (const RowSpec& row : rows) {
    UpsertRow made;
    made.id = keep(job, row.id);
    if (row.text) made.text = keep(job, *row.text);
    if (row.metadata) made.metadata = keep(job, *row.metadata);
    made.expires_us = row.expires_us;
    if (!row.vector.empty()) {
      request.dimension = static_cast<uint32_t>(row.vector.size());
      auto bytes = keep(job, {reinterpret_cast<const char*>(row.vector.data()), row.vector.size() * sizeof(float)});
      made.vector = {reinterpret_cast<const float*>(bytes.data()), row.vector.size()};
    }
    request.rows.push_back(made);
  }
  return request;
}

inline std::unique_ptr<WriteJob> upsert_job(uint64_t collection, const std::vector<RowSpec>& rows, WriteId id = {},
                                            const std::string& name_space = "") {
  auto job = new_job(id);
  job->operations.push_back(upsert(*job, collection, rows, name_space));
  return job;
}

inline DeleteRequest delete_ids(WriteJob& job, uint64_t collection, const std::vector<std::string>& ids,
                                const std::string& name_space = "") {
  DeleteRequest request;
  request.collection_id = collection;
  request.scope.namespace_key = keep(job, name_space);
  request.by_ids = true;
  for (const std::string& id : ids) request.ids.push_back(keep(job, id));
  return request;
}

inline std::unique_ptr<WriteJob> delete_job(DeleteRequest request, WriteId id = {}) {
  auto job = new_job(id);
  job->operations.push_back(std::move(request));
  return job;
}

inline std::unique_ptr<WriteJob> open_job(const std::string& name, uint32_t dimension) {
  auto job = new_job();
  OpenCollectionRequest request;
  request.name = name;
  request.dimension = dimension;
  job->operations.push_back(request);
  return job;
}

// Submits to a Writer or a Database; the answer comes later.
template <class Target>
std::future<Reply> send(Target& target, std::unique_ptr<WriteJob> job, uint64_t lane = 0) {
  auto promise = std::make_shared<std::promise<Reply>>();
  job->done = [promise](Reply reply) { promise->set_value(std::move(reply)); };
  auto future = promise->get_future();
  target.submit(std::move(job), lane);
  return future;
}

// A watchdog, not a time limit: a write that never answers must not hang the tests.
inline Reply wait(std::future<Reply>& future) {
  if (future.wait_for(std::chrono::seconds(120)) != std::future_status::ready) {
    std::fprintf(stderr, "no answer for two minutes\n");
    std::abort();
  }
  return future.get();
}
inline Reply wait(std::future<Reply>&& future) { return wait(future); }

template <class Target>
Reply write(Target& target, std::unique_ptr<WriteJob> job) {
  return wait(send(target, std::move(job)));
}

inline std::string words(const Reply& reply) {
  return {reinterpret_cast<const char*>(reply.message.data()), reply.message.size()};
}

inline kalos_write_reply parse(std::span<const std::byte> message) {
  kalos_write_reply reply{};
  if (message.size() >= sizeof reply) std::memcpy(&reply, message.data(), sizeof reply);
  return reply;
}

inline std::vector<std::span<const std::byte>> parse_batch(const Reply& reply) {
  kalos_batch_reply head{};
  std::memcpy(&head, reply.message.data(), sizeof head);
  std::vector<std::span<const std::byte>> messages;
  for (uint32_t i = 0; i < head.operation_count; ++i) {
    kalos_span span{};
    std::memcpy(&span, reply.message.data() + head.replies.offset + i * sizeof span, sizeof span);
    messages.push_back(std::span(reply.message).subspan(span.offset, span.bytes));
  }
  return messages;
}

inline uint64_t parse_count(std::span<const std::byte> message) {
  kalos_count_reply reply{};
  if (message.size() >= sizeof reply) std::memcpy(&reply, message.data(), sizeof reply);
  return reply.count;
}

// The texts of a get's reply; "?" for a row that was not found, "-" for one without a text.
inline std::vector<std::string> parse_texts(std::span<const std::byte> message) {
  kalos_hits_reply head{};
  std::memcpy(&head, message.data(), sizeof head);
  std::vector<std::string> texts;
  for (uint32_t i = 0; i < head.row_count; ++i) {
    kalos_hit_fields fields{};
    std::memcpy(&fields, message.data() + head.fields.offset + i * sizeof fields, sizeof fields);
    const char* bytes = reinterpret_cast<const char*>(message.data());
    if (fields.id.offset == 0) {
      texts.push_back("?");
    } else {
      texts.push_back(fields.text.offset == 0 ? "-" : std::string(bytes + fields.text.offset, fields.text.bytes));
    }
  }
  return texts;
}

}  // namespace write_jobs
