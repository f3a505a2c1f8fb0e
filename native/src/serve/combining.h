// Combining: reads that meet are served in one pass.
//
// Whoever brings a read while the engine is idle becomes the combiner and serves, in one pass, everything that is
// pending. Whoever comes meanwhile only leaves its read behind. After a pass the combiner goes back to its own lane; what
// came in between is handed to a helper thread, so that no lane is kept from its own client (flat combining, Hendler et
// al. 2010, with asynchronous completion).
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "serve/counters.h"
#include "store/database.h"

namespace kalos {

// One request: a single read, or all reads of a batch without writes, which must see one snapshot.
struct PendingRead {
  std::vector<std::unique_ptr<ReadJob>> jobs;
  Bytes message;  // what a batch's reads point into; a single read's job has its own
  std::function<void(PendingRead&)> done;
};

// What a request is told that finds no memory in kalosd. A limit of the system's, or of the container's: --memory only
// counts rows.
Error no_memory();

class Combiner {
 public:
  Combiner(Database& database, Counters& counters);
  ~Combiner();

  // `done` is called from this or another thread, with every job's reply filled.
  void submit(std::unique_ptr<PendingRead> read);

 private:
  using Batch = std::vector<std::unique_ptr<PendingRead>>;
  void serve(Batch batch);
  void help();

  Database& database_;
  Counters& counters_;
  std::mutex mutex_;
  std::condition_variable wake_;
  Batch pending_;
  bool busy_ = false;         // somebody is the combiner, or the helper is about to be
  bool handed_over_ = false;  // the helper is
  bool stopping_ = false;
  std::thread helper_;
};

}  // namespace kalos
