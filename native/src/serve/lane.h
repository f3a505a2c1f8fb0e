// One lane: a thread that takes what its client posts, and the slots through which messages come and replies go.
//
// The thread never does the work of a write and never waits for a disk: reads go to the combiner, writes to the writer's
// queue, and whoever finishes completes the slot. A slot is served one request at a time; what a client posts in a slot
// that is still being served is not seen.
#pragma once

#include <pthread.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "serve/combining.h"
#include "serve/counters.h"
#include "serve/lane_memory.h"
#include "serve/waiting.h"

namespace kalos {

// What all lanes share.
struct LaneServices {
  Database& database;
  Combiner& combiner;
  Counters& counters;
  SpinGovernor& governor;
  std::atomic<bool> draining{false};
  std::atomic<uint64_t> running_lanes{0};
};

class Lane : public std::enable_shared_from_this<Lane> {
 public:
  static Result<std::shared_ptr<Lane>> create(const LaneShape& shape, uint64_t lane_id,
                                              const std::array<uint8_t, 16>& instance, bool deadlines_are_durations,
                                              LaneServices& services);
  ~Lane();

  LaneMemory& memory() { return *memory_; }
  bool start();           // the client is attached: names go, the thread runs; false: there is no thread to be had
  void close();           // the client is gone: the thread ends, staged and held messages are dropped
  void call_thread();     // once more, where it has not ended yet
  void announce_drain();  // new requests are answered with DRAINING
  bool has_leftovers();   // something staged or held
  void drop_stale(int64_t now_ns);

 private:
  // The client's block of a slot, read once.
  struct Posted {
    uint32_t slot = 0;
    kalos_slot_header header{};
    int64_t received_ns = 0;
    int64_t deadline_ns = 0;  // absolute; 0: none
  };
  struct Slot {
    uint64_t seen_sequence = 0;  // the lane's thread only
    std::atomic<bool> in_flight{false};
    std::mutex mutex;  // guards the rest: the lane's thread, whoever completes, and drop_stale meet here
    uint64_t staged_id = 0;
    uint64_t staged_total = 0;  // as announced
    uint64_t staged_bytes = 0;  // as counted: of what has arrived
    int64_t staged_deadline_ns = 0;
    Bytes staged;
    uint64_t held_id = 0;
    int64_t held_until_ns = 0;
    Bytes held;
  };

  Lane(std::unique_ptr<LaneMemory> memory, uint64_t lane_id, bool deadlines_are_durations, LaneServices& services);

  void run();
  void take_posted(uint32_t index);
  void handle(const Posted& posted);
  void handle_message(const Posted& posted);
  // The whole message if this post completes it; nullopt if it was answered (PART, or an error).
  std::optional<Bytes> collect(const Posted& posted);
  void continue_reply(const Posted& posted);
  void dispatch(const Posted& posted, Bytes message);
  void dispatch_read(const Posted& posted, Bytes message);
  void dispatch_write(const Posted& posted, Bytes message);

  void complete(const Posted& posted, Reply reply);
  std::function<void(Reply)> completion(const Posted& posted);  // to be called from any thread
  void fail(const Posted& posted, Error error);
  void write_part(const Posted& posted, const Reply& reply, std::span<const std::byte> part, uint64_t offset,
                  uint64_t total);
  bool count_staged(uint64_t bytes);  // false: there is no room for them
  void drop_staged(Slot& slot);

  std::unique_ptr<LaneMemory> memory_;
  LaneServices& services_;
  const bool deadlines_are_durations_;
  SpinGovernor::Lane waiting_;
  std::vector<Slot> slots_;
  std::atomic<uint64_t> staged_bytes_{0};
  std::atomic<bool> closed_{false};
  std::mutex thread_mutex_;  // guards the next: it is signalled only while it lives
  std::optional<pthread_t> thread_;
};

}  // namespace kalos
