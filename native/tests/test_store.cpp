// Promises of the store: what was committed comes back bit for bit, sequences are never given twice, deleted bytes are
// gone, and a file that is not ours, too new or damaged is refused in words.
#include "store/store.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>

#include "base/clock.h"
#include "base/failpoint.h"
#include "check.h"
#include "scratch.h"
#include "store/scrub.h"

using namespace kalos;

namespace {

std::unique_ptr<Store> open_store(const Scratch& scratch) {
  auto store = Store::open({.data_dir = scratch.path()});
  if (!store) {
    std::fprintf(stderr, "cannot open: %s\n", store.error().words.c_str());
    std::abort();
  }
  return std::move(*store);
}

CollectionInfo make_collection(Store& store, const std::string& name, uint32_t dimension = 3) {
  CollectionInfo info;
  info.name = name;
  info.dimension = dimension;
  info.created_us = wall_us();
  CHECK(store.begin(KALOS_DURABILITY_COMMIT));
  auto made = store.create_collection(info);
  CHECK(made);
  CHECK(store.commit());
  return *made;
}

Row row_of(const std::string& id, const std::string& text, const std::string& name_space = "") {
  Row row;
  row.namespace_key = name_space;
  row.id = id;
  row.has_text = true;
  row.text = text;
  row.vector = {1, 2, 3};
  return row;
}

Row put(Store& store, const CollectionInfo& info, Row row, int64_t now_us = wall_us()) {
  CHECK(store.begin(KALOS_DURABILITY_RELAXED));
  CHECK(store.upsert(info, row, now_us));
  CHECK(store.commit());
  return row;
}

Store::Removal take_out(Store& store, const CollectionInfo& info, const std::string& id, int64_t now_us = wall_us()) {
  CHECK(store.begin(KALOS_DURABILITY_RELAXED));
  auto removed = store.remove(info, "", id, now_us);
  CHECK(removed);
  CHECK(store.commit());
  return *removed;
}

std::vector<std::unique_ptr<Row>> load_all(const Store& store, const CollectionInfo& info) {
  std::vector<std::unique_ptr<Row>> rows;
  std::atomic<uint32_t> percent{0};
  auto loaded = store.load(info, percent, [&](std::unique_ptr<Row> row) {
    rows.push_back(std::move(row));
    return true;
  });
  CHECK(loaded);
  CHECK_EQ(100u, percent.load());
  return rows;
}

template <class T>
T value_of(Result<T> result) {
  CHECK(result);
  return result ? std::move(*result) : T{};
}

bool holds(const std::string& words, const std::string& part) {
  if (words.find(part) != std::string::npos) return true;
  std::fprintf(stderr, "\"%s\" does not say \"%s\"\n", words.c_str(), part.c_str());
  return false;
}

void run_sql(const std::string& path, const std::string& sql) {
  sqlite3* database = nullptr;
  CHECK_EQ(SQLITE_OK, sqlite3_open(path.c_str(), &database));
  CHECK_EQ(SQLITE_OK, sqlite3_exec(database, sql.c_str(), nullptr, nullptr, nullptr));
  sqlite3_close(database);
}

}  // namespace

// Ids, texts, metadata and vectors come back with the very bytes, NUL and emoji included; absent differs from empty.
TEST(rows_come_back_bit_for_bit) {
  Scratch scratch;
  CollectionInfo info;
  std::vector<Row> written;
  {
    auto store = open_store(scratch);
    info = make_collection(*store, std::string("na\0me \xF0\x9F\xA6\x8A", 10));
    Row all = row_of(std::string("a\0b", 3), std::string("text\0\0with NUL \xF0\x9F\x98\x80", 19),
                     std::string("\0\5alice", 7));
    all.has_metadata = true;
    all.metadata = "{\"k\":\"\\u0000\"}";
    all.expires_us = 4'000'000'000'000'000;
    all.vector = {-0.0f, 1e-45f, 3.4e38f};
    Row bare;
    bare.id = "bare";
    Row empty = row_of("empty", "");
    empty.vector.clear();
    Row same_prefix = row_of("a", "another row", std::string("\0\5alice", 7));
    for (Row* row : {&all, &bare, &empty, &same_prefix}) written.push_back(put(*store, info, *row));
  }
  auto store = open_store(scratch);
  auto collections = store->collections();
  CHECK(collections);
  CHECK_EQ(1u, collections->size());
  CHECK(info.name == (*collections)[0].name);
  auto rows = load_all(*store, (*collections)[0]);
  CHECK_EQ(written.size(), rows.size());
  for (size_t i = 0; i < std::min(rows.size(), written.size()); ++i) {
    CHECK_EQ(written[i].sequence, rows[i]->sequence);
    CHECK(written[i].namespace_key == rows[i]->namespace_key);
    CHECK(written[i].id == rows[i]->id);
    CHECK_EQ(written[i].has_text, rows[i]->has_text);
    CHECK(written[i].text == rows[i]->text);
    CHECK_EQ(written[i].has_metadata, rows[i]->has_metadata);
    CHECK(written[i].metadata == rows[i]->metadata);
    CHECK_EQ(written[i].created_us, rows[i]->created_us);
    CHECK_EQ(written[i].updated_us, rows[i]->updated_us);
    CHECK_EQ(written[i].expires_us, rows[i]->expires_us);
    CHECK_EQ(written[i].vector.size(), rows[i]->vector.size());
    auto bits = [](const std::vector<float>& vector) {
      return std::string_view(reinterpret_cast<const char*>(vector.data()), vector.size() * sizeof(float));
    };
    CHECK(bits(written[i].vector) == bits(rows[i]->vector));
  }
}

// An upsert of an existing row keeps its sequence and created_us and replaces everything else.
TEST(upsert_keeps_sequence_and_created) {
  Scratch scratch;
  auto store = open_store(scratch);
  CollectionInfo info = make_collection(*store, "c");
  Row first = put(*store, info, row_of("x", "one"), 1000);
  Row other = put(*store, info, row_of("y", "two"), 1500);
  Row bare;
  bare.id = "x";
  Row second = put(*store, info, bare, 2000);
  CHECK_EQ(first.sequence, second.sequence);
  CHECK_EQ(1000, second.created_us);
  CHECK_EQ(2000, second.updated_us);
  auto rows = load_all(*store, info);
  CHECK_EQ(2u, rows.size());
  CHECK_EQ(false, rows[0]->has_text);
  CHECK_EQ(true, rows[0]->vector.empty());
  CHECK(other.sequence > first.sequence);
}

// A row sequence is never given twice: not after the newest row was deleted, not after a restart, not after a rollback
// that nobody saw.
TEST(sequences_are_never_reused) {
  Scratch scratch;
  CollectionInfo info;
  uint64_t newest = 0;
  {
    auto store = open_store(scratch);
    info = make_collection(*store, "c");
    put(*store, info, row_of("a", ""));
    newest = put(*store, info, row_of("b", "")).sequence;
    CHECK(take_out(*store, info, "b") == Store::Removal::LIVE);
    Row again = put(*store, info, row_of("b", ""));
    CHECK(again.sequence > newest);
    newest = again.sequence;
    CHECK(take_out(*store, info, "b") == Store::Removal::LIVE);
  }
  auto store = open_store(scratch);
  Row again = put(*store, info, row_of("b", ""));
  CHECK(again.sequence > newest);
}

// A row whose time has passed is absent for a write: its successor has a new sequence and a new created_us, and removing
// it removes nothing that anyone saw.
TEST(expired_rows_count_as_absent) {
  Scratch scratch;
  auto store = open_store(scratch);
  CollectionInfo info = make_collection(*store, "c");
  Row mortal = row_of("x", "");
  mortal.expires_us = 5000;
  Row first = put(*store, info, mortal, 1000);
  CHECK_EQ(first.sequence, put(*store, info, mortal, 4999).sequence);
  Row second = put(*store, info, mortal, 5000);
  CHECK(second.sequence > first.sequence);
  CHECK_EQ(5000, second.created_us);
  CHECK(take_out(*store, info, "x", 5000) == Store::Removal::EXPIRED);
  CHECK(take_out(*store, info, "x", 5000) == Store::Removal::ABSENT);
}

// What is rolled back never was: rows, collections, sequences.
TEST(rollback_leaves_nothing) {
  Scratch scratch;
  auto store = open_store(scratch);
  CollectionInfo info = make_collection(*store, "c");
  uint64_t sequence = store->commit_sequence();
  CHECK(store->begin(KALOS_DURABILITY_COMMIT));
  Row row = row_of("x", "");
  CHECK(store->upsert(info, row, 1));
  CollectionInfo more;
  more.name = "more";
  more.dimension = 1;
  CHECK(store->create_collection(more));
  store->rollback();
  CHECK_EQ(sequence, store->commit_sequence());
  CHECK_EQ(0u, load_all(*store, info).size());
  CHECK_EQ(1u, value_of(store->collections()).size());
  CHECK_EQ(row.sequence, put(*store, info, row_of("y", "")).sequence);
}

// The id of a dropped collection is never given again, its rows are gone, others stay.
TEST(dropped_collections) {
  Scratch scratch;
  uint64_t dropped = 0;
  {
    auto store = open_store(scratch);
    CollectionInfo keep = make_collection(*store, "keep");
    CollectionInfo drop = make_collection(*store, "drop");
    put(*store, keep, row_of("x", "kept"));
    put(*store, drop, row_of("x", "dropped"));
    dropped = drop.id;
    CHECK(store->begin(KALOS_DURABILITY_COMMIT));
    CHECK(store->drop_collection(drop.id));
    CHECK(store->commit());
    CHECK_EQ(1u, load_all(*store, keep).size());
    CHECK_EQ(1u, value_of(store->collections()).size());
  }
  auto store = open_store(scratch);
  CHECK(make_collection(*store, "drop").id > dropped);
}

// The answer of a write is remembered for ten minutes, over restarts, and for nobody else.
TEST(writes_are_remembered) {
  Scratch scratch;
  WriteId id{1, 2, 3}, other{9};
  const int64_t now = 1'000'000'000'000;
  const int64_t kept = int64_t{KALOS_WRITE_ID_KEPT_S} * 1'000'000;
  {
    auto store = open_store(scratch);
    CHECK(store->begin(KALOS_DURABILITY_COMMIT));
    CHECK(store->remember_write(id, {store->next_commit_sequence(), {std::byte{0}, std::byte{7}}}, now));
    CHECK(store->commit());
  }
  auto store = open_store(scratch);
  auto found = store->recall_write(id, now + kept - 1);
  CHECK(found && found->has_value());
  CHECK_EQ(1u, (*found)->commit_sequence);
  CHECK_EQ(2u, (*found)->reply.size());
  CHECK(std::byte{7} == (*found)->reply[1]);
  CHECK(!store->recall_write(other, now)->has_value());
  CHECK(!store->recall_write(id, now + kept)->has_value());
  // And the memory of it goes with a later write.
  CHECK(store->begin(KALOS_DURABILITY_COMMIT));
  CHECK(store->remember_write(other, {2, {}}, now + kept));
  CHECK(store->commit());
  CHECK(!store->recall_write(id, now)->has_value());
}

// size_of counts bytes, not characters, and not only up to a NUL.
TEST(sizes_are_bytes) {
  Scratch scratch;
  auto store = open_store(scratch);
  CollectionInfo info = make_collection(*store, "c");
  Row row = row_of("\xC3\xA9", std::string("\0\xF0\x9F\x98\x80", 5));
  row.has_metadata = true;
  row.metadata = "{}";
  put(*store, info, row);
  auto size = store->size_of(info);
  CHECK(size);
  CHECK_EQ(1u, size->rows);
  CHECK_EQ(2u, size->id_bytes);
  CHECK_EQ(5u, size->text_bytes);
  CHECK_EQ(2u, size->metadata_bytes);
  CHECK_EQ(1u, value_of(store->row_count(info)));
}

// Loading stops when it is told to, and is not disturbed by a write in between.
TEST(loading_sees_one_state) {
  Scratch scratch;
  auto store = open_store(scratch);
  CollectionInfo info = make_collection(*store, "c");
  for (int i = 0; i < 10; ++i) put(*store, info, row_of("r" + std::to_string(i), ""));
  std::atomic<uint32_t> percent{0};
  int taken = 0;
  CHECK(store->load(info, percent, [&](auto) {
    if (++taken == 1) put(*store, info, row_of("late", ""));
    return true;
  }));
  CHECK_EQ(10, taken);
  taken = 0;
  CHECK(store->load(info, percent, [&](auto) { return ++taken < 3; }));
  CHECK_EQ(3, taken);
}

// After a checkpoint nothing of a deleted or replaced row is left in the files: not its text, metadata, id or vector.
// Rows come and go in random order and with changing sizes between rows that stay, so that pages are split and merged.
TEST(deleted_bytes_are_gone) {
  Scratch scratch;
  auto store = open_store(scratch);
  CollectionInfo info = make_collection(*store, "c", 8);
  std::mt19937 random(7);
  auto make_row = [&](const std::string& mark, const std::string& id, int size) {
    Row row;
    row.id = id;
    row.has_text = row.has_metadata = true;
    row.text = mark + std::string(20 + random() % size, 'x') + mark;
    row.metadata = "{\"" + mark + "\":\"" + std::string(random() % 300, 'y') + "\"}";
    row.vector.assign(8, 0);
    for (size_t i = 0; i < 32; ++i) reinterpret_cast<char*>(row.vector.data())[i] = mark[i % mark.size()];
    return row;
  };
  std::vector<std::string> ids;
  for (int i = 0; i < 4000; ++i) {
    ids.push_back((i % 2 == 0 ? "SECRET-" : "STAYS-") + std::to_string(random()) + std::string(random() % 60, 'i'));
    ids.back().insert(0, 1, static_cast<char>('a' + random() % 26));
  }
  std::shuffle(ids.begin(), ids.end(), random);
  auto is_secret = [](const std::string& id) { return id.find("SECRET") != std::string::npos; };
  for (int round = 0; round < 5; ++round) {
    CHECK(store->begin(KALOS_DURABILITY_COMMIT));
    for (const std::string& id : ids) {
      if (round > 0 && random() % 2 == 0) continue;
      Row row = make_row(is_secret(id) || round < 4 ? "SECRET" : "STAYS", id, 300 << (random() % 4));
      CHECK(store->upsert(info, row, 1));
    }
    CHECK(store->commit());
    if (round % 2 == 0) CHECK(*store->checkpoint(true));
  }
  CHECK(store->begin(KALOS_DURABILITY_COMMIT));
  for (const std::string& id : ids) {
    if (is_secret(id)) {
      CHECK(store->remove(info, "", id, 1));
    } else {
      Row row = make_row("STAYS", id, 300);
      CHECK(store->upsert(info, row, 1));
    }
  }
  CHECK(store->commit());
  CHECK(*store->checkpoint(true));
  std::string file = read_file(store->path());
  size_t found = 0;
  for (size_t at = file.find("SECRET"); at != std::string::npos; at = file.find("SECRET", at + 1)) ++found;
  CHECK_EQ(0u, found);
  CHECK_EQ(0u, read_file(store->path() + "-wal").size());
  CHECK(file.find("STAYS") != std::string::npos);
  auto checked = sqlite::Connection::open(store->path(), SQLITE_OPEN_READONLY);
  CHECK_EQ(1, value_of(checked->query_integer(
                  "SELECT count(*) FROM pragma_integrity_check WHERE integrity_check = 'ok'", "test")));
}

// The scrubbed part of a page lies between its pointers and its cells; whatever is no such page is left alone.
TEST(unused_middle_of_a_page) {
  std::vector<uint8_t> page(8192, 0xAA);
  auto set = [&](size_t head, uint8_t type, uint16_t cells, uint16_t content) {
    page[head] = type;
    page[head + 3] = static_cast<uint8_t>(cells >> 8);
    page[head + 4] = static_cast<uint8_t>(cells);
    page[head + 5] = static_cast<uint8_t>(content >> 8);
    page[head + 6] = static_cast<uint8_t>(content);
  };
  set(0, 13, 3, 8000);
  CHECK_EQ(14u, unused_middle(page, false).begin);
  CHECK_EQ(8000u, unused_middle(page, false).end);
  set(0, 2, 3, 8000);
  CHECK_EQ(18u, unused_middle(page, false).begin);
  set(100, 5, 0, 8192);
  CHECK_EQ(112u, unused_middle(page, true).begin);
  CHECK_EQ(8192u, unused_middle(page, true).end);
  set(0, 13, 3, 8193);  // content beyond the page
  CHECK_EQ(0u, unused_middle(page, false).end);
  set(0, 13, 5000, 8000);  // pointers run into the content
  CHECK_EQ(0u, unused_middle(page, false).end);
  set(0, 0, 3, 8000);  // an overflow page, or a free one
  CHECK_EQ(0u, unused_middle(page, false).end);
}

// The directory is for its owner only, and so are all files in it, whatever the umask.
TEST(files_are_private) {
  Scratch scratch;
  mode_t before = umask(0);
  std::string data_dir = scratch / "new/data";
  auto store = Store::open({.data_dir = data_dir});
  CHECK(store);
  make_collection(**store, "c");
  umask(before);
  struct stat status;
  CHECK_EQ(0, stat(data_dir.c_str(), &status));
  CHECK_EQ(0700u, status.st_mode & 0777);
  for (const auto& entry : std::filesystem::directory_iterator(data_dir)) {
    CHECK_EQ(0, stat(entry.path().c_str(), &status));
    CHECK_EQ(0600u, status.st_mode & 0777);
  }
}

// A file of a newer Kalos is refused in words that name both versions, and stays as it is.
TEST(newer_version_is_refused) {
  Scratch scratch;
  open_store(scratch).reset();
  run_sql(scratch / "kalos.db", "PRAGMA user_version = 7");
  std::string before = read_file(scratch / "kalos.db");
  auto store = Store::open({.data_dir = scratch.path()});
  CHECK(!store);
  CHECK_EQ(KALOS_STATUS_STORE_ERROR, store.error().status);
  CHECK(holds(store.error().words, "version 7"));
  CHECK(holds(store.error().words, "up to 1"));
  CHECK(before == read_file(scratch / "kalos.db"));
}

// A SQLite file of somebody else, and a file that is no SQLite file, are refused and stay as they are.
TEST(foreign_files_are_refused) {
  Scratch scratch;
  run_sql(scratch / "kalos.db", "CREATE TABLE theirs(x); INSERT INTO theirs VALUES (1)");
  std::string before = read_file(scratch / "kalos.db");
  auto store = Store::open({.data_dir = scratch.path()});
  CHECK(!store);
  CHECK(holds(store.error().words, "not one of Kalos"));
  CHECK(before == read_file(scratch / "kalos.db"));

  Scratch other;
  std::string garbage(20'000, 'g');
  std::ofstream(other / "kalos.db") << garbage;
  auto refused = Store::open({.data_dir = other.path()});
  CHECK(!refused);
  CHECK(holds(refused.error().words, "not a database"));
  CHECK(garbage == read_file(other / "kalos.db"));
}

// A damaged page is found when it is read, and named; it never comes back as rows.
TEST(damage_is_named) {
  Scratch scratch;
  CollectionInfo info;
  {
    auto store = open_store(scratch);
    info = make_collection(*store, "c");
    for (int i = 0; i < 200; ++i) put(*store, info, row_of("r" + std::to_string(i), std::string(500, 't')));
  }
  std::string file = read_file(scratch / "kalos.db");
  for (size_t page = 5; page < file.size() / 8192; ++page) file.replace(page * 8192, 64, 64, '\xEE');
  std::ofstream(scratch / "kalos.db", std::ios::binary) << file;
  auto store = Store::open({.data_dir = scratch.path()});
  CHECK(store);
  std::atomic<uint32_t> percent{0};
  auto loaded = (*store)->load(info, percent, [](auto) { return true; });
  CHECK(!loaded);
  if (!loaded) CHECK(holds(loaded.error().words, "malformed"));
}

// An older file is copied beside, then migrated in one transaction; the copy opens as what it was.
TEST(older_version_is_migrated) {
  Scratch scratch;
  CollectionInfo info;
  {
    auto store = open_store(scratch);
    info = make_collection(*store, "c");
    put(*store, info, row_of("x", "from version 1"));
  }
  std::vector<Migration> migrations = {{1, "ALTER TABLE collections ADD COLUMN colour TEXT NOT NULL DEFAULT 'red'"},
                                       {2, "UPDATE collections SET colour = 'blue'"}};
  auto store = Store::open({.data_dir = scratch.path(), .version = 3, .migrations = migrations});
  CHECK(store);
  CHECK_EQ(1u, load_all(**store, info).size());
  store->reset();
  auto migrated = sqlite::Connection::open(scratch / "kalos.db", SQLITE_OPEN_READONLY);
  CHECK_EQ(3, value_of(migrated->query_integer("PRAGMA user_version", "test")));
  CHECK_EQ(1, value_of(migrated->query_integer("SELECT count(*) FROM collections WHERE colour = 'blue'", "test")));

  Scratch copy;
  std::filesystem::copy_file(scratch / "kalos.db.v1", copy / "kalos.db");
  auto old = Store::open({.data_dir = copy.path()});
  CHECK(old);
  CHECK_EQ(1u, load_all(**old, info).size());
}

// A migration that fails leaves the file as it was, whole.
TEST(failed_migration_changes_nothing) {
  Scratch scratch;
  CollectionInfo info;
  {
    auto store = open_store(scratch);
    info = make_collection(*store, "c");
    put(*store, info, row_of("x", ""));
  }
  std::vector<Migration> migrations = {{1, "DELETE FROM collections; INSERT INTO nowhere VALUES (1)"}};
  auto store = Store::open({.data_dir = scratch.path(), .version = 2, .migrations = migrations});
  CHECK(!store);
  CHECK(holds(store.error().words, "from version 1 to 2"));
  auto unknown = Store::open({.data_dir = scratch.path(), .version = 9, .migrations = migrations});
  CHECK(!unknown);
  CHECK(holds(unknown.error().words, "no longer knows how to migrate"));
  auto old = open_store(scratch);
  CHECK_EQ(1u, value_of(old->collections()).size());
  CHECK_EQ(1u, load_all(*old, info).size());
}

// kill -9 in the middle of a migration: the file is still the old one, whole, with the copy beside it, and the next start
// migrates it.
TEST(killed_migration_changes_nothing) {
  const std::vector<Migration> migrations = {
      {1, "ALTER TABLE collections ADD COLUMN colour TEXT NOT NULL DEFAULT 'red'"},
      {2, "UPDATE collections SET colour = 'blue'"}};
  for (const char* spec : {"migration_copied", "migration_done"}) {
    Scratch scratch;
    CollectionInfo info;
    {
      auto store = open_store(scratch);
      info = make_collection(*store, "c");
      for (int i = 0; i < 50; ++i) put(*store, info, row_of("r" + std::to_string(i), std::string(3000, 't')));
    }
    pid_t child = fork();
    if (child == 0) {
      alarm(120);
      arm_failpoint(spec);
      auto store = Store::open({.data_dir = scratch.path(), .version = 3, .migrations = migrations});
      _exit(store ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    Scratch copy;
    std::filesystem::copy_file(scratch / "kalos.db.v1", copy / "kalos.db");
    CHECK_EQ(50u, load_all(*open_store(copy), info).size());
    CHECK_EQ(50u, load_all(*open_store(scratch), info).size());  // this one knows version 1 only
    auto store = Store::open({.data_dir = scratch.path(), .version = 3, .migrations = migrations});
    CHECK(store);
    if (store) CHECK_EQ(50u, load_all(**store, info).size());
  }
}

// A data directory that cannot be made or written is said in words.
TEST(unusable_directories_are_named) {
  Scratch scratch;
  std::ofstream(scratch / "file") << "x";
  auto store = Store::open({.data_dir = scratch / "file/data"});
  CHECK(!store);
  CHECK(holds(store.error().words, "Not a directory"));
  if (geteuid() == 0) return;  // for root nothing is read-only
  open_store(scratch).reset();
  chmod((scratch / "kalos.db").c_str(), 0400);
  auto read_only = Store::open({.data_dir = scratch.path()});
  CHECK(!read_only);
  CHECK(holds(read_only.error().words, "read-only"));
}

TEST_MAIN
