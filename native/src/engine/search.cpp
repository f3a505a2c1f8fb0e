#include "engine/search.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "engine/walk.h"

namespace kalos {
namespace {

// A request on its way: walked unless an error is known before, then answered.
struct Member {
  SearchJob* job = nullptr;
  WalkMember walk;
  std::optional<Error> error;
};

std::string explain_json(const WalkMember& member, uint64_t rows_in_scope, const Snapshot& snapshot) {
  nlohmann::ordered_json explain{{"plan", member.counts.scanned != 0 ? "code scan" : "canonical scan"},
                                 {"threads", plan_name(member.plan)},
                                 {"expected_us",
                                  {{plan_name(Plan::one_thread), member.expected_ns[0] / 1000},
                                   {plan_name(Plan::all_threads), member.expected_ns[1] / 1000}}},
                                 {"device", snapshot.device->name()},
                                 {"rows_in_scope", rows_in_scope},
                                 {"rows_matched", member.rows_matched},
                                 {"rows_scanned", member.counts.scanned},
                                 {"rows_narrowed", member.counts.narrowed},
                                 {"rows_scored", member.counts.scored},
                                 {"filter_us", double(member.filter_ns) / 1000},
                                 {"scan_us", double(member.scan_ns) / 1000},
                                 {"score_us", double(member.score_ns) / 1000}};
  return explain.dump();
}

Result<Bytes> answer(const Collection& collection, const Snapshot& snapshot, const std::vector<const Namespace*>& scope,
                     const WalkMember& member) {
  const SearchRequest& request = *member.request;
  HitsAnswer hits;
  hits.commit_sequence = snapshot.commit_sequence;
  hits.include = request.include;
  hits.dimension = collection.info().dimension;
  hits.has_scores = true;
  hits.groups.push_back(0);
  bool distance = collection.info().metric == KALOS_METRIC_L2;
  for (const auto& result : member.results) {
    for (const Candidate& candidate : result) {
      Hit hit = make_hit(candidate.row, request.include);
      hit.score = distance ? -candidate.key : candidate.key;
      hits.hits.push_back(hit);
    }
    hits.groups.push_back(uint32_t(hits.hits.size()));
  }
  if (request.explain) {
    uint64_t rows = 0;
    for (const Namespace* owner : scope) rows += owner->visible_count(snapshot.now_us);
    hits.explain = explain_json(member, rows, snapshot);
  }
  return encode_hits(hits);
}

// What is known before the walk: filters that do not parse, and replies that could not be sent anyway.
void prepare(Member& member, SearchJob& job, uint64_t rows_in_scope) {
  member.job = &job;
  member.walk.request = job.request;
  member.walk.deadline = Deadline(job.deadline_ns);
  const SearchRequest& request = *job.request;
  if (request.filter) {
    auto filter = Filter::parse(*request.filter);
    if (!filter) {
      member.error = filter.error();
      return;
    }
    if (!filter->matches_all()) member.walk.filter = std::move(*filter);
  }
  if (request.group_by) member.walk.group_by.emplace(*request.group_by);
  uint64_t hits_a_query =
      std::min<uint64_t>(request.k, rows_in_scope - std::min<uint64_t>(rows_in_scope, request.skip));
  if (request.query_count * hits_a_query * sizeof(kalos_hit_fields) <= KALOS_MAX_MESSAGE_BYTES) return;
  // Only a filter, a bound or groups could make it fit; a walk that most likely ends in an error is not worth it.
  member.error = invalid(std::to_string(request.query_count) + " queries with up to " + std::to_string(hits_a_query) +
                         " hits each may not fit in one reply of " + std::to_string(KALOS_MAX_MESSAGE_BYTES) +
                         " bytes; ask for fewer queries or a smaller k at once");
}

}  // namespace

Result<> check_search(const SearchRequest& request, const CollectionInfo& info) {
  if (request.dimension != info.dimension && request.query_count != 0) {
    return invalid("the query has dimension " + std::to_string(request.dimension) + ", collection \"" + info.name +
                   "\" has dimension " + std::to_string(info.dimension));
  }
  if (request.k > KALOS_MAX_K || request.skip > KALOS_MAX_K - request.k) {
    return invalid("k is " + std::to_string(request.k) + " and offset " + std::to_string(request.skip) +
                   "; together they may be at most " + std::to_string(KALOS_MAX_K) + "; use a scan to read more");
  }
  bool distance = info.metric == KALOS_METRIC_L2;
  if (distance && request.min_score) {
    return invalid("min_score does not fit metric l2, where lower is better; use max_distance");
  }
  if (!distance && request.max_distance) return invalid("max_distance is for metric l2 only; use min_score");
  if ((request.min_score && std::isnan(*request.min_score)) ||
      (request.max_distance && std::isnan(*request.max_distance))) {
    return invalid("min_score and max_distance must be numbers, not NaN");
  }
  if (request.vectors.size() != size_t{request.query_count} * request.dimension) {
    return invalid("the vectors hold " + std::to_string(request.vectors.size()) + " numbers, expected " +
                   std::to_string(request.query_count) + " x " + std::to_string(request.dimension));
  }
  for (size_t i = 0; i < request.vectors.size(); ++i) {
    if (std::isfinite(request.vectors[i])) continue;
    return invalid("query " + std::to_string(i / request.dimension) + ", component " +
                   std::to_string(i % request.dimension) + " is not finite in float32");
  }
  return Unit{};
}

void search(const Collection& collection, const Snapshot& snapshot, const Scope& scope, std::span<SearchJob> jobs) {
  int64_t started = monotonic_ns();
  std::vector<const Namespace*> namespaces = in_scope(collection.namespaces(), scope);
  uint64_t rows = 0;
  for (const Namespace* owner : namespaces) rows += owner->vectors().size();
  std::vector<Member> members(jobs.size());
  std::vector<WalkMember> walking;
  for (size_t i = 0; i < jobs.size(); ++i) {
    prepare(members[i], jobs[i], rows);
    if (!members[i].error) walking.push_back(std::move(members[i].walk));
  }
  walk(collection, snapshot, namespaces, walking);
  auto walked_member = walking.begin();
  for (Member& member : members) {
    if (!member.error) member.walk = std::move(*walked_member++);
  }
  int64_t walked = monotonic_ns();
  for (Member& member : members) {
    Reply& reply = *member.job->reply;
    if (member.walk.expired && !member.error) member.error = expired_error();
    if (!member.error) {
      uint64_t* bytes_of_batch = member.job->bytes_of_batch;
      auto room = count_in_batch(bytes_of_batch, 0);
      auto message = room ? answer(collection, snapshot, namespaces, member.walk) : room.error();
      if (message) room = count_in_batch(bytes_of_batch, message->size());
      if (message && room) {
        reply.message = std::move(*message);
      } else {
        member.error = message ? room.error() : message.error();
      }
    }
    if (member.error) reply = error_reply(*member.error);
    reply.timings.search_ns = uint64_t(walked - started);
    int64_t completed = monotonic_ns();
    reply.timings.fetch_ns = uint64_t(completed - walked);
  }
}

}  // namespace kalos
