// Promises of the database: what was acknowledged is there after any death, whole; readers see whole commits; collections
// that do not fit stay cold and say so, the others serve.
#include "store/database.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "base/failpoint.h"
#include "check.h"
#include "scratch.h"
#include "store/fair_mutex.h"
#include "store/store.h"
#include "write_jobs.h"

using namespace kalos;
using namespace write_jobs;
using nlohmann::json;

namespace {

std::unique_ptr<Database> open_database(const Scratch& scratch, uint64_t memory_limit_bytes = 0) {
  DatabaseOptions options;
  options.data_dir = scratch.path();
  options.memory_limit_bytes = memory_limit_bytes;
  auto database = Database::open(options);
  if (!database) {
    std::fprintf(stderr, "%s\n", database.error().words.c_str());
    std::abort();
  }
  return std::move(*database);
}

json report_of(Database& database) { return json::parse(database.report_json()); }

void wait_until_ready(Database& database) {
  int64_t give_up = monotonic_ns() + int64_t{120} * 1'000'000'000;
  while (!report_of(database)["ready"]) {
    if (monotonic_ns() > give_up) {
      check::fail(__FILE__, __LINE__, "not ready after two minutes");
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

uint64_t make_collection(Database& database, const std::string& name) {
  Reply reply = write(database, open_job(name, 3));
  CHECK_EQ(KALOS_STATUS_OK, reply.status);
  return json::parse(words(reply))["id"];
}

Reply read(Database& database, ReadRequest request) {
  ReadJob job;
  job.request = std::move(request);
  ReadJob* jobs[] = {&job};
  database.serve_reads(jobs);
  return std::move(job.reply);
}

uint64_t count_rows(Database& database, uint64_t collection, const std::string& name_space = "") {
  CountRequest request;
  request.collection_id = collection;
  request.scope.namespace_key = name_space;
  Reply reply = read(database, request);
  CHECK_EQ(KALOS_STATUS_OK, reply.status);
  return parse_count(reply.message);
}

bool holds(const std::string& words, const std::string& part) {
  if (words.find(part) != std::string::npos) return true;
  std::fprintf(stderr, "\"%s\" does not say \"%s\"\n", words.c_str(), part.c_str());
  return false;
}

}  // namespace

// What was written is there after a restart, with the same collections and the same commit sequence.
TEST(restart_finds_everything) {
  Scratch scratch;
  uint64_t a = 0, b = 0, sequence = 0;
  {
    auto database = open_database(scratch);
    CHECK(report_of(*database)["ready"].get<bool>());
    a = make_collection(*database, "a");
    b = make_collection(*database, "b");
    write(*database, upsert_job(a, {{"x", "t"}, {"y", "t"}}));
    write(*database, upsert_job(b, {{"z", "t"}}));
    sequence = database->commit_sequence();
  }
  auto database = open_database(scratch);
  CHECK_EQ(sequence, database->commit_sequence());
  CHECK_EQ(2u, database->collections().size());
  wait_until_ready(*database);
  CHECK_EQ(2u, count_rows(*database, a));
  CHECK_EQ(1u, count_rows(*database, b));
  json report = report_of(*database);
  CHECK_EQ(3u, report["rows"].get<uint64_t>());
  CHECK_EQ(sequence, report["commit_sequence"].get<uint64_t>());
  CHECK_EQ(std::string("ready"), report["collections"][0]["state"].get<std::string>());
  CHECK_EQ(2u, report["collections"][0]["rows"].get<uint64_t>());
  CHECK_EQ(false, report["store"]["poisoned"].get<bool>());
}

// The listener hears of each publication, with a sequence that readers see already.
TEST(listener_hears_of_publications) {
  Scratch scratch;
  auto database = open_database(scratch);
  std::atomic<uint64_t> heard{0};
  std::atomic<bool> visible{true};
  database->on_publish([&](uint64_t sequence) {
    if (database->commit_sequence() < sequence) visible = false;
    heard = sequence;
  });
  uint64_t id = make_collection(*database, "c");
  Reply reply = write(*database, upsert_job(id, {{"x", "t"}}));
  CHECK_EQ(parse(reply.message).commit_sequence, heard.load());
  CHECK(visible);
}

// A collection that does not fit stays cold, in words that name need, limit and flag; smaller ones are served, and the
// cold one can be dropped to make room.
// A read says how long it waited: for other passes, and for the lock of the engine.
TEST(reads_say_how_long_they_waited) {
  Scratch scratch;
  auto database = open_database(scratch);
  uint64_t id = make_collection(*database, "notes");
  ReadJob job;
  CountRequest request;
  request.collection_id = id;
  job.request = request;
  job.received_ns = monotonic_ns() - 5'000'000;
  ReadJob* jobs[] = {&job};
  database->serve_reads(jobs);
  CHECK_EQ(KALOS_STATUS_OK, job.reply.status);
  CHECK(job.reply.timings.queue_ns >= 5'000'000);
  CHECK(job.reply.timings.queue_ns < uint64_t{60} * 1'000'000'000);
}

// The control thread asks for it, and every client depends on that thread: it is answered while a pass holds the engine.
TEST(the_report_waits_for_no_pass) {
  Scratch scratch;
  auto database = open_database(scratch);
  uint64_t id = make_collection(*database, "notes");
  write(*database, upsert_job(id, {{"a", "t"}}));
  CHECK_EQ(1u, uint64_t{report_of(*database)["rows"]});
  CHECK_EQ(false, bool{report_of(*database)["engine_busy"]});
  std::string gate = scratch / "gate";
  std::ofstream{gate} << "closed";
  arm_failpoint("pass@" + gate);
  std::thread reader([&] { CHECK_EQ(1u, count_rows(*database, id)); });
  int64_t give_up = monotonic_ns() + int64_t{120} * 1'000'000'000;
  json report = report_of(*database);
  while (!report["engine_busy"] && monotonic_ns() < give_up) report = report_of(*database);
  CHECK_EQ(true, bool{report["engine_busy"]});
  CHECK_EQ(1u, uint64_t{report["rows"]});
  CHECK_EQ("notes", std::string{report["collections"][0]["name"]});
  std::filesystem::remove(gate);
  reader.join();
  arm_failpoint("");
  CHECK_EQ(false, bool{report_of(*database)["engine_busy"]});
}

TEST(collections_that_do_not_fit_stay_cold) {
  Scratch scratch;
  uint64_t small = 0, large = 0;
  {
    auto database = open_database(scratch);
    large = make_collection(*database, "large");
    small = make_collection(*database, "small");
    std::vector<RowSpec> rows;
    for (int i = 0; i < 1000; ++i) rows.push_back({"r" + std::to_string(i), std::string(1000, 't')});
    write(*database, upsert_job(large, rows));
    write(*database, upsert_job(small, {{"x", "t"}}));
  }
  auto database = open_database(scratch, 1'000'000);
  wait_until_ready(*database);
  CHECK_EQ(1u, count_rows(*database, small));
  CountRequest request;
  request.collection_id = large;
  Reply reply = read(*database, request);
  CHECK_EQ(KALOS_STATUS_STORE_ERROR, reply.status);
  CHECK(holds(words(reply), "--memory") && holds(words(reply), "1.0 MB") && holds(words(reply), "\"large\""));
  reply = write(*database, upsert_job(large, {{"x", "t"}}));
  CHECK_EQ(KALOS_STATUS_STORE_ERROR, reply.status);
  json report = report_of(*database);
  CHECK_EQ(std::string("cold"), report["collections"][0]["state"].get<std::string>());
  auto drop = new_job();
  drop->operations.push_back(DropCollectionRequest{"large"});
  CHECK_EQ(KALOS_STATUS_OK, write(*database, std::move(drop)).status);
  CHECK_EQ(1u, report_of(*database)["collections"].size());
}

// A damaged collection stays cold and says so; the others serve.
TEST(damaged_collections_stay_cold) {
  Scratch scratch;
  uint64_t good = 0, bad = 0;
  {
    auto database = open_database(scratch);
    good = make_collection(*database, "good");
    bad = make_collection(*database, "bad");
    write(*database, upsert_job(good, {{"x", "t"}}));
    write(*database, upsert_job(bad, {{"x", "t"}}));
  }
  {
    auto connection = sqlite::Connection::open(scratch / "kalos.db", SQLITE_OPEN_READWRITE);
    CHECK(connection->execute("UPDATE rows_2 SET vector = x'00'", "damage a row"));
  }
  auto database = open_database(scratch);
  wait_until_ready(*database);
  CHECK_EQ(1u, count_rows(*database, good));
  CountRequest request;
  request.collection_id = bad;
  Reply reply = read(*database, request);
  CHECK_EQ(KALOS_STATUS_STORE_ERROR, reply.status);
  CHECK(holds(words(reply), "\"bad\"") && holds(words(reply), "damaged"));
}

// While collections load, a write to one is either done or answered LOADING; nothing is lost, nothing is there twice.
// Whatever a disk does to a row: no reader ever meets the bytes, and the words say which row it is.
TEST(damaged_rows_are_never_served) {
  const char* damages[] = {
      "vector = zeroblob(11)",                       // a wrong length
      "vector = x'0000803F0000C07F00000000'",        // not a number
      "vector = x'0000803F0000807F00000000'",        // infinite
      "text = CAST(x'6162FF' AS TEXT)",              // no UTF-8
      "metadata = '[1]'",                            // no object
      "metadata = '{\"a\": 1'",                      // cut off
      "metadata = '{\"a\": 1, \"a\": 2}'",           // a key twice
      "metadata = '{\"a\": 18446744073709551616}'",  // no int64
      "metadata = '{\"a\": \"' || CAST(x'FF' AS TEXT) || '\"}'",
      "id = ''",
      "id = CAST(x'C328' AS TEXT)",
      "id = printf('%01025d', 0)",  // longer than an id may be
      "namespace = x'00'",
      "namespace = x'0005616C'",
      "namespace = x'0000'",
      "namespace = x'0001FF'",
      "expires_us = -1",
  };
  for (const char* damage : damages) {
    Scratch scratch;
    uint64_t id = 0;
    {
      auto database = open_database(scratch);
      id = make_collection(*database, "notes");
      write(*database, upsert_job(id, {{"a", "t", "{}"}, {"b", "t", "{}"}}));
    }
    {
      auto connection = sqlite::Connection::open(scratch / "kalos.db", SQLITE_OPEN_READWRITE);
      CHECK(connection->execute(std::string("UPDATE rows_1 SET ") + damage + " WHERE id = 'b'", "damage a row"));
    }
    auto database = open_database(scratch);
    wait_until_ready(*database);
    CountRequest request;
    request.collection_id = id;
    Reply reply = read(*database, request);
    if (reply.status != KALOS_STATUS_STORE_ERROR) check::fail(__FILE__, __LINE__, std::string("served with ") + damage);
    CHECK(holds(words(reply), "row 2 ") && holds(words(reply), "\"notes\"") && holds(words(reply), "damaged"));
    // Nor can it be written over by halves: the collection stays as it is, others are made and serve.
    CHECK_EQ(KALOS_STATUS_STORE_ERROR, write(*database, upsert_job(id, {{"c", "t"}})).status);
    CHECK_EQ(KALOS_STATUS_OK, write(*database, open_job("other", 3)).status);
  }
}

TEST(writes_while_loading) {
  Scratch scratch;
  uint64_t id = 0;
  constexpr uint64_t kRows = 20'000;
  {
    auto database = open_database(scratch);
    id = make_collection(*database, "c");
    for (uint64_t i = 0; i < kRows; i += 5000) {
      std::vector<RowSpec> rows;
      for (uint64_t j = i; j < i + 5000; ++j) rows.push_back({"r" + std::to_string(j), "t"});
      CHECK_EQ(KALOS_STATUS_OK, write(*database, upsert_job(id, rows)).status);
    }
  }
  auto database = open_database(scratch);
  uint64_t done = 0, tries = 0;
  while (done == 0 && tries < 1'000'000) {
    Reply reply = write(*database, upsert_job(id, {{"new" + std::to_string(tries++), "t"}}));
    if (reply.status == KALOS_STATUS_OK) {
      ++done;
    } else {
      CHECK_EQ(KALOS_STATUS_LOADING, reply.status);
      CHECK(holds(words(reply), "loading"));
    }
  }
  CHECK_EQ(1u, done);
  CHECK_EQ(kRows + 1, count_rows(*database, id));
}

// Readers see whole commits: writers put ten rows at a time into a namespace of their own, or delete all ten.
TEST(readers_see_whole_commits) {
  Scratch scratch;
  auto database = open_database(scratch);
  uint64_t id = make_collection(*database, "c");
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> halved{0}, reads{0};
  std::vector<std::thread> threads;
  for (int w = 0; w < 2; ++w) {
    threads.emplace_back([&, w] {
      const std::string name_space = std::string("\0\1", 2) + static_cast<char>('a' + w);
      std::vector<RowSpec> rows;
      std::vector<std::string> ids;
      for (int i = 0; i < 10; ++i) rows.push_back({std::to_string(i), "t"}), ids.push_back(std::to_string(i));
      for (int round = 0; round < 60; ++round) {
        auto job = upsert_job(id, rows, {}, name_space);
        job->durability = KALOS_DURABILITY_RELAXED;
        if (write(*database, std::move(job)).status != KALOS_STATUS_OK) ++halved;
        auto remove = new_job();
        remove->operations.push_back(delete_ids(*remove, id, ids, name_space));
        remove->durability = KALOS_DURABILITY_RELAXED;
        if (parse(write(*database, std::move(remove)).message).count != 10) ++halved;
      }
      stop = true;
    });
  }
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      while (!stop) {
        uint64_t count = count_rows(*database, id, std::string("\0\1", 2) + static_cast<char>('a' + r));
        if (count != 0 && count != 10) ++halved;
        ++reads;
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK_EQ(0u, halved.load());
  CHECK(reads > 0);
  CHECK_EQ(0u, report_of(*database)["rows"].get<uint64_t>());
}

// The engine lock is given in the order in which it was asked for, also against a thread that takes it again and again.
TEST(engine_lock_is_fair) {
  FairMutex mutex;
  std::vector<int> order;
  std::atomic<int> waiting{0};
  mutex.lock();
  CHECK(!mutex.try_lock());
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      ++waiting;
      mutex.lock();
      order.push_back(i);
      mutex.unlock();
      mutex.lock();  // behind all that wait already
      order.push_back(10 + i);
      mutex.unlock();
    });
    while (waiting <= i) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // until it really waits
  }
  mutex.unlock();
  for (auto& thread : threads) thread.join();
  CHECK((std::vector<int>{0, 1, 2, 3} == std::vector<int>(order.begin(), order.begin() + 4)));
  CHECK_EQ(8u, order.size());
  CHECK(mutex.try_lock());
  mutex.unlock();
}

namespace {

constexpr int kRowsOfBatch = 10;

std::string name_space_of(uint8_t batch) { return std::string("\0\1", 2) + static_cast<char>(batch); }

// In two operations, so that dying in the middle of a transaction is possible. Resent it is the same, byte for byte.
std::unique_ptr<WriteJob> numbered_batch(uint64_t collection, uint8_t batch) {
  std::vector<RowSpec> rows;
  for (int i = 0; i < kRowsOfBatch; ++i) rows.push_back({std::to_string(i), std::string(300, 't')});
  auto job = new_job({batch});
  job->operations.push_back(upsert(*job, collection, rows, name_space_of(batch)));
  job->operations.push_back(delete_ids(*job, collection, {"nobody"}, name_space_of(batch)));
  job->is_batch = true;
  job->write_positions = {0, 1};
  return job;
}

// The child: writes batches of ten rows, batch n into namespace n, and says through the pipe which were acknowledged.
[[noreturn]] void write_until_killed(const Scratch& scratch, const std::string& failpoint_spec, int pipe) {
  arm_failpoint(failpoint_spec);
  DatabaseOptions options;
  options.data_dir = scratch.path();
  options.checkpoint_interval_ms = 1;
  auto database = Database::open(options);
  if (!database) _exit(9);
  uint64_t id = json::parse(words(write(**database, open_job("c", 3))))["id"];
  for (uint8_t batch = 1; batch < 60; ++batch) {
    if (write(**database, numbered_batch(id, batch)).status != KALOS_STATUS_OK) _exit(8);
    if (::write(pipe, &batch, 1) != 1) _exit(7);
  }
  _exit(0);
}

}  // namespace

// kill -9 at the worst moments: in the middle of a transaction, before and after the commit, before the acknowledgement,
// at a checkpoint. Every acknowledged batch is there after the restart, none is halved, and the one that was in flight
// can be sent again: it is there once.
TEST(kill_9_at_failpoints) {
  for (const char* spec : {"mid_transaction:31", "mid_transaction:32", "before_commit:12", "after_commit:12",
                           "after_publish:20", "checkpoint:3"}) {
    Scratch scratch;
    int ends[2];
    CHECK_EQ(0, pipe(ends));
    pid_t child = fork();
    if (child == 0) {
      close(ends[0]);
      alarm(120);
      write_until_killed(scratch, spec, ends[1]);
    }
    close(ends[1]);
    uint8_t acknowledged = 0, batch = 0;
    while (::read(ends[0], &batch, 1) == 1) acknowledged = batch;
    close(ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    if (std::string(spec) != "checkpoint:3") CHECK(acknowledged > 5 && acknowledged < 59);

    auto database = open_database(scratch);
    wait_until_ready(*database);
    if (database->collections().empty()) continue;  // died before anything was acknowledged
    uint64_t id = database->collections()[0].id;
    for (uint8_t n = 1; n <= acknowledged; ++n) CHECK_EQ(10u, count_rows(*database, id, name_space_of(n)));
    uint8_t next = static_cast<uint8_t>(acknowledged + 1);
    uint64_t in_flight = count_rows(*database, id, name_space_of(next));
    CHECK(in_flight == 0 || in_flight == 10);
    // The commit decides: what died after it is there, what died before it is not.
    if (std::string(spec) == "after_commit:12" || std::string(spec) == "after_publish:20") CHECK_EQ(10u, in_flight);
    if (std::string(spec) == "before_commit:12") CHECK_EQ(0u, in_flight);
    uint64_t before = database->commit_sequence();
    Reply reply = write(*database, numbered_batch(id, next));
    CHECK_EQ(KALOS_STATUS_OK, reply.status);
    CHECK_EQ(10u, parse(parse_batch(reply)[0]).count);
    CHECK_EQ(in_flight == 10 ? before : before + 1, database->commit_sequence());
    CHECK_EQ(10u, count_rows(*database, id, name_space_of(next)));
  }
}

TEST_MAIN
