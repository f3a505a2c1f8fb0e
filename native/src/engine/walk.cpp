#include "engine/walk.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <unordered_set>

#include "compute/cpu/portable/canonical.h"

namespace kalos {
namespace {

constexpr size_t most_lanes_a_walk = 256;            // queries that pass over a block together
constexpr size_t most_candidates_a_walk = 1u << 20;  // all their lists

// One query of one member.
struct Lane {
  Lane(const Collection& collection, const Device& device, WalkMember& owner, uint32_t query_index);

  WalkMember& member;
  PreparedQuery query;
  size_t wanted;
  double least_key;
  Sweep sweep;
  std::vector<Candidate> all;  // group_by: every row, since any may be the best of its group

  bool sweeps(const RowTable::Run& run) const { return run.coding && !member.group_by && sweep.has_bounds(); }
};

double least_key_of(const SearchRequest& request) {
  if (request.min_score) return *request.min_score;
  if (request.max_distance) return -*request.max_distance;
  return -std::numeric_limits<double>::infinity();
}

Lane::Lane(const Collection& collection, const Device& device, WalkMember& owner, uint32_t query_index)
    : member(owner),
      query(prepare_query(
          owner.request->vectors.subspan(size_t{query_index} * owner.request->dimension, owner.request->dimension))),
      wanted(owner.request->k == 0 ? 0 : size_t{owner.request->skip} + owner.request->k),
      least_key(least_key_of(*owner.request)),
      sweep(device, collection.coder(), query, owner.group_by ? 0 : wanted, least_key) {}

using Lanes = std::vector<std::unique_ptr<Lane>>;

class Walk {
 public:
  Walk(const Collection& collection, const Snapshot& snapshot, Lanes& lanes)
      : metric_(collection.info().metric), snapshot_(snapshot), lanes_(lanes) {
    for (auto& lane : lanes) {
      if (!members_.empty() && members_.back() == &lane->member) continue;
      members_.push_back(&lane->member);
      lane->member.rows_matched = 0;
    }
  }

  void run(const std::vector<const Namespace*>& scope) {
    for (const Namespace* owner : scope) {
      owner_ = owner;
      check_expiry_ = owner->expiring_count() != 0;
      const RowTable& rows = owner->vectors();
      for (size_t chunk = 0; chunk < rows.run_count(); ++chunk) {
        run_ = rows.run(chunk);
        for (at_ = 0; at_ < run_.count; at_ += rows_a_block) {
          count_ = std::min(rows_a_block, run_.count - at_);
          if (!block()) return;
        }
      }
    }
  }

 private:
  // False once nobody waits for an answer any more.
  bool block() {
    for (WalkMember* member : members_) start_block(*member);
    bool anyone = false;
    for (auto& lane : lanes_) {
      WalkMember& member = lane->member;
      if (member.expired) continue;
      anyone = true;
      if (lane->sweeps(run_)) {
        lane->sweep.scan(*owner_, run_, at_, count_, ~uint64_t{0}, [&](uint32_t i) { return counts(member, i); });
      } else {
        score(*lane);
      }
      if (member.deadline.passed_after(count_)) member.expired = true;
    }
    return anyone;
  }

  void start_block(WalkMember& member) {
    if (member.filter) std::memset(member.answers, int(WalkMember::Answer::unknown), sizeof member.answers);
    if (!member.request->explain) return;
    // Explaining costs: every row is asked, so that rows_matched is a count and not a guess.
    for (uint32_t i = 0; i < count_; ++i) member.rows_matched += counts(member, i);
  }

  const RowEntry& entry(uint32_t i) const { return run_.entries[at_ + i]; }

  // Does the row count for this member: is it there, and does the filter match?
  bool counts(WalkMember& member, uint32_t i) {
    if (check_expiry_ && !entry(i).visible(snapshot_.now_us)) return false;
    if (!member.filter) return true;
    auto& answer = member.answers[i];
    if (answer == WalkMember::Answer::unknown) {
      bool matches = member.filter->matches(entry(i).record->metadata());
      answer = matches ? WalkMember::Answer::yes : WalkMember::Answer::no;
      if (member.deadline.passed_after(rows_a_filter_costs)) member.expired = true;
    }
    return answer == WalkMember::Answer::yes;
  }

  void score(Lane& lane) {
    RowBlock rows{run_.block.vectors + size_t{at_} * run_.block.stride, run_.block.norms + at_, run_.block.stride,
                  count_};
    snapshot_.device->score(metric_, rows, lane.query, scores_);
    lane.member.counts.scored += count_;
    bool all = lane.member.group_by.has_value();
    for (uint32_t i = 0; i < count_; ++i) {
      double key = metric_ == KALOS_METRIC_L2 ? -scores_[i] : scores_[i];
      uint64_t sequence = entry(i).sequence;
      if (all ? key < lane.least_key : !lane.sweep.takes(key, sequence)) continue;
      if (!counts(lane.member, i)) continue;
      Candidate candidate{key, sequence, {owner_, RowCode::of(run_.first + at_ + i, true)}};
      if (all) {
        lane.all.push_back(candidate);
      } else {
        lane.sweep.add(candidate);
      }
    }
  }

  kalos_metric metric_;
  const Snapshot& snapshot_;
  Lanes& lanes_;
  std::vector<WalkMember*> members_;
  // The block at hand: rows [at_, at_ + count_) of run_.
  const Namespace* owner_ = nullptr;
  RowTable::Run run_;
  uint32_t at_ = 0;
  uint32_t count_ = 0;
  bool check_expiry_ = false;
  double scores_[rows_a_block];
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

void finish(Lane& lane) {
  WalkMember& member = lane.member;
  std::vector<Candidate> sorted = member.group_by ? best_of_groups(std::move(lane.all), *member.group_by, lane.wanted,
                                                                   member.deadline, member.expired)
                                                  : lane.sweep.finish();
  member.counts.scanned += lane.sweep.counts().scanned;
  member.counts.narrowed += lane.sweep.counts().narrowed;
  member.counts.scored += lane.sweep.counts().scored;
  sorted.erase(sorted.begin(), sorted.begin() + std::ptrdiff_t(std::min<size_t>(member.request->skip, sorted.size())));
  sorted.shrink_to_fit();
  member.results.push_back(std::move(sorted));
}

}  // namespace

void walk(const Collection& collection, const Snapshot& snapshot, const std::vector<const Namespace*>& scope,
          std::span<WalkMember> members) {
  Lanes lanes;
  size_t candidates = 0;
  auto flush = [&] {
    if (lanes.empty()) return;
    Walk(collection, snapshot, lanes).run(scope);
    for (auto& lane : lanes) finish(*lane);
    lanes.clear();
    candidates = 0;
  };
  for (WalkMember& member : members) {
    const SearchRequest& request = *member.request;
    if (request.k == 0 && !request.explain) {
      member.results.resize(request.query_count);
      continue;
    }
    for (uint32_t query = 0; query < request.query_count && !member.expired; ++query) {
      size_t list = member.group_by ? most_candidates_a_walk : size_t{request.skip} + request.k;
      if (lanes.size() == most_lanes_a_walk || candidates + list > most_candidates_a_walk) flush();
      lanes.push_back(std::make_unique<Lane>(collection, *snapshot.device, member, query));
      candidates += list;
    }
  }
  flush();
}

}  // namespace kalos
