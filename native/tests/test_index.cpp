// Reads of the index: what each promises, and random reads against a plain oracle.
#include "engine/index.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>

#include "base/clock.h"
#include "check.h"
#include "compute/cpu/portable/canonical.h"
#include "engine_fixture.h"

using namespace fixture;
using nlohmann::json;

namespace {

constexpr int64_t long_ago = 1, far_away = 4'000'000'000'000'000;

bool refused(const Reply& reply, const std::string& part, kalos_status status = KALOS_STATUS_INVALID_REQUEST) {
  CHECK_EQ(int(status), int(reply.status));
  if (words(reply).find(part) != std::string::npos) return true;
  std::cerr << "words: " << words(reply).substr(0, 300) << "\n";
  return false;
}

ScanRequest scan_all(uint32_t page_limit = 1000) {
  ScanRequest request;
  request.collection_id = 1;
  request.scope.subtree = true;
  request.page_limit = page_limit;
  return request;
}

// All pages, one after the other.
Strings scan_pages(Fixture& fixture, ScanRequest request, size_t& pages) {
  Strings ids;
  for (pages = 1; pages < 10000; ++pages) {
    Decoded page = fixture.hits(request);
    for (auto& hit : page.groups.at(0)) ids.push_back(hit.id);
    if (!page.header.has_cursor) break;
    request.has_cursor = true;
    request.cursor_sequence = page.header.cursor_sequence;
    request.cursor_updated_us = page.header.cursor_updated_us;
    request.skip = 0;
  }
  return ids;
}

Strings namespaces(Fixture& fixture, const NamespacesRequest& request) {
  Reply reply = fixture.read(request);
  CHECK_EQ(int(KALOS_STATUS_OK), int(reply.status));
  kalos_namespaces_reply header{};
  std::memcpy(&header, reply.message.data(), sizeof header);
  Strings keys;
  for (kalos_span span : column<kalos_span>(reply.message, header.keys, header.count)) {
    CHECK(span.offset != 0);
    keys.push_back(readable_key(take(reply.message, span).value_or("absent")));
  }
  return keys;
}

}  // namespace

TEST(a_reply_holds_what_was_asked_for_and_nothing_else) {
  Fixture fixture(3);
  fixture.put({"full", {1, 0, 0}, "{\"a\":1}", "hello", key({"alice"})});
  fixture.put({"bare", {0, 1, 0}, std::nullopt, std::nullopt, key({"alice"})});
  fixture.put({"empty", {0, 0, 1}, "{}", "", key({"alice"})});
  std::vector<float> query{1, 0.5f, 0.25f};
  SearchRequest request = search_for(query, 10);
  std::string alice = key({"alice"});
  request.scope.namespace_key = alice;
  Decoded decoded = fixture.hits(request);
  CHECK_EQ(fixture.commits, decoded.header.commit_sequence);
  auto& hits = decoded.groups.at(0);
  CHECK_EQ(size_t{3}, hits.size());
  CHECK_EQ(std::string("full"), hits[0].id);
  CHECK_EQ(canonical_score(KALOS_METRIC_COSINE, query, std::vector<float>{1, 0, 0}), hits[0].score);
  CHECK_EQ(alice, hits[0].namespace_key);
  CHECK(hits[0].text == "hello" && hits[0].metadata == "{\"a\":1}" && hits[0].vector == std::vector<float>({1, 0, 0}));
  CHECK(!hits[1].text && !hits[1].metadata && hits[1].vector);
  CHECK(hits[2].text == "" && hits[2].metadata == "{}");
  CHECK_EQ(int64_t{1001}, hits[0].created_us);
  CHECK(hits[0].updated_us > 1'000'000);
  request.include = 0;
  for (auto& hit : fixture.group(request)) CHECK(!hit.text && !hit.metadata && !hit.vector && !hit.id.empty());
  request.include = KALOS_INCLUDE_METADATA;
  CHECK(!fixture.hits(request).groups[0][0].text);
}

TEST(ties_go_to_the_lower_row_sequence_also_after_upserts_deletes_and_moves) {
  Fixture fixture(2);
  for (int i = 0; i < 200; ++i) fixture.put({"r" + std::to_string(i), {1, 1}, {}, {}, ""});
  std::vector<float> query{2, 2};
  CHECK_EQ((Strings{"r0", "r1", "r2"}), fixture.ids(search_for(query, 3)));
  fixture.put({"r1", {1, 1}, {}, "changed", ""});
  fixture.remove("", "r0");
  fixture.remove("", "r3");
  CHECK_EQ((Strings{"r1", "r2", "r4", "r5"}), fixture.ids(search_for(query, 4)));
  fixture.put({"r0", {1, 1}, {}, {}, ""});
  auto all = fixture.ids(search_for(query, 1000));
  CHECK_EQ(size_t{199}, all.size());
  CHECK_EQ(std::string("r0"), all.back());
  // -0 equals +0.
  Fixture zeros(1, KALOS_METRIC_DOT);
  for (int i = 0; i < 9; ++i) zeros.put({"z" + std::to_string(i), {i % 2 ? -0.0f : 0.0f}, {}, {}, ""});
  std::vector<float> minus{-1};
  CHECK_EQ((Strings{"z0", "z1", "z2", "z3"}), zeros.ids(search_for(minus, 4)));
}

TEST(a_namespace_is_a_wall_and_a_subtree_ends_at_segments) {
  Fixture fixture(1, KALOS_METRIC_DOT);
  for (auto& segments :
       std::vector<Strings>{{}, {"a"}, {"ab"}, {"a", "b"}, {"a", "b", "c"}, {"b"}, {std::string("a\0\1b", 4)}}) {
    std::string id = "in";
    for (auto& segment : segments) id += "/" + segment;
    fixture.put({id, {1}, {}, {}, key(segments)});
  }
  std::vector<float> query{1};
  SearchRequest request = search_for(query, 10);
  CHECK_EQ((Strings{"in"}), fixture.ids(request));
  std::string a = key({"a"}), none = key({"c"});
  request.scope.namespace_key = a;
  CHECK_EQ((Strings{"in/a"}), fixture.ids(request));
  request.scope.subtree = true;
  CHECK_EQ((Strings{"in/a", "in/a/b", "in/a/b/c"}), fixture.ids(request));
  request.scope.namespace_key = none;
  CHECK_EQ(Strings{}, fixture.ids(request));
  request.scope.namespace_key = "";
  CHECK_EQ(size_t{7}, fixture.ids(request).size());
}

TEST(metrics_order_as_they_say_and_their_bounds_keep_equality) {
  std::vector<float> query{1, 0};
  for (kalos_metric metric : {KALOS_METRIC_COSINE, KALOS_METRIC_DOT}) {
    Fixture fixture(2, metric);
    for (int i = 0; i < 5; ++i) fixture.put({std::to_string(i), {float(i), 1}, {}, {}, ""});
    SearchRequest request = search_for(query, 10);
    CHECK_EQ((Strings{"4", "3", "2", "1", "0"}), fixture.ids(request));
    double third = fixture.hits(request).groups[0][2].score;
    request.min_score = third;
    CHECK_EQ((Strings{"4", "3", "2"}), fixture.ids(request));
    request.min_score = std::nextafter(third, 1e9);
    CHECK_EQ((Strings{"4", "3"}), fixture.ids(request));
    request.max_distance = 1;
    CHECK(refused(fixture.read(request), "use min_score"));
  }
  Fixture fixture(2, KALOS_METRIC_L2);
  for (int i = 0; i < 5; ++i) fixture.put({std::to_string(i), {float(i), 0}, {}, {}, ""});
  SearchRequest request = search_for(query, 10);
  Decoded decoded = fixture.hits(request);
  CHECK_EQ((Strings{"1", "0", "2", "3", "4"}), fixture.ids(request));
  CHECK_EQ(0.0, decoded.groups[0][0].score);
  CHECK(!std::signbit(decoded.groups[0][0].score));
  CHECK_EQ(3.0, decoded.groups[0][4].score);
  request.max_distance = 1;
  CHECK_EQ((Strings{"1", "0", "2"}), fixture.ids(request));
  request.min_score = 1;
  CHECK(refused(fixture.read(request), "max_distance"));
  request.min_score.reset();
  request.max_distance = std::numeric_limits<double>::quiet_NaN();
  CHECK(refused(fixture.read(request), "NaN"));
}

TEST(zero_vectors_score_zero_under_cosine) {
  Fixture fixture(2);
  fixture.put({"zero", {0, 0}, {}, {}, ""});
  fixture.put({"against", {-1, 0}, {}, {}, ""});
  std::vector<float> query{1, 0}, zero{0, 0};
  CHECK_EQ((Strings{"zero", "against"}), fixture.ids(search_for(query, 5)));
  for (auto& hit : fixture.group(search_for(zero, 5))) CHECK_EQ(0.0, hit.score);
}

TEST(rows_without_a_vector_are_read_but_never_found_by_one) {
  Fixture fixture(2);
  fixture.put({"plain", {}, "{\"a\":1}", "text", ""});
  fixture.put({"vector", {1, 0}, "{\"a\":1}", {}, ""});
  std::vector<float> query{1, 0};
  CHECK_EQ((Strings{"vector"}), fixture.ids(search_for(query, 5)));
  size_t pages;
  CHECK_EQ((Strings{"plain", "vector"}), scan_pages(fixture, scan_all(), pages));
  CountRequest count;
  count.collection_id = 1;
  count.filter = "{\"a\":1}";
  CHECK_EQ(uint64_t{2}, fixture.count(count));
  // It may get one, and lose it again, and keeps its place.
  fixture.put({"plain", {1, 0}, {}, {}, ""});
  CHECK_EQ((Strings{"plain", "vector"}), fixture.ids(search_for(query, 5)));
  fixture.put({"plain", {}, {}, {}, ""});
  CHECK_EQ((Strings{"vector"}), fixture.ids(search_for(query, 5)));
  CHECK_EQ((Strings{"plain", "vector"}), scan_pages(fixture, scan_all(), pages));
}

TEST(fewer_than_k_is_a_normal_answer_and_so_is_nothing) {
  Fixture fixture(2);
  std::vector<float> query{1, 0};
  CHECK_EQ(Strings{}, fixture.ids(search_for(query, 5)));
  fixture.put({"a", {1, 0}, {}, {}, ""});
  CHECK_EQ(Strings{}, fixture.ids(search_for(query, 0)));
  CHECK_EQ((Strings{"a"}), fixture.ids(search_for(query, KALOS_MAX_K)));
  SearchRequest none;
  none.collection_id = 1;
  none.k = 5;
  Decoded decoded = fixture.hits(none);
  CHECK_EQ(0u, decoded.header.group_count);
  CHECK_EQ(0u, decoded.header.row_count);
  SearchRequest skipped = search_for(query, 3);
  skipped.skip = 1;
  CHECK_EQ(Strings{}, fixture.ids(skipped));
}

TEST(requests_that_break_a_rule_are_refused_in_words) {
  Fixture fixture(3);
  std::vector<float> query{1, 0};
  CHECK(refused(fixture.read(search_for(query, 5)), "dimension 2"));
  CHECK(words(fixture.read(search_for(query, 5))).find("dimension 3") != std::string::npos);
  float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  for (float bad : {nan, infinity, -infinity}) {
    std::vector<float> queries{1, 2, 3, 4, bad, bad};
    SearchRequest request = search_for(queries, 0);
    request.query_count = 2;
    request.dimension = 3;
    CHECK(refused(fixture.read(request), "query 1, component 1"));
  }
  std::vector<float> good{1, 2, 3};
  CHECK(refused(fixture.read(search_for(good, KALOS_MAX_K + 1)), "1024"));
  SearchRequest skipping = search_for(good, 10);
  skipping.skip = KALOS_MAX_K - 9;
  CHECK(refused(fixture.read(skipping), "1024"));
  skipping.skip = 0xFFFFFFFFu;
  CHECK(refused(fixture.read(skipping), "1024"));
  SearchRequest filtered = search_for(good, 10);
  filtered.filter = "{\"a\":{\"$near\":1}}";
  CHECK(refused(fixture.read(filtered), "$near"));
  CountRequest count;
  count.collection_id = 1;
  count.filter = "[]";
  CHECK(refused(fixture.read(count), "JSON object"));
  ScanRequest scan = scan_all(0);
  CHECK(refused(fixture.read(scan), "page_limit"));
  scan = scan_all();
  scan.order = kalos_order(3);
  CHECK(refused(fixture.read(scan), "order"));
}

TEST(collections_answer_as_their_state_says) {
  Fixture fixture(2);
  std::vector<float> query{1, 0};
  SearchRequest request = search_for(query, 1);
  request.collection_id = 9;
  CHECK(refused(fixture.read(request), "no collection", KALOS_STATUS_NOT_FOUND));
  CollectionInfo info;
  info.id = 2;
  info.name = "loading";
  info.dimension = 2;
  auto percent = std::make_shared<std::atomic<uint32_t>>(43);
  fixture.index.set_loading(info, percent);
  request.collection_id = 2;
  CHECK(refused(fixture.read(request), "loading, 43 %", KALOS_STATUS_LOADING));
  info.embedder_name = "recorded while loading";
  fixture.commit(CollectionAdded{info});
  info.embedder_name.clear();
  fixture.index.set_loaded(std::make_unique<Collection>(info));
  CHECK_EQ(int(KALOS_STATUS_OK), int(fixture.read(request).status));
  CHECK_EQ(std::string("recorded while loading"), fixture.index.find(2).value()->info().embedder_name);
  info.id = 3;
  info.name = "cold";
  fixture.index.set_loading(info, percent);
  fixture.index.set_cold(info, "needs 3 GiB, --memory is 1 GiB");
  request.collection_id = 3;
  CHECK(refused(fixture.read(request), "3 GiB", KALOS_STATUS_STORE_ERROR));
  auto collections = fixture.index.collections();
  CHECK_EQ(size_t{3}, collections.size());
  CHECK_EQ(std::string("cold"), collections[0].name);
  auto by_name = fixture.index.find_by_name("loading");
  CHECK(by_name && by_name->id == 2);
  CHECK(!fixture.index.find_by_name("nobody"));
  // Dropped while it loads: what the loader brings later does not raise it again.
  info.id = 4;
  fixture.index.set_loading(info, percent);
  fixture.commit(CollectionDropped{4});
  fixture.index.set_loaded(std::make_unique<Collection>(info));
  CHECK(!fixture.index.find(4));
  fixture.commit(CollectionDropped{1});
  request.collection_id = 1;
  CHECK(refused(fixture.read(request), "no collection", KALOS_STATUS_NOT_FOUND));
}

TEST(a_read_may_ask_for_a_commit_and_for_a_time) {
  Fixture fixture(2);
  fixture.put({"a", {1, 0}, {}, {}, ""});
  std::vector<float> query{1, 0};
  SearchRequest request = search_for(query, 1);
  request.min_sequence = fixture.commits;
  CHECK_EQ((Strings{"a"}), fixture.ids(request));
  request.min_sequence = fixture.commits + 1;
  CHECK(refused(fixture.read(request), "not published", KALOS_STATUS_BEHIND));
  request.min_sequence = 0;
  CHECK(refused(fixture.read(request, 1), "deadline", KALOS_STATUS_EXPIRED));
  CHECK_EQ(int(KALOS_STATUS_OK), int(fixture.read(request, monotonic_ns() + 60'000'000'000).status));
}

TEST(a_deadline_ends_a_walk_in_its_middle) {
  // One row scored for so many queries that no machine is done in the time given.
  Fixture fixture(64);
  for (int i = 0; i < 5000; ++i) fixture.put({std::to_string(i), std::vector<float>(64, float(i % 7)), {}, {}, ""});
  std::vector<float> queries(64 * 20000, 1.0f);
  SearchRequest request = search_for(queries, 10);
  request.include = 0;
  request.query_count = 20000;
  request.dimension = 64;
  CHECK(refused(fixture.read(request, monotonic_ns() + 20'000'000), "deadline", KALOS_STATUS_EXPIRED));
}

TEST(expired_rows_are_invisible_to_every_read) {
  Fixture fixture(1, KALOS_METRIC_DOT);
  for (int i = 0; i < 200; ++i) {
    int64_t expires = i % 3 == 0 ? long_ago : i % 3 == 1 ? far_away : 0;
    fixture.put({std::to_string(i), {1}, "{\"a\":1}", {}, key({i < 150 ? "mixed" : "more"}), expires});
  }
  fixture.put({"x", {1}, {}, {}, key({"all gone"}), long_ago});
  std::vector<float> query{1};
  SearchRequest search = search_for(query, 1000);
  search.scope.subtree = true;
  CHECK_EQ(size_t{133}, fixture.ids(search).size());
  search.filter = "{\"a\":1}";
  CHECK_EQ(size_t{133}, fixture.ids(search).size());
  CountRequest count;
  count.collection_id = 1;
  count.scope.subtree = true;
  CHECK_EQ(uint64_t{133}, fixture.count(count));
  count.filter = "{\"a\":1}";
  CHECK_EQ(uint64_t{133}, fixture.count(count));
  size_t pages;
  CHECK_EQ(size_t{133}, scan_pages(fixture, scan_all(20), pages).size());
  GetRequest get;
  get.collection_id = 1;
  std::string mixed = key({"mixed"});
  get.scope.namespace_key = mixed;
  get.ids = {"0", "1", "2"};
  Decoded got = fixture.hits(get);
  CHECK(!got.groups[0][0].found && got.groups[0][1].found && got.groups[0][2].found);
  NamespacesRequest list;
  list.collection_id = 1;
  CHECK_EQ((Strings{"(\"more\")", "(\"mixed\")"}), namespaces(fixture, list));
  CHECK_EQ(long_ago, fixture.index.next_expiry_us());
  CHECK_EQ(size_t{68}, fixture.index.expired(wall_us(), 1000).size());
  CHECK_EQ(size_t{5}, fixture.index.expired(wall_us(), 5).size());
}

TEST(get_is_aligned_with_the_ids_asked_for) {
  Fixture fixture(2);
  fixture.put({"a", {1, 0}, {}, "ta", ""});
  fixture.put({"b", {0, 1}, {}, "tb", ""});
  GetRequest request;
  request.collection_id = 1;
  request.include = KALOS_INCLUDE_TEXT;
  request.ids = {"b", "missing", "a", "b"};
  Decoded decoded = fixture.hits(request);
  CHECK_EQ(4u, decoded.header.row_count);
  CHECK_EQ(0u, decoded.header.scores.offset);
  auto& hits = decoded.groups[0];
  CHECK(hits[0].text == "tb" && !hits[1].found && hits[2].text == "ta" && hits[3].text == "tb");
  std::string elsewhere = key({"x"});
  request.scope.namespace_key = elsewhere;
  for (auto& hit : fixture.group(request)) CHECK(!hit.found);
}

TEST(groups_give_the_best_hit_of_each_json_value) {
  Fixture fixture(1, KALOS_METRIC_DOT);
  const char* metadata[] = {"{\"doc\":1}",
                            "{\"doc\":1.0}",
                            "{\"doc\":\"1\"}",
                            "{\"doc\":null}",
                            "{\"doc\":null}",
                            "{}",
                            "{}",
                            "{\"doc\":{\"a\":1,\"b\":2}}",
                            "{\"doc\":{\"b\":2,\"a\":1}}",
                            "{\"doc\":true}",
                            "{\"d\":{\"o\":1}}",
                            "{\"d\":{\"o\":1}}"};
  for (int i = 0; i < 12; ++i) fixture.put({std::to_string(i), {float(100 - i)}, metadata[i], {}, ""});
  std::vector<float> query{1};
  SearchRequest request = search_for(query, 100);
  request.group_by = "doc";
  CHECK_EQ((Strings{"0", "2", "3", "5", "6", "7", "9", "10", "11"}), fixture.ids(request));
  request.k = 3;
  CHECK_EQ((Strings{"0", "2", "3"}), fixture.ids(request));
  request.skip = 2;
  CHECK_EQ((Strings{"3", "5", "6"}), fixture.ids(request));
  request.skip = 0;
  request.k = 100;
  request.group_by = "d.o";
  CHECK_EQ(size_t{11}, fixture.ids(request).size());
  request.group_by = "doc";
  request.filter = "{\"doc\":{\"$exists\":true}}";
  request.min_score = 92.5;
  CHECK_EQ((Strings{"0", "2", "3", "7"}), fixture.ids(request));
}

TEST(explain_counts_rows) {
  Fixture fixture(1);
  for (int i = 0; i < 300; ++i)
    fixture.put({std::to_string(i), {1}, "{\"n\":" + std::to_string(i) + "}", {}, key({i < 200 ? "a" : "b"})});
  fixture.put({"plain", {}, {}, {}, key({"a"})});
  std::vector<float> query{1};
  SearchRequest request = search_for(query, 2);
  CHECK_EQ(std::string(""), fixture.hits(request).explain);
  std::string a = key({"a"});
  request.scope.namespace_key = a;
  request.filter = "{\"n\":{\"$lt\":50}}";
  request.explain = true;
  json explain = json::parse(fixture.hits(request).explain);
  for (const char* stage : {"filter_us", "scan_us", "score_us"}) {
    CHECK(explain[stage].is_number() && explain[stage] >= 0);
    explain.erase(stage);
  }
  CHECK(explain["expected_us"].contains("one thread") && explain["expected_us"].contains("all threads"));
  explain.erase("expected_us");
  CHECK_EQ(json({{"plan", "code scan"},
                 {"threads", "one thread"},
                 {"device", "cpu"},
                 {"rows_in_scope", 201},
                 {"rows_matched", 50},
                 {"rows_scanned", 64},   // the other groups have no row that matches
                 {"rows_narrowed", 50},  // all have the one direction that there is: all tie
                 {"rows_scored", 50}}),
           explain);
}

TEST(scans_page_through_both_orders_and_meet_every_row_once) {
  Fixture fixture(1);
  std::mt19937 random(3);
  std::vector<std::pair<int64_t, std::string>> by_time;
  Strings inserted;
  for (int i = 0; i < 500; ++i) {
    std::string id = std::to_string(i);
    int64_t updated = 1 + int64_t(random() % 50);
    fixture.put({id,
                 i % 4 ? std::vector<float>{1} : std::vector<float>{},
                 "{\"even\":" + std::string(i % 2 ? "false" : "true") + "}",
                 {},
                 key({"n" + std::to_string(i % 5)}),
                 0,
                 updated});
    inserted.push_back(id);
    by_time.emplace_back(updated, id);
  }
  // Newest first; of equal times the later row first.
  std::stable_sort(by_time.begin(), by_time.end(), [](auto& a, auto& b) { return a.first < b.first; });
  Strings newest;
  for (auto at = by_time.rbegin(); at != by_time.rend(); ++at) newest.push_back(at->second);
  for (uint32_t limit : {1u, 7u, 100u, 499u, 500u, 501u, 0xFFFFFFFFu}) {
    size_t pages;
    ScanRequest request = scan_all(limit);
    CHECK_EQ(inserted, scan_pages(fixture, request, pages));
    CHECK_EQ((size_t{500} + limit - 1) / limit, pages);
    request.order = KALOS_ORDER_UPDATED;
    CHECK_EQ(newest, scan_pages(fixture, request, pages));
    request.filter = "{\"even\":true}";
    Strings even;
    std::copy_if(newest.begin(), newest.end(), std::back_inserter(even),
                 [](auto& id) { return std::stoi(id) % 2 == 0; });
    CHECK_EQ(even, scan_pages(fixture, request, pages));
    request.skip = 200;
    CHECK_EQ(Strings(even.begin() + 200, even.end()), scan_pages(fixture, request, pages));
  }
  ScanRequest skipped = scan_all(10);
  skipped.skip = 495;
  CHECK_EQ(Strings(inserted.begin() + 495, inserted.end()), fixture.ids(skipped));
  skipped.skip = std::numeric_limits<uint64_t>::max();
  CHECK_EQ(Strings{}, fixture.ids(skipped));
  CHECK_EQ(0u, fixture.hits(skipped).header.has_cursor);
  ScanRequest odd_cursor = scan_all(10);
  odd_cursor.order = KALOS_ORDER_UPDATED;
  odd_cursor.has_cursor = true;
  odd_cursor.cursor_updated_us = std::numeric_limits<int64_t>::min();
  CHECK_EQ(Strings{}, fixture.ids(odd_cursor));
}

TEST(a_page_ends_at_its_bytes_but_holds_at_least_one_row) {
  Fixture fixture(1);
  for (int i = 0; i < 40; ++i) fixture.put({std::to_string(i), {}, {}, std::string(1000, 'x'), ""});
  ScanRequest request = scan_all(100);
  request.include = KALOS_INCLUDE_TEXT;
  request.page_bytes = 5500;
  size_t pages;
  CHECK_EQ(size_t{40}, scan_pages(fixture, request, pages).size());
  CHECK_EQ(size_t{8}, pages);
  request.page_bytes = 1;
  CHECK_EQ(size_t{40}, scan_pages(fixture, request, pages).size());
  CHECK_EQ(size_t{40}, pages);
  request.page_bytes = 0;
  CHECK_EQ(size_t{40}, fixture.ids(request).size());
  request.page_bytes = std::numeric_limits<uint64_t>::max();
  CHECK_EQ(size_t{40}, fixture.ids(request).size());
}

TEST(namespaces_are_listed_by_prefix_suffix_and_depth) {
  Fixture fixture(1);
  for (auto& segments :
       std::vector<Strings>{{}, {"a"}, {"a", "x"}, {"a", "y"}, {"a", "y", "x"}, {"ab", "x"}, {"b", "q"}, {"zz\x01x"}}) {
    fixture.put({"r", {1}, {}, {}, key(segments)});
  }
  NamespacesRequest request;
  request.collection_id = 1;
  CHECK_EQ((Strings{"()", "(\"a\")", "(\"a\", \"x\")", "(\"a\", \"y\")", "(\"a\", \"y\", \"x\")", "(\"b\", \"q\")",
                    "(\"ab\", \"x\")", "(\"zz\x01x\")"}),
           namespaces(fixture, request));
  std::string a = key({"a"}), x = key({"x"}), yx = key({"y", "x"});
  request.prefix = a;
  CHECK_EQ((Strings{"(\"a\")", "(\"a\", \"x\")", "(\"a\", \"y\")", "(\"a\", \"y\", \"x\")"}),
           namespaces(fixture, request));
  request.suffix = x;
  CHECK_EQ((Strings{"(\"a\", \"x\")", "(\"a\", \"y\", \"x\")"}), namespaces(fixture, request));
  request.suffix = yx;
  CHECK_EQ((Strings{"(\"a\", \"y\", \"x\")"}), namespaces(fixture, request));
  request.prefix.reset();
  request.suffix = x;
  CHECK_EQ((Strings{"(\"a\", \"x\")", "(\"a\", \"y\", \"x\")", "(\"ab\", \"x\")"}), namespaces(fixture, request));
  request.suffix.reset();
  request.max_depth = 1;
  CHECK_EQ((Strings{"()", "(\"a\")", "(\"b\")", "(\"ab\")", "(\"zz\x01x\")"}), namespaces(fixture, request));
  request.skip = 1;
  request.limit = 2;
  CHECK_EQ((Strings{"(\"a\")", "(\"b\")"}), namespaces(fixture, request));
  request.skip = 100;
  CHECK_EQ(Strings{}, namespaces(fixture, request));
  fixture.remove(key({"b", "q"}), "r");
  request.skip = 0;
  request.limit = 0;
  CHECK_EQ((Strings{"()", "(\"a\")", "(\"ab\")", "(\"zz\x01x\")"}), namespaces(fixture, request));
}

TEST(a_reply_beyond_the_limit_says_what_to_ask_for_instead) {
  Fixture fixture(1);
  for (int i = 0; i < 18; ++i) fixture.put({std::to_string(i), {1}, {}, std::string(KALOS_MAX_TEXT_BYTES, 'x'), ""});
  std::vector<float> query{1};
  CHECK(refused(fixture.read(search_for(query, 18)), "leave text"));
  SearchRequest bare = search_for(query, 18);
  bare.include = 0;
  CHECK_EQ(size_t{18}, fixture.ids(bare).size());
  std::vector<float> queries(1'000'000, 1.0f);
  SearchRequest many = search_for(queries, 10);
  many.include = 0;
  many.query_count = 1'000'000;
  many.dimension = 1;
  CHECK(refused(fixture.read(many), "fewer queries"));
  ScanRequest scan = scan_all();
  scan.include = KALOS_INCLUDE_TEXT;
  scan.page_bytes = KALOS_MAX_MESSAGE_BYTES;
  size_t pages;
  CHECK_EQ(size_t{18}, scan_pages(fixture, scan, pages).size());
}

// ---- random searches against a plain oracle ----

namespace {

struct OracleRow {
  std::string name_space, id;
  uint64_t sequence;
  std::vector<float> vector;
  int group, flag;
};

struct Scored {
  double score;
  const OracleRow* row;
};

Strings oracle_search(const std::map<std::pair<std::string, std::string>, OracleRow>& rows, kalos_metric metric,
                      const SearchRequest& request, std::span<const float> query, std::vector<double>& scores) {
  std::vector<Scored> all;
  for (auto& [name, row] : rows) {
    bool in_scope = request.scope.subtree ? row.name_space.starts_with(request.scope.namespace_key)
                                          : row.name_space == request.scope.namespace_key;
    if (!in_scope || row.vector.empty() || (request.filter && row.flag != 1)) continue;
    all.push_back({canonical_score(metric, query, row.vector), &row});
  }
  std::sort(all.begin(), all.end(), [&](const Scored& a, const Scored& b) {
    if (a.score != b.score) return metric == KALOS_METRIC_L2 ? a.score < b.score : a.score > b.score;
    return a.row->sequence < b.row->sequence;
  });
  Strings found;
  std::vector<int> seen;
  uint32_t skip = request.skip;
  scores.clear();
  for (auto& candidate : all) {
    if (request.min_score && candidate.score < *request.min_score) continue;
    if (request.max_distance && candidate.score > *request.max_distance) continue;
    if (request.group_by && candidate.row->group >= 0) {
      if (std::find(seen.begin(), seen.end(), candidate.row->group) != seen.end()) continue;
      seen.push_back(candidate.row->group);
    }
    if (skip > 0) {
      --skip;
      continue;
    }
    if (found.size() == request.k) break;
    found.push_back(candidate.row->name_space + candidate.row->id);
    scores.push_back(candidate.score);
  }
  return found;
}

void check_hits(const std::vector<DecodedHit>& hits, const Strings& expected, const std::vector<double>& scores) {
  Strings found;
  for (auto& hit : hits) found.push_back(hit.namespace_key + hit.id);
  CHECK(expected == found);
  for (size_t i = 0; i < std::min(hits.size(), scores.size()); ++i) CHECK_EQ(scores[i], hits[i].score);
}

}  // namespace

TEST(random_searches_alone_and_combined_are_those_of_a_brute_force) {
  for (kalos_metric metric : {KALOS_METRIC_COSINE, KALOS_METRIC_DOT, KALOS_METRIC_L2}) {
    std::mt19937 random(uint32_t(metric) * 17);
    auto below = [&](uint32_t n) { return uint32_t(random() % n); };
    uint32_t dimension = metric == KALOS_METRIC_DOT ? 33 : 6;
    Fixture fixture(dimension, metric);
    std::map<std::pair<std::string, std::string>, OracleRow> rows;
    const std::string spaces[] = {key({}), key({"a"}), key({"a", "b"}), key({"ab"})};
    auto any_vector = [&] {
      std::vector<float> vector(dimension);
      // Few values, so that ties are common.
      for (float& x : vector) x = float(int(below(3)) - 1);
      return vector;
    };
    for (int step = 0; step < 60; ++step) {
      for (int change = 0; change < 60; ++change) {
        std::string name_space = spaces[below(4)], id = "i" + std::to_string(below(250));
        if (below(3) == 0) {
          fixture.remove(name_space, id);
          rows.erase({name_space, id});
          continue;
        }
        OracleRow row{name_space,        id,           0, below(6) ? any_vector() : std::vector<float>{},
                      int(below(6)) - 1, int(below(3))};
        std::string metadata = "{\"flag\":" + std::to_string(row.flag) +
                               (row.group < 0 ? "" : ",\"g\":" + std::to_string(row.group)) + "}";
        row.sequence = fixture.put({id, row.vector, metadata, {}, name_space});
        rows[{name_space, id}] = row;
      }
      std::vector<std::vector<float>> queries;
      std::vector<std::unique_ptr<ReadJob>> jobs;
      for (int j = 0; j < 8; ++j) {
        uint32_t count = 1 + below(3);
        auto& vectors = queries.emplace_back();
        for (uint32_t q = 0; q < count; ++q) {
          auto one = any_vector();
          vectors.insert(vectors.end(), one.begin(), one.end());
        }
        SearchRequest request = search_for(vectors, below(12));
        request.dimension = dimension;
        request.query_count = count;
        request.skip = below(4) ? 0 : below(5);
        request.scope = {spaces[below(4)], below(2) == 1};
        if (below(3) == 0) request.filter = "{\"flag\":1}";
        if (below(4) == 0) request.group_by = "g";
        if (below(4) == 0)
          (metric == KALOS_METRIC_L2 ? request.max_distance : request.min_score) =
              metric == KALOS_METRIC_L2 ? 2.0 : 0.5;
        jobs.push_back(std::make_unique<ReadJob>());
        jobs.back()->request = request;
        jobs.back()->reply.timings.queue_ns = uint64_t(j);
      }
      std::vector<ReadJob*> pass;
      for (size_t j = 0; j < jobs.size(); ++j) {
        std::get<SearchRequest>(jobs[j]->request).vectors = queries[j];
        pass.push_back(jobs[j].get());
      }
      fixture.index.read(pass);
      for (size_t j = 0; j < jobs.size(); ++j) {
        auto& request = std::get<SearchRequest>(jobs[j]->request);
        CHECK_EQ(int(KALOS_STATUS_OK), int(jobs[j]->reply.status));
        CHECK_EQ(uint64_t(j), jobs[j]->reply.timings.queue_ns);
        Decoded combined = decode_hits(jobs[j]->reply.message);
        CHECK_EQ(request.query_count, combined.header.group_count);
        for (uint32_t q = 0; q < request.query_count; ++q) {
          std::vector<double> scores;
          Strings expected =
              oracle_search(rows, metric, request, request.vectors.subspan(q * dimension, dimension), scores);
          check_hits(combined.groups[q], expected, scores);
        }
        CHECK(jobs[j]->reply.message == fixture.read(request).message);
      }
    }
  }
}

TEST(one_bad_job_of_a_pass_spoils_no_other) {
  Fixture fixture(2);
  fixture.put({"a", {1, 0}, "{\"x\":1}", {}, ""});
  std::vector<float> query{1, 0}, bad{std::numeric_limits<float>::infinity(), 0};
  std::vector<ReadJob> jobs(5);
  for (auto& job : jobs) job.request = search_for(query, 1);
  std::get<SearchRequest>(jobs[1].request).filter = "{\"x\":{\"$what\":1}}";
  std::get<SearchRequest>(jobs[2].request).vectors = bad;
  jobs[3].deadline_ns = 1;
  CountRequest count;
  count.collection_id = 1;
  jobs[4].request = count;
  std::vector<ReadJob*> pass;
  for (auto& job : jobs) pass.push_back(&job);
  fixture.index.read(pass);
  CHECK_EQ(int(KALOS_STATUS_OK), int(jobs[0].reply.status));
  CHECK_EQ(size_t{1}, decode_hits(jobs[0].reply.message).groups[0].size());
  CHECK(refused(jobs[1].reply, "$what"));
  CHECK(refused(jobs[2].reply, "query 0, component 0"));
  CHECK(refused(jobs[3].reply, "deadline", KALOS_STATUS_EXPIRED));
  CHECK_EQ(int(KALOS_STATUS_OK), int(jobs[4].reply.status));
  CHECK(jobs[0].reply.timings.search_ns > 0 && jobs[0].reply.timings.fetch_ns > 0);
}

TEST(ten_thousand_namespaces_of_a_hundred_rows_answer_alone_and_together) {
  Fixture fixture(4);
  std::vector<Change> changes;
  uint64_t sequence = 0;
  for (int n = 0; n < 10000; ++n) {
    for (int i = 0; i < 100; ++i) {
      auto row = std::make_unique<Row>();
      row->sequence = ++sequence;
      row->namespace_key = key({"tenant", std::to_string(n)});
      row->id = std::to_string(i);
      row->vector = {float(n), float(i), 1, 0};
      RowChange change;
      change.collection_id = 1;
      change.row = std::move(row);
      changes.push_back(std::move(change));
    }
  }
  fixture.index.apply(std::move(changes), ++fixture.commits);
  std::vector<float> query{5000, 50, 1, 0};
  SearchRequest request = search_for(query, 1);
  std::string one = key({"tenant", "5000"}), all = key({"tenant"});
  request.scope.namespace_key = one;
  CHECK_EQ((Strings{"50"}), fixture.ids(request));
  request.scope = {all, true};
  Decoded together = fixture.hits(request);
  CHECK_EQ(one, together.groups[0].at(0).namespace_key);
  CHECK_EQ(uint64_t{1'000'000}, fixture.index.row_count());
}

TEST_MAIN
