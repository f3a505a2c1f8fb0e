// Combining: reads that meet are served in one pass.
//
// Whoever brings a read while the engine is idle becomes the combiner and serves, in one pass, everything that is
// pending. Whoever comes meanwhile only leaves its read behind. After a pass the combiner goes back to its own lane; what
// came in between is handed to a helper thread, so that no lane is kept from its own client (flat combining, Hendler et
// al. 2010, with asynchronous completion).
//
// A pass that ends in an exception (no memory, say) is made again for each of its requests alone, so that only the guilty
// one fails. No request is left without its answer.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "serve/counters.h"
#include "store/database.h"

namespace kalos {

// One request: a single read, or all reads of a batch without writes, which must see one snapshot.
struct PendingRead {
  std::vector<std::unique_ptr<ReadJob>> jobs;
  bool is_batch = false;  // answered by one kalos_batch_reply
  Bytes message;          // what a batch's reads point into; a single read's job has its own
  std::function<void(Reply)> done;
};

class Combiner {
 public:
  Combiner(Database& database, Counters& counters);
  // Once everything that was submitted is answered. No submit() may begin any more.
  ~Combiner();

  // `done` is called exactly once, from this or another thread; it must not throw. Where this throws, the read was not
  // taken.
  void submit(std::unique_ptr<PendingRead> read);

 private:
  using Batch = std::vector<std::unique_ptr<PendingRead>>;
  void serve(Batch batch) noexcept;
  bool pass(std::span<const std::unique_ptr<PendingRead>> reads) noexcept;
  Reply reply_of(PendingRead& read) noexcept;
  Result<Bytes> batch_reply(PendingRead& read, Timings& timings);
  void help();

  Database& database_;
  Counters& counters_;
  std::mutex mutex_;
  std::condition_variable wake_;  // of the helper
  std::condition_variable idle_;
  Batch pending_;
  bool busy_ = false;         // somebody is the combiner, or the helper is about to be
  bool handed_over_ = false;  // the helper is
  bool stopping_ = false;
  std::thread helper_;
};

}  // namespace kalos
