// One walk over the rows of a scope serves every query that means them.
//
// The walk goes block by block (64 rows), so that a block stays in the cache while all queries pass over it. Rows with
// codes are swept (engine/sweep.h); those of small tables, and those that a query without bounds passes, are scored.
// Filters are asked of whole tables beforehand (engine/filter_mask.h), and what they rule out is not looked at. Where
// the columns for that are still being built, a row is asked for its metadata only if its bounds would let it enter the
// list of some query, which changes no answer but spares most of the asking.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/filter.h"
#include "engine/jobs.h"
#include "engine/pass.h"
#include "engine/planner.h"
#include "engine/sweep.h"

namespace kalos {

// The queries of one request, with what they share.
struct WalkMember {
  const SearchRequest* request = nullptr;
  std::optional<Filter> filter;
  std::optional<JsonPath> group_by;
  Deadline deadline{0};
  bool expired = false;
  // Filled by the walk.
  uint64_t rows_matched = 0;                         // of one query; counted where the request wants to be explained
  SweepCounts counts;                                // of all queries
  Plan plan = Plan::one_thread;                      // of the last walk
  double expected_ns[2] = {0, 0};                    // by plan, when it was chosen
  int64_t filter_ns = 0, scan_ns = 0, score_ns = 0;  // of all walks: masks; planes; vectors of what they left
  std::vector<std::vector<Candidate>> results;       // of each query, without the skipped ones
};

// Walks all queries of all members, as many at once as memory is well spent on.
void walk(const Collection& collection, const Snapshot& snapshot, const std::vector<const Namespace*>& scope,
          std::span<WalkMember> members);

}  // namespace kalos
