#include "serve/messages.h"

#include <cmath>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>

#include "base/json_check.h"
#include "base/utf8.h"

namespace kalos {
namespace {

using nlohmann::json;

std::string number(uint64_t value) { return std::to_string(value); }

std::string hexadecimal(uint32_t value) {
  char text[11];
  std::snprintf(text, sizeof text, "0x%x", value);
  return text;
}

// Reads structs, columns and strings out of one message. Remembers the first failure, so that decoding reads as a list.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> message) : message_(message) {}

  bool failed() const { return failed_; }
  Error error() { return std::move(error_); }
  void fail(std::string words) {
    if (failed_) return;
    failed_ = true;
    error_ = invalid(std::move(words));
  }

  void check_bits(uint32_t given, uint32_t known, const char* field) {
    auto error = unknown_bits(given, known, field);
    if (failed_ || !error) return;
    failed_ = true;
    error_ = std::move(*error);
  }

  template <class T>
  T head() {
    T value{};
    if (message_.size() < sizeof(T)) {
      fail("the message has " + number(message_.size()) + " bytes, its fixed part has " + number(sizeof(T)));
    } else {
      std::memcpy(&value, message_.data(), sizeof(T));
    }
    return value;
  }

  // nullopt where absent.
  std::optional<std::string_view> bytes(kalos_span span, const char* what) {
    if (failed_ || span.offset == 0) return std::nullopt;
    if (span.offset > message_.size() || span.bytes > message_.size() - span.offset) {
      fail(std::string(what) + " lies outside the message");
      return std::nullopt;
    }
    return std::string_view(reinterpret_cast<const char*>(message_.data()) + span.offset, span.bytes);
  }

  std::optional<std::string_view> utf8(kalos_span span, const char* what, size_t limit) {
    auto value = bytes(span, what);
    if (!value) return value;
    if (value->size() > limit) {
      fail(std::string(what) + " has " + number(value->size()) + " bytes, at most " + number(limit) + " are allowed");
    } else if (!valid_utf8(*value)) {
      fail(std::string(what) + " is not well-formed UTF-8");
    }
    return value;
  }

  // A column of `count` values; empty where absent.
  template <class T>
  std::span<const T> column(kalos_span span, uint64_t count, const char* what) {
    auto value = bytes(span, what);
    if (!value) return {};
    if (value->size() != count * sizeof(T)) {
      fail(std::string(what) + " has " + number(value->size()) + " bytes, " + number(count * sizeof(T)) + " expected");
      return {};
    }
    if (span.offset % alignof(T) != 0 || reinterpret_cast<uintptr_t>(value->data()) % alignof(T) != 0) {
      fail(std::string(what) + " is not aligned to " + number(alignof(T)) + " bytes");
      return {};
    }
    return {reinterpret_cast<const T*>(value->data()), static_cast<size_t>(count)};
  }

  std::string_view namespace_key(kalos_span span, const char* what = "the namespace") {
    std::string_view key = bytes(span, what).value_or(std::string_view{});
    size_t at = 0, segments = 0;
    while (!failed_ && at < key.size()) {
      if (key.size() - at < 2) return fail(std::string(what) + " is cut off within a segment's length"), key;
      size_t length = static_cast<uint8_t>(key[at]) << 8 | static_cast<uint8_t>(key[at + 1]);
      at += 2;
      if (length == 0 || length > KALOS_MAX_NAMESPACE_SEGMENT_BYTES) {
        fail(std::string(what) + " has a segment of " + number(length) + " bytes, 1 to " +
             number(KALOS_MAX_NAMESPACE_SEGMENT_BYTES) + " are allowed");
      } else if (length > key.size() - at) {
        fail(std::string(what) + " is cut off within a segment");
      } else if (!valid_utf8(key.substr(at, length))) {
        fail(std::string(what) + " is not well-formed UTF-8");
      } else if (++segments > KALOS_MAX_NAMESPACE_SEGMENTS) {
        fail(std::string(what) + " has more than " + number(KALOS_MAX_NAMESPACE_SEGMENTS) + " segments");
      }
      at += length;
    }
    return key;
  }

  std::string_view id(kalos_span span) {
    auto value = utf8(span, "an id", KALOS_MAX_ID_BYTES);
    if (!failed_ && (!value || value->empty())) fail("an id is empty");
    return value.value_or(std::string_view{});
  }

  std::vector<std::string_view> ids(kalos_span span, uint64_t count) {
    std::vector<std::string_view> all;
    auto spans = column<kalos_span>(span, count, "the ids");
    if (!failed_ && spans.size() != count) fail("the ids are absent");
    if (failed_) return all;
    all.reserve(spans.size());
    for (const kalos_span& one : spans) all.push_back(id(one));
    return all;
  }

  std::optional<std::string_view> filter(kalos_span span) { return bytes(span, "the filter"); }

 private:
  std::span<const std::byte> message_;
  bool failed_ = false;
  Error error_;
};

constexpr uint32_t kIncludes = KALOS_INCLUDE_TEXT | KALOS_INCLUDE_METADATA | KALOS_INCLUDE_VECTOR;

Result<ReadRequest> decode_search(Reader& in) {
  auto head = in.head<kalos_search_request>();
  in.check_bits(head.flags,
                KALOS_SCOPE_SUBTREE | KALOS_SCOPE_EXPLAIN | KALOS_SCOPE_MIN_SCORE | KALOS_SCOPE_MAX_DISTANCE, "flags");
  in.check_bits(head.include, kIncludes, "include");
  SearchRequest out;
  out.collection_id = head.collection_id;
  out.scope = {in.namespace_key(head.name_space), (head.flags & KALOS_SCOPE_SUBTREE) != 0};
  out.include = head.include;
  out.query_count = head.query_count;
  out.dimension = head.dimension;
  out.k = head.k;
  out.skip = head.skip;
  out.explain = (head.flags & KALOS_SCOPE_EXPLAIN) != 0;
  if (head.flags & KALOS_SCOPE_MIN_SCORE) out.min_score = head.min_score;
  if (head.flags & KALOS_SCOPE_MAX_DISTANCE) out.max_distance = head.max_distance;
  out.min_sequence = head.min_sequence;
  out.filter = in.filter(head.filter);
  out.group_by = in.utf8(head.group_by, "group_by", KALOS_MAX_METADATA_BYTES);
  // First the bound: with it, query_count x dimension x 4 cannot overflow.
  if (head.dimension == 0 || head.dimension > KALOS_MAX_DIMENSION) {
    in.fail("the query has dimension " + number(head.dimension) + ", 1 to " + number(KALOS_MAX_DIMENSION) +
            " expected");
  }
  out.vectors = in.column<float>(head.vectors, uint64_t{head.query_count} * head.dimension, "the query vectors");
  if (uint64_t{head.k} + head.skip > KALOS_MAX_K) {
    in.fail("k + offset is " + number(uint64_t{head.k} + head.skip) + ", at most " + number(KALOS_MAX_K) +
            " is allowed");
  }
  if (!in.failed() && head.query_count > 0 && out.vectors.empty()) in.fail("the query vectors are absent");
  if ((out.min_score && !std::isfinite(*out.min_score)) || (out.max_distance && !std::isfinite(*out.max_distance))) {
    in.fail("min_score and max_distance must be finite numbers");
  }
  if (in.failed()) return in.error();
  return ReadRequest(std::move(out));
}

Result<ReadRequest> decode_get(Reader& in) {
  auto head = in.head<kalos_get_request>();
  in.check_bits(head.include, kIncludes, "include");
  GetRequest out;
  out.collection_id = head.collection_id;
  out.scope = {in.namespace_key(head.name_space), false};
  out.include = head.include;
  out.min_sequence = head.min_sequence;
  if (head.id_count > 0) out.ids = in.ids(head.ids, head.id_count);
  if (in.failed()) return in.error();
  return ReadRequest(std::move(out));
}

Result<ReadRequest> decode_count(Reader& in) {
  auto head = in.head<kalos_count_request>();
  in.check_bits(head.flags, KALOS_SCOPE_SUBTREE, "flags");
  CountRequest out;
  out.collection_id = head.collection_id;
  out.scope = {in.namespace_key(head.name_space), (head.flags & KALOS_SCOPE_SUBTREE) != 0};
  out.min_sequence = head.min_sequence;
  out.filter = in.filter(head.filter);
  if (in.failed()) return in.error();
  return ReadRequest(std::move(out));
}

Result<ReadRequest> decode_scan(Reader& in) {
  auto head = in.head<kalos_scan_request>();
  in.check_bits(head.flags, KALOS_SCOPE_SUBTREE, "flags");
  in.check_bits(head.include, kIncludes, "include");
  ScanRequest out;
  out.collection_id = head.collection_id;
  out.scope = {in.namespace_key(head.name_space), (head.flags & KALOS_SCOPE_SUBTREE) != 0};
  out.include = head.include;
  if (head.order != KALOS_ORDER_INSERTION && head.order != KALOS_ORDER_UPDATED) {
    in.fail("the order is " + number(head.order) + ", insertion (1) or updated (2) expected");
  }
  out.order = static_cast<kalos_order>(head.order);
  out.page_limit = head.page_limit;
  if (head.page_limit == 0) in.fail("page_limit is 0, at least 1 expected");
  out.skip = head.skip;
  out.page_bytes = head.page_bytes;
  out.has_cursor = head.has_cursor != 0;
  out.cursor_sequence = head.cursor_sequence;
  out.cursor_updated_us = head.cursor_updated_us;
  out.min_sequence = head.min_sequence;
  out.filter = in.filter(head.filter);
  if (in.failed()) return in.error();
  return ReadRequest(std::move(out));
}

Result<ReadRequest> decode_namespaces(Reader& in) {
  auto head = in.head<kalos_namespaces_request>();
  NamespacesRequest out;
  out.collection_id = head.collection_id;
  out.max_depth = head.max_depth;
  out.limit = head.limit;
  out.skip = head.skip;
  out.min_sequence = head.min_sequence;
  if (head.prefix.offset != 0) out.prefix = in.namespace_key(head.prefix, "the prefix");
  if (head.suffix.offset != 0) out.suffix = in.namespace_key(head.suffix, "the suffix");
  if (in.failed()) return in.error();
  return ReadRequest(std::move(out));
}

void check_durability(Reader& in, uint32_t durability) {
  if (durability != KALOS_DURABILITY_COMMIT && durability != KALOS_DURABILITY_RELAXED) {
    in.fail("the durability is " + number(durability) + ", commit (1) or relaxed (2) expected");
  }
}

struct WriteHead {
  WriteId write_id{};
  uint32_t durability = 0;
};

template <class Head>
WriteHead write_head(const Head& head) {
  WriteHead out;
  std::memcpy(out.write_id.data(), head.write_id, sizeof head.write_id);
  out.durability = head.durability;
  return out;
}

Result<WriteOperation> decode_upsert(Reader& in, WriteHead& write) {
  auto head = in.head<kalos_upsert_request>();
  write = write_head(head);
  UpsertRequest out;
  out.collection_id = head.collection_id;
  out.namespace_key = in.namespace_key(head.name_space);
  out.dimension = head.dimension;
  if (head.dimension > KALOS_MAX_DIMENSION) {
    in.fail("the vectors have dimension " + number(head.dimension) + ", at most " + number(KALOS_MAX_DIMENSION) +
            " is allowed");
  }
  uint64_t rows = head.row_count;
  auto ids = rows == 0 ? std::vector<std::string_view>{} : in.ids(head.ids, rows);
  auto texts = in.column<kalos_span>(head.texts, rows, "the texts");
  auto metadatas = in.column<kalos_span>(head.metadatas, rows, "the metadatas");
  auto expires = in.column<int64_t>(head.expires, rows, "the expiry times");
  auto has_vector = in.column<uint8_t>(head.has_vector, rows, "has_vector");
  auto vectors = in.column<float>(head.vectors, rows * head.dimension, "the vectors");
  if (in.failed()) return in.error();
  out.rows.resize(rows);
  for (size_t i = 0; i < rows && !in.failed(); ++i) {
    UpsertRow& row = out.rows[i];
    row.id = ids[i];
    if (!texts.empty()) row.text = in.utf8(texts[i], "a text", KALOS_MAX_TEXT_BYTES);
    if (!metadatas.empty()) row.metadata = in.bytes(metadatas[i], "a metadata object");
    if (row.metadata) {
      if (auto checked = check_metadata(*row.metadata); !checked) {
        in.fail("metadata of id \"" + std::string(row.id) + "\": " + checked.error().words);
      }
    }
    if (!expires.empty()) row.expires_us = expires[i];
    if (row.expires_us < 0) in.fail("an expiry time lies before 1970");
    if (!vectors.empty() && (has_vector.empty() || has_vector[i] != 0)) {
      row.vector = vectors.subspan(i * head.dimension, head.dimension);
    }
  }
  if (in.failed()) return in.error();
  return WriteOperation(std::move(out));
}

Result<WriteOperation> decode_delete(Reader& in, WriteHead& write) {
  auto head = in.head<kalos_delete_request>();
  in.check_bits(head.flags, KALOS_SCOPE_SUBTREE | KALOS_SCOPE_EVERYTHING, "flags");
  write = write_head(head);
  DeleteRequest out;
  out.collection_id = head.collection_id;
  out.scope = {in.namespace_key(head.name_space), (head.flags & KALOS_SCOPE_SUBTREE) != 0};
  out.everything = (head.flags & KALOS_SCOPE_EVERYTHING) != 0;
  out.by_ids = head.ids.offset != 0;
  if (out.by_ids) out.ids = in.ids(head.ids, head.id_count);
  out.filter = in.filter(head.filter);
  if (!out.by_ids && !out.filter && !out.everything) {
    in.fail("a delete needs ids, a filter, or everything=True");
  }
  if (in.failed()) return in.error();
  return WriteOperation(std::move(out));
}

Result<json> parse_object(std::span<const std::byte> message) {
  auto text = std::string_view(reinterpret_cast<const char*>(message.data()), message.size());
  if (text.size() > KALOS_MAX_CONTROL_BYTES) return invalid("the JSON is longer than 64 KiB");
  json value = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!value.is_object()) return invalid("a JSON object is expected");
  return value;
}

Result<std::string> collection_name(const json& object) {
  auto found = object.find("name");
  if (found == object.end() || !found->is_string()) return invalid("\"name\" is missing or not a string");
  auto name = found->get<std::string>();
  if (name.empty() || name.size() > KALOS_MAX_COLLECTION_NAME_BYTES) {
    return invalid("a collection's name has 1 to " + number(KALOS_MAX_COLLECTION_NAME_BYTES) + " bytes, this one has " +
                   number(name.size()));
  }
  return name;
}

Result<std::string> optional_string(const json& object, const char* key, size_t limit) {
  auto found = object.find(key);
  if (found == object.end() || found->is_null()) return std::string();
  if (!found->is_string()) return invalid("\"" + std::string(key) + "\" is not a string");
  auto value = found->get<std::string>();
  if (value.size() > limit) return invalid("\"" + std::string(key) + "\" is longer than " + number(limit) + " bytes");
  return value;
}

Result<WriteOperation> decode_open(std::span<const std::byte> message) {
  auto object = parse_object(message);
  if (!object) return object.error();
  auto name = collection_name(*object);
  if (!name) return name.error();
  OpenCollectionRequest out;
  out.name = std::move(*name);
  if (auto found = object->find("dimension"); found != object->end() && !found->is_null()) {
    if (!found->is_number_unsigned() || found->get<uint64_t>() == 0 || found->get<uint64_t>() > KALOS_MAX_DIMENSION) {
      return invalid("the dimension must be an integer from 1 to " + number(KALOS_MAX_DIMENSION));
    }
    out.dimension = found->get<uint32_t>();
  }
  auto metric = optional_string(*object, "metric", 16);
  if (!metric) return metric.error();
  if (*metric == "cosine") out.metric = KALOS_METRIC_COSINE;
  if (*metric == "dot") out.metric = KALOS_METRIC_DOT;
  if (*metric == "l2") out.metric = KALOS_METRIC_L2;
  if (!metric->empty() && !out.metric) {
    return invalid("the metric is \"" + *metric + "\", one of cosine, dot, l2 expected");
  }
  if (auto found = object->find("embedder"); found != object->end() && !found->is_null()) {
    if (!found->is_object()) return invalid("\"embedder\" is not an object");
    auto embedder_name = optional_string(*found, "name", 1024);
    if (!embedder_name) return embedder_name.error();
    auto fingerprint = optional_string(*found, "fingerprint", 1024);
    if (!fingerprint) return fingerprint.error();
    out.embedder_name = std::move(*embedder_name);
    out.embedder_fingerprint = std::move(*fingerprint);
  }
  return WriteOperation(std::move(out));
}

Result<WriteOperation> decode_operation(uint16_t opcode, std::span<const std::byte> message, WriteHead& write) {
  Reader in(message);
  if (opcode == KALOS_OP_UPSERT) return decode_upsert(in, write);
  if (opcode == KALOS_OP_DELETE) return decode_delete(in, write);
  if (opcode == KALOS_OP_OPEN_COLLECTION) return decode_open(message);
  auto object = parse_object(message);
  if (!object) return object.error();
  auto name = collection_name(*object);
  if (!name) return name.error();
  return WriteOperation(DropCollectionRequest{std::move(*name)});
}

Result<> decode_batch(WriteJob& job) {
  Reader in(job.message);
  auto head = in.head<kalos_batch_request>();
  std::memcpy(job.write_id.data(), head.write_id, sizeof head.write_id);
  job.is_batch = true;
  check_durability(in, head.durability);
  job.durability = static_cast<kalos_durability>(head.durability);
  if (head.operation_count > KALOS_MAX_BATCH_OPERATIONS) {
    in.fail("the batch has " + number(head.operation_count) + " operations, at most " +
            number(KALOS_MAX_BATCH_OPERATIONS) + " are allowed");
  }
  auto operations = in.failed()
                        ? std::span<const kalos_batch_operation>{}
                        : in.column<kalos_batch_operation>(head.operations, head.operation_count, "the operations");
  if (!in.failed() && operations.size() != head.operation_count) in.fail("the operations are absent");
  if (in.failed()) return in.error();
  for (uint32_t i = 0; i < operations.size(); ++i) {
    auto bytes = in.bytes(operations[i].message, "an operation");
    if (!in.failed() && (!bytes || operations[i].message.offset % 8 != 0)) {
      in.fail("operation " + number(i) + " is absent or not at a multiple of 8");
    }
    if (in.failed()) return in.error();
    auto message = std::as_bytes(std::span(bytes->data(), bytes->size()));
    auto opcode = static_cast<uint16_t>(operations[i].opcode);
    auto name_it = [&](Error error) {
      error.words = "operation " + number(i) + ": " + error.words;
      return error;
    };
    if (operations[i].opcode == KALOS_OP_UPSERT || operations[i].opcode == KALOS_OP_DELETE) {
      WriteHead ignored;
      auto operation = decode_operation(opcode, message, ignored);
      if (!operation) return name_it(operation.error());
      job.operations.push_back(std::move(*operation));
      job.write_positions.push_back(i);
    } else if (operations[i].opcode >= KALOS_OP_SEARCH && operations[i].opcode <= KALOS_OP_NAMESPACES) {
      auto request = decode_read(opcode, message);
      if (!request) return name_it(request.error());
      job.reads.push_back(std::move(*request));
      job.read_positions.push_back(i);
    } else {
      return name_it(
          {KALOS_STATUS_UNSUPPORTED, "opcode " + number(operations[i].opcode) + " cannot be part of a batch"});
    }
  }
  return Unit{};
}

}  // namespace

std::optional<Error> unknown_bits(uint32_t given, uint32_t known, const char* field) {
  uint32_t unknown = given & ~known;
  if (unknown == 0) return std::nullopt;
  return Error{KALOS_STATUS_UNSUPPORTED, std::string(field) + " has the bits " + hexadecimal(unknown) +
                                             ", which this kalosd (" KALOS_VERSION ", ABI " + number(KALOS_ABI_MAJOR) +
                                             "." + number(KALOS_ABI_MINOR) +
                                             ") does not know in this request; it knows " + hexadecimal(known)};
}

bool is_write(uint16_t opcode) {
  return opcode == KALOS_OP_UPSERT || opcode == KALOS_OP_DELETE || opcode == KALOS_OP_OPEN_COLLECTION ||
         opcode == KALOS_OP_DROP_COLLECTION || opcode == KALOS_OP_BATCH;
}

Result<ReadRequest> decode_read(uint16_t opcode, std::span<const std::byte> message) {
  Reader in(message);
  switch (opcode) {
    case KALOS_OP_SEARCH:
      return decode_search(in);
    case KALOS_OP_GET:
      return decode_get(in);
    case KALOS_OP_COUNT:
      return decode_count(in);
    case KALOS_OP_SCAN:
      return decode_scan(in);
    case KALOS_OP_NAMESPACES:
      return decode_namespaces(in);
    default:
      return Error{KALOS_STATUS_UNSUPPORTED, "opcode " + number(opcode) + " is not known to this kalosd"};
  }
}

Result<> decode_write(uint16_t opcode, WriteJob& job) {
  if (opcode == KALOS_OP_BATCH) return decode_batch(job);
  WriteHead write;
  write.durability = KALOS_DURABILITY_COMMIT;
  auto operation = decode_operation(opcode, job.message, write);
  if (!operation) return operation.error();
  Reader in(job.message);
  check_durability(in, write.durability);
  if (in.failed()) return in.error();
  job.write_id = write.write_id;
  job.durability = static_cast<kalos_durability>(write.durability);
  job.operations.push_back(std::move(*operation));
  return Unit{};
}

}  // namespace kalos
