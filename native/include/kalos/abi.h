/* kalos/abi.h: the contract between kalosd and its clients.
 *
 * This header is the only source of the layout. `kalosd --print-abi` prints it as JSON, the Python client is tested
 * against that print, and docs/abi.md explains it well enough to write a client in another language.
 *
 * Three layers, each resting on the one before:
 *
 *   control   a Unix stream socket. Frames of kalos_control_header + UTF-8 JSON. It hands out lanes and stays open:
 *             end of file is how each side learns that the other died.
 *   lane      one POSIX shared memory object: a kalos_lane_header, then slot_count slots of slot_bytes. A slot is a
 *             kalos_slot_header and a payload through which messages travel, whole or as a chain of parts.
 *   message   what a slot carries: for each opcode one request struct and one reply struct, both followed by the
 *             columns and bytes that their spans point at. Offsets count from the start of the message.
 *
 * Rules:
 *   - Little-endian, fixed width, naturally aligned. Reserved bytes are written as zero and not read.
 *   - Zero means absent. Fields are appended within reserved space, never moved. A minor version only appends.
 *   - Every 64-byte line of shared memory has exactly one writer. No lock spans processes.
 *   - A writer stores the sequence word last (release), a reader loads it first (acquire).
 *   - Everything in a slot is hostile input: it is copied once into private memory, bounded, and only then used.
 */
#ifndef KALOS_ABI_H
#define KALOS_ABI_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KALOS_ABI_MAJOR 1
#define KALOS_ABI_MINOR 0

/* ---------------------------------------------------------------------------------------------- limits ---------- */

#define KALOS_MAX_ID_BYTES 1024u
#define KALOS_MAX_COLLECTION_NAME_BYTES 255u
#define KALOS_MAX_NAMESPACE_SEGMENTS 16u
#define KALOS_MAX_NAMESPACE_SEGMENT_BYTES 256u
#define KALOS_MAX_DIMENSION 8192u
#define KALOS_MAX_METADATA_BYTES 1048576u /* 1 MiB */
#define KALOS_MAX_METADATA_DEPTH 32u
#define KALOS_MAX_TEXT_BYTES 16777216u /* 16 MiB */
#define KALOS_MAX_K 1024u
#define KALOS_MAX_FILTER_OPERATORS 64u
#define KALOS_MAX_FILTER_DEPTH 16u
#define KALOS_MAX_FILTER_LIST 10000u       /* values in one $in or $nin */
#define KALOS_MAX_MESSAGE_BYTES 268435456u /* 256 MiB: one request, or one reply */
#define KALOS_MAX_STAGED_BYTES 1073741824u /* 1 GiB: all requests that are still arriving in parts */
#define KALOS_MAX_CONTROL_BYTES 65536u     /* JSON of one control frame sent by a client */
#define KALOS_MAX_BATCH_OPERATIONS 100000u
#define KALOS_REPLY_HELD_NS 5000000000ll /* a reply in parts is dropped when nobody asks for this long */
#define KALOS_WRITE_ID_KEPT_S 600u       /* a resent write id gets the first answer for this long */

#define KALOS_MIN_SLOT_COUNT 1u
#define KALOS_MAX_SLOT_COUNT 64u
#define KALOS_DEFAULT_SLOT_COUNT 8u
#define KALOS_MIN_SLOT_BYTES 16384u
#define KALOS_MAX_SLOT_BYTES 16777216u
#define KALOS_DEFAULT_SLOT_BYTES 65536u

/* --------------------------------------------------------------------------------------------- control ---------- */

#define KALOS_CONTROL_MAGIC 0x31434C4Bu /* "KLC1" */

/* Precedes every frame on the control socket. This struct is frozen across major versions, so that any client can read
 * any sidecar's error. */
struct kalos_control_header {
  uint32_t magic;      /* KALOS_CONTROL_MAGIC */
  uint16_t type;       /* enum kalos_control */
  uint16_t reserved;   /* zero */
  uint32_t body_bytes; /* of UTF-8 JSON that follows: one object */
  uint32_t reserved2;  /* zero */
};

enum kalos_control {
  KALOS_CONTROL_HELLO = 1,    /* client: who it is, and the lane that it wants (or none) */
  KALOS_CONTROL_WELCOME = 2,  /* kalosd: who it is, and the names of the lane's objects */
  KALOS_CONTROL_ATTACHED = 3, /* client: everything is open; kalosd unlinks the names */
  KALOS_CONTROL_READY = 4,    /* kalosd: the names are gone, the lane is served */
  KALOS_CONTROL_ERROR = 5,    /* kalosd: {"status", "message"}; the connection ends */
  KALOS_CONTROL_STATUS = 6,   /* client: asks for health and counters */
  KALOS_CONTROL_REPORT = 7,   /* kalosd: the answer to STATUS */
  KALOS_CONTROL_DRAIN = 8,    /* client: asks kalosd to finish and end */
  KALOS_CONTROL_DRAINING = 9, /* kalosd, to everyone, unasked: no new request is taken; the answer to DRAIN too */
  KALOS_CONTROL_PING = 10,    /* client: is the control thread alive? */
  KALOS_CONTROL_PONG = 11     /* kalosd: the answer to PING */
};

/* ------------------------------------------------------------------------------------------------ lane ---------- */

#define KALOS_LANE_MAGIC 0x314E4C534F4C414Bull /* "KALOSLN1" */

/* At offset 0 of the lane. Written by kalosd before the client attaches, the magic last; constant but for the second
 * block. The names in /dev/shm exist only until the client said ATTACHED. */
struct kalos_lane_header {
  uint64_t magic;                 /* KALOS_LANE_MAGIC, stored last */
  uint16_t abi_major;             /* KALOS_ABI_MAJOR */
  uint16_t abi_minor;             /* KALOS_ABI_MINOR */
  uint32_t header_bytes;          /* offset of slot 0 */
  uint64_t lane_bytes;            /* size of the whole object */
  uint32_t slot_count;            /* slots in the lane */
  uint32_t slot_bytes;            /* stride: header and payload of one slot, a multiple of 4096 */
  uint32_t slot_header_bytes;     /* offset of the payload in a slot */
  uint32_t reply_semaphore_count; /* slot_count + 1; the last one is shared, see reply_semaphore */
  uint64_t lane_id;               /* unique within the instance */
  uint8_t instance[16];           /* of this run of kalosd */
  uint64_t features;              /* feature bits, none defined yet */
  uint8_t reserved[56];

  /* The second block: written by kalosd while the lane lives. */
  uint32_t server_state;     /* enum kalos_server_state; a hint, the control socket is the truth */
  uint32_t server_reserved0; /* zero */
  uint64_t commit_sequence;  /* the latest published commit; a hint */
  uint8_t server_reserved[112];
};

enum kalos_server_state { KALOS_SERVER_SERVING = 0, KALOS_SERVER_DRAINING = 1, KALOS_SERVER_GONE = 2 };

#define KALOS_LANE_HEADER_BYTES 4096u /* the header above, padded to a page */

/* At the start of every slot: one block that only the client writes, one that only kalosd writes.
 *
 * The six states of a slot are read off the two blocks:
 *   free       request_state == FREE
 *   filling    request_state == FILLING
 *   posted     request_state == POSTED, reply_sequence != request_sequence, reply_state != SERVING
 *   serving    request_state == POSTED, reply_sequence != request_sequence, reply_state == SERVING
 *   done       request_state == POSTED, reply_sequence == request_sequence
 *   abandoned  request_state == ABANDONED: the client stopped waiting; it may reuse the slot once
 *              reply_sequence == request_sequence and the semaphore's token was taken
 */
struct kalos_slot_header {
  /* Written by the client. */
  uint64_t request_sequence; /* stored last; grows by at least 1 with every post in the lane, never reused, never 0 */
  uint32_t request_state;    /* enum kalos_request_state */
  uint16_t opcode;           /* enum kalos_opcode */
  uint16_t request_flags;    /* enum kalos_request_flags */
  uint64_t message_id;       /* the same for all parts of a message; unique within the lane, never 0 */
  uint64_t message_bytes;    /* of the whole request message, 0 for NOOP, CONTINUE and ABORT */
  uint64_t part_offset;      /* where this part lies in the message; CONTINUE: the first byte of the reply wanted */
  uint32_t part_bytes;       /* of the message in this slot's payload */
  uint32_t reply_semaphore;  /* index of the semaphore that kalosd posts: this slot's, or slot_count for the shared */
  int64_t deadline_ns;       /* absolute CLOCK_MONOTONIC, or a duration; see the welcome. 0: none */
  uint8_t request_reserved[72];

  /* Written by kalosd. */
  uint64_t reply_sequence;    /* the request_sequence answered, stored last */
  uint32_t reply_state;       /* enum kalos_reply_state */
  uint16_t status;            /* enum kalos_status */
  uint16_t reply_flags;       /* enum kalos_reply_flags */
  uint64_t reply_message_id;  /* the message_id answered */
  uint64_t reply_bytes;       /* of the whole reply message */
  uint64_t reply_part_offset; /* where this part lies in the reply message */
  uint32_t reply_part_bytes;  /* of the reply message in this slot's payload */
  uint32_t reply_reserved0;   /* zero */
  uint64_t queue_ns;          /* from kalosd seeing the request to starting on it */
  uint64_t search_ns; /* in the engine: filter, scan, selection; for a write: until it was durable and visible */
  uint64_t fetch_ns;  /* completing the reply: ids, texts, metadata */
  uint8_t reply_reserved[56];
};

#define KALOS_SLOT_HEADER_BYTES 256u

enum kalos_request_state {
  KALOS_REQUEST_FREE = 0,
  KALOS_REQUEST_FILLING = 1,
  KALOS_REQUEST_POSTED = 2,
  KALOS_REQUEST_ABANDONED = 3
};

enum kalos_reply_state { KALOS_REPLY_IDLE = 0, KALOS_REPLY_SERVING = 1, KALOS_REPLY_DONE = 2 };

/* A message that fits is one part with BEGIN and COMMIT. A longer one is a chain of posts through one slot: BEGIN on
 * the first part, COMMIT on the last, offsets without gaps, each answered with KALOS_STATUS_PART but the last. */
enum kalos_request_flags { KALOS_FLAG_BEGIN = 1, KALOS_FLAG_COMMIT = 2 };

/* A reply that does not fit is held by kalosd as one snapshot. CONTINUE with the same message_id in the same slot pulls
 * the part at part_offset, until all was read, another message began in the slot, or KALOS_REPLY_HELD_NS passed. */
enum kalos_reply_flags {
  KALOS_REPLY_MORE = 1 /* bytes of the reply remain after this part */
};

/* ---------------------------------------------------------------------------------------------- opcodes --------- */

enum kalos_opcode {
  KALOS_OP_NOOP = 1,     /* nothing in, nothing out: the price of the lane */
  KALOS_OP_CONTINUE = 2, /* the next part of a held reply */
  KALOS_OP_ABORT = 3,    /* drop the message that is staged, or the reply that is held, in this slot */

  KALOS_OP_OPEN_COLLECTION = 16,  /* JSON in, JSON out: create or open */
  KALOS_OP_LIST_COLLECTIONS = 17, /* JSON in, JSON out */
  KALOS_OP_DROP_COLLECTION = 18,  /* JSON in, JSON out */

  KALOS_OP_SEARCH = 32,     /* kalos_search_request -> kalos_hits_reply */
  KALOS_OP_GET = 33,        /* kalos_get_request -> kalos_hits_reply */
  KALOS_OP_COUNT = 34,      /* kalos_count_request -> kalos_count_reply */
  KALOS_OP_SCAN = 35,       /* kalos_scan_request -> kalos_hits_reply */
  KALOS_OP_NAMESPACES = 36, /* kalos_namespaces_request -> kalos_namespaces_reply */

  KALOS_OP_UPSERT = 48, /* kalos_upsert_request -> kalos_write_reply */
  KALOS_OP_DELETE = 49, /* kalos_delete_request -> kalos_write_reply */

  KALOS_OP_BATCH = 64 /* kalos_batch_request -> kalos_batch_reply */
};

/* What became of a request. Every status but OK and PART comes with a reply message of UTF-8 words for people. */
enum kalos_status {
  KALOS_STATUS_OK = 0,
  KALOS_STATUS_PART = 1,                 /* this part is staged, send the next one */
  KALOS_STATUS_INVALID_REQUEST = 10,     /* the request breaks a rule; the words say which */
  KALOS_STATUS_COLLECTION_MISMATCH = 11, /* dimension, metric or embedder differ from the collection's */
  KALOS_STATUS_NOT_FOUND = 12,           /* no such collection */
  KALOS_STATUS_STORE_ERROR = 13,         /* the disk or the memory limit refused; nothing was changed */
  KALOS_STATUS_OVERLOADED = 14,          /* a bound on work in flight is reached; try again later */
  KALOS_STATUS_EXPIRED = 15,             /* the deadline passed before the work was done; nothing was changed */
  KALOS_STATUS_LOADING = 16,             /* the collection is being loaded; nothing was done; ask again */
  KALOS_STATUS_BEHIND = 17,              /* min_sequence is not published yet; ask again */
  KALOS_STATUS_DRAINING = 18,            /* kalosd is ending; nothing was done; connect again */
  KALOS_STATUS_REPLY_GONE = 19,          /* CONTINUE for a reply that is no longer held */
  KALOS_STATUS_UNSUPPORTED = 20,         /* an opcode or flag that this sidecar does not know */
  KALOS_STATUS_INTERNAL = 21,            /* a fault of kalosd; its log says more */
  KALOS_STATUS_UNKNOWN_OUTCOME = 22      /* the write may or may not be on disk; resend its write id after a restart */
};

/* -------------------------------------------------------------------------------------------- messages ---------- */

/* A run of bytes in the same message. offset 0 means absent (which differs from empty: an empty run has a nonzero
 * offset, at most the message's length, and bytes 0). */
struct kalos_span {
  uint32_t offset;
  uint32_t bytes;
};

enum kalos_metric {
  KALOS_METRIC_COSINE = 1, /* q.x / (|q| |x|), higher is better; 0 where either norm is 0 */
  KALOS_METRIC_DOT = 2,    /* q.x, higher is better */
  KALOS_METRIC_L2 = 3      /* |q - x|, lower is better */
};

enum kalos_include { KALOS_INCLUDE_TEXT = 1, KALOS_INCLUDE_METADATA = 2, KALOS_INCLUDE_VECTOR = 4 };

/* Flags of reads and deletes. */
enum kalos_scope_flags {
  KALOS_SCOPE_SUBTREE = 1,      /* the namespace and all below it, else exactly the namespace */
  KALOS_SCOPE_EVERYTHING = 2,   /* delete: without ids or filter, meant */
  KALOS_SCOPE_EXPLAIN = 4,      /* search: say how the answer was found */
  KALOS_SCOPE_MIN_SCORE = 8,    /* search: min_score is given */
  KALOS_SCOPE_MAX_DISTANCE = 16 /* search: max_distance is given */
};

enum kalos_durability {
  KALOS_DURABILITY_COMMIT = 1, /* acknowledged once flushed to disk */
  KALOS_DURABILITY_RELAXED = 2 /* acknowledged once committed; a power cut may lose the last commits */
};

enum kalos_order {
  KALOS_ORDER_INSERTION = 1, /* row sequence, ascending */
  KALOS_ORDER_UPDATED = 2    /* time of the last upsert, newest first; ties by row sequence, descending */
};

/* A namespace on the wire: per segment a u16 big-endian length, then that many bytes of UTF-8. Empty: the root. */

/* SEARCH. vectors: float32[query_count][dimension], row-major, at a multiple of 8. */
struct kalos_search_request {
  uint64_t collection_id;
  uint32_t flags;               /* enum kalos_scope_flags */
  uint32_t include;             /* enum kalos_include */
  uint32_t query_count;         /* 0 upwards */
  uint32_t dimension;           /* must be the collection's */
  uint32_t k;                   /* 0 to KALOS_MAX_K */
  uint32_t skip;                /* hits to leave out before the first; skip + k at most KALOS_MAX_K */
  double min_score;             /* cosine, dot: keep score >= this */
  double max_distance;          /* l2: keep score <= this */
  uint64_t min_sequence;        /* 0, or a commit sequence that the answer must include */
  struct kalos_span name_space; /* absent or empty: the root */
  struct kalos_span filter;     /* JSON object; absent: no filter */
  struct kalos_span group_by;   /* metadata key or path: at most the best hit per value; absent: off */
  struct kalos_span vectors;
  uint8_t reserved[40];
};

/* GET. ids: kalos_span[id_count]. The reply has one row for each, in order, found or not. */
struct kalos_get_request {
  uint64_t collection_id;
  uint32_t include;
  uint32_t id_count;
  uint64_t min_sequence;
  struct kalos_span name_space;
  struct kalos_span ids;
  uint8_t reserved[24];
};

struct kalos_count_request {
  uint64_t collection_id;
  uint32_t flags;
  uint32_t reserved0;
  uint64_t min_sequence;
  struct kalos_span name_space;
  struct kalos_span filter;
  uint8_t reserved[24];
};

struct kalos_count_reply {
  uint64_t commit_sequence;
  uint64_t count;
};

/* SCAN: one page. The first has both cursors 0, the next ones carry those of the reply before; has_cursor of the reply
 * says whether rows remain. kalosd ends a page at page_limit rows or about page_bytes of reply, whichever is first, but
 * never before one row. */
struct kalos_scan_request {
  uint64_t collection_id;
  uint32_t flags;
  uint32_t include;
  uint32_t order;      /* enum kalos_order */
  uint32_t page_limit; /* rows in this page at most, 1 upwards */
  uint64_t skip;       /* rows to leave out before the first of this page */
  uint64_t page_bytes; /* 0: kalosd's choice */
  uint64_t cursor_sequence;
  int64_t cursor_updated_us;
  uint64_t min_sequence;
  struct kalos_span name_space;
  struct kalos_span filter;
  uint32_t has_cursor; /* 1: continue after the cursors */
  uint8_t reserved[44];
};

/* The reply of SEARCH, GET and SCAN: columns over row_count rows. Search: rows of query g are groups[g] up to
 * groups[g + 1]; get and scan: one group. */
struct kalos_hits_reply {
  uint64_t commit_sequence; /* the state that was read */
  uint32_t row_count;
  uint32_t group_count;
  uint32_t include;
  uint32_t dimension;
  uint32_t has_cursor; /* scan: rows remain after the cursors */
  uint32_t reserved0;
  uint64_t cursor_sequence;
  int64_t cursor_updated_us;
  struct kalos_span groups;  /* u32[group_count + 1] */
  struct kalos_span scores;  /* f64[row_count]; absent for get and scan */
  struct kalos_span created; /* i64[row_count], microseconds since 1970 UTC */
  struct kalos_span updated; /* i64[row_count] */
  struct kalos_span fields;  /* kalos_hit_fields[row_count] */
  struct kalos_span explain; /* JSON object; absent unless asked for */
  uint8_t reserved[32];
};

/* Where a row's variable parts lie. get: a row that was not found has id absent. */
struct kalos_hit_fields {
  struct kalos_span id;
  struct kalos_span name_space;
  struct kalos_span text;     /* absent: the row has none, or it was not included */
  struct kalos_span metadata; /* JSON object, the bytes as they were written; absent likewise */
  struct kalos_span vector;   /* float32[dimension] at a multiple of 8; absent likewise */
};

/* NAMESPACES: those with at least one row, sorted by key bytes. */
struct kalos_namespaces_request {
  uint64_t collection_id;
  uint32_t max_depth; /* 0: no bound; else keys are cut to this many segments and made unique */
  uint32_t limit;     /* 0: no bound */
  uint64_t skip;
  uint64_t min_sequence;
  struct kalos_span prefix; /* namespace key; absent: any */
  struct kalos_span suffix; /* namespace key; absent: any */
  uint8_t reserved[16];
};

struct kalos_namespaces_reply {
  uint64_t commit_sequence;
  uint32_t count;
  uint32_t reserved0;
  struct kalos_span keys; /* kalos_span[count] */
  uint8_t reserved[8];
};

/* UPSERT: inserts, or replaces as a whole, one row for each id. Columns over row_count rows. All or nothing. */
struct kalos_upsert_request {
  uint64_t collection_id;
  uint8_t write_id[16]; /* random, zeros: none; the same bytes sent again get the first answer, others are refused */
  uint32_t durability;  /* enum kalos_durability */
  uint32_t row_count;   /* 0 upwards */
  uint32_t dimension;   /* must be the collection's; 0 where vectors is absent */
  uint32_t reserved0;
  struct kalos_span name_space;
  struct kalos_span ids;        /* kalos_span[row_count] */
  struct kalos_span texts;      /* kalos_span[row_count]; absent: no row has one */
  struct kalos_span metadatas;  /* kalos_span[row_count], JSON objects; absent: no row has one */
  struct kalos_span expires;    /* i64[row_count], microseconds since 1970 UTC, 0: never; absent: never */
  struct kalos_span has_vector; /* u8[row_count], 0 or 1; absent: every row has one (if vectors is given) */
  struct kalos_span vectors;    /* f32[row_count][dimension] at a multiple of 8; rows without one are not read */
  uint8_t reserved[32];
};

/* DELETE: by ids, by filter, by both (rows that satisfy both), or everything in scope. */
struct kalos_delete_request {
  uint64_t collection_id;
  uint8_t write_id[16];
  uint32_t durability;
  uint32_t flags; /* SUBTREE, EVERYTHING */
  uint32_t id_count;
  uint32_t reserved0;
  struct kalos_span name_space;
  struct kalos_span ids; /* kalos_span[id_count]; absent: not by ids */
  struct kalos_span filter;
  uint8_t reserved[32];
};

struct kalos_write_reply {
  uint64_t commit_sequence; /* of the commit that holds this write */
  uint64_t count;           /* rows upserted (distinct ids) or deleted */
};

/* BATCH: reads and writes as one message. All reads see one snapshot, taken before the batch's own writes; all writes
 * are one transaction. One failing operation fails the batch with its words, and nothing is changed. The write ids and
 * durabilities of the operations are not read; the batch has its own. */
struct kalos_batch_request {
  uint8_t write_id[16];
  uint32_t durability;
  uint32_t operation_count;
  struct kalos_span operations; /* kalos_batch_operation[operation_count] */
  uint8_t reserved[32];
};

/* message is itself a whole request message of that opcode, its offsets counted from its own start, at a multiple of
 * 8. SEARCH, GET, COUNT, SCAN, NAMESPACES, UPSERT, DELETE. */
struct kalos_batch_operation {
  uint32_t opcode;
  uint32_t reserved0;
  struct kalos_span message;
};

struct kalos_batch_reply {
  uint64_t commit_sequence; /* of the writes, or of the snapshot where there were none */
  uint32_t operation_count;
  uint32_t reserved0;
  struct kalos_span replies; /* kalos_span[operation_count]: whole reply messages at multiples of 8 */
  uint8_t reserved[8];
};

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* KALOS_ABI_H */
