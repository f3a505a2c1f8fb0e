// Vector search: one walk over the rows of a scope serves every query that means them.
//
// The walk goes block by block (64 rows, so that a block stays in the cache while all queries pass over it). Scores
// come from the device; a row is asked for its metadata only if its score would enter the list of some query, which
// changes no answer (filtering is still before the top k) but spares most of the parsing. Order: score, then row
// sequence, lower first.
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
