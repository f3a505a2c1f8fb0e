// Hours of use in seconds: seeded random writes and reads of one collection, every answer held to a plain model. Codes
// are learned anew as the rows change, namespaces come and go, columns are built and dropped, passes are shared out.
// KALOS_SOAK_OPERATIONS asks for more, KALOS_TEST_SEED for others.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <set>

#include "check.h"
#include "compute/cpu/portable/canonical.h"
#include "engine/filter.h"
#include "engine_fixture.h"
#include "vector_families.h"

using namespace fixture;
using families::Random;
using families::Vector;

namespace {

uint64_t number_from(const char* name, uint64_t otherwise) {
  const char* given = std::getenv(name);
  return given ? std::strtoull(given, nullptr, 10) : otherwise;
}

const std::vector<std::string> filters = {
    R"({"kind":"a"})",
    R"({"kind":{"$in":["b","c"]},"n":{"$gte":50}})",
    R"({"$or":[{"n":{"$lt":5}},{"tags":{"$contains":"x"}}]})",
    R"({"$not":{"kind":"a"}})",
    R"({"missing":{"$exists":false},"n":{"$ne":7}})",
    R"({"deep.n":{"$gt":2}})",
};

class Soak {
 public:
  Soak(uint64_t seed, kalos_metric metric, uint32_t dimension)
      : random_(seed),
        metric_(metric),
        dimension_(dimension),
        store_(dimension, metric, {}, 3),
        families_(families::all()) {
    for (const char* one : {"a", "b", "c"}) {
      namespaces_.push_back(key({one}));
      namespaces_.push_back(key({one, "inner"}));
    }
    namespaces_.push_back("");
  }

  void run(uint64_t operations) {
    for (uint64_t i = 0; i < operations && check::failures() == 0; ++i) {
      if (i % 512 == 0) family_ = &families_[random_() % families_.size()];
      switch (random_() % 16) {
        case 0:
          remove_some();
          break;
        case 1:
        case 2:
          search();
          break;
        case 3:
          count();
          break;
        default:
          put_some();
      }
    }
    // To the last row: what is left must be as if the others had never been.
    for (int i = 0; i < 3; ++i) search();
    while (!rows_.empty()) {
      remove_some();
      if (random_() % 4 == 0) search();
    }
    CHECK_EQ(0u, store_.index.row_count());
  }

 private:
  struct Known {
    uint64_t sequence = 0;
    NewRow row;
  };
  using Name = std::pair<std::string, std::string>;  // namespace key, id

  void put_some() {
    auto vectors = family_->make(random_, 1 + random_() % 6, dimension_);
    // Mostly one namespace, so that it becomes large.
    std::string owner = random_() % 3 ? namespaces_[0] : namespaces_[random_() % namespaces_.size()];
    for (Vector& vector : vectors) {
      NewRow row;
      row.id = std::to_string(random_() % 3000);
      row.namespace_key = owner;
      if (random_() % 20 != 0) row.vector = std::move(vector);
      if (random_() % 10 != 0) row.metadata = metadata();
      if (random_() % 50 == 0) row.expires_us = random_() % 2 ? 1 : 4'000'000'000'000'000;
      uint64_t sequence = store_.put(row);
      rows_[{row.namespace_key, row.id}] = {sequence, row};
    }
  }

  std::string metadata() {
    std::string json = "{\"kind\":\"" + std::string(1, char('a' + random_() % 4)) + "\"";
    json += ",\"n\":" + std::to_string(random_() % 100);
    if (random_() % 3 == 0) json += ",\"tags\":[\"x\",\"" + std::to_string(random_() % 5) + "\"]";
    if (random_() % 3 == 0) json += ",\"deep\":{\"n\":" + std::to_string(random_() % 5) + "}";
    return json + "}";
  }

  void remove_some() {
    // A stretch of names, the first, the last or any.
    size_t count = std::min<size_t>(rows_.size(), 1 + random_() % 12);
    auto at = rows_.begin();
    if (random_() % 2 && !rows_.empty()) std::advance(at, std::ptrdiff_t(random_() % (rows_.size() - count + 1)));
    for (size_t i = 0; i < count; ++i) {
      store_.remove(at->first.first, at->first.second);
      at = rows_.erase(at);
    }
  }

  bool in_scope(const Name& name, const Scope& scope) const {
    return scope.subtree ? name.first.starts_with(scope.namespace_key) : name.first == scope.namespace_key;
  }

  Scope any_scope() {
    scope_key_ = namespaces_[random_() % 3 ? 0 : random_() % namespaces_.size()];
    return {scope_key_, random_() % 3 == 0};
  }

  std::optional<std::string_view> any_filter() {
    if (random_() % 2) return std::nullopt;
    return filters[random_() % filters.size()];
  }

  template <class Take>
  void each_match(const Scope& scope, std::optional<std::string_view> filter, Take take) {
    std::optional<Filter> parsed;
    if (filter) parsed = std::move(*Filter::parse(*filter));
    for (const auto& [name, known] : rows_) {
      bool expired = known.row.expires_us != 0 && known.row.expires_us <= wall_us();
      if (expired || !in_scope(name, scope)) continue;
      if (parsed && !parsed->matches(known.row.metadata.value_or(""))) continue;
      take(name, known);
    }
  }

  void count() {
    CountRequest request;
    request.collection_id = 1;
    request.scope = any_scope();
    request.filter = any_filter();
    uint64_t expected = 0;
    each_match(request.scope, request.filter, [&](const Name&, const Known&) { ++expected; });
    CHECK_EQ(expected, store_.count(request));
  }

  void search() {
    const size_t queries = random_() % 5 ? 1 : 1 + random_() % 9;
    Vector together;
    for (size_t i = 0; i < queries; ++i) {
      Vector query = families_[random_() % families_.size()].make(random_, 1, dimension_)[0];
      if (random_() % 2 && !rows_.empty()) {
        auto at = rows_.begin();
        std::advance(at, std::ptrdiff_t(random_() % rows_.size()));
        if (!at->second.row.vector.empty()) query = at->second.row.vector;
      }
      together.insert(together.end(), query.begin(), query.end());
    }
    SearchRequest request = search_for(together, uint32_t(random_() % 4 ? 10 : random_() % 400));
    request.query_count = uint32_t(queries);
    request.dimension = dimension_;
    request.skip = random_() % 5 ? 0 : uint32_t(random_() % 20);
    request.scope = any_scope();
    request.filter = any_filter();
    if (random_() % 6 == 0) request.group_by = "kind";
    auto groups = store_.hits(request).groups;
    CHECK_EQ(queries, groups.size());
    for (size_t i = 0; i < groups.size(); ++i) {
      compare(request,
              Vector(together.begin() + std::ptrdiff_t(i * dimension_),
                     together.begin() + std::ptrdiff_t((i + 1) * dimension_)),
              groups[i]);
    }
  }

  void compare(const SearchRequest& request, const Vector& query, const std::vector<DecodedHit>& hits) {
    struct Match {
      double key;
      uint64_t sequence;
      Name name;
    };
    std::vector<Match> expected;
    each_match(request.scope, request.filter, [&](const Name& name, const Known& known) {
      if (known.row.vector.empty()) return;
      double score = canonical_score(metric_, query, known.row.vector);
      expected.push_back({metric_ == KALOS_METRIC_L2 ? -score : score, known.sequence, name});
    });
    std::sort(expected.begin(), expected.end(), [](const Match& a, const Match& b) {
      return a.key > b.key || (a.key == b.key && a.sequence < b.sequence);
    });
    if (request.group_by) {
      std::set<std::string> seen;
      std::erase_if(expected, [&](const Match& match) {
        const std::string metadata = rows_.at(match.name).row.metadata.value_or("");
        size_t at = metadata.find("\"kind\":\"");
        return at != std::string::npos && !seen.insert(metadata.substr(at + 8, 1)).second;
      });
    }
    size_t skipped = std::min<size_t>(request.skip, expected.size());
    size_t wanted = std::min<size_t>(request.k, expected.size() - skipped);
    CHECK_EQ(wanted, hits.size());
    for (size_t i = 0; i < std::min(wanted, hits.size()); ++i) {
      const Match& match = expected[skipped + i];
      CHECK_EQ(match.name.second, hits[i].id);
      CHECK_EQ(match.name.first, hits[i].namespace_key);
      CHECK(hits[i].score == (metric_ == KALOS_METRIC_L2 ? -match.key : match.key));
    }
  }

  Random random_;
  kalos_metric metric_;
  uint32_t dimension_;
  Fixture store_;
  std::vector<families::Family> families_;
  const families::Family* family_ = nullptr;
  std::vector<std::string> namespaces_;
  std::string scope_key_;
  std::map<Name, Known> rows_;
};

}  // namespace

TEST(random_use_answers_as_a_plain_model_does) {
  uint64_t seed = number_from("KALOS_TEST_SEED", 20261201);
  uint64_t operations = number_from("KALOS_SOAK_OPERATIONS", 2500);
  for (kalos_metric metric : {KALOS_METRIC_COSINE, KALOS_METRIC_DOT, KALOS_METRIC_L2}) {
    for (uint32_t dimension : {5u, 64u}) {
      Soak(seed++, metric, dimension).run(operations);
      if (check::failures()) std::cerr << "seed " << seed - 1 << ", metric " << metric << "\n";
    }
  }
}

TEST_MAIN
