#include "engine/walk.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <unordered_set>

#include "compute/cpu/portable/canonical.h"
#include "engine/scan_pool.h"

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

// What a walk has to pass over: the runs of rows of its scope.
struct Stop {
  const Namespace* owner = nullptr;
  uint32_t run = 0;
};

class Walk {
 public:
  Walk(const Collection& collection, const Snapshot& snapshot, Lanes& lanes, uint32_t window)
      : collection_(collection),
        metric_(collection.info().metric),
        snapshot_(snapshot),
        lanes_(lanes),
        window_(window),
        expired_(lanes.size()),
        thresholds_(lanes.size()) {
    for (auto& lane : lanes) {
      if (!members_.empty() && members_.back() == &lane->member) continue;
      members_.push_back(&lane->member);
      lane->member.rows_matched = 0;
    }
    for (auto& threshold : thresholds_) threshold = -std::numeric_limits<double>::infinity();
  }

  void run(const std::vector<const Namespace*>& scope) {
    uint64_t rows = 0;
    for (const Namespace* owner : scope) {
      rows += owner->vectors().size();
      for (size_t run = 0; run < owner->vectors().run_count(); ++run) stops_.push_back({owner, uint32_t(run)});
    }
    const CodeShape shape = collection_.coder().shape();
    const uint64_t bytes = rows * (shape.group_bytes() / rows_a_group) * lanes_.size();
    const Plan plan = snapshot_.planner->choose(bytes, can_share());
    const int64_t started = monotonic_ns();
    if (plan == Plan::all_threads) {
      std::vector<Sweeps> all(snapshot_.pool->threads());
      snapshot_.pool->run([&](uint32_t thread) {
        all[thread] = thread == 0 ? own_sweeps() : new_sweeps();
        visit(all[thread]);
      });
      for (size_t thread = 1; thread < all.size(); ++thread) {
        for (size_t i = 0; i < all[thread].size(); ++i) lanes_[i]->sweep.take_over(*all[thread][i].sweep);
      }
    } else {
      Sweeps own = own_sweeps();
      visit(own);
    }
    snapshot_.planner->report(plan, bytes, monotonic_ns() - started);
    for (size_t i = 0; i < lanes_.size(); ++i) {
      if (expired_[i]) lanes_[i]->member.expired = true;
    }
    for (WalkMember* member : members_) member->plan = plan;
  }

 private:
  // A lane on one thread.
  struct Pace {
    Lane* lane = nullptr;
    Sweep* sweep = nullptr;
    Deadline* deadline = nullptr;       // all lanes of a member count for one
    std::unique_ptr<Sweep> made_sweep;  // on other threads than the walk's own
    std::unique_ptr<Deadline> made_deadline;
  };
  using Sweeps = std::vector<Pace>;

  // Filters that are asked row by row, and what counts rows, know one thread only.
  bool can_share() const {
    return std::none_of(members_.begin(), members_.end(), [](const WalkMember* member) {
      return member->filter || member->group_by || member->request->explain;
    });
  }

  Sweeps own_sweeps() {
    Sweeps sweeps;
    for (auto& lane : lanes_) sweeps.push_back({lane.get(), &lane->sweep, &lane->member.deadline, nullptr, nullptr});
    return sweeps;
  }

  Sweeps new_sweeps() {
    Sweeps sweeps;
    for (auto& lane : lanes_) {
      auto sweep = std::make_unique<Sweep>(*snapshot_.device, collection_.coder(), lane->query, lane->wanted,
                                           lane->least_key, window_, &lane->admission);
      Pace pace{lane.get(), sweep.get(), nullptr, std::move(sweep), nullptr};
      if (sweeps.empty() || &sweeps.back().lane->member != &lane->member) {
        pace.made_deadline = std::make_unique<Deadline>(lane->member.deadline);
        pace.deadline = pace.made_deadline.get();
      } else {
        pace.deadline = sweeps.back().deadline;
      }
      sweeps.push_back(std::move(pace));
    }
    return sweeps;
  }

  // Takes one stop after the other until there are none left, or nobody waits for an answer any more.
  void visit(Sweeps& sweeps) {
    for (size_t i; (i = next_++) < stops_.size();) {
      const Namespace& owner = *stops_[i].owner;
      const RowTable::Run run = owner.vectors().run(stops_[i].run);
      for (uint32_t at = 0; at < run.count; at += rows_a_block) {
        if (!block(sweeps, owner, run, at, std::min(rows_a_block, run.count - at))) return;
      }
      share_thresholds(sweeps);
    }
    for (Pace& pace : sweeps) pace.sweep->narrow();
  }

  bool block(Sweeps& sweeps, const Namespace& owner, const RowTable::Run& run, uint32_t at, uint32_t count) {
    for (WalkMember* member : members_) {
      if (member->request->explain) count_matches(*member, owner, run, at, count);
    }
    bool anyone = false;
    for (size_t i = 0; i < sweeps.size(); ++i) {
      Pace& pace = sweeps[i];
      if (expired_[i].load(std::memory_order_relaxed) || pace.lane->member.expired) continue;
      anyone = true;
      if (pace.lane->sweeps(run)) {
        pace.sweep->scan(owner, run, at, count, ~uint64_t{0});
      } else {
        score(pace, owner, run, at, count);
      }
      if (pace.deadline->passed_after(count)) expired_[i] = true;
    }
    return anyone;
  }

  // What one thread has ruled out, no other has to look at.
  void share_thresholds(Sweeps& sweeps) {
    for (size_t i = 0; i < sweeps.size(); ++i) {
      double mine = sweeps[i].sweep->threshold();
      double known = thresholds_[i].load(std::memory_order_relaxed);
      while (known < mine && !thresholds_[i].compare_exchange_weak(known, mine, std::memory_order_relaxed)) {
      }
      sweeps[i].sweep->raise_threshold(known);
    }
  }

  // Explaining costs: every row is asked, so that rows_matched is a count and not a guess.
  void count_matches(WalkMember& member, const Namespace& owner, const RowTable::Run& run, uint32_t at,
                     uint32_t count) {
    MemberAdmission admission(member, snapshot_.now_us);
    for (uint32_t i = 0; i < count; ++i) member.rows_matched += admission.admits(row_at(owner, run, at + i));
  }

  static RowRef row_at(const Namespace& owner, const RowTable::Run& run, uint32_t i) {
    return {&owner, RowCode::of(run.first + i, true)};
  }

  void score(Pace& pace, const Namespace& owner, const RowTable::Run& run, uint32_t at, uint32_t count) {
    double scores[rows_a_block];
    RowBlock rows{run.block.vectors + size_t{at} * run.block.stride, run.block.norms + at, run.block.stride, count};
    Lane& lane = *pace.lane;
    snapshot_.device->score(metric_, rows, lane.query, scores);
    pace.sweep->count_scored(count);
    const bool all = lane.member.group_by.has_value();
    for (uint32_t i = 0; i < count; ++i) {
      const double key = metric_ == KALOS_METRIC_L2 ? -scores[i] : scores[i];
      const uint64_t sequence = run.entries[at + i].sequence;
      if (all ? key < lane.least_key : !pace.sweep->takes(key, sequence)) continue;
      const RowRef row = row_at(owner, run, at + i);
      if (!lane.admission.admits(row)) continue;
      if (all) {
        lane.all.push_back({key, sequence, row});
      } else {
        pace.sweep->add({key, sequence, row});
      }
    }
  }

  const Collection& collection_;
  const kalos_metric metric_;
  const Snapshot& snapshot_;
  Lanes& lanes_;
  const uint32_t window_;
  std::vector<WalkMember*> members_;
  std::vector<Stop> stops_;
  std::atomic<size_t> next_ = 0;
  std::vector<std::atomic<bool>> expired_;       // of each lane
  std::vector<std::atomic<double>> thresholds_;  // likewise
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
    Walk(collection, snapshot, lanes, uint32_t(window)).run(scope);
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
