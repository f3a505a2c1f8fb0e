#include "engine/walk.h"

#include <algorithm>
#include <limits>
#include <unordered_set>

#include "compute/cpu/portable/canonical.h"

namespace kalos {
namespace {

constexpr size_t most_lanes_a_walk = 256;            // queries that pass over a block together
constexpr size_t most_candidates_a_walk = 1u << 20;  // all their lists

constexpr uint32_t largest_window = 65536, smallest_window = 2048;

// Does a row count for this member: is it there, and does the filter match?
class MemberAdmission : public Admission {
 public:
  MemberAdmission(WalkMember& member, int64_t now_us) : member_(member), now_us_(now_us) {}

  bool admits(const RowRef& row) override {
    if (row.owner->expiring_count() != 0 && !row.entry().visible(now_us_)) return false;
    if (!member_.filter) return true;
    if (member_.deadline.passed_after(rows_a_filter_costs)) member_.expired = true;
    return member_.filter->matches(row.entry().record->metadata());
  }

 private:
  WalkMember& member_;
  int64_t now_us_;
};

// One query of one member.
struct Lane {
  Lane(const Collection& collection, const Snapshot& snapshot, WalkMember& owner, uint32_t query_index,
       uint32_t window);

  WalkMember& member;
  PreparedQuery query;
  size_t wanted;
  double least_key;
  MemberAdmission admission;
  Sweep sweep;
  std::vector<Candidate> all;  // group_by: every row, since any may be the best of its group

  bool sweeps(const RowTable::Run& run) const { return run.coding && !member.group_by && sweep.has_bounds(); }
};

double least_key_of(const SearchRequest& request) {
  if (request.min_score) return *request.min_score;
  if (request.max_distance) return -*request.max_distance;
  return -std::numeric_limits<double>::infinity();
}

Lane::Lane(const Collection& collection, const Snapshot& snapshot, WalkMember& owner, uint32_t query_index,
           uint32_t window)
    : member(owner),
      query(prepare_query(
          owner.request->vectors.subspan(size_t{query_index} * owner.request->dimension, owner.request->dimension))),
      wanted(owner.request->k == 0 ? 0 : size_t{owner.request->skip} + owner.request->k),
      least_key(least_key_of(*owner.request)),
      admission(owner, snapshot.now_us),
      sweep(*snapshot.device, collection.coder(), query, owner.group_by ? 0 : wanted, least_key, window, &admission) {}

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
    for (WalkMember* member : members_) {
      if (member->request->explain) count_matches(*member);
    }
    bool anyone = false;
    for (auto& lane : lanes_) {
      WalkMember& member = lane->member;
      if (member.expired) continue;
      anyone = true;
      if (lane->sweeps(run_)) {
        lane->sweep.scan(*owner_, run_, at_, count_, ~uint64_t{0});
      } else {
        score(*lane);
      }
      if (member.deadline.passed_after(count_)) member.expired = true;
    }
    return anyone;
  }

  // Explaining costs: every row is asked, so that rows_matched is a count and not a guess.
  void count_matches(WalkMember& member) {
    MemberAdmission admission(member, snapshot_.now_us);
    for (uint32_t i = 0; i < count_; ++i) member.rows_matched += admission.admits(row(i));
  }

  RowRef row(uint32_t i) const { return {owner_, RowCode::of(run_.first + at_ + i, true)}; }

  void score(Lane& lane) {
    RowBlock rows{run_.block.vectors + size_t{at_} * run_.block.stride, run_.block.norms + at_, run_.block.stride,
                  count_};
    snapshot_.device->score(metric_, rows, lane.query, scores_);
    lane.member.counts.scored += count_;
    bool all = lane.member.group_by.has_value();
    for (uint32_t i = 0; i < count_; ++i) {
      double key = metric_ == KALOS_METRIC_L2 ? -scores_[i] : scores_[i];
      uint64_t sequence = run_.entries[at_ + i].sequence;
      if (all ? key < lane.least_key : !lane.sweep.takes(key, sequence)) continue;
      if (!lane.admission.admits(row(i))) continue;
      Candidate candidate{key, sequence, row(i)};
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
  uint64_t queries = 0, rows = 0;
  for (const WalkMember& member : members) queries += member.request->query_count;
  for (const Namespace* owner : scope) rows += owner->vectors().size() + rows_a_block;
  // All windows together stay in the cache.
  uint64_t window =
      std::max<uint64_t>(largest_window / std::clamp<uint64_t>(queries, 1, most_lanes_a_walk), smallest_window);
  window = std::min(window, rows + rows_a_block) / rows_a_block * rows_a_block;
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
      lanes.push_back(std::make_unique<Lane>(collection, snapshot, member, query, uint32_t(window)));
      candidates += list;
    }
  }
  flush();
}

}  // namespace kalos
