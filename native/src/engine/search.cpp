#include "engine/search.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_set>

#include "compute/cpu/portable/canonical.h"
#include "engine/filter.h"
#include "engine/top_k.h"

namespace kalos {
namespace {

constexpr uint32_t block_rows = 64;
constexpr size_t most_lanes_a_walk = 256;            // queries that pass over a block together
constexpr size_t most_candidates_a_walk = 1u << 20;  // all their lists

constexpr double lowest = -std::numeric_limits<double>::infinity();

// A job in a walk, with what its lanes share.
struct Member {
  SearchJob* job = nullptr;
  std::optional<Filter> filter;
  std::optional<JsonPath> group_by;
  Deadline deadline{0};
  bool expired = false;
  std::optional<Error> error;
  uint64_t rows_matched = 0, rows_scored = 0;   // of one query
  std::vector<std::vector<Candidate>> results;  // of each query, without the skipped ones
  // Of the block at hand: is the filter's answer known for the row, and what is it?
  enum class Answer : uint8_t { unknown, no, yes };
  Answer answers[block_rows];
};

// One query of one member in a walk.
struct Lane {
  Member* member = nullptr;
  PreparedQuery query;
  TopK best;
  std::vector<Candidate> all;  // group_by: every row, since any may be the best of its group
};

double least_key(const SearchRequest& request) {
  if (request.min_score) return *request.min_score;
  if (request.max_distance) return -*request.max_distance;
  return lowest;
}

Lane make_lane(Member& member, uint32_t query) {
  const SearchRequest& request = *member.job->request;
  return {&member,
          prepare_query(request.vectors.subspan(size_t{query} * request.dimension, request.dimension)),
          TopK(request.group_by || request.k == 0 ? 0 : size_t{request.skip} + request.k, least_key(request)),
          {}};
}

// The walk of some lanes over the rows of a scope.
class Walk {
 public:
  Walk(const Collection& collection, const Snapshot& snapshot, std::vector<Lane>& lanes)
      : metric_(collection.info().metric), snapshot_(snapshot), lanes_(lanes) {
    for (Lane& lane : lanes) {
      if (!members_.empty() && members_.back() == lane.member) continue;
      members_.push_back(lane.member);
      lane.member->rows_matched = lane.member->rows_scored = 0;
    }
  }

  void run(const std::vector<const Namespace*>& scope) {
    for (const Namespace* owner : scope) {
      const RowTable& rows = owner->vectors();
      for (size_t chunk = 0; chunk < rows.run_count(); ++chunk) {
        RowTable::Run run = rows.run(chunk);
        for (uint32_t at = 0; at < run.count; at += block_rows) {
          if (!block(*owner, run, at, std::min(block_rows, run.count - at))) return;
        }
      }
    }
  }

 private:
  // False once nobody waits for an answer any more.
  bool block(const Namespace& owner, const RowTable::Run& run, uint32_t at, uint32_t count) {
    owner_ = &owner;
    entries_ = run.entries + at;
    first_row_ = run.first + at;
    count_ = count;
    check_expiry_ = owner.expiring_count() != 0;
    for (Member* member : members_) start_block(*member);
    RowBlock block{run.block.vectors + size_t{at} * run.block.stride, run.block.norms + at, run.block.stride, count};
    bool anyone = false;
    for (Lane& lane : lanes_) {
      if (lane.member->expired) continue;
      anyone = true;
      snapshot_.device->score(metric_, block, lane.query, scores_);
      if (metric_ == KALOS_METRIC_L2) {
        for (uint32_t i = 0; i < count; ++i) scores_[i] = -scores_[i];
      }
      select(lane);
      if (lane.member->deadline.passed_after(count)) lane.member->expired = true;
    }
    return anyone;
  }

  void start_block(Member& member) {
    std::memset(member.answers, int(Member::Answer::unknown), sizeof member.answers);
    member.rows_scored += count_;
    if (!member.job->request->explain) return;
    // Explaining costs: every row is asked, so that rows_matched is a count and not a guess.
    for (uint32_t i = 0; i < count_; ++i) member.rows_matched += visible(i) && matches(member, i);
  }

  bool visible(uint32_t i) const { return !check_expiry_ || entries_[i].visible(snapshot_.now_us); }

  bool matches(Member& member, uint32_t i) {
    if (!member.filter) return true;
    auto& answer = member.answers[i];
    if (answer == Member::Answer::unknown) {
      answer = member.filter->matches(entries_[i].record->metadata()) ? Member::Answer::yes : Member::Answer::no;
      if (member.deadline.passed_after(rows_a_filter_costs)) member.expired = true;
    }
    return answer == Member::Answer::yes;
  }

  Candidate candidate(uint32_t i) const {
    return {scores_[i], entries_[i].sequence, {owner_, RowCode::of(first_row_ + i, true)}};
  }

  void select(Lane& lane) {
    if (lane.member->group_by) {
      for (uint32_t i = 0; i < count_; ++i) {
        if (scores_[i] >= lane.best.threshold() && visible(i) && matches(*lane.member, i))
          lane.all.push_back(candidate(i));
      }
      return;
    }
    double threshold = lane.best.threshold();
    for (uint32_t i = 0; i < count_; ++i) {
      if (scores_[i] < threshold) continue;
      if (!lane.best.takes(scores_[i], entries_[i].sequence) || !visible(i) || !matches(*lane.member, i)) continue;
      lane.best.add(candidate(i));
      threshold = lane.best.threshold();
    }
  }

  kalos_metric metric_;
  const Snapshot& snapshot_;
  std::vector<Lane>& lanes_;
  std::vector<Member*> members_;
  // The block at hand.
  const Namespace* owner_ = nullptr;
  const RowEntry* entries_ = nullptr;
  uint32_t first_row_ = 0;
  uint32_t count_ = 0;
  bool check_expiry_ = false;
  double scores_[block_rows];
};

// The best rows of which no two have the same value; rows without the key stand for themselves.
std::vector<Candidate> best_of_groups(std::vector<Candidate> all, const JsonPath& path, size_t wanted,
                                      Deadline& deadline, bool& expired) {
  auto worse = [](const Candidate& a, const Candidate& b) { return better(b, a); };
  std::make_heap(all.begin(), all.end(), worse);
  std::vector<Candidate> chosen;
  std::unordered_set<std::string> seen;
  while (!all.empty() && chosen.size() < wanted) {
    std::pop_heap(all.begin(), all.end(), worse);
    Candidate best = all.back();
    all.pop_back();
    JsonValue value = path.find(json_root(best.row.entry().record->metadata()));
    if (value.kind != JsonKind::missing) {
      std::string canonical;
      append_canonical(value, canonical);
      if (!seen.insert(std::move(canonical)).second) continue;
    }
    chosen.push_back(best);
    if (deadline.passed_after(rows_a_filter_costs)) {
      expired = true;
      break;
    }
  }
  return chosen;
}

void finish_lane(Lane& lane) {
  Member& member = *lane.member;
  const SearchRequest& request = *member.job->request;
  std::vector<Candidate> sorted =
      member.group_by ? best_of_groups(std::move(lane.all), *member.group_by, size_t{request.skip} + request.k,
                                       member.deadline, member.expired)
                      : lane.best.take_sorted();
  sorted.erase(sorted.begin(), sorted.begin() + std::ptrdiff_t(std::min<size_t>(request.skip, sorted.size())));
  sorted.shrink_to_fit();
  member.results.push_back(std::move(sorted));
}

// Walks all queries of all members, as many at once as memory is well spent on.
void walk_all(const Collection& collection, const Snapshot& snapshot, const std::vector<const Namespace*>& scope,
              std::vector<Member>& members) {
  std::vector<Lane> lanes;
  size_t candidates = 0;
  auto flush = [&] {
    if (lanes.empty()) return;
    Walk(collection, snapshot, lanes).run(scope);
    for (Lane& lane : lanes) finish_lane(lane);
    lanes.clear();
    candidates = 0;
  };
  for (Member& member : members) {
    const SearchRequest& request = *member.job->request;
    if (request.k == 0 && !request.explain) {
      member.results.resize(request.query_count);
      continue;
    }
    for (uint32_t query = 0; query < request.query_count && !member.error && !member.expired; ++query) {
      size_t list = member.group_by ? most_candidates_a_walk : size_t{request.skip} + request.k;
      if (lanes.size() == most_lanes_a_walk || candidates + list > most_candidates_a_walk) flush();
      lanes.push_back(make_lane(member, query));
      candidates += list;
    }
  }
  flush();
}

std::string explain_json(const Member& member, uint64_t rows_in_scope, const Snapshot& snapshot) {
  nlohmann::ordered_json explain{{"plan", "canonical scan"},
                                 {"device", snapshot.device->name()},
                                 {"rows_in_scope", rows_in_scope},
                                 {"rows_matched", member.rows_matched},
                                 {"rows_scored", member.rows_scored}};
  return explain.dump();
}

Result<Bytes> answer(const Collection& collection, const Snapshot& snapshot, const std::vector<const Namespace*>& scope,
                     const Member& member) {
  const SearchRequest& request = *member.job->request;
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
void prepare_member(Member& member, SearchJob& job, uint64_t rows_in_scope) {
  member.job = &job;
  member.deadline = Deadline(job.deadline_ns);
  const SearchRequest& request = *job.request;
  if (request.filter) {
    auto filter = Filter::parse(*request.filter);
    if (!filter) {
      member.error = filter.error();
      return;
    }
    if (!filter->matches_all()) member.filter = std::move(*filter);
  }
  if (request.group_by) member.group_by.emplace(*request.group_by);
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
  for (size_t i = 0; i < jobs.size(); ++i) prepare_member(members[i], jobs[i], rows);
  walk_all(collection, snapshot, namespaces, members);
  int64_t walked = monotonic_ns();
  for (Member& member : members) {
    Reply& reply = *member.job->reply;
    if (member.expired && !member.error) member.error = expired_error();
    if (!member.error) {
      uint64_t* bytes_of_batch = member.job->bytes_of_batch;
      auto room = count_in_batch(bytes_of_batch, 0);
      auto message = room ? answer(collection, snapshot, namespaces, member) : room.error();
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
