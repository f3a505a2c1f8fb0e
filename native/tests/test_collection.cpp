// Rows in memory: holes, ids, arenas and what is left behind when rows go.
#include "engine/collection.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <random>

#include "check.h"
#include "compute/cpu/portable/canonical.h"
#include "engine_fixture.h"

using namespace fixture;

namespace {

CollectionInfo info(uint32_t dimension) {
  CollectionInfo info;
  info.id = 1;
  info.name = "notes";
  info.dimension = dimension;
  return info;
}

struct Expected {
  uint64_t sequence;
  std::vector<float> vector;
  std::optional<std::string> text, metadata;
  int64_t expires_us;
};
using Oracle = std::map<std::pair<std::string, std::string>, Expected>;

std::unique_ptr<Row> make_row(const std::string& name_space, const std::string& id, const Expected& expected) {
  auto row = std::make_unique<Row>();
  row->sequence = expected.sequence;
  row->namespace_key = name_space;
  row->id = id;
  row->vector = expected.vector;
  row->has_text = expected.text.has_value();
  row->text = expected.text.value_or("");
  row->has_metadata = expected.metadata.has_value();
  row->metadata = expected.metadata.value_or("");
  row->expires_us = expected.expires_us;
  return row;
}

void check_same(const Collection& collection, const Oracle& oracle) {
  CHECK_EQ(oracle.size(), collection.row_count());
  std::map<std::string, size_t> rows;
  int64_t earliest = 0;
  for (const auto& [name, expected] : oracle) {
    ++rows[name.first];
    auto at = collection.namespaces().find(name.first);
    CHECK(at != collection.namespaces().end());
    if (at == collection.namespaces().end()) continue;
    auto code = at->second->find(name.second);
    CHECK(code.has_value());
    if (!code) continue;
    const RowEntry& entry = at->second->entry(*code);
    CHECK_EQ(expected.sequence, entry.sequence);
    CHECK_EQ(name.second, std::string(entry.record->id()));
    CHECK(expected.text == std::optional<std::string>(entry.record->text()));
    CHECK_EQ(expected.metadata.value_or(""), std::string(entry.record->metadata()));
    CHECK_EQ(expected.metadata.has_value(), bool(entry.record->has_metadata));
    const float* vector = at->second->vector(*code);
    CHECK_EQ(!expected.vector.empty(), vector != nullptr);
    if (vector) {
      CHECK(std::equal(expected.vector.begin(), expected.vector.end(), vector));
      for (size_t i = expected.vector.size(); i < padded_dimension(uint32_t(expected.vector.size())); ++i)
        CHECK_EQ(0.0f, vector[i]);
    }
    if (expected.expires_us && (earliest == 0 || expected.expires_us < earliest)) earliest = expected.expires_us;
  }
  CHECK_EQ(rows.size(), collection.namespaces().size());
  CHECK_EQ(earliest, collection.next_expiry_us());
  for (const auto& [key, count] : rows) {
    const Namespace& owner = *collection.namespaces().find(key)->second;
    CHECK_EQ(count, size_t{owner.row_count()});
    // The norms moved with their rows, and a walk over the runs meets each row once.
    size_t met = 0;
    for (size_t chunk = 0; chunk < owner.vectors().run_count(); ++chunk) {
      auto run = owner.vectors().run(chunk);
      for (uint32_t i = 0; i < run.count; ++i, ++met) {
        CHECK_EQ(&owner.vectors().entry(run.first + i), &run.entries[i]);
        std::span<const float> vector(run.block.vectors + size_t{i} * run.block.stride, run.block.stride);
        CHECK_EQ(canonical_norm(vector), run.block.norms[i]);
      }
    }
    CHECK_EQ(size_t{owner.vectors().size()}, met);
  }
}

}  // namespace

TEST(random_puts_and_removes_leave_exactly_the_rows_that_a_map_holds) {
  for (uint32_t dimension : {1u, 3u, 8u, 40u}) {
    std::mt19937 random(dimension);
    auto below = [&](uint32_t n) { return std::uniform_int_distribution<uint32_t>(0, n - 1)(random); };
    Collection collection(info(dimension));
    Oracle oracle;
    uint64_t sequence = 0;
    for (int step = 0; step < 6000; ++step) {
      std::string name_space = key(below(2) ? Strings{"n" + std::to_string(below(4))} : Strings{});
      std::string id = "id" + std::to_string(below(300));
      bool growing = (step / 1500) % 2 == 0;
      if (below(10) < (growing ? 7u : 3u)) {
        auto at = oracle.find({name_space, id});
        Expected expected;
        expected.sequence = at == oracle.end() ? ++sequence : at->second.sequence;
        if (below(5)) {
          for (uint32_t i = 0; i < dimension; ++i) expected.vector.push_back(float(below(1000)) - 500);
        }
        if (below(3)) expected.text = std::string(below(below(20) == 0 ? 60000 : 400), char('a' + below(26)));
        if (below(3)) expected.metadata = "{\"n\":" + std::to_string(below(100)) + "}";
        expected.expires_us = below(4) == 0 ? 1 + below(1000) : 0;
        collection.put(make_row(name_space, id, expected));
        oracle[{name_space, id}] = expected;
      } else {
        CHECK_EQ(oracle.erase({name_space, id}) == 1, collection.remove(name_space, id));
      }
      if (step % 500 == 0) check_same(collection, oracle);
    }
    check_same(collection, oracle);
    for (auto& [name, expected] : Oracle(oracle)) CHECK(collection.remove(name.first, name.second));
    check_same(collection, {});
    CHECK_EQ(uint64_t{0}, collection.bytes());
  }
}

TEST(memory_is_given_back_while_rows_remain) {
  Collection collection(info(64));
  auto put = [&](int i) {
    collection.put(make_row("", "id" + std::to_string(i),
                            {uint64_t(i + 1), std::vector<float>(64, 1.0f), std::string(1000, 't'), std::nullopt, 0}));
  };
  for (int i = 0; i < 20000; ++i) put(i);
  uint64_t full = collection.bytes();
  CHECK(full > 20000ull * (1000 + 256));
  CHECK(full < 20000ull * Collection::bytes_of(64, 7, 1000, 0) * 5 / 4);
  // Every tenth row stays, so that no chunk of texts dies by itself.
  for (int i = 0; i < 20000; ++i) {
    if (i % 10) CHECK(collection.remove("", "id" + std::to_string(i)));
  }
  CHECK_EQ(uint64_t{2000}, collection.row_count());
  CHECK(collection.bytes() < full / 4);
  for (int i = 0; i < 20000; i += 10) {
    const Namespace& owner = *collection.namespaces().begin()->second;
    auto code = owner.find("id" + std::to_string(i));
    CHECK(code && owner.entry(*code).record->text() == std::string(1000, 't'));
  }
}

TEST(many_small_namespaces_cost_little_more_than_their_rows) {
  Collection collection(info(16));
  uint64_t sequence = 0, rows = 0;
  for (int n = 0; n < 10000; ++n) {
    for (int i = 0; i < 10; ++i) {
      Expected expected{++sequence, std::vector<float>(16, float(i)), "text", std::nullopt, 0};
      collection.put(make_row(key({"tenant" + std::to_string(n)}), std::to_string(i), expected));
      ++rows;
    }
  }
  CHECK_EQ(size_t{10000}, collection.namespaces().size());
  CHECK(collection.bytes() < rows * Collection::bytes_of(16, 1, 4, 0) * 3);
  for (int n = 0; n < 10000; ++n) {
    for (int i = 0; i < 10; ++i) collection.remove(key({"tenant" + std::to_string(n)}), std::to_string(i));
  }
  CHECK_EQ(size_t{0}, collection.namespaces().size());
  CHECK_EQ(uint64_t{0}, collection.bytes());
}

TEST(what_is_deleted_is_overwritten_where_it_lay) {
  Collection collection(info(24));
  Expected kept{1, std::vector<float>(24, 1.0f), "kept", std::nullopt, 0};
  Expected gone{2, std::vector<float>(24, 1234.5f), std::string(200, 's'), "{\"k\":\"secret\"}", 0};
  Expected last{3, std::vector<float>(24, 3.0f), "last", std::nullopt, 0};
  // In a chunk of their own are rows 2 and 3, so that it stays when row 3 goes.
  collection.put(make_row("", "kept", kept));
  collection.put(make_row("", "kept2", kept));
  collection.put(make_row("", "gone", gone));
  collection.put(make_row("", "last", last));
  const Namespace& owner = *collection.namespaces().begin()->second;
  const RowEntry before = owner.entry(*owner.find("gone"));
  auto* text = before.record->text()->data();
  auto* metadata = before.record->metadata().data();
  size_t metadata_bytes = before.record->metadata_bytes;
  const float* hole = owner.vector(*owner.find("gone"));
  const float* end = owner.vector(*owner.find("last"));
  CHECK_EQ('s', text[199]);
  CHECK(collection.remove("", "gone"));
  auto zero = [](auto value) { return value == 0; };
  CHECK(std::all_of(text, text + 200, zero));
  CHECK(std::all_of(metadata, metadata + metadata_bytes, zero));
  CHECK_EQ(3.0f, hole[0]);
  CHECK(std::all_of(end, end + 24, zero));
  CHECK_EQ(hole, owner.vector(*owner.find("last")));
}

TEST(texts_may_lie_in_files_without_names) {
  auto directory = std::filesystem::temp_directory_path() / ("kalos-test-" + std::to_string(getpid()));
  std::filesystem::create_directory(directory);
  {
    Collection collection(info(2), {true, directory.string()});
    for (int i = 0; i < 3000; ++i) {
      collection.put(
          make_row("", std::to_string(i), {uint64_t(i + 1), {1, 2}, std::string(2000, char('a' + i % 26)), "{}", 0}));
    }
    CHECK(std::filesystem::is_empty(directory));
    CHECK(collection.bytes() < 3000ull * 2000 / 4);
    for (int i = 0; i < 3000; i += 2) CHECK(collection.remove("", std::to_string(i)));
    const Namespace& owner = *collection.namespaces().begin()->second;
    for (int i = 1; i < 3000; i += 2) {
      auto code = owner.find(std::to_string(i));
      CHECK(code && owner.entry(*code).record->text() == std::string(2000, char('a' + i % 26)));
    }
  }
  // A directory that cannot be written to must not lose what was acknowledged.
  Collection fallback(info(2), {true, (directory / "missing").string()});
  fallback.put(make_row("", "a", {1, {1, 2}, "text", std::nullopt, 0}));
  CHECK_EQ(uint64_t{1}, fallback.row_count());
  std::filesystem::remove_all(directory);
}

TEST(a_delete_selects_exactly_what_it_means) {
  Collection collection(info(2));
  uint64_t sequence = 0;
  auto put = [&](const std::string& name_space, const std::string& id, const std::string& metadata,
                 int64_t expires_us = 0) {
    collection.put(make_row(name_space, id, {++sequence, {1, 2}, std::nullopt, metadata, expires_us}));
  };
  put("", "a", "{\"n\":1}");
  put(key({"alice"}), "a", "{\"n\":1}");
  put(key({"alice"}), "b", "{\"n\":2}");
  put(key({"alice", "x"}), "a", "{\"n\":2}");
  put(key({"alicex"}), "a", "{\"n\":1}");
  put(key({"alice"}), "old", "{\"n\":1}", 50);
  std::string alice = key({"alice"});
  auto selected = [&](const DeleteRequest& request) {
    auto names = collection.select(request, 100);
    CHECK(bool(names));
    Strings found;
    if (names) {
      for (auto& name : *names) found.push_back(readable_key(name.namespace_key) + name.id);
    }
    std::sort(found.begin(), found.end());
    return found;
  };
  DeleteRequest request;
  request.scope.namespace_key = alice;
  CHECK(!collection.select(request, 100));
  request.filter = "{}";
  CHECK(!collection.select(request, 100));
  request.filter = "{\"$bad\":1}";
  CHECK(!collection.select(request, 100));
  request.filter = "{\"n\":1}";
  CHECK_EQ((Strings{"(\"alice\")a"}), selected(request));
  request.by_ids = true;
  request.ids = {"b", "a", "a", "none"};
  CHECK_EQ((Strings{"(\"alice\")a"}), selected(request));
  request.filter.reset();
  CHECK_EQ((Strings{"(\"alice\")a", "(\"alice\")b"}), selected(request));
  request.scope.subtree = true;
  CHECK_EQ((Strings{"(\"alice\")a", "(\"alice\")b", "(\"alice\", \"x\")a"}), selected(request));
  request.by_ids = false;
  request.ids.clear();
  request.everything = true;
  CHECK_EQ(size_t{3}, selected(request).size());
  std::string nobody = key({"nobody"});
  request.scope.namespace_key = nobody;
  CHECK_EQ(size_t{0}, selected(request).size());
  request.scope.namespace_key = "";
  CHECK_EQ(size_t{5}, selected(request).size());
  request.scope.subtree = false;
  CHECK_EQ(size_t{1}, selected(request).size());
}

TEST(expired_rows_are_named_earliest_first) {
  Collection collection(info(1));
  for (int i = 0; i < 10; ++i) {
    collection.put(make_row(key({"n"}), std::to_string(i),
                            {uint64_t(i + 1), {1}, std::nullopt, std::nullopt, i == 9 ? 0 : 100 - i * 10}));
  }
  CHECK_EQ(int64_t{20}, collection.next_expiry_us());
  auto names = collection.expired(50, 3);
  CHECK_EQ(size_t{3}, names.size());
  CHECK_EQ(std::string("8"), names[0].id);
  CHECK_EQ(std::string("6"), names[2].id);
  CHECK_EQ(size_t{4}, collection.expired(50, 100).size());
  // An upsert without expiry takes it back.
  collection.put(make_row(key({"n"}), "8", {9, {1}, std::nullopt, std::nullopt, 0}));
  CHECK_EQ(int64_t{30}, collection.next_expiry_us());
}

TEST_MAIN
