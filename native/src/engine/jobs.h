// Jobs: a request on its way through kalosd, with what it needs to be answered from any thread.
#pragma once

#include <functional>
#include <memory>

#include "base/result.h"
#include "engine/requests.h"

namespace kalos {

struct Timings {
  uint64_t queue_ns = 0;
  uint64_t search_ns = 0;
  uint64_t fetch_ns = 0;
};

// What goes back into the slot: a status and the reply message (for an error: words in UTF-8).
struct Reply {
  kalos_status status = KALOS_STATUS_OK;
  Bytes message;
  Timings timings;
};

// A read. Many may be served in one pass (serve/combining.h).
struct ReadJob {
  Bytes message;  // what request's views point into
  ReadRequest request;
  int64_t deadline_ns = 0;  // CLOCK_MONOTONIC; 0: none
  int64_t received_ns = 0;
  Reply reply;  // filled by Index::read
  // Of a batch: what its replies have come to, which one message must hold. Its first job counts for all.
  uint64_t batch_bytes = 0;
  uint64_t* bytes_of_batch = nullptr;
};

// A write, or a batch of reads and writes. `done` is called exactly once, from the writer's thread, after the commit is
// on disk and visible, or after it failed.
struct WriteJob {
  Bytes message;
  WriteId write_id{};  // all zero: none, the answer is not remembered
  kalos_durability durability = KALOS_DURABILITY_COMMIT;
  std::vector<WriteOperation> operations;  // one transaction
  bool is_batch = false;                   // answer with kalos_batch_reply, else with the one operation's own reply
  std::vector<ReadRequest> reads;          // batch: see the snapshot before the operations
  std::vector<uint32_t> read_positions;    // batch: where each read's reply goes among all replies
  std::vector<uint32_t> write_positions;   // batch: likewise for operations
  int64_t deadline_ns = 0;                 // checked before the transaction starts, never after
  int64_t received_ns = 0;
  std::function<void(Reply)> done;
};

}  // namespace kalos
