// The index: all collections in memory, always rebuilt from the store. Answers reads, takes changes that are committed.
//
// No locking here: the caller (store/database.h) holds the engine, so that no read runs while a change is published.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/cpus.h"
#include "engine/collection.h"
#include "engine/jobs.h"
#include "engine/sweep_counts.h"

namespace kalos {

// A committed change, as the store decided it.
struct RowChange {
  uint64_t collection_id = 0;
  std::unique_ptr<Row> row;  // given: insert it, or replace the row of the same sequence's namespace and id
  std::string namespace_key;
  std::string id;  // row absent: remove namespace_key, id
};
struct CollectionAdded {
  CollectionInfo info;  // a new one, or changed properties of one that exists
};
struct CollectionDropped {
  uint64_t collection_id = 0;
};
using Change = std::variant<RowChange, CollectionAdded, CollectionDropped>;

class Index {
 public:
  // backing: where the texts of new collections lie; threads: that a pass over many rows may take.
  explicit Index(TextBacking backing = {}, uint32_t threads = uint32_t(effective_cpus()));
  ~Index();

  // Serves the jobs in one pass: fills every job's reply (status, message, search_ns, fetch_ns). Checks each request
  // against its collection, its deadline before starting and every 64k rows, non-finite queries, filters.
  void read(std::span<ReadJob* const> jobs);

  // The same for the reads of a batch; words of a failure name nothing of the others.
  Reply read_one(const ReadRequest& request, int64_t deadline_ns);

  // Publishes a whole commit: reads see it from here on. Cannot fail: everything that can was checked before the
  // commit.
  void apply(std::vector<Change> changes, uint64_t commit_sequence);

  // A collection whose rows are still being loaded answers KALOS_STATUS_LOADING with "loading, 43 %"; one that does
  // not fit in memory answers KALOS_STATUS_STORE_ERROR with the words.
  void set_loading(const CollectionInfo& info, std::shared_ptr<const std::atomic<uint32_t>> percent);
  void set_loaded(std::unique_ptr<Collection> collection);
  void set_cold(const CollectionInfo& info, std::string words);

  // OK, or the Error that a read or write of this collection gets now (NOT_FOUND, LOADING, STORE_ERROR).
  Result<Collection*> find(uint64_t collection_id) const;
  Result<CollectionInfo> find_by_name(std::string_view name) const;
  std::vector<CollectionInfo> collections() const;  // by name, in whatever state

  // How searches have been run, since the start.
  struct SearchReport {
    std::string kernels;   // the inner loops in use: "avx512", "avx2", "portable"
    uint32_t threads = 0;  // that a pass may take
    uint64_t passes_on_one_thread = 0, passes_on_all_threads = 0;
    SweepCounts rows;
  };
  SearchReport search_report() const;

  uint64_t commit_sequence() const;
  uint64_t bytes() const;  // of all rows, as Collection::bytes counts them
  // What a cache of the rows takes of that is given back (Collection::drop_columns).
  void drop_columns();
  uint64_t row_count() const;

  // Rows whose time has come, at most `limit`: (collection, namespace key, id).
  struct Expired {
    uint64_t collection_id;
    std::string namespace_key;
    std::string id;
  };
  std::vector<Expired> expired(int64_t now_us, size_t limit) const;
  // The earliest expires_us of any row, or 0.
  int64_t next_expiry_us() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kalos
