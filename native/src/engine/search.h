// Vector search: requests are checked, walked together (engine/walk.h), and answered. Order: score, then row sequence,
// lower first.
#pragma once

#include <span>
#include <vector>

#include "engine/jobs.h"
#include "engine/pass.h"

namespace kalos {

// A search on its way: checked, then walked, then answered.
struct SearchJob {
  const SearchRequest* request = nullptr;
  int64_t deadline_ns = 0;
  Reply* reply = nullptr;              // filled
  uint64_t* bytes_of_batch = nullptr;  // see ReadJob
};

// OK, or what is wrong with the request for this collection.
Result<> check_search(const SearchRequest& request, const CollectionInfo& info);

// Serves searches of one collection and one scope, all of which passed check_search.
void search(const Collection& collection, const Snapshot& snapshot, const Scope& scope, std::span<SearchJob> jobs);

}  // namespace kalos
