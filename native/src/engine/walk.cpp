#include "engine/walk.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <unordered_set>

#include "compute/cpu/portable/canonical.h"
#include "engine/filter_mask.h"
#include "engine/scan_pool.h"

namespace kalos {
namespace {

constexpr size_t most_lanes_a_walk = 256;            // queries that pass over a block together
constexpr size_t most_candidates_a_walk = 1u << 20;  // all their lists

constexpr size_t fewest_lanes_shared = 8;  // to score what is left on several threads

constexpr uint64_t rows_built_a_search = 1u << 18;  // into the columns of a table
constexpr uint32_t largest_window = 65536, smallest_window = 4096;

// Does a row count for this member: is it there, and does the filter match, unless masks have said so?
class MemberAdmission : public Admission {
 public:
  MemberAdmission(WalkMember& member, int64_t now_us) : member_(member), now_us_(now_us) {}

  void leave_filter_to_masks() { asks_filter_ = false; }

  bool admits(const RowRef& row) override {
    if (row.owner->expiring_count() != 0 && !row.entry().visible(now_us_)) return false;
    if (!asks_filter_ || !member_.filter) return true;
    if (member_.deadline.passed_after(rows_a_filter_costs)) member_.expired = true;
    return member_.filter->matches(row.entry().record->metadata());
  }

 private:
  WalkMember& member_;
  int64_t now_us_;
  bool asks_filter_ = true;
};

// One query of one member.
struct Lane {
  Lane(const Collection& collection, const Snapshot& snapshot, WalkMember& owner, uint32_t query_index,
       size_t rows_wanted, uint32_t window);

  WalkMember& member;
  PreparedQuery query;
  size_t wanted;
  double least_key;
  MemberAdmission admission;
  Sweep sweep;

  bool sweeps(const RowTable::Run& run) const { return run.coding && sweep.has_bounds(); }
};

double least_key_of(const SearchRequest& request) {
  if (request.min_score) return *request.min_score;
  if (request.max_distance) return -*request.max_distance;
  return -std::numeric_limits<double>::infinity();
}

Lane::Lane(const Collection& collection, const Snapshot& snapshot, WalkMember& owner, uint32_t query_index,
           size_t rows_wanted, uint32_t window)
    : member(owner),
      query(prepare_query(
          owner.request->vectors.subspan(size_t{query_index} * owner.request->dimension, owner.request->dimension))),
      wanted(rows_wanted),
      least_key(least_key_of(*owner.request)),
      admission(owner, snapshot.now_us),
      sweep(*snapshot.device, collection.coder(), query, wanted, least_key, window, &admission) {}

using Lanes = std::vector<std::unique_ptr<Lane>>;

// What a walk has to pass over: the runs of rows of its scope.
struct Stop {
  uint32_t owner = 0;  // of the scope
  uint32_t run = 0;
};

// A member in a walk.
struct Filtered {
  WalkMember* member = nullptr;
  std::vector<FilterMask> masks;  // of each namespace of the scope; none: no filter, or it is asked row by row

  uint64_t among(uint32_t owner, uint32_t first_row) const {
    return masks.empty() ? ~uint64_t{0} : masks[owner].bits(first_row);
  }
};

class Walk {
 public:
  Walk(const Collection& collection, const Snapshot& snapshot, const std::vector<const Namespace*>& scope, Lanes& lanes,
       uint32_t window)
      : collection_(collection),
        metric_(collection.info().metric),
        snapshot_(snapshot),
        scope_(scope),
        lanes_(lanes),
        window_(window),
        expired_(lanes.size()),
        thresholds_(lanes.size()) {
    for (auto& lane : lanes) {
      if (members_.empty() || members_.back().member != &lane->member) members_.push_back({&lane->member, {}});
      member_of_.push_back(uint32_t(members_.size() - 1));
    }
    for (auto& threshold : thresholds_) threshold = -std::numeric_limits<double>::infinity();
  }

  // The best rows of each lane.
  std::vector<std::vector<Candidate>> run() {
    const int64_t asked = monotonic_ns();
    for (Filtered& filtered : members_) ask_filter(filtered);
    const int64_t answered = monotonic_ns();
    for (size_t i = 0; i < lanes_.size(); ++i) {
      if (!members_[member_of_[i]].masks.empty()) lanes_[i]->admission.leave_filter_to_masks();
    }
    for (Filtered& filtered : members_) {
      if (filtered.member->request->explain) count_matches(filtered);
    }
    const uint64_t bytes = list_stops() * (collection_.coder().shape().group_bytes() / rows_a_group) * lanes_.size();
    Planner& planner = *snapshot_.planner;
    const double expected[] = {planner.expected_ns(Plan::one_thread, bytes),
                               planner.expected_ns(Plan::all_threads, bytes)};
    const Plan plan = planner.choose(bytes, can_share());
    const int64_t started = monotonic_ns();
    visit_all(plan);
    const int64_t ended = monotonic_ns();
    planner.report(plan, bytes, ended - started);
    std::vector<std::vector<Candidate>> best = finish_all(plan);
    const int64_t finished = monotonic_ns();
    for (size_t i = 0; i < lanes_.size(); ++i) {
      if (expired_[i]) lanes_[i]->member.expired = true;
    }
    for (Filtered& filtered : members_) {
      WalkMember& member = *filtered.member;
      member.plan = plan;
      std::copy_n(expected, 2, member.expected_ns);
      member.filter_ns += answered - asked;
      member.scan_ns += ended - started;
      member.score_ns += finished - ended;
    }
    for (auto& lane : lanes_) lane->member.counts += lane->sweep.counts();
    return best;
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
  // What one thread has.
  struct Sweeps {
    std::vector<Pace> paces;
    std::vector<Sweep::Share> shares, of_groups;  // of a block, of some of its groups
    std::vector<BlockScan> scans;
  };

  // Masks for all of the scope, or none while the columns of a large table are being built: a part for each search.
  void ask_filter(Filtered& filtered) {
    WalkMember& member = *filtered.member;
    if (!member.filter) return;
    std::vector<FilterMask> masks;
    for (const Namespace* owner : scope_) {
      const RowTable& rows = owner->vectors();
      if (!build_columns(*member.filter, owner->columns(true), rows, rows_built_a_search)) return;
      auto mask = match_rows(*member.filter, owner->columns(true), rows, member.deadline);
      if (!mask) {
        member.expired = true;
        return;
      }
      masks.push_back(std::move(*mask));
    }
    filtered.masks = std::move(masks);
  }

  bool anyone_wants(uint32_t owner) const {
    return std::any_of(members_.begin(), members_.end(), [&](const Filtered& filtered) {
      return filtered.masks.empty() || filtered.masks[owner].matches != 0;
    });
  }

  // How many rows they hold.
  uint64_t list_stops() {
    uint64_t rows = 0;
    for (uint32_t owner = 0; owner < scope_.size(); ++owner) {
      if (!anyone_wants(owner)) continue;
      rows += scope_[owner]->vectors().size();
      const auto runs = uint32_t(scope_[owner]->vectors().run_count());
      for (uint32_t run = 0; run < runs; ++run) stops_.push_back({owner, run});
    }
    return rows;
  }

  // Explaining may cost: where neither a mask nor the table knows it, every row is asked, so that rows_matched is a count
  // and not a guess.
  void count_matches(Filtered& filtered) {
    WalkMember& member = *filtered.member;
    const bool masked = !filtered.masks.empty();
    MemberAdmission admission(member, snapshot_.now_us);
    if (masked) admission.leave_filter_to_masks();
    member.rows_matched = 0;
    for (uint32_t owner = 0; owner < scope_.size(); ++owner) {
      const uint32_t rows = scope_[owner]->vectors().size();
      if ((masked || !member.filter) && scope_[owner]->expiring_count() == 0) {
        member.rows_matched += masked ? filtered.masks[owner].matches : rows;
        continue;
      }
      for (uint32_t row = 0; row < rows && !member.expired; ++row) {
        if (masked && !filtered.masks[owner][row]) continue;
        member.rows_matched += admission.admits({scope_[owner], RowCode::of(row, true)});
      }
    }
  }

  // Filters that are asked row by row know one thread only.
  bool can_share() const {
    return std::none_of(members_.begin(), members_.end(),
                        [](const Filtered& filtered) { return filtered.member->filter && filtered.masks.empty(); });
  }

  Sweeps own_sweeps() {
    Sweeps sweeps;
    for (auto& lane : lanes_) {
      sweeps.paces.push_back({lane.get(), &lane->sweep, &lane->member.deadline, nullptr, nullptr});
    }
    return sweeps;
  }

  Sweeps new_sweeps() {
    Sweeps sweeps;
    for (auto& lane : lanes_) {
      auto sweep = std::make_unique<Sweep>(*snapshot_.device, collection_.coder(), lane->query, lane->wanted,
                                           lane->least_key, window_, &lane->admission);
      Pace pace{lane.get(), sweep.get(), nullptr, std::move(sweep), nullptr};
      std::vector<Pace>& paces = sweeps.paces;
      if (paces.empty() || &paces.back().lane->member != &lane->member) {
        pace.made_deadline = std::make_unique<Deadline>(lane->member.deadline);
        pace.deadline = pace.made_deadline.get();
      } else {
        pace.deadline = paces.back().deadline;
      }
      paces.push_back(std::move(pace));
    }
    return sweeps;
  }

  void visit_all(Plan plan) {
    if (plan == Plan::one_thread) {
      Sweeps own = own_sweeps();
      return visit(own);
    }
    std::vector<Sweeps> all(snapshot_.pool->threads());
    snapshot_.pool->run([&](uint32_t thread) {
      all[thread] = thread == 0 ? own_sweeps() : new_sweeps();
      visit(all[thread]);
    });
    for (size_t thread = 1; thread < all.size(); ++thread) {  // some may have come too late to do anything
      for (size_t i = 0; i < all[thread].paces.size(); ++i) lanes_[i]->sweep.take_over(*all[thread].paces[i].sweep);
    }
  }

  std::vector<std::vector<Candidate>> finish_all(Plan plan) {
    std::vector<std::vector<Candidate>> best(lanes_.size());
    std::atomic<size_t> next = 0;
    auto work = [&](uint32_t) {
      for (size_t i; (i = next++) < lanes_.size();) best[i] = lanes_[i]->sweep.finish();
    };
    if (plan == Plan::all_threads && lanes_.size() >= fewest_lanes_shared) {
      snapshot_.pool->run(work);
    } else {
      work(0);
    }
    return best;
  }

  // Takes one stop after the other until there are none left, or nobody waits for an answer any more.
  void visit(Sweeps& sweeps) {
    sweeps.scans.resize(lanes_.size());
    for (size_t i; (i = next_++) < stops_.size();) {
      const Stop& stop = stops_[i];
      const RowTable::Run run = scope_[stop.owner]->vectors().run(stop.run);
      for (uint32_t at = 0; at < run.count; at += rows_a_block) {
        if (!block(sweeps, stop.owner, run, at, std::min(rows_a_block, run.count - at))) return;
      }
      share_thresholds(sweeps);
    }
    for (Pace& pace : sweeps.paces) pace.sweep->narrow_best();
    share_thresholds(sweeps);
    for (Pace& pace : sweeps.paces) pace.sweep->narrow_rest();
  }

  bool block(Sweeps& sweeps, uint32_t owner, const RowTable::Run& run, uint32_t at, uint32_t count) {
    bool anyone = false;
    sweeps.shares.clear();
    for (size_t i = 0; i < sweeps.paces.size(); ++i) {
      Pace& pace = sweeps.paces[i];
      if (expired_[i].load(std::memory_order_relaxed) || pace.lane->member.expired) continue;
      anyone = true;
      const uint64_t among = members_[member_of_[i]].among(owner, run.first + at);
      if (pace.lane->sweeps(run)) {
        if (among != 0) sweeps.shares.push_back({pace.sweep, among});
      } else if (among != 0) {
        score(pace, *scope_[owner], run, at, count, among);
      }
      if (pace.deadline->passed_after(count)) expired_[i] = true;
    }
    if (!sweeps.shares.empty()) sweep(sweeps, *scope_[owner], run, at, count);
    return anyone;
  }

  // Groups of which no row counts for anybody are passed over.
  static void sweep(Sweeps& sweeps, const Namespace& owner, const RowTable::Run& run, uint32_t at, uint32_t count) {
    constexpr uint64_t group_bits = (uint64_t{1} << rows_a_group) - 1;
    uint64_t among = 0;
    for (const Sweep::Share& share : sweeps.shares) among |= share.among;
    for (uint32_t from = 0; from < count && among >> from != 0;) {
      if ((among >> from & group_bits) == 0) {
        from += rows_a_group;
        continue;
      }
      uint32_t to = from + rows_a_group;
      while (to < count && (among >> to & group_bits) != 0) to += rows_a_group;
      to = std::min(to, count);
      sweeps.of_groups = sweeps.shares;
      for (Sweep::Share& share : sweeps.of_groups) share.among >>= from;
      Sweep::scan(sweeps.of_groups, owner, run, at + from, to - from, sweeps.scans.data());
      from = to;
    }
  }

  // What one thread has ruled out, no other has to look at.
  void share_thresholds(Sweeps& sweeps) {
    for (size_t i = 0; i < sweeps.paces.size(); ++i) {
      Sweep& sweep = *sweeps.paces[i].sweep;
      double mine = sweep.threshold();
      double known = thresholds_[i].load(std::memory_order_relaxed);
      while (known < mine && !thresholds_[i].compare_exchange_weak(known, mine, std::memory_order_relaxed)) {
      }
      sweep.raise_threshold(known);
    }
  }

  static RowRef row_at(const Namespace& owner, const RowTable::Run& run, uint32_t i) {
    return {&owner, RowCode::of(run.first + i, true)};
  }

  void score(Pace& pace, const Namespace& owner, const RowTable::Run& run, uint32_t at, uint32_t count,
             uint64_t among) {
    double scores[rows_a_block];
    RowBlock rows{run.block.vectors + size_t{at} * run.block.stride, run.block.norms + at, run.block.stride, count};
    Lane& lane = *pace.lane;
    snapshot_.device->score(metric_, rows, lane.query, scores);
    pace.sweep->count_scored(count);
    for (uint32_t i = 0; i < count; ++i) {
      if (!(among >> i & 1)) continue;
      const double key = metric_ == KALOS_METRIC_L2 ? -scores[i] : scores[i];
      const uint64_t sequence = run.entries[at + i].sequence;
      if (!pace.sweep->takes(key, sequence)) continue;
      const RowRef row = row_at(owner, run, at + i);
      if (lane.admission.admits(row)) pace.sweep->add({key, sequence, row});
    }
  }

  const Collection& collection_;
  const kalos_metric metric_;
  const Snapshot& snapshot_;
  const std::vector<const Namespace*>& scope_;
  Lanes& lanes_;
  const uint32_t window_;
  std::vector<Filtered> members_;
  std::vector<uint32_t> member_of_;  // of each lane
  std::vector<Stop> stops_;
  std::atomic<size_t> next_ = 0;
  std::vector<std::atomic<bool>> expired_;       // of each lane
  std::vector<std::atomic<double>> thresholds_;  // likewise
};

// Of rows in their order, the first `wanted` of which no two have the same value; rows without the key stand for
// themselves.
std::vector<Candidate> first_of_groups(const std::vector<Candidate>& rows, const JsonPath& path, size_t wanted,
                                       Deadline& deadline, bool& expired) {
  std::vector<Candidate> chosen;
  std::unordered_set<std::string> seen;
  for (const Candidate& row : rows) {
    if (chosen.size() == wanted) break;
    if (deadline.passed_after(rows_a_filter_costs)) {
      expired = true;
      break;
    }
    JsonValue value = path.find(json_root(row.row.entry().record->metadata()));
    if (value.kind != JsonKind::missing) {
      std::string canonical;
      append_canonical(value, canonical);
      if (!seen.insert(std::move(canonical)).second) continue;
    }
    chosen.push_back(row);
  }
  return chosen;
}

void keep_result(WalkMember& member, std::vector<Candidate> sorted) {
  sorted.erase(sorted.begin(), sorted.begin() + std::ptrdiff_t(std::min<size_t>(member.request->skip, sorted.size())));
  sorted.shrink_to_fit();
  member.results.push_back(std::move(sorted));
}

// The walks of one call, with what they share.
class Walks {
 public:
  Walks(const Collection& collection, const Snapshot& snapshot, const std::vector<const Namespace*>& scope,
        std::span<const WalkMember> members)
      : collection_(collection), snapshot_(snapshot), scope_(scope) {
    uint64_t queries = 0, rows = 0;
    for (const WalkMember& member : members) queries += member.request->query_count;
    for (const Namespace* owner : scope) rows += owner->vectors().size() + rows_a_block;
    // All windows together stay in the cache.
    uint64_t window =
        std::max<uint64_t>(largest_window / std::clamp<uint64_t>(queries, 1, most_lanes_a_walk), smallest_window);
    window_ = uint32_t(std::min(window, rows + rows_a_block) / rows_a_block * rows_a_block);
  }

  void add(WalkMember& member, uint32_t query) {
    const size_t wanted = member.request->k == 0 ? 0 : size_t{member.request->skip} + member.request->k;
    if (member.group_by) return walk_groups(member, query, wanted);
    if (lanes_.size() == most_lanes_a_walk || candidates_ + wanted > most_candidates_a_walk) flush();
    lanes_.push_back(std::make_unique<Lane>(collection_, snapshot_, member, query, wanted, window_));
    candidates_ += wanted;
  }

  void flush() {
    if (lanes_.empty()) return;
    auto best = Walk(collection_, snapshot_, scope_, lanes_, window_).run();
    for (size_t i = 0; i < lanes_.size(); ++i) keep_result(lanes_[i]->member, std::move(best[i]));
    lanes_.clear();
    candidates_ = 0;
  }

 private:
  // As many rows as may hold enough groups, then more: the first rows of a longer list are those of a shorter one.
  void walk_groups(WalkMember& member, uint32_t query, size_t wanted) {
    constexpr size_t rows_at_first_a_group = 4, more_each_time = 8;
    std::vector<Candidate> chosen;
    for (size_t rows = wanted * rows_at_first_a_group;; rows *= more_each_time) {
      Lanes one;
      one.push_back(std::make_unique<Lane>(collection_, snapshot_, member, query, rows, window_));
      std::vector<Candidate> sorted = std::move(Walk(collection_, snapshot_, scope_, one, window_).run().front());
      chosen = first_of_groups(sorted, *member.group_by, wanted, member.deadline, member.expired);
      if (member.expired || chosen.size() == wanted || sorted.size() < rows) break;
    }
    keep_result(member, std::move(chosen));
  }

  const Collection& collection_;
  const Snapshot& snapshot_;
  const std::vector<const Namespace*>& scope_;
  uint32_t window_ = 0;  // of each lane
  Lanes lanes_;
  size_t candidates_ = 0;
};

}  // namespace

void walk(const Collection& collection, const Snapshot& snapshot, const std::vector<const Namespace*>& scope,
          std::span<WalkMember> members) {
  Walks walks(collection, snapshot, scope, members);
  for (WalkMember& member : members) {
    const SearchRequest& request = *member.request;
    if (request.k == 0 && !request.explain) {
      member.results.resize(request.query_count);
      continue;
    }
    for (uint32_t query = 0; query < request.query_count && !member.expired; ++query) walks.add(member, query);
  }
  walks.flush();
  for (const WalkMember& member : members) *snapshot.totals += member.counts;
}

}  // namespace kalos
