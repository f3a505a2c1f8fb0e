// What the engine's tests share: namespace keys, rows, an index that they are committed to, and replies decoded with
// every span bounded.
#pragma once

#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "base/clock.h"
#include "check.h"
#include "engine/index.h"

namespace fixture {

using namespace kalos;

inline std::string key(const std::vector<std::string>& segments) {
  std::string bytes;
  for (const auto& segment : segments) {
    bytes += char(segment.size() >> 8);
    bytes += char(segment.size() & 0xFF);
    bytes += segment;
  }
  return bytes;
}

struct DecodedHit {
  bool found = false;
  double score = 0;
  int64_t created_us = 0, updated_us = 0;
  std::string id, namespace_key;
  std::optional<std::string> text, metadata;
  std::optional<std::vector<float>> vector;
};

struct Decoded {
  kalos_hits_reply header{};
  std::vector<std::vector<DecodedHit>> groups;
  std::string explain;
};

inline std::optional<std::string> take(const Bytes& message, kalos_span span) {
  if (span.offset == 0) return std::nullopt;
  CHECK(size_t{span.offset} + span.bytes <= message.size());
  return std::string(reinterpret_cast<const char*>(message.data()) + span.offset, span.bytes);
}

template <class T>
std::vector<T> column(const Bytes& message, kalos_span span, size_t count) {
  CHECK_EQ(0u, span.offset % 8);
  CHECK_EQ(count * sizeof(T), size_t{span.bytes});
  CHECK(size_t{span.offset} + span.bytes <= message.size());
  std::vector<T> values(count);
  if (count) std::memcpy(values.data(), message.data() + span.offset, count * sizeof(T));
  return values;
}

inline Decoded decode_hits(const Bytes& message) {
  Decoded decoded;
  CHECK(message.size() >= sizeof(kalos_hits_reply));
  std::memcpy(&decoded.header, message.data(), sizeof(kalos_hits_reply));
  const auto& header = decoded.header;
  auto groups = column<uint32_t>(message, header.groups, header.group_count + 1);
  std::vector<double> scores(header.row_count);
  if (header.scores.offset) scores = column<double>(message, header.scores, header.row_count);
  auto created = column<int64_t>(message, header.created, header.row_count);
  auto updated = column<int64_t>(message, header.updated, header.row_count);
  auto fields = column<kalos_hit_fields>(message, header.fields, header.row_count);
  CHECK_EQ(0u, groups.front());
  CHECK_EQ(header.row_count, groups.back());
  for (uint32_t g = 0; g < header.group_count; ++g) {
    auto& group = decoded.groups.emplace_back();
    for (uint32_t i = groups[g]; i < groups[g + 1]; ++i) {
      DecodedHit hit;
      auto id = take(message, fields[i].id);
      hit.found = id.has_value();
      if (hit.found) {
        hit.id = *id;
        hit.score = scores[i];
        hit.created_us = created[i];
        hit.updated_us = updated[i];
        hit.namespace_key = take(message, fields[i].name_space).value_or("absent");
        hit.text = take(message, fields[i].text);
        hit.metadata = take(message, fields[i].metadata);
        if (fields[i].vector.offset) hit.vector = column<float>(message, fields[i].vector, header.dimension);
      }
      group.push_back(hit);
    }
  }
  decoded.explain = take(message, header.explain).value_or("");
  return decoded;
}

inline std::string words(const Reply& reply) {
  return {reinterpret_cast<const char*>(reply.message.data()), reply.message.size()};
}

struct NewRow {
  std::string id;
  std::vector<float> vector;
  std::optional<std::string> metadata;
  std::optional<std::string> text;
  std::string namespace_key;
  int64_t expires_us = 0;
  int64_t updated_us = 0;
};

// An index with one collection, number 1, and the sequence numbers that a store would give.
class Fixture {
 public:
  explicit Fixture(uint32_t dimension, kalos_metric metric = KALOS_METRIC_COSINE, TextBacking backing = {},
                   uint32_t threads = 2)
      : index(backing, threads) {
    CollectionInfo info;
    info.id = 1;
    info.name = "notes";
    info.dimension = dimension;
    info.metric = metric;
    commit(CollectionAdded{info});
  }

  uint64_t put(const NewRow& row) {
    uint64_t& sequence = sequences_[{row.namespace_key, row.id}];
    if (sequence == 0) sequence = ++last_sequence_;
    auto fresh = std::make_unique<Row>();
    fresh->sequence = sequence;
    fresh->namespace_key = row.namespace_key;
    fresh->id = row.id;
    fresh->vector = row.vector;
    fresh->has_text = row.text.has_value();
    fresh->text = row.text.value_or("");
    fresh->has_metadata = row.metadata.has_value();
    fresh->metadata = row.metadata.value_or("");
    fresh->created_us = 1000 + int64_t(sequence);
    fresh->updated_us = row.updated_us ? row.updated_us : ++clock_;
    fresh->expires_us = row.expires_us;
    uint64_t given = sequence;
    RowChange change;
    change.collection_id = 1;
    change.row = std::move(fresh);
    commit(std::move(change));
    return given;
  }

  void remove(const std::string& namespace_key, const std::string& id) {
    sequences_.erase({namespace_key, id});
    RowChange change;
    change.collection_id = 1;
    change.namespace_key = namespace_key;
    change.id = id;
    commit(std::move(change));
  }

  void commit(Change change) {
    std::vector<Change> changes;
    changes.push_back(std::move(change));
    index.apply(std::move(changes), ++commits);
  }

  Reply read(const ReadRequest& request, int64_t deadline_ns = 0) { return index.read_one(request, deadline_ns); }

  // Fails the test where the answer is not OK.
  Decoded hits(const ReadRequest& request) {
    Reply reply = read(request);
    if (reply.status != KALOS_STATUS_OK) {
      check::fail(__FILE__, __LINE__, "not OK: " + words(reply));
      Decoded empty;
      empty.groups.resize(1);
      return empty;
    }
    return decode_hits(reply.message);
  }

  // Of the first query.
  std::vector<DecodedHit> group(const ReadRequest& request) { return hits(request).groups.at(0); }

  std::vector<std::string> ids(const ReadRequest& request) {
    std::vector<std::string> found;
    for (const auto& hit : group(request)) found.push_back(hit.id);
    return found;
  }

  uint64_t count(const CountRequest& request) {
    Reply reply = read(request);
    CHECK_EQ(int(KALOS_STATUS_OK), int(reply.status));
    kalos_count_reply counted{};
    if (reply.message.size() == sizeof counted) std::memcpy(&counted, reply.message.data(), sizeof counted);
    return counted.count;
  }

  Index index;
  uint64_t commits = 0;

 private:
  std::map<std::pair<std::string, std::string>, uint64_t> sequences_;
  uint64_t last_sequence_ = 0;
  int64_t clock_ = 1'000'000;
};

// A search of one query in the root. The query must outlive the request.
inline SearchRequest search_for(const std::vector<float>& query, uint32_t k) {
  SearchRequest request;
  request.collection_id = 1;
  request.include = KALOS_INCLUDE_TEXT | KALOS_INCLUDE_METADATA | KALOS_INCLUDE_VECTOR;
  request.query_count = 1;
  request.dimension = uint32_t(query.size());
  request.k = k;
  request.vectors = query;
  return request;
}

using Strings = std::vector<std::string>;

}  // namespace fixture

inline std::ostream& operator<<(std::ostream& out, const std::vector<std::string>& strings) {
  out << "[";
  for (const auto& string : strings) out << string << " ";
  return out << "]";
}
