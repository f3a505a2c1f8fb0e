// Promises where memory runs out: whichever allocation of the writer's thread fails, kalosd lives, each write is answered,
// one that is refused is nowhere, one that is acknowledged is on disk and found, and the next write works.
#include "no_memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "check.h"
#include "scratch.h"
#include "store/database.h"
#include "store/store.h"
#include "write_jobs.h"

using namespace kalos;
using namespace write_jobs;
using nlohmann::json;

namespace {

using Rows =
    std::map<std::string, std::string>;  // id -> text; of one whose id begins with "in-", in a namespace of its own

std::unique_ptr<Database> open_database(const Scratch& scratch) {
  auto database = Database::open({.data_dir = scratch.path()});
  if (!database) {
    std::fprintf(stderr, "%s\n", database.error().words.c_str());
    std::abort();
  }
  return std::move(*database);
}

void wait_until_ready(Database& database) {
  int64_t give_up = monotonic_ns() + int64_t{120} * 1'000'000'000;
  while (!json::parse(database.report_json())["ready"]) {
    if (monotonic_ns() > give_up) {
      check::fail(__FILE__, __LINE__, "not ready after two minutes");
      return;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

uint64_t make_collection(Database& database, const std::string& name) {
  Reply reply = write(database, open_job(name, 3));
  CHECK_EQ(KALOS_STATUS_OK, reply.status);
  return json::parse(words(reply))["id"];
}

uint64_t count_rows(Database& database, uint64_t collection, const std::optional<std::string>& name_space = {}) {
  CountRequest request;
  request.collection_id = collection;
  request.scope.subtree = !name_space;
  if (name_space) request.scope.namespace_key = *name_space;
  ReadJob job;
  job.request = request;
  ReadJob* jobs[] = {&job};
  database.serve_reads(jobs);
  CHECK_EQ(KALOS_STATUS_OK, job.reply.status);
  return parse_count(job.reply.message);
}

std::string name_space_of(const std::string& id) { return std::string{'\0', static_cast<char>(id.size())} + id; }

// Those of the candidates that there are, each with its text.
Rows rows_of(Database& database, uint64_t collection, const Rows& candidates) {
  GetRequest request;
  request.collection_id = collection;
  request.include = KALOS_INCLUDE_TEXT;
  std::vector<std::string> ids;
  for (const auto& [id, text] : candidates) {
    if (!id.starts_with("in-")) ids.push_back(id);
  }
  for (const auto& id : ids) request.ids.push_back(id);
  ReadJob job;
  job.request = request;
  ReadJob* jobs[] = {&job};
  database.serve_reads(jobs);
  CHECK_EQ(KALOS_STATUS_OK, job.reply.status);
  Rows rows;
  auto texts = parse_texts(job.reply.message);
  for (size_t i = 0; i < texts.size(); ++i) {
    if (texts[i] != "?") rows[ids[i]] = texts[i];
  }
  for (const auto& [id, text] : candidates) {
    if (id.starts_with("in-") && count_rows(database, collection, name_space_of(id)) == 1) rows[id] = text;
  }
  return rows;
}

// A write, what it makes of the rows, and its answer.
struct Step {
  std::function<std::unique_ptr<WriteJob>()> job;
  std::function<void(Rows&)> effect;
  uint64_t lane = 0;
  std::future<Reply> answer;
};

// Sends the steps so that the writer finds them all waiting, its allocations failing from the n-th on. How many failed.
long write_without_memory(Database& database, std::vector<Step>& steps, long successes, long failures) {
  std::promise<void> go;
  auto waiting = go.get_future().share();
  auto gate = open_job("gate", 3);
  gate->done = [=](Reply) {
    waiting.wait();
    no_memory::chosen = true;
    no_memory::arm(successes, failures);
  };
  database.submit(std::move(gate));
  for (Step& step : steps) step.answer = send(database, step.job(), step.lane);
  go.set_value();
  for (Step& step : steps) step.answer.wait();
  return no_memory::disarm();
}

// One round: writes in a group and a batch of its own; then those that were refused once more.
long round(Database& database, uint64_t c, Rows& rows, Rows& ever, int number, long successes, long failures) {
  const std::string n = std::to_string(number);
  auto id = [&](uint8_t which) {
    WriteId made{which};
    std::memcpy(made.data() + 1, n.data(), n.size());
    return made;
  };
  const std::string long_text(300, 'l');
  std::vector<Step> steps;
  steps.push_back({[&] { return upsert_job(c, {{"fixed", "f" + n}, {"new" + n, "n" + n}}, id(1)); },
                   [&](Rows& r) { r["fixed"] = "f" + n, r["new" + n] = "n" + n; },
                   1,
                   {}});
  steps.push_back({[&] {
                     auto job = new_job(id(2));
                     job->operations.push_back(delete_ids(*job, c, {"new" + std::to_string(number - 3), "nobody"}));
                     return job;
                   },
                   [&](Rows& r) { r.erase("new" + std::to_string(number - 3)); },
                   2,
                   {}});
  steps.push_back(
      {[&] { return upsert_job(c, {{"plain" + std::to_string(number % 5), long_text + n, {}, {}}}, id(3)); },
       [&](Rows& r) { r["plain" + std::to_string(number % 5)] = long_text + n; },
       2,
       {}});
  // What publishing takes memory for: a namespace, a time of expiry.
  const std::string spaced = "in-" + std::to_string(number % 5) + std::string(20, 'x');
  steps.push_back({[&] { return upsert_job(c, {{spaced, "t"}}, id(6), name_space_of(spaced)); },
                   [&](Rows& r) { r[spaced] = "t"; },
                   2,
                   {}});
  const std::string old = "in-" + std::to_string((number + 3) % 5) + std::string(20, 'x');
  steps.push_back({[&] {
                     auto job = new_job(id(7));
                     job->operations.push_back(delete_ids(*job, c, {old}, name_space_of(old)));
                     return job;
                   },
                   [&](Rows& r) { r.erase(old); },
                   2,
                   {}});
  const int64_t tomorrow = wall_us() + int64_t{86'400} * 1'000'000;
  steps.push_back({[&] { return upsert_job(c, {{"other", n, R"({"a":1})", {1, 2, 3}, tomorrow}}, id(4)); },
                   [&](Rows& r) { r["other"] = n; },
                   1,
                   {}});
  steps.push_back({[&] {
                     auto job = new_job(id(5));
                     DeleteRequest filtered;
                     filtered.collection_id = c;
                     filtered.filter = keep(*job, R"({"a":1})");
                     job->operations.push_back(filtered);
                     job->operations.push_back(upsert(*job, c, {{"batch", n, R"({"a":2})"}}));
                     job->is_batch = true;
                     job->write_positions = {0, 1};
                     return job;
                   },
                   [&](Rows& r) { r.erase("other"), r["batch"] = n; },
                   1,
                   {}});
  for (Step& step : steps) {
    Rows all;
    step.effect(all);
    for (const auto& [name, text] : all) ever[name] = text;
  }
  ever["other"];

  long failed = write_without_memory(database, steps, successes, failures);
  std::vector<Step*> refused;
  for (Step& step : steps) {
    Reply reply = step.answer.get();
    if (reply.status == KALOS_STATUS_OK) {
      step.effect(rows);
    } else {
      bool undone = reply.status == KALOS_STATUS_OVERLOADED || reply.status == KALOS_STATUS_LOADING;
      if (!undone) check::fail(__FILE__, __LINE__, std::to_string(reply.status) + ": " + words(reply));
      refused.push_back(&step);
    }
  }
  if (failed == 0) CHECK(refused.empty());
  wait_until_ready(database);
  CHECK(rows == rows_of(database, c, ever));
  CHECK_EQ(rows.size(), count_rows(database, c));
  for (Step* step : refused) {
    CHECK_EQ(KALOS_STATUS_OK, write(database, step->job()).status);
    step->effect(rows);
  }
  CHECK(rows == rows_of(database, c, ever));
  return failed;
}

}  // namespace

// Each allocation in turn, alone and as the first of a long drought.
TEST(any_allocation_of_the_writer_may_fail) {
  Scratch scratch;
  Rows rows, ever;
  uint64_t c = 0;
  int number = 3;
  {
    auto database = open_database(scratch);
    c = make_collection(*database, "a collection with a name that is not short");
    wait_until_ready(*database);
    for (long failures : {1L, 40L}) {
      for (long successes = 0; check::failures() == 0; ++successes) {
        if (round(*database, c, rows, ever, number++, successes, failures) == 0) break;
      }
    }
    CHECK(number > 100);
    CHECK(json::parse(database->report_json())["reloads"] > 10);
  }
  auto database = open_database(scratch);
  wait_until_ready(*database);
  CHECK(rows == rows_of(*database, c, ever));
  CHECK_EQ(rows.size(), count_rows(*database, c));
}

// The same for collections: made or not, dropped or not, and never half.
TEST(collections_without_memory) {
  Scratch scratch;
  const std::string name = "another collection with a name that is not short";
  auto names = [&](Database& database) {
    std::vector<std::string> found;
    for (const CollectionInfo& info : database.collections()) {
      if (info.name != "gate") found.push_back(info.name);
    }
    return found;
  };
  auto database = open_database(scratch);
  wait_until_ready(*database);
  for (long failures : {1L, 40L}) {
    long failed = 1;
    for (long successes = 0; failed > 0 && check::failures() == 0; ++successes) {
      std::vector<Step> steps(1);
      steps[0].job = [&] { return open_job(name, 3); };
      failed = write_without_memory(*database, steps, successes, failures);
      Reply reply = steps[0].answer.get();
      wait_until_ready(*database);
      if (reply.status != KALOS_STATUS_OK) {
        CHECK_EQ(KALOS_STATUS_OVERLOADED, reply.status);
        CHECK(names(*database).empty());
        reply = write(*database, open_job(name, 3));
      }
      CHECK(names(*database) == std::vector<std::string>{name});
      uint64_t c = json::parse(words(reply))["id"];
      CHECK_EQ(KALOS_STATUS_OK, write(*database, upsert_job(c, {{"x", "t"}})).status);
      CHECK_EQ(1u, count_rows(*database, c));

      auto drop = [&] {
        auto job = new_job();
        job->operations.push_back(DropCollectionRequest{name});
        return job;
      };
      steps[0].job = drop;
      failed += write_without_memory(*database, steps, successes, failures);
      reply = steps[0].answer.get();
      if (reply.status != KALOS_STATUS_OK) {
        CHECK_EQ(KALOS_STATUS_OVERLOADED, reply.status);
        CHECK_EQ(1u, count_rows(*database, c));
        CHECK_EQ(KALOS_STATUS_OK, write(*database, drop()).status);
      }
      CHECK(names(*database).empty());
    }
  }
}

// What publishing may need is set aside before the commit: where the system has less, the write is refused, in words.
TEST(nothing_is_committed_that_might_not_be_published) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return;  // their own memory is not to be had under such a limit
#endif
  Scratch scratch;
  auto database = open_database(scratch);
  uint64_t c = make_collection(*database, "c");
  CHECK_EQ(KALOS_STATUS_OK, write(*database, upsert_job(c, {{"before", "t"}})).status);
  auto job = upsert_job(c, {{"x", "t"}}, {1});
  rlimit limit{};
  CHECK_EQ(0, getrlimit(RLIMIT_AS, &limit));
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  rlimit less = limit;
  less.rlim_cur = pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) + (rlim_t{4} << 20);
  CHECK_EQ(0, setrlimit(RLIMIT_AS, &less));
  Reply reply = write(*database, std::move(job));
  CHECK_EQ(0, setrlimit(RLIMIT_AS, &limit));
  CHECK_EQ(KALOS_STATUS_OVERLOADED, reply.status);
  CHECK(words(reply).find("kalosd got no memory for this request; nothing was done") == 0);
  CHECK_EQ(1u, count_rows(*database, c));
  CHECK_EQ(KALOS_STATUS_OK, write(*database, upsert_job(c, {{"x", "t"}}, {1})).status);
  CHECK_EQ(2u, count_rows(*database, c));
}

// A collection that finds no memory at the start stays cold and says so; the others serve.
TEST(loading_without_memory) {
  Scratch scratch;
  uint64_t small = 0, large = 0;
  {
    auto database = open_database(scratch);
    small = make_collection(*database, "small");
    large = make_collection(*database, "large");
    CHECK_EQ(KALOS_STATUS_OK, write(*database, upsert_job(small, {{"x", "t"}})).status);
    CHECK_EQ(KALOS_STATUS_OK, write(*database, upsert_job(large, {{"x", std::string(2'000'000, 't')}})).status);
  }
  auto job = upsert_job(large, {{"y", "t"}});
  no_memory::too_large = 1'900'000;
  {
    auto database = open_database(scratch);
    wait_until_ready(*database);
    CHECK_EQ(1u, count_rows(*database, small));
    Reply reply = write(*database, std::move(job));
    CHECK_EQ(KALOS_STATUS_STORE_ERROR, reply.status);
    CHECK(words(reply).find("there was no memory to load collection \"large\"") == 0);
  }
  no_memory::too_large = 0;
  auto database = open_database(scratch);
  wait_until_ready(*database);
  CHECK_EQ(1u, count_rows(*database, large));
}

// Rows whose time has come go a little later.
TEST(expiry_without_memory) {
  Scratch scratch;
  auto database = open_database(scratch);
  uint64_t c = make_collection(*database, "c");
  std::vector<Step> steps(1);
  steps[0].job = [&] { return upsert_job(c, {{"mortal", "t", {}, {1, 2, 3}, wall_us() + 1}}); };
  // Fails somewhere between the write and the last deed of the deletion that follows at once; the deed is done in the end.
  for (long successes : {60L, 90L}) {
    write_without_memory(*database, steps, successes, 0);
    no_memory::arm(successes, 3);
    CHECK_EQ(KALOS_STATUS_OK, write(*database, steps[0].job()).status);
    int64_t give_up = monotonic_ns() + int64_t{120} * 1'000'000'000;
    while (json::parse(database->report_json())["rows"] != 0 && monotonic_ns() < give_up) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    no_memory::disarm();
    CHECK_EQ(0u, json::parse(database->report_json())["rows"].get<uint64_t>());
  }
}

TEST_MAIN
