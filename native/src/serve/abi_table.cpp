#include "serve/abi_table.h"

#include <kalos/abi.h>

#include <nlohmann/json.hpp>
#include <string_view>

namespace kalos {
namespace {

struct Field {
  const char* structure;
  const char* name;
  size_t offset;
  size_t bytes;
};
struct Structure {
  const char* name;
  size_t bytes;
};
struct Constant {
  const char* name;
  uint64_t value;
};

// Every offset is written down here a second time, so that no edit of abi.h can move a field unnoticed.
#define KALOS_STRUCT(structure, total)                                    \
  static_assert(sizeof(structure) == (total), #structure " has changed"); \
  constexpr Structure structure##_size = {#structure, total}
#define KALOS_FIELD(structure, field, at)                                                     \
  ([] { static_assert(offsetof(structure, field) == (at), #structure "." #field " moved"); }, \
   Field{#structure, #field, at, sizeof(structure::field)})
#define KALOS_CONSTANT(name) \
  Constant { #name, uint64_t(name) }

KALOS_STRUCT(kalos_control_header, 16);
KALOS_STRUCT(kalos_lane_header, 256);
KALOS_STRUCT(kalos_slot_header, 256);
KALOS_STRUCT(kalos_span, 8);
KALOS_STRUCT(kalos_search_request, 128);
KALOS_STRUCT(kalos_get_request, 64);
KALOS_STRUCT(kalos_count_request, 64);
KALOS_STRUCT(kalos_count_reply, 16);
KALOS_STRUCT(kalos_scan_request, 128);
KALOS_STRUCT(kalos_hits_reply, 128);
KALOS_STRUCT(kalos_hit_fields, 40);
KALOS_STRUCT(kalos_namespaces_request, 64);
KALOS_STRUCT(kalos_namespaces_reply, 32);
KALOS_STRUCT(kalos_upsert_request, 128);
KALOS_STRUCT(kalos_delete_request, 96);
KALOS_STRUCT(kalos_write_reply, 16);
KALOS_STRUCT(kalos_batch_request, 64);
KALOS_STRUCT(kalos_batch_operation, 16);
KALOS_STRUCT(kalos_batch_reply, 32);

constexpr Structure structures[] = {
    kalos_control_header_size,   kalos_lane_header_size,     kalos_slot_header_size,    kalos_span_size,
    kalos_search_request_size,   kalos_get_request_size,     kalos_count_request_size,  kalos_count_reply_size,
    kalos_scan_request_size,     kalos_hits_reply_size,      kalos_hit_fields_size,     kalos_namespaces_request_size,
    kalos_namespaces_reply_size, kalos_upsert_request_size,  kalos_delete_request_size, kalos_write_reply_size,
    kalos_batch_request_size,    kalos_batch_operation_size, kalos_batch_reply_size,
};

const Field fields[] = {
    KALOS_FIELD(kalos_control_header, magic, 0),
    KALOS_FIELD(kalos_control_header, type, 4),
    KALOS_FIELD(kalos_control_header, reserved, 6),
    KALOS_FIELD(kalos_control_header, body_bytes, 8),
    KALOS_FIELD(kalos_control_header, reserved2, 12),
    KALOS_FIELD(kalos_lane_header, magic, 0),
    KALOS_FIELD(kalos_lane_header, abi_major, 8),
    KALOS_FIELD(kalos_lane_header, abi_minor, 10),
    KALOS_FIELD(kalos_lane_header, header_bytes, 12),
    KALOS_FIELD(kalos_lane_header, lane_bytes, 16),
    KALOS_FIELD(kalos_lane_header, slot_count, 24),
    KALOS_FIELD(kalos_lane_header, slot_bytes, 28),
    KALOS_FIELD(kalos_lane_header, slot_header_bytes, 32),
    KALOS_FIELD(kalos_lane_header, reply_semaphore_count, 36),
    KALOS_FIELD(kalos_lane_header, lane_id, 40),
    KALOS_FIELD(kalos_lane_header, instance, 48),
    KALOS_FIELD(kalos_lane_header, features, 64),
    KALOS_FIELD(kalos_lane_header, reserved, 72),
    KALOS_FIELD(kalos_lane_header, server_state, 128),
    KALOS_FIELD(kalos_lane_header, server_reserved0, 132),
    KALOS_FIELD(kalos_lane_header, commit_sequence, 136),
    KALOS_FIELD(kalos_lane_header, server_reserved, 144),
    KALOS_FIELD(kalos_slot_header, request_sequence, 0),
    KALOS_FIELD(kalos_slot_header, request_state, 8),
    KALOS_FIELD(kalos_slot_header, opcode, 12),
    KALOS_FIELD(kalos_slot_header, request_flags, 14),
    KALOS_FIELD(kalos_slot_header, message_id, 16),
    KALOS_FIELD(kalos_slot_header, message_bytes, 24),
    KALOS_FIELD(kalos_slot_header, part_offset, 32),
    KALOS_FIELD(kalos_slot_header, part_bytes, 40),
    KALOS_FIELD(kalos_slot_header, reply_semaphore, 44),
    KALOS_FIELD(kalos_slot_header, deadline_ns, 48),
    KALOS_FIELD(kalos_slot_header, request_reserved, 56),
    KALOS_FIELD(kalos_slot_header, reply_sequence, 128),
    KALOS_FIELD(kalos_slot_header, reply_state, 136),
    KALOS_FIELD(kalos_slot_header, status, 140),
    KALOS_FIELD(kalos_slot_header, reply_flags, 142),
    KALOS_FIELD(kalos_slot_header, reply_message_id, 144),
    KALOS_FIELD(kalos_slot_header, reply_bytes, 152),
    KALOS_FIELD(kalos_slot_header, reply_part_offset, 160),
    KALOS_FIELD(kalos_slot_header, reply_part_bytes, 168),
    KALOS_FIELD(kalos_slot_header, reply_reserved0, 172),
    KALOS_FIELD(kalos_slot_header, queue_ns, 176),
    KALOS_FIELD(kalos_slot_header, search_ns, 184),
    KALOS_FIELD(kalos_slot_header, fetch_ns, 192),
    KALOS_FIELD(kalos_slot_header, reply_reserved, 200),
    KALOS_FIELD(kalos_span, offset, 0),
    KALOS_FIELD(kalos_span, bytes, 4),
    KALOS_FIELD(kalos_search_request, collection_id, 0),
    KALOS_FIELD(kalos_search_request, flags, 8),
    KALOS_FIELD(kalos_search_request, include, 12),
    KALOS_FIELD(kalos_search_request, query_count, 16),
    KALOS_FIELD(kalos_search_request, dimension, 20),
    KALOS_FIELD(kalos_search_request, k, 24),
    KALOS_FIELD(kalos_search_request, skip, 28),
    KALOS_FIELD(kalos_search_request, min_score, 32),
    KALOS_FIELD(kalos_search_request, max_distance, 40),
    KALOS_FIELD(kalos_search_request, min_sequence, 48),
    KALOS_FIELD(kalos_search_request, name_space, 56),
    KALOS_FIELD(kalos_search_request, filter, 64),
    KALOS_FIELD(kalos_search_request, group_by, 72),
    KALOS_FIELD(kalos_search_request, vectors, 80),
    KALOS_FIELD(kalos_search_request, reserved, 88),
    KALOS_FIELD(kalos_get_request, collection_id, 0),
    KALOS_FIELD(kalos_get_request, include, 8),
    KALOS_FIELD(kalos_get_request, id_count, 12),
    KALOS_FIELD(kalos_get_request, min_sequence, 16),
    KALOS_FIELD(kalos_get_request, name_space, 24),
    KALOS_FIELD(kalos_get_request, ids, 32),
    KALOS_FIELD(kalos_get_request, reserved, 40),
    KALOS_FIELD(kalos_count_request, collection_id, 0),
    KALOS_FIELD(kalos_count_request, flags, 8),
    KALOS_FIELD(kalos_count_request, reserved0, 12),
    KALOS_FIELD(kalos_count_request, min_sequence, 16),
    KALOS_FIELD(kalos_count_request, name_space, 24),
    KALOS_FIELD(kalos_count_request, filter, 32),
    KALOS_FIELD(kalos_count_request, reserved, 40),
    KALOS_FIELD(kalos_count_reply, commit_sequence, 0),
    KALOS_FIELD(kalos_count_reply, count, 8),
    KALOS_FIELD(kalos_scan_request, collection_id, 0),
    KALOS_FIELD(kalos_scan_request, flags, 8),
    KALOS_FIELD(kalos_scan_request, include, 12),
    KALOS_FIELD(kalos_scan_request, order, 16),
    KALOS_FIELD(kalos_scan_request, page_limit, 20),
    KALOS_FIELD(kalos_scan_request, skip, 24),
    KALOS_FIELD(kalos_scan_request, page_bytes, 32),
    KALOS_FIELD(kalos_scan_request, cursor_sequence, 40),
    KALOS_FIELD(kalos_scan_request, cursor_updated_us, 48),
    KALOS_FIELD(kalos_scan_request, min_sequence, 56),
    KALOS_FIELD(kalos_scan_request, name_space, 64),
    KALOS_FIELD(kalos_scan_request, filter, 72),
    KALOS_FIELD(kalos_scan_request, has_cursor, 80),
    KALOS_FIELD(kalos_scan_request, reserved, 84),
    KALOS_FIELD(kalos_hits_reply, commit_sequence, 0),
    KALOS_FIELD(kalos_hits_reply, row_count, 8),
    KALOS_FIELD(kalos_hits_reply, group_count, 12),
    KALOS_FIELD(kalos_hits_reply, include, 16),
    KALOS_FIELD(kalos_hits_reply, dimension, 20),
    KALOS_FIELD(kalos_hits_reply, has_cursor, 24),
    KALOS_FIELD(kalos_hits_reply, reserved0, 28),
    KALOS_FIELD(kalos_hits_reply, cursor_sequence, 32),
    KALOS_FIELD(kalos_hits_reply, cursor_updated_us, 40),
    KALOS_FIELD(kalos_hits_reply, groups, 48),
    KALOS_FIELD(kalos_hits_reply, scores, 56),
    KALOS_FIELD(kalos_hits_reply, created, 64),
    KALOS_FIELD(kalos_hits_reply, updated, 72),
    KALOS_FIELD(kalos_hits_reply, fields, 80),
    KALOS_FIELD(kalos_hits_reply, explain, 88),
    KALOS_FIELD(kalos_hits_reply, reserved, 96),
    KALOS_FIELD(kalos_hit_fields, id, 0),
    KALOS_FIELD(kalos_hit_fields, name_space, 8),
    KALOS_FIELD(kalos_hit_fields, text, 16),
    KALOS_FIELD(kalos_hit_fields, metadata, 24),
    KALOS_FIELD(kalos_hit_fields, vector, 32),
    KALOS_FIELD(kalos_namespaces_request, collection_id, 0),
    KALOS_FIELD(kalos_namespaces_request, max_depth, 8),
    KALOS_FIELD(kalos_namespaces_request, limit, 12),
    KALOS_FIELD(kalos_namespaces_request, skip, 16),
    KALOS_FIELD(kalos_namespaces_request, min_sequence, 24),
    KALOS_FIELD(kalos_namespaces_request, prefix, 32),
    KALOS_FIELD(kalos_namespaces_request, suffix, 40),
    KALOS_FIELD(kalos_namespaces_request, reserved, 48),
    KALOS_FIELD(kalos_namespaces_reply, commit_sequence, 0),
    KALOS_FIELD(kalos_namespaces_reply, count, 8),
    KALOS_FIELD(kalos_namespaces_reply, reserved0, 12),
    KALOS_FIELD(kalos_namespaces_reply, keys, 16),
    KALOS_FIELD(kalos_namespaces_reply, reserved, 24),
    KALOS_FIELD(kalos_upsert_request, collection_id, 0),
    KALOS_FIELD(kalos_upsert_request, write_id, 8),
    KALOS_FIELD(kalos_upsert_request, durability, 24),
    KALOS_FIELD(kalos_upsert_request, row_count, 28),
    KALOS_FIELD(kalos_upsert_request, dimension, 32),
    KALOS_FIELD(kalos_upsert_request, reserved0, 36),
    KALOS_FIELD(kalos_upsert_request, name_space, 40),
    KALOS_FIELD(kalos_upsert_request, ids, 48),
    KALOS_FIELD(kalos_upsert_request, texts, 56),
    KALOS_FIELD(kalos_upsert_request, metadatas, 64),
    KALOS_FIELD(kalos_upsert_request, expires, 72),
    KALOS_FIELD(kalos_upsert_request, has_vector, 80),
    KALOS_FIELD(kalos_upsert_request, vectors, 88),
    KALOS_FIELD(kalos_upsert_request, reserved, 96),
    KALOS_FIELD(kalos_delete_request, collection_id, 0),
    KALOS_FIELD(kalos_delete_request, write_id, 8),
    KALOS_FIELD(kalos_delete_request, durability, 24),
    KALOS_FIELD(kalos_delete_request, flags, 28),
    KALOS_FIELD(kalos_delete_request, id_count, 32),
    KALOS_FIELD(kalos_delete_request, reserved0, 36),
    KALOS_FIELD(kalos_delete_request, name_space, 40),
    KALOS_FIELD(kalos_delete_request, ids, 48),
    KALOS_FIELD(kalos_delete_request, filter, 56),
    KALOS_FIELD(kalos_delete_request, reserved, 64),
    KALOS_FIELD(kalos_write_reply, commit_sequence, 0),
    KALOS_FIELD(kalos_write_reply, count, 8),
    KALOS_FIELD(kalos_batch_request, write_id, 0),
    KALOS_FIELD(kalos_batch_request, durability, 16),
    KALOS_FIELD(kalos_batch_request, operation_count, 20),
    KALOS_FIELD(kalos_batch_request, operations, 24),
    KALOS_FIELD(kalos_batch_request, reserved, 32),
    KALOS_FIELD(kalos_batch_operation, opcode, 0),
    KALOS_FIELD(kalos_batch_operation, reserved0, 4),
    KALOS_FIELD(kalos_batch_operation, message, 8),
    KALOS_FIELD(kalos_batch_reply, commit_sequence, 0),
    KALOS_FIELD(kalos_batch_reply, operation_count, 8),
    KALOS_FIELD(kalos_batch_reply, reserved0, 12),
    KALOS_FIELD(kalos_batch_reply, replies, 16),
    KALOS_FIELD(kalos_batch_reply, reserved, 24),
};

constexpr Constant constants[] = {
    KALOS_CONSTANT(KALOS_ABI_MAJOR),
    KALOS_CONSTANT(KALOS_ABI_MINOR),
    KALOS_CONSTANT(KALOS_MAX_ID_BYTES),
    KALOS_CONSTANT(KALOS_MAX_COLLECTION_NAME_BYTES),
    KALOS_CONSTANT(KALOS_MAX_NAMESPACE_SEGMENTS),
    KALOS_CONSTANT(KALOS_MAX_NAMESPACE_SEGMENT_BYTES),
    KALOS_CONSTANT(KALOS_MAX_DIMENSION),
    KALOS_CONSTANT(KALOS_MAX_METADATA_BYTES),
    KALOS_CONSTANT(KALOS_MAX_METADATA_DEPTH),
    KALOS_CONSTANT(KALOS_MAX_TEXT_BYTES),
    KALOS_CONSTANT(KALOS_MAX_K),
    KALOS_CONSTANT(KALOS_MAX_FILTER_OPERATORS),
    KALOS_CONSTANT(KALOS_MAX_FILTER_DEPTH),
    KALOS_CONSTANT(KALOS_MAX_FILTER_LIST),
    KALOS_CONSTANT(KALOS_MAX_MESSAGE_BYTES),
    KALOS_CONSTANT(KALOS_MAX_STAGED_BYTES),
    KALOS_CONSTANT(KALOS_MAX_CONTROL_BYTES),
    KALOS_CONSTANT(KALOS_MAX_BATCH_OPERATIONS),
    KALOS_CONSTANT(KALOS_REPLY_HELD_NS),
    KALOS_CONSTANT(KALOS_WRITE_ID_KEPT_S),
    KALOS_CONSTANT(KALOS_MIN_SLOT_COUNT),
    KALOS_CONSTANT(KALOS_MAX_SLOT_COUNT),
    KALOS_CONSTANT(KALOS_DEFAULT_SLOT_COUNT),
    KALOS_CONSTANT(KALOS_MIN_SLOT_BYTES),
    KALOS_CONSTANT(KALOS_MAX_SLOT_BYTES),
    KALOS_CONSTANT(KALOS_DEFAULT_SLOT_BYTES),
    KALOS_CONSTANT(KALOS_CONTROL_MAGIC),
    KALOS_CONSTANT(KALOS_LANE_MAGIC),
    KALOS_CONSTANT(KALOS_LANE_HEADER_BYTES),
    KALOS_CONSTANT(KALOS_SLOT_HEADER_BYTES),
    KALOS_CONSTANT(KALOS_CONTROL_HELLO),
    KALOS_CONSTANT(KALOS_CONTROL_WELCOME),
    KALOS_CONSTANT(KALOS_CONTROL_ATTACHED),
    KALOS_CONSTANT(KALOS_CONTROL_READY),
    KALOS_CONSTANT(KALOS_CONTROL_ERROR),
    KALOS_CONSTANT(KALOS_CONTROL_STATUS),
    KALOS_CONSTANT(KALOS_CONTROL_REPORT),
    KALOS_CONSTANT(KALOS_CONTROL_DRAIN),
    KALOS_CONSTANT(KALOS_CONTROL_DRAINING),
    KALOS_CONSTANT(KALOS_CONTROL_PING),
    KALOS_CONSTANT(KALOS_CONTROL_PONG),
    KALOS_CONSTANT(KALOS_SERVER_SERVING),
    KALOS_CONSTANT(KALOS_SERVER_DRAINING),
    KALOS_CONSTANT(KALOS_SERVER_GONE),
    KALOS_CONSTANT(KALOS_REQUEST_FREE),
    KALOS_CONSTANT(KALOS_REQUEST_FILLING),
    KALOS_CONSTANT(KALOS_REQUEST_POSTED),
    KALOS_CONSTANT(KALOS_REQUEST_ABANDONED),
    KALOS_CONSTANT(KALOS_REPLY_IDLE),
    KALOS_CONSTANT(KALOS_REPLY_SERVING),
    KALOS_CONSTANT(KALOS_REPLY_DONE),
    KALOS_CONSTANT(KALOS_FLAG_BEGIN),
    KALOS_CONSTANT(KALOS_FLAG_COMMIT),
    KALOS_CONSTANT(KALOS_REPLY_MORE),
    KALOS_CONSTANT(KALOS_OP_NOOP),
    KALOS_CONSTANT(KALOS_OP_CONTINUE),
    KALOS_CONSTANT(KALOS_OP_ABORT),
    KALOS_CONSTANT(KALOS_OP_OPEN_COLLECTION),
    KALOS_CONSTANT(KALOS_OP_LIST_COLLECTIONS),
    KALOS_CONSTANT(KALOS_OP_DROP_COLLECTION),
    KALOS_CONSTANT(KALOS_OP_SEARCH),
    KALOS_CONSTANT(KALOS_OP_GET),
    KALOS_CONSTANT(KALOS_OP_COUNT),
    KALOS_CONSTANT(KALOS_OP_SCAN),
    KALOS_CONSTANT(KALOS_OP_NAMESPACES),
    KALOS_CONSTANT(KALOS_OP_UPSERT),
    KALOS_CONSTANT(KALOS_OP_DELETE),
    KALOS_CONSTANT(KALOS_OP_BATCH),
    KALOS_CONSTANT(KALOS_STATUS_OK),
    KALOS_CONSTANT(KALOS_STATUS_PART),
    KALOS_CONSTANT(KALOS_STATUS_INVALID_REQUEST),
    KALOS_CONSTANT(KALOS_STATUS_COLLECTION_MISMATCH),
    KALOS_CONSTANT(KALOS_STATUS_NOT_FOUND),
    KALOS_CONSTANT(KALOS_STATUS_STORE_ERROR),
    KALOS_CONSTANT(KALOS_STATUS_OVERLOADED),
    KALOS_CONSTANT(KALOS_STATUS_EXPIRED),
    KALOS_CONSTANT(KALOS_STATUS_LOADING),
    KALOS_CONSTANT(KALOS_STATUS_BEHIND),
    KALOS_CONSTANT(KALOS_STATUS_DRAINING),
    KALOS_CONSTANT(KALOS_STATUS_REPLY_GONE),
    KALOS_CONSTANT(KALOS_STATUS_UNSUPPORTED),
    KALOS_CONSTANT(KALOS_STATUS_INTERNAL),
    KALOS_CONSTANT(KALOS_STATUS_UNKNOWN_OUTCOME),
    KALOS_CONSTANT(KALOS_METRIC_COSINE),
    KALOS_CONSTANT(KALOS_METRIC_DOT),
    KALOS_CONSTANT(KALOS_METRIC_L2),
    KALOS_CONSTANT(KALOS_INCLUDE_TEXT),
    KALOS_CONSTANT(KALOS_INCLUDE_METADATA),
    KALOS_CONSTANT(KALOS_INCLUDE_VECTOR),
    KALOS_CONSTANT(KALOS_SCOPE_SUBTREE),
    KALOS_CONSTANT(KALOS_SCOPE_EVERYTHING),
    KALOS_CONSTANT(KALOS_SCOPE_EXPLAIN),
    KALOS_CONSTANT(KALOS_SCOPE_MIN_SCORE),
    KALOS_CONSTANT(KALOS_SCOPE_MAX_DISTANCE),
    KALOS_CONSTANT(KALOS_DURABILITY_COMMIT),
    KALOS_CONSTANT(KALOS_DURABILITY_RELAXED),
    KALOS_CONSTANT(KALOS_ORDER_INSERTION),
    KALOS_CONSTANT(KALOS_ORDER_UPDATED),
};

}  // namespace

nlohmann::json abi_limits() {
  nlohmann::json limits = nlohmann::json::object();
  for (const Constant& constant : constants) {
    std::string_view name = constant.name;
    bool is_limit = name.starts_with("KALOS_MAX_") || name.starts_with("KALOS_MIN_") ||
                    name.starts_with("KALOS_DEFAULT_") || name == "KALOS_REPLY_HELD_NS" ||
                    name == "KALOS_WRITE_ID_KEPT_S";
    if (is_limit) limits[constant.name] = constant.value;
  }
  return limits;
}

std::string abi_json() {
  nlohmann::ordered_json abi;
  abi["abi_major"] = KALOS_ABI_MAJOR;
  abi["abi_minor"] = KALOS_ABI_MINOR;
  for (const Structure& structure : structures) {
    abi["structs"][structure.name] = {{"bytes", structure.bytes}, {"fields", nlohmann::ordered_json::object()}};
  }
  for (const Field& field : fields) {
    abi["structs"][field.structure]["fields"][field.name] = {{"offset", field.offset}, {"bytes", field.bytes}};
  }
  for (const Constant& constant : constants) abi["constants"][constant.name] = constant.value;
  return abi.dump(1);
}

}  // namespace kalos
