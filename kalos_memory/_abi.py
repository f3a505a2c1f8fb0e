"""The contract with kalosd as Python sees it: native/include/kalos/abi.h, written down a second time.

Nothing is read from the header at run time, so that the client needs no compiler; tests/test_abi.py holds every number
here to what `kalosd --print-abi` prints. Layouts are struct formats, little-endian and without padding of their own:
LAYOUTS names the fields of each in order, with the gaps spelled out, and the tests compare offsets and sizes.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

ABI_MAJOR: Final = 1
ABI_MINOR: Final = 0

# Limits.
MAX_ID_BYTES: Final = 1024
MAX_COLLECTION_NAME_BYTES: Final = 255
MAX_NAMESPACE_SEGMENTS: Final = 16
MAX_NAMESPACE_SEGMENT_BYTES: Final = 256
MAX_DIMENSION: Final = 8192
MAX_METADATA_BYTES: Final = 1 << 20
MAX_METADATA_DEPTH: Final = 32
MAX_TEXT_BYTES: Final = 16 << 20
MAX_K: Final = 1024
MAX_FILTER_OPERATORS: Final = 64
MAX_FILTER_DEPTH: Final = 16
MAX_FILTER_LIST: Final = 10_000
MAX_MESSAGE_BYTES: Final = 256 << 20
MAX_STAGED_BYTES: Final = 1 << 30
MAX_CONTROL_BYTES: Final = 64 << 10
MAX_BATCH_OPERATIONS: Final = 100_000
REPLY_HELD_NS: Final = 5_000_000_000
WRITE_ID_KEPT_S: Final = 600
MIN_SLOT_COUNT: Final = 1
MAX_SLOT_COUNT: Final = 64
DEFAULT_SLOT_COUNT: Final = 8
MIN_SLOT_BYTES: Final = 16 << 10
MAX_SLOT_BYTES: Final = 16 << 20
DEFAULT_SLOT_BYTES: Final = 64 << 10

# Control.
CONTROL_MAGIC: Final = 0x31434C4B
CONTROL_HELLO: Final = 1
CONTROL_WELCOME: Final = 2
CONTROL_ATTACHED: Final = 3
CONTROL_READY: Final = 4
CONTROL_ERROR: Final = 5
CONTROL_STATUS: Final = 6
CONTROL_REPORT: Final = 7
CONTROL_DRAIN: Final = 8
CONTROL_DRAINING: Final = 9
CONTROL_PING: Final = 10
CONTROL_PONG: Final = 11

# Lane.
LANE_MAGIC: Final = 0x314E4C534F4C414B
LANE_HEADER_BYTES: Final = 4096
SLOT_HEADER_BYTES: Final = 256
SERVER_SERVING: Final = 0
SERVER_DRAINING: Final = 1
SERVER_GONE: Final = 2
REQUEST_FREE: Final = 0
REQUEST_FILLING: Final = 1
REQUEST_POSTED: Final = 2
REQUEST_ABANDONED: Final = 3
REPLY_IDLE: Final = 0
REPLY_SERVING: Final = 1
REPLY_DONE: Final = 2
FLAG_BEGIN: Final = 1
FLAG_COMMIT: Final = 2
REPLY_MORE: Final = 1

# Opcodes.
OP_NOOP: Final = 1
OP_CONTINUE: Final = 2
OP_ABORT: Final = 3
OP_OPEN_COLLECTION: Final = 16
OP_LIST_COLLECTIONS: Final = 17
OP_DROP_COLLECTION: Final = 18
OP_SEARCH: Final = 32
OP_GET: Final = 33
OP_COUNT: Final = 34
OP_SCAN: Final = 35
OP_NAMESPACES: Final = 36
OP_UPSERT: Final = 48
OP_DELETE: Final = 49
OP_BATCH: Final = 64

# Statuses.
STATUS_OK: Final = 0
STATUS_PART: Final = 1
STATUS_INVALID_REQUEST: Final = 10
STATUS_COLLECTION_MISMATCH: Final = 11
STATUS_NOT_FOUND: Final = 12
STATUS_STORE_ERROR: Final = 13
STATUS_OVERLOADED: Final = 14
STATUS_EXPIRED: Final = 15
STATUS_LOADING: Final = 16
STATUS_BEHIND: Final = 17
STATUS_DRAINING: Final = 18
STATUS_REPLY_GONE: Final = 19
STATUS_UNSUPPORTED: Final = 20
STATUS_INTERNAL: Final = 21
STATUS_UNKNOWN_OUTCOME: Final = 22

# Values inside messages.
METRIC_COSINE: Final = 1
METRIC_DOT: Final = 2
METRIC_L2: Final = 3
INCLUDE_TEXT: Final = 1
INCLUDE_METADATA: Final = 2
INCLUDE_VECTOR: Final = 4
SCOPE_SUBTREE: Final = 1
SCOPE_EVERYTHING: Final = 2
SCOPE_EXPLAIN: Final = 4
SCOPE_MIN_SCORE: Final = 8
SCOPE_MAX_DISTANCE: Final = 16
DURABILITY_COMMIT: Final = 1
DURABILITY_RELAXED: Final = 2
ORDER_INSERTION: Final = 1
ORDER_UPDATED: Final = 2

# Layouts: struct name of abi.h -> (format, field names in order). A span is two u32 and is named once; so is a u8[n].
LAYOUTS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "kalos_control_header": ("<IHHII", ("magic", "type", "reserved", "body_bytes", "reserved2")),
    "kalos_lane_header": (
        "<QHHIQIIIIQ16sQ56sIIQ112s",
        (
            "magic",
            "abi_major",
            "abi_minor",
            "header_bytes",
            "lane_bytes",
            "slot_count",
            "slot_bytes",
            "slot_header_bytes",
            "reply_semaphore_count",
            "lane_id",
            "instance",
            "features",
            "reserved",
            "server_state",
            "server_reserved0",
            "commit_sequence",
            "server_reserved",
        ),
    ),
    "kalos_slot_header": (
        "<QIHHQQQIIq72sQIHHQQQIIQQQ56s",
        (
            "request_sequence",
            "request_state",
            "opcode",
            "request_flags",
            "message_id",
            "message_bytes",
            "part_offset",
            "part_bytes",
            "reply_semaphore",
            "deadline_ns",
            "request_reserved",
            "reply_sequence",
            "reply_state",
            "status",
            "reply_flags",
            "reply_message_id",
            "reply_bytes",
            "reply_part_offset",
            "reply_part_bytes",
            "reply_reserved0",
            "queue_ns",
            "search_ns",
            "fetch_ns",
            "reply_reserved",
        ),
    ),
    "kalos_span": ("<II", ("offset", "bytes")),
    "kalos_search_request": (
        "<QIIIIIIddQ8s8s8s8s40s",
        (
            "collection_id",
            "flags",
            "include",
            "query_count",
            "dimension",
            "k",
            "skip",
            "min_score",
            "max_distance",
            "min_sequence",
            "name_space",
            "filter",
            "group_by",
            "vectors",
            "reserved",
        ),
    ),
    "kalos_get_request": (
        "<QIIQ8s8s24s",
        ("collection_id", "include", "id_count", "min_sequence", "name_space", "ids", "reserved"),
    ),
    "kalos_count_request": (
        "<QIIQ8s8s24s",
        ("collection_id", "flags", "reserved0", "min_sequence", "name_space", "filter", "reserved"),
    ),
    "kalos_count_reply": ("<QQ", ("commit_sequence", "count")),
    "kalos_scan_request": (
        "<QIIIIQQQqQ8s8sI44s",
        (
            "collection_id",
            "flags",
            "include",
            "order",
            "page_limit",
            "skip",
            "page_bytes",
            "cursor_sequence",
            "cursor_updated_us",
            "min_sequence",
            "name_space",
            "filter",
            "has_cursor",
            "reserved",
        ),
    ),
    "kalos_hits_reply": (
        "<QIIIIIIQq8s8s8s8s8s8s32s",
        (
            "commit_sequence",
            "row_count",
            "group_count",
            "include",
            "dimension",
            "has_cursor",
            "reserved0",
            "cursor_sequence",
            "cursor_updated_us",
            "groups",
            "scores",
            "created",
            "updated",
            "fields",
            "explain",
            "reserved",
        ),
    ),
    "kalos_hit_fields": ("<8s8s8s8s8s", ("id", "name_space", "text", "metadata", "vector")),
    "kalos_namespaces_request": (
        "<QIIQQ8s8s16s",
        ("collection_id", "max_depth", "limit", "skip", "min_sequence", "prefix", "suffix", "reserved"),
    ),
    "kalos_namespaces_reply": ("<QII8s8s", ("commit_sequence", "count", "reserved0", "keys", "reserved")),
    "kalos_upsert_request": (
        "<Q16sIIII8s8s8s8s8s8s8s32s",
        (
            "collection_id",
            "write_id",
            "durability",
            "row_count",
            "dimension",
            "reserved0",
            "name_space",
            "ids",
            "texts",
            "metadatas",
            "expires",
            "has_vector",
            "vectors",
            "reserved",
        ),
    ),
    "kalos_delete_request": (
        "<Q16sIIII8s8s8s32s",
        (
            "collection_id",
            "write_id",
            "durability",
            "flags",
            "id_count",
            "reserved0",
            "name_space",
            "ids",
            "filter",
            "reserved",
        ),
    ),
    "kalos_write_reply": ("<QQ", ("commit_sequence", "count")),
    "kalos_batch_request": (
        "<16sII8s32s",
        ("write_id", "durability", "operation_count", "operations", "reserved"),
    ),
    "kalos_batch_operation": ("<II8s", ("opcode", "reserved0", "message")),
    "kalos_batch_reply": (
        "<QII8s8s",
        ("commit_sequence", "operation_count", "reserved0", "replies", "reserved"),
    ),
}


def layout(name: str) -> Struct:
    """The packer of a struct of abi.h, its spans as pairs of u32 and its reserved bytes skipped and zeroed."""
    text, fields = LAYOUTS[name]
    formats = _tokens(text)
    packed = "<"
    for token, field in zip(formats, fields, strict=True):
        if "reserved" in field:
            packed += f"{Struct('<' + token).size}x"
        else:
            packed += "II" if token == "8s" else token
    return Struct(packed)


def offset_of(name: str, field: str) -> int:
    """Where a field lies in a struct of abi.h."""
    text, fields = LAYOUTS[name]
    tokens = _tokens(text)
    return Struct("<" + "".join(tokens[: fields.index(field)])).size


def _tokens(text: str) -> list[str]:
    tokens: list[str] = []
    digits = ""
    for letter in text[1:]:
        if letter.isdigit():
            digits += letter
        else:
            tokens.append(digits + letter)
            digits = ""
    return tokens
