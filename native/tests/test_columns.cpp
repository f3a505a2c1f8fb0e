// Filters over columns: the mask of a table is what the filter says of each row, whatever was written in between; and
// columns cost neither a write nor more memory than they may.
#include <malloc.h>

#include <cstdlib>
#include <new>
#include <set>

#include "check.h"
#include "engine/filter_mask.h"
#include "engine_fixture.h"
#include "metadata_family.h"

using namespace fixture;

// ---- memory that runs out, and every piece that is given back looked at while `secret` is set ----

namespace {

std::string secret;
size_t secrets_given_back = 0;
size_t none_of_so_many_bytes = SIZE_MAX;

void look_at(const void* memory) {
  if (secret.empty() || memory == nullptr) return;
  std::string_view bytes(static_cast<const char*>(memory), malloc_usable_size(const_cast<void*>(memory)));
  if (bytes.find(secret) != std::string_view::npos) ++secrets_given_back;
}

}  // namespace

// Never inlined, or the compiler thinks that memory of `new` is freed otherwise.
[[gnu::noinline]] void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return bytes >= none_of_so_many_bytes ? nullptr : std::malloc(bytes ? bytes : 1);
}
[[gnu::noinline]] void* operator new(size_t bytes) {
  void* memory = operator new(bytes, std::nothrow);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  look_at(memory);
  std::free(memory);
}
void* operator new[](size_t bytes) { return operator new(bytes); }
void operator delete(void* memory, size_t) noexcept { operator delete(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { operator delete(memory); }
void operator delete[](void* memory) noexcept { operator delete(memory); }
void operator delete[](void* memory, size_t) noexcept { operator delete(memory); }

namespace {

Filter parsed(const std::string& text) {
  auto filter = Filter::parse(text);
  if (!filter) check::fail(__FILE__, __LINE__, text + ": " + filter.error().words);
  return filter ? std::move(*filter) : std::move(*Filter::parse("{}"));
}

CollectionInfo notes() {
  CollectionInfo info;
  info.id = 1;
  info.name = "notes";
  info.dimension = 3;
  return info;
}

// A collection with one namespace, "".
class Table {
 public:
  Table() = default;
  // Rows "0", "1", … with these values of the key "x", and so many without the key.
  explicit Table(const std::vector<std::string>& values, size_t without = 64) {
    for (size_t i = 0; i < values.size() + without; ++i) {
      put(std::to_string(i), true, i < values.size() ? "{\"x\":" + values[i] + "}" : "{\"y\":1}");
    }
  }

  void put(const std::string& id, bool has_vector, std::optional<std::string> metadata) {
    auto row = std::make_unique<Row>();
    row->sequence = ++sequence_;
    row->id = id;
    if (has_vector) row->vector = {1, 2, 3};
    row->has_metadata = metadata.has_value();
    row->metadata = metadata.value_or("");
    collection.put(std::move(row));
  }
  void remove(const std::string& id) { collection.remove("", id); }

  const Namespace* owner() const {
    auto at = collection.namespaces().find("");
    return at == collection.namespaces().end() ? nullptr : at->second.get();
  }

  // Holds the mask of each table to what the filter says of each row; returns the ids that match.
  std::set<std::string> check(const std::string& text) {
    std::set<std::string> ids;
    if (!owner()) return ids;
    Filter filter = parsed(text);
    for (bool has_vector : {true, false}) {
      const RowTable& rows = has_vector ? owner()->vectors() : owner()->plain();
      Deadline none(0);
      auto mask = match_rows(filter, owner()->columns(has_vector), rows, none);
      CHECK(bool(mask));
      CHECK_EQ(size_t{(rows.size() + 63) / 64}, mask->words.size());
      uint64_t matches = 0;
      for (uint32_t row = 0; row < rows.size(); ++row) {
        std::string metadata(rows.entry(row).record->metadata());
        bool expected = filter.matches(metadata);
        if (expected) ids.insert(std::string(rows.entry(row).record->id()));
        matches += expected;
        if (expected != (*mask)[row]) check::fail(__FILE__, __LINE__, text + " of " + metadata);
      }
      CHECK_EQ(matches, mask->matches);
      if (rows.size() % 64 != 0) CHECK_EQ(uint64_t{0}, mask->words.back() >> rows.size() % 64);
    }
    return ids;
  }

  Collection collection{notes()};

 private:
  uint64_t sequence_ = 0;
};

}  // namespace

TEST(a_mask_is_what_the_filter_says_of_each_row_whatever_was_written_in_between) {
  for (uint32_t seed = 0; seed < 6; ++seed) {
    family::Random random(seed);
    Table table;
    const size_t most_ids = seed % 2 == 0 ? 250 : 6000;  // also beyond 1,024 distinct numbers
    std::vector<std::string> asked;
    for (int step = 0; step < 60; ++step) {
      bool growing = (step / 15) % 2 == 0;
      for (size_t writes = random.below(most_ids / 4); writes > 0; --writes) {
        std::string id = std::to_string(random.below(most_ids));
        if (random.below(10) < (growing ? 8u : 2u)) {
          std::optional<std::string> metadata;
          if (!random.one_in(15)) metadata = family::any_metadata(random);
          table.put(id, !random.one_in(4), metadata);
        } else {
          table.remove(id);
        }
      }
      for (int i = 0; i < 12; ++i) {
        if (asked.empty() || !random.one_in(4)) asked.push_back(family::any_filter(random, 2));
        table.check(random.one_in(4) ? random.of(asked) : asked.back());
      }
    }
  }
}

TEST(each_operator_tells_its_rows_from_their_decoys) {
  struct Case {
    const char* condition;
    std::vector<std::string> matching, decoys;
  };
  const std::vector<Case> cases{
      {R"({"$eq":1})", {"1", "1.0", "1e0"}, {"true", "\"1\"", "[1]", "2", "null", "{\"x\":1}"}},
      {R"({"$eq":true})", {"true"}, {"1", "\"true\"", "false", "[true]"}},
      {R"({"$eq":null})", {"null"}, {"0", "false", "\"\"", "\"null\"", "[]"}},
      {R"({"$eq":"a"})", {"\"a\"", "\"\\u0061\""}, {"\"A\"", "\"ab\"", "\"\"", "[\"a\"]"}},
      {R"({"$eq":[1,"a"]})", {"[1,\"a\"]", "[ 1.0 , \"\\u0061\" ]"}, {"[\"a\",1]", "[1]", "[1,\"a\",1]", "\"a\""}},
      {R"({"$eq":{"a":1,"b":2}})", {"{\"b\":2,\"a\":1.0}"}, {"{\"a\":1}", "{\"a\":1,\"b\":2,\"c\":3}", "[1,2]"}},
      {R"({"$eq":9007199254740993})",
       {"9007199254740993"},
       {"9007199254740992", "9007199254740992.0", "9007199254740994"}},
      {R"({"$gt":9007199254740992.0})",
       {"9007199254740993", "1e300"},
       {"9007199254740992", "9007199254740991", "\"z\""}},
      {R"({"$gte":9007199254740993})", {"9007199254740993", "9007199254740994"}, {"9007199254740992.0", "1", "null"}},
      {R"({"$lt":9223372036854775808.0})",
       {"9223372036854775807", "-1", "1.5"},
       {"9223372036854775808.0", "true", "[0]"}},
      {R"({"$lte":9223372036854775806})",
       {"9223372036854775806", "0"},
       {"9223372036854775807", "9223372036854775808.0"}},
      {R"({"$gt":2})", {"2.5", "3"}, {"2", "2.0", "-3", "\"3\"", "true", "null", "[3]"}},
      {R"({"$gte":"b"})", {"\"b\"", "\"ba\"", "\"é\""}, {"\"a\"", "\"B\"", "3", "null", "[\"b\"]"}},
      {R"({"$lt":"b"})", {"\"a\"", "\"\"", "\"Z\""}, {"\"b\"", "\"c\"", "1", "true"}},
      {R"({"$in":[1,"a",null]})", {"1.0", "\"a\"", "null"}, {"true", "\"1\"", "[1]", "\"A\"", "0"}},
      {R"({"$in":[1,2,3,4,5,6,7,8,9.5,"a",9007199254740993]})",
       {"8", "9.5", "\"a\"", "1e0", "9007199254740993"},
       {"9", "true", "\"8\"", "9007199254740992", "[1]"}},
      {R"({"$exists":true})", {"null", "false", "[]", "{}", "0"}, {}},
      {R"({"$contains":"b"})", {"[\"a\",\"b\"]", "\"abc\""}, {"[\"ab\"]", "\"ABC\"", "{\"b\":1}", "[[\"b\"]]", "[]"}},
      {R"({"$contains":2})", {"[1,2.0]"}, {"2", "[[2]]", "\"2\"", "[\"2\"]", "[true]"}},
      {R"({"$icontains":"Red"})",
       {"\"INFRARED\"", "[\"blue\",\"red\"]"},
       {"\"re d\"", "[\"infrared\"]", "{\"red\":1}"}},
      {R"({"$subset":{"a":{"b":1}}})",
       {"{\"a\":{\"b\":1.0,\"c\":2}}", "{\"z\":0,\"a\":{\"b\":1}}"},
       {"{\"a\":{\"b\":2}}", "{\"a\":1}", "{\"b\":1}", "[{\"a\":1}]", "\"a\""}},
  };
  for (const Case& one : cases) {
    // In a small dictionary, and among so many numbers that they have an array of their own.
    for (size_t numbers : {size_t{0}, size_t{Column::most_numbers_in_dictionary} + 100}) {
      std::vector<std::string> values = one.matching;
      values.insert(values.end(), one.decoys.begin(), one.decoys.end());
      const size_t given = values.size();
      for (size_t i = 0; i < numbers; ++i) values.push_back("-" + std::to_string(1000 + i) + ".25");
      Table table(values);
      std::set<std::string> expected, others, found, found_not;
      for (size_t i = 0; i < given; ++i) (i < one.matching.size() ? expected : others).insert(std::to_string(i));
      for (const auto& id : table.check(std::string("{\"x\":") + one.condition + "}")) {
        if (std::stoul(id) < given) found.insert(id);
      }
      for (const auto& id : table.check(std::string("{\"x\":{\"$not\":") + one.condition + "}}")) {
        if (std::stoul(id) < given) found_not.insert(id);
      }
      CHECK(expected == found);
      CHECK(others == found_not);
      if (expected != found) std::cerr << one.condition << "\n";
    }
  }
}

TEST(what_is_missing_matches_only_ne_nin_and_exists_false) {
  Table table({"1", "null", "\"a\"", "[1]"}, 100);
  CHECK_EQ(size_t{103}, table.check(R"({"x":{"$ne":1}})").size());
  CHECK_EQ(size_t{102}, table.check(R"({"x":{"$nin":[1,null]}})").size());
  CHECK_EQ(size_t{104}, table.check(R"({"x":{"$nin":[]}})").size());
  CHECK_EQ(size_t{100}, table.check(R"({"x":{"$exists":false}})").size());
  CHECK_EQ(size_t{4}, table.check(R"({"x":{"$exists":true}})").size());
  CHECK_EQ(size_t{100}, table.check(R"({"x":{"$not":{"$exists":true}}})").size());
  CHECK_EQ(size_t{0}, table.check(R"({"nobody":{"$gte":0}})").size());
  CHECK_EQ(size_t{104}, table.check(R"({"nobody":{"$ne":0}})").size());
}

TEST(what_was_built_when_the_deadline_passed_is_kept) {
  family::Random random(3);
  Table table;
  for (int i = 0; i < 20'000; ++i) table.put(std::to_string(i), true, family::any_metadata(random));
  Filter filter = parsed(R"({"lang":"en","n":{"$gt":5}})");
  int attempts = 0;
  for (bool done = false; !done && attempts < 100; ++attempts) {
    Deadline passed(1);
    auto mask = match_rows(filter, table.owner()->columns(true), table.owner()->vectors(), passed);
    done = bool(mask);
    if (!done) CHECK_EQ(int(KALOS_STATUS_EXPIRED), int(mask.error().status));
    // Rows come and go, before what is built and behind it.
    for (int i = 0; i < 20; ++i) table.remove(std::to_string(random.below(20'000)));
    for (int i = 0; i < 20; ++i) table.put(std::to_string(random.below(20'000)), true, family::any_metadata(random));
  }
  CHECK(attempts > 3 && attempts < 100);
  table.check(R"({"lang":"en","n":{"$gt":5}})");
}

TEST(columns_are_built_a_part_at_a_time) {
  family::Random random(4);
  Table table;
  for (int i = 0; i < 1000; ++i) table.put(std::to_string(i), true, family::any_metadata(random));
  Filter filter = parsed(R"({"lang":"en","n":{"$gt":5}})");
  ColumnSet& columns = table.owner()->columns(true);
  int parts = 1;
  while (!build_columns(filter, columns, table.owner()->vectors(), 300)) ++parts;
  CHECK_EQ(7, parts);
  CHECK(build_columns(filter, columns, table.owner()->vectors(), 0));
  CHECK(build_columns(parsed(R"({"$or":[{"n":1},{"lang":2}]})"), columns, table.owner()->vectors(), 0));
  CHECK(!build_columns(parsed(R"({"id":1})"), columns, table.owner()->vectors(), 0));
  table.check(R"({"lang":"en","n":{"$gt":5}})");
}

TEST(columns_are_counted_and_given_back) {
  Table table;
  for (int i = 0; i < 5000; ++i) table.put(std::to_string(i), true, "{\"x\":" + std::to_string(i % 7) + "}");
  uint64_t before = table.collection.bytes();
  table.check(R"({"x":3})");
  CHECK(table.collection.bytes() >= before + 5000 * sizeof(uint32_t));
  table.collection.drop_columns();
  CHECK_EQ(before, table.collection.bytes());
  table.check(R"({"x":3})");
  // Upkeep for ever would cost more than building it again.
  for (int i = 0; i < 5100; ++i) table.put("again", true, "{\"x\":1}");
  table.remove("again");
  CHECK(table.collection.bytes() < before + 5000);
  table.check(R"({"x":3})");
  // With the last row everything goes.
  for (int i = 0; i < 5000; ++i) table.remove(std::to_string(i));
  CHECK_EQ(uint64_t{0}, table.collection.row_count());
  CHECK_EQ(Collection(notes()).bytes(), table.collection.bytes());
}

TEST(a_column_that_takes_too_much_is_not_kept_and_its_filter_still_right) {
  Table table;
  for (int i = 0; i < 2000; ++i) {
    std::string text(8000, char('a' + i % 26)), number = std::to_string(i);
    table.put(number, true, "{\"n\":" + std::to_string(i % 3) + ",\"text\":\"" + number + text + "\"}");
  }
  uint64_t before = table.collection.bytes(), most = before + before / 4 + (uint64_t{4} << 20);
  CHECK_EQ(size_t{25}, table.check(R"({"text":{"$icontains":"CC"},"n":0})").size());
  CHECK_EQ(size_t{1}, table.check("{\"text\":\"7" + std::string(8000, 'h') + "\"}").size());
  CHECK(table.collection.bytes() < before + (1 << 20));
  table.put("2000", true, "{\"n\":0}");
  CHECK_EQ(size_t{1}, table.check(R"({"text":{"$exists":false}})").size());
  CHECK(table.collection.bytes() < most);
}

TEST(of_more_columns_than_fit_those_used_last_are_kept) {
  Table table;
  for (int i = 0; i < 40'000; ++i) table.put(std::to_string(i), i % 2 == 0, "{\"n\":" + std::to_string(i % 3) + "}");
  uint64_t before = table.collection.bytes(), most = before + before / 4 + (uint64_t{4} << 20);
  for (int i = 0; i < 120; ++i) {
    Filter filter = parsed("{\"key" + std::to_string(i) + "\":{\"$exists\":false}}");
    for (bool has_vector : {true, false}) {
      Deadline none(0);
      const RowTable& rows = has_vector ? table.owner()->vectors() : table.owner()->plain();
      auto mask = match_rows(filter, table.owner()->columns(has_vector), rows, none);
      CHECK_EQ(uint64_t{20'000}, mask->matches);
    }
    CHECK(table.collection.bytes() <= most);
  }
  CHECK(table.collection.bytes() > before + before / 8);
  table.check(R"({"n":2,"key119":{"$exists":false},"key0":{"$exists":false}})");
}

TEST(a_write_never_fails_for_want_of_memory_for_columns) {
  Arena arena({});
  RowTable rows(nullptr);
  ColumnMemory memory;
  ColumnSet columns(memory);
  auto append = [&](int n) {
    std::string id = std::to_string(n), metadata = "{\"x\":\"" + id + "\"}";
    RowEntry entry;
    entry.record = arena.add({id, std::nullopt, metadata});
    rows.append(entry, {});
  };
  Filter filter = parsed(R"({"x":{"$in":["7","8","1000","1001"]}})");
  auto count = [&] {
    Deadline none(0);
    auto mask = match_rows(filter, columns, rows, none);
    return mask ? mask->matches : 0;
  };
  for (int n = 0; n < 1000; ++n) append(n);
  CHECK_EQ(uint64_t{2}, count());
  for (int n : {1000, 1001}) {
    append(n);
    none_of_so_many_bytes = 1;
    columns.appended(rows);
    none_of_so_many_bytes = SIZE_MAX;
  }
  CHECK_EQ(uint64_t{4}, count());
  none_of_so_many_bytes = 1;
  columns.removing(rows, 7);
  none_of_so_many_bytes = SIZE_MAX;
  rows.remove(7);
  CHECK_EQ(uint64_t{3}, count());
  // Nor does a read: it asks the rows.
  columns.drop();
  CHECK_EQ(uint64_t{0}, memory.bytes());
  none_of_so_many_bytes = 1000;
  CHECK_EQ(uint64_t{3}, count());
  none_of_so_many_bytes = SIZE_MAX;
  CHECK_EQ(uint64_t{3}, count());
}

TEST(values_that_no_row_has_any_more_are_overwritten) {
  Column column(JsonPath("x"));
  auto metadata = [](const std::string& value) { return "{\"x\":" + value + "}"; };
  std::string plain = metadata("\"Ada Lovelace 1815\""), nested = metadata("[1,{\"who\":\"Ada Lovelace 1815\"}]");
  for (int i = 0; i < 100; ++i) column.append(metadata(std::to_string(i)));
  column.append(plain);
  column.append(nested);
  column.append(plain);
  secret = "Lovelace";
  secrets_given_back = 0;
  column.remove(102);
  column.remove(100);
  CHECK_EQ(size_t{0}, secrets_given_back);
  CHECK_EQ(uint32_t{101}, column.values().size());
  column.remove(100);
  CHECK_EQ(size_t{0}, secrets_given_back);
  CHECK_EQ(uint32_t{100}, column.values().size());
  {
    Column dropped(JsonPath("x"));
    dropped.append(plain);
    dropped.append(plain);
  }
  CHECK_EQ(size_t{0}, secrets_given_back);
  secret.clear();
}

TEST(reads_of_an_index_see_masks_writes_and_expiry) {
  Fixture fixture(3);
  family::Random random(9);
  int64_t soon = wall_us() + 3'600'000'000, past = 1;
  size_t english = 0;
  for (int i = 0; i < 400; ++i) {
    NewRow row;
    row.id = std::to_string(i);
    if (i % 3 != 0) row.vector = {1, float(i), 0};
    row.metadata = i % 2 == 0 ? R"({"lang":"en"})" : R"({"lang":"de"})";
    row.expires_us = i % 10 == 0 ? past : i % 10 == 2 ? soon : 0;
    english += i % 2 == 0 && i % 10 != 0;
    fixture.put(row);
  }
  CountRequest counting;
  counting.collection_id = 1;
  counting.filter = R"({"lang":"en"})";
  CHECK_EQ(english, size_t{fixture.count(counting)});
  CHECK_EQ(english, size_t{fixture.count(counting)});
  fixture.put({"new", {1, 2, 3}, R"({"lang":"en"})", std::nullopt, "", 0, 0});
  CHECK_EQ(english + 1, size_t{fixture.count(counting)});
  ScanRequest scanning;
  scanning.collection_id = 1;
  scanning.order = KALOS_ORDER_INSERTION;
  scanning.page_limit = 1000;
  scanning.filter = counting.filter;
  auto ids = fixture.ids(scanning);
  CHECK_EQ(english + 1, ids.size());
  CHECK_EQ(std::string("new"), ids.back());
  for (size_t i = 1; i + 1 < ids.size(); ++i) CHECK(std::stoi(ids[i - 1]) < std::stoi(ids[i]));
  auto collection = fixture.index.find(1);
  DeleteRequest deleting;
  deleting.collection_id = 1;
  deleting.filter = counting.filter;
  auto names = (*collection)->select(deleting, wall_us());
  CHECK_EQ(english + 1, names->size());
}

TEST_MAIN
