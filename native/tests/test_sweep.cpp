// Searches over codes answer what a brute force answers: same rows, same order, same bits. And the bounds that they rest
// on hold for every single row.
#include "engine/sweep.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>

#include "check.h"
#include "compute/cpu/portable/canonical.h"
#include "engine/planner.h"
#include "engine_fixture.h"
#include "vector_families.h"

using namespace fixture;
using families::Random;
using families::Vector;

namespace {

const kalos_metric metrics[] = {KALOS_METRIC_COSINE, KALOS_METRIC_DOT, KALOS_METRIC_L2};

double key_of(kalos_metric metric, const Vector& query, const Vector& row) {
  double score = canonical_score(metric, query, row);
  return metric == KALOS_METRIC_L2 ? -score : score;
}

// The seed of random cases; KALOS_TEST_SEED gives another.
uint64_t seed() {
  const char* given = std::getenv("KALOS_TEST_SEED");
  return given ? std::strtoull(given, nullptr, 10) : 20261201;
}

// Queries worth asking of these rows: one like them, one of them, its opposite, one unlike them, nothing.
std::vector<Vector> queries_for(Random& random, const families::Family& family, const std::vector<Vector>& rows,
                                size_t d) {
  Vector opposite = rows[random() % rows.size()];
  for (float& x : opposite) x = -x;
  return {family.make(random, 1, d)[0], rows[random() % rows.size()], opposite, families::gaussian(random, d),
          Vector(d)};
}

struct Expected {
  double key;
  size_t place;
};

std::vector<Expected> brute_force(kalos_metric metric, const Vector& query, const std::vector<Vector>& rows,
                                  const std::vector<bool>& there, size_t k) {
  std::vector<Expected> all;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (there[i]) all.push_back({key_of(metric, query, rows[i]), i});
  }
  std::sort(all.begin(), all.end(), [](const Expected& a, const Expected& b) {
    return a.key > b.key || (a.key == b.key && a.place < b.place);
  });
  all.resize(std::min(k, all.size()));
  return all;
}

bool same(kalos_metric metric, const std::vector<Expected>& expected, const std::vector<DecodedHit>& hits) {
  if (expected.size() != hits.size()) return false;
  for (size_t i = 0; i < hits.size(); ++i) {
    double score = metric == KALOS_METRIC_L2 ? -expected[i].key : expected[i].key;
    if (hits[i].id != std::to_string(expected[i].place) || hits[i].score != score) return false;
  }
  return true;
}

}  // namespace

TEST(every_search_answers_what_a_brute_force_answers) {
  Random random(seed());
  int wrong = 0, searches = 0;
  for (const auto& family : families::all()) {
    for (kalos_metric metric : metrics) {
      for (size_t d : {size_t{1}, size_t{3}, size_t{8}, size_t{33}, size_t{100}}) {
        size_t n = 33 + random() % 500;
        Fixture store(uint32_t(d), metric);
        auto rows = family.make(random, n, d);
        std::vector<bool> there(n, true);
        for (size_t i = 0; i < n; ++i) store.put({std::to_string(i), rows[i], {}, {}, {}});
        for (int round = 0; round < 2; ++round) {
          for (const Vector& query : queries_for(random, family, rows, d)) {
            for (size_t k : {size_t{1}, size_t{10}, 1 + random() % 1024}) {
              ++searches;
              if (same(metric, brute_force(metric, query, rows, there, k), store.group(search_for(query, uint32_t(k)))))
                continue;
              if (wrong++ < 5)
                std::cerr << family.name << ", metric " << metric << ", d " << d << ", n " << n << ", k " << k << "\n";
            }
          }
          for (size_t i = 0; i < n / 3; ++i) {
            size_t gone = random() % n;
            if (there[gone]) store.remove("", std::to_string(gone));
            there[gone] = false;
          }
        }
      }
    }
  }
  std::cout << searches << " searches\n";
  CHECK_EQ(0, wrong);
}

TEST(wide_vectors_overflow_no_sum) {
  Random random(seed());
  int wrong = 0;
  for (size_t d : {size_t{768}, size_t{8192}}) {
    for (kalos_metric metric : metrics) {
      for (const auto& family : families::all()) {
        if (d == 8192 && family.name != "random" && family.name.find("all signs") == std::string::npos) continue;
        Fixture store{uint32_t(d), metric};
        auto rows = family.make(random, 80, d);
        for (size_t i = 0; i < rows.size(); ++i) store.put({std::to_string(i), rows[i], {}, {}, {}});
        for (const Vector& query : queries_for(random, family, rows, d)) {
          if (same(metric, brute_force(metric, query, rows, std::vector<bool>(80, true), 10),
                   store.group(search_for(query, 10))))
            continue;
          if (wrong++ < 5) std::cerr << family.name << ", metric " << metric << ", d " << d << "\n";
        }
      }
    }
  }
  CHECK_EQ(0, wrong);
}

TEST(thousands_of_equal_rows_come_in_the_order_of_insertion) {
  for (kalos_metric metric : metrics) {
    Fixture store(16, metric);
    std::vector<Vector> rows(40000, Vector(16, 0.25f));
    rows[39990] = Vector(16, 0.5f);
    rows[39990][3] = 0.75f;
    for (size_t i = 0; i < rows.size(); ++i) store.put({std::to_string(i), rows[i], {}, {}, {}});
    Vector query(16, 1.0f);
    std::vector<bool> there(rows.size(), true);
    for (uint32_t k : {1u, 10u, 1000u}) {
      CHECK(same(metric, brute_force(metric, query, rows, there, k), store.group(search_for(query, k))));
    }
  }
}

TEST(several_threads_and_many_queries_at_once_answer_the_same) {
  Random random(seed() + 4);
  const uint32_t n = 60000;
  for (kalos_metric metric : metrics) {
    Fixture store(64, metric, {}, 4);
    auto rows = families::all()[1].make(random, n, 64);  // clustered
    for (uint32_t i = 0; i < n; ++i) store.put({std::to_string(i), rows[i], {}, {}, {}});
    std::vector<bool> there(n, true);
    std::vector<float> together;
    std::vector<std::vector<Expected>> expected;
    for (int i = 0; i < 20; ++i) {
      Vector query = families::plus(families::gaussian(random, 64, 0.1), rows[random() % n]);
      expected.push_back(brute_force(metric, query, rows, there, 30));
      // Often enough that the planner tries every plan.
      for (int again = 0; again < 5; ++again) {
        CHECK(same(metric, expected.back(), store.group(search_for(query, 30))));
      }
      together.insert(together.end(), query.begin(), query.end());
    }
    SearchRequest request = search_for(together, 30);
    request.query_count = 20;
    request.dimension = 64;
    auto groups = store.hits(request).groups;
    CHECK_EQ(20u, groups.size());
    for (size_t i = 0; i < groups.size(); ++i) CHECK(same(metric, expected[i], groups[i]));
  }
}

TEST(the_planner_takes_what_is_cheaper_and_notices_changes) {
  Planner planner(4);
  constexpr uint64_t large = 64 << 20, small = 1 << 20;
  CHECK(planner.choose(small, true) == Plan::one_thread);
  CHECK(planner.choose(large, false) == Plan::one_thread);
  CHECK(Planner(1).choose(large, true) == Plan::one_thread);
  auto shared_of = [&](int64_t alone_ns, int64_t shared_ns, int passes) {
    int shared = 0;
    for (int i = 0; i < passes; ++i) {
      Plan plan = planner.choose(large, true);
      shared += plan == Plan::all_threads;
      planner.report(plan, large, plan == Plan::all_threads ? shared_ns : alone_ns);
    }
    return shared;
  };
  CHECK(shared_of(1000, 400, 100) > 90);
  // Somebody else takes the other CPUs: waiting for them is worse than doing it alone.
  shared_of(1000, 5000, 300);
  CHECK(shared_of(1000, 5000, 100) < 10);
  shared_of(1000, 400, 3000);
  CHECK(shared_of(1000, 400, 100) > 90);
}

TEST(learning_again_costs_in_proportion_to_what_is_written) {
  // Rows that no coding is good for beside others: those of one value after random ones. It learned after every
  // thousand of them, and coded all others anew each time.
  Random random(seed() + 5);
  Fixture store(8, KALOS_METRIC_DOT);
  for (int i = 0; i < 4000; ++i) store.put({std::to_string(i), families::gaussian(random, 8), {}, {}, {}});
  for (int i = 0; i < 60000; ++i) store.put({std::to_string(i), Vector(8, 1), {}, {}, key({std::to_string(i % 40)})});
  const Coder& coder = (*store.index.find(1))->coder();
  CHECK(coder.times_learned() >= 3);
  CHECK(coder.times_learned() <= 16);
  // Rows that change for good are noticed long before there are eight times as many.
  const uint64_t before = coder.times_learned();
  for (int i = 0; i < 60000; ++i) {
    Vector vector = families::plus(families::gaussian(random, 8, 3), Vector(8, 50));
    store.put({std::to_string(i), vector, {}, {}, key({std::to_string(i % 40)})});
  }
  CHECK(coder.times_learned() > before);
}

TEST(bounds_hold_for_every_row) {
  Random random(seed() + 1);
  auto device = make_cpu_device();
  int outside = 0, held_back = 0, checked = 0;
  for (const auto& family : families::all()) {
    for (kalos_metric metric : metrics) {
      for (size_t d : {size_t{1}, size_t{7}, size_t{40}, size_t{384}}) {
        Coder coder(uint32_t(d), metric);
        auto rows = family.make(random, 200, d);
        RowTable table(&coder);
        std::vector<Coder::SampleRow> sample;
        for (int learned = 0; learned < 2; ++learned) {
          for (size_t i = table.size(); i < 200; ++i) table.append({}, rows[i]);
          if (learned) {
            for (uint32_t i = 0; i < table.size(); i += 3) {
              sample.push_back({table.vector(i), table.block(i).norms[0]});
            }
            coder.learn(sample);
            for (size_t run = 0; run < table.run_count(); ++run) table.recode(run);
          }
          for (const Vector& query : queries_for(random, family, rows, d)) {
            PreparedQuery prepared = prepare_query(query);
            if (!CodedQuery::can_be_bounded(metric, prepared)) continue;
            for (size_t chunk = 0; chunk < table.run_count(); ++chunk) {
              RowTable::Run run = table.run(chunk);
              CodedQuery coded(coder, *run.coding, prepared);
              const CodeQuery& code_query = coded.code_query();
              for (uint32_t at = 0; at < run.count; ++at) {
                double key = key_of(metric, query, rows[run.first + at]);
                const uint8_t* group = run.groups + at / rows_a_group * code_query.shape.group_bytes();
                int32_t sums[rows_a_group];
                float upper[rows_a_group];
                for (const Kernels* kernels : {&portable_kernels(), avx2_kernels(), avx512_kernels(), amx_kernels()}) {
                  if (!kernels) continue;
                  // With its own key as the threshold, the row has to pass.
                  auto scan = metric == KALOS_METRIC_L2 ? kernels->codes.scan_distance : kernels->codes.scan_similarity;
                  BlockScan one{&code_query, coded.terms(run.reach), ~uint64_t{0}, upper, sums};
                  scan(group, 1, &one, 1);
                  held_back += !(upper[at % rows_a_group] >= CodedQuery::threshold(key));
                }
                int32_t low = 0;
                portable_kernels().codes.low_sums(run.low, &at, 1, code_query, &low);
                auto range = coded.range(sums[at % rows_a_group], low, run.bounds[at]);
                outside += !(range.lower <= key && key <= range.upper);
                ++checked;
              }
            }
          }
        }
      }
    }
  }
  std::cout << checked << " bounds\n";
  CHECK_EQ(0, outside);
  CHECK_EQ(0, held_back);
}

// A query of random codes.
struct RandomQuery {
  RandomQuery(Random& random, const CodeShape& shape, bool extreme) : halves(shape.low_bytes() * 2) {
    query.shape = shape;
    for (auto& half : halves) {
      half = extreme ? int8_t(127) : int8_t(int(random() % 255) - 127);
      query.sum += half;
    }
    query.low_halves = halves.data();
    query.high_halves = halves.data() + shape.low_bytes();
    terms = {0.01f / float(shape.quads * 8), 0.5f, -0.1f - float(random() % 8) / 100, 0.9f, 0.99f};
    among = random();
  }
  std::vector<int8_t> halves;
  CodeQuery query;
  BoundTerms terms;
  uint64_t among;
};

// What a scan of several queries fills.
struct Found {
  explicit Found(const std::vector<RandomQuery>& queries)
      : upper(queries.size() * rows_a_block), sums(queries.size() * rows_a_block) {
    for (size_t i = 0; i < queries.size(); ++i) {
      scans.push_back(
          {&queries[i].query, queries[i].terms, queries[i].among, &upper[i * rows_a_block], &sums[i * rows_a_block]});
    }
  }
  bool operator==(const Found& other) const { return upper == other.upper && sums == other.sums; }
  std::vector<float> upper;
  std::vector<int32_t> sums;
  std::vector<BlockScan> scans;
};

TEST(all_kernels_find_the_same) {
  Random random(seed() + 2);
  for (uint32_t d : {1u, 8u, 40u, 64u, 100u, 384u, 1000u, 1536u, 2048u, 2056u, 8192u}) {
    for (kalos_metric metric : {KALOS_METRIC_COSINE, KALOS_METRIC_L2}) {
      CodeShape shape{padded_dimension(d) / 8, metric == KALOS_METRIC_L2};
      std::vector<uint8_t> groups(4 * shape.group_bytes()), low(8 * shape.low_bytes());
      for (auto& byte : groups) byte = uint8_t(random());
      for (auto& byte : low) byte = uint8_t(random());
      std::uniform_real_distribution<float> any(0, 1);
      for (size_t g = 0; g < 4; ++g) {
        auto* columns = reinterpret_cast<float*>(groups.data() + g * shape.group_bytes() + shape.columns_at());
        for (uint32_t i = 0; i < (shape.squares ? 3 : 2) * rows_a_group; ++i) columns[i] = any(random);
      }
      for (bool extreme : {false, true}) {
        if (extreme) std::fill(groups.begin(), groups.begin() + std::ptrdiff_t(shape.columns_at()), uint8_t{255});
        for (size_t many : {1, 3, 4, 16, 17, 35}) {
          std::vector<RandomQuery> queries;
          for (size_t i = 0; i < many; ++i) queries.emplace_back(random, shape, extreme);
          const CodeQuery& query = queries[0].query;
          const CodeKernels& portable = portable_kernels().codes;
          for (uint32_t count = 1; count <= 4; ++count) {
            auto scan = [&](const CodeKernels& kernels) {
              Found found(queries);
              auto kernel = shape.squares ? kernels.scan_distance : kernels.scan_similarity;
              kernel(groups.data(), count, found.scans.data(), uint32_t(many));
              return found;
            };
            Found expected = scan(portable);
            for (const Kernels* kernels : {avx2_kernels(), avx512_kernels(), amx_kernels()}) {
              if (!kernels) continue;
              CHECK(scan(kernels->codes) == expected);
              const uint32_t rows_asked[] = {7, 0, 3, 3, 5, 1};
              int32_t low_sums[6], expected_low_sums[6];
              portable.low_sums(low.data(), rows_asked, count + 2, query, expected_low_sums);
              kernels->codes.low_sums(low.data(), rows_asked, count + 2, query, low_sums);
              CHECK(std::equal(low_sums, low_sums + count + 2, expected_low_sums));
              uint32_t places[rows_a_block], expected_places[rows_a_block];
              uint32_t rows = count * rows_a_group - 3;
              uint32_t reaching = portable.at_least(expected.upper.data(), rows, expected.upper[5], expected_places);
              CHECK_EQ(reaching, kernels->codes.at_least(expected.upper.data(), rows, expected.upper[5], places));
              CHECK(std::equal(places, places + reaching, expected_places));
            }
          }
        }
      }
    }
  }
}

TEST(bounds_are_tight_enough_to_be_worth_having) {
  // 5,000 rows of 384 dimensions: fewer than 1 in 20 may need its low plane, fewer than 100 their vectors.
  Random random(seed() + 3);
  for (kalos_metric metric : metrics) {
    Coder coder(384, metric);
    auto device = make_cpu_device();
    std::vector<Vector> rows;
    Vector common = families::gaussian(random, 384, 1);
    auto topics = families::each(40, [&](size_t) { return families::gaussian(random, 384, 1); });
    for (size_t i = 0; i < 5000; ++i) {
      rows.push_back(families::plus(families::plus(families::gaussian(random, 384, 0.7), topics[i % 40]), common));
    }
    ColumnMemory column_memory;
    Namespace owner("", coder, column_memory);
    std::vector<Coder::SampleRow> sample;
    Arena arena{TextBacking{}};
    for (size_t i = 0; i < rows.size(); ++i) {
      RowEntry entry;
      entry.record = arena.add({std::to_string(i), {}, {}});
      owner.add(entry, rows[i]);
    }
    const RowTable& table = owner.vectors();
    for (uint32_t i = 0; i < table.size(); i += 5) sample.push_back({table.vector(i), table.block(i).norms[0]});
    coder.learn(sample);
    for (size_t run = 0; run < table.run_count(); ++run) owner.recode(run);
    PreparedQuery query = prepare_query(families::plus(families::gaussian(random, 384, 0.7), topics[3]));
    Sweep sweep(*device, coder, query, 10, -INFINITY, 65536, nullptr);
    for (size_t chunk = 0; chunk < owner.vectors().run_count(); ++chunk) {
      RowTable::Run run = owner.vectors().run(chunk);
      for (uint32_t at = 0; at < run.count; at += rows_a_block) {
        Sweep::Share share{&sweep, ~uint64_t{0}};
        BlockScan scan;
        Sweep::scan({&share, 1}, owner, run, at, std::min(rows_a_block, run.count - at), &scan);
      }
    }
    CHECK_EQ(10u, sweep.finish().size());
    std::cout << "metric " << metric << ": " << sweep.counts().narrowed << " of 5000 narrowed, "
              << sweep.counts().scored << " scored\n";
    CHECK(sweep.counts().narrowed < 250);
    CHECK(sweep.counts().scored < 100);
  }
}

TEST_MAIN
