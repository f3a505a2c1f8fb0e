// Promises at a power cut, over a disk that forgets what was not flushed: what was acknowledged with durability "commit"
// is there, the state is that after some commit and never half of one, a resend gets the first answer. And on a disk that
// fails: an error in words, nothing half applied, and what was acknowledged stays.
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <thread>

#include "check.h"
#include "power_cut_vfs.h"
#include "scratch.h"
#include "store/database.h"
#include "write_jobs.h"

using namespace kalos;
using namespace write_jobs;
using nlohmann::json;

namespace {

using Rows = std::map<std::string, std::string>;  // id -> text

struct Step {
  Rows after;  // the state, if this step and all before it are there
  bool acknowledged = false;
  kalos_durability durability = KALOS_DURABILITY_COMMIT;
  uint64_t sequence = 0;
};

struct Run {
  std::vector<Step> steps;  // the first is the creation of the collection
  bool died = false;
};

std::unique_ptr<Database> open_database(const std::string& directory, int64_t checkpoint_interval_ms = 60'000) {
  DatabaseOptions options;
  options.data_dir = directory;
  options.checkpoint_interval_ms = checkpoint_interval_ms;
  auto database = Database::open(options);
  if (!database) return nullptr;
  int64_t give_up = monotonic_ns() + int64_t{120} * 1'000'000'000;
  while (!json::parse((*database)->report_json())["ready"]) {
    if (monotonic_ns() > give_up) check::fail(__FILE__, __LINE__, "not ready after two minutes");
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return std::move(*database);
}

uint64_t collection_of(Database& database) {
  auto collections = database.collections();
  return collections.empty() ? 0 : collections[0].id;
}

// Nothing where the collection is not served, because it is damaged.
std::optional<Rows> rows_of(Database& database, uint64_t collection) {
  ScanRequest request;
  request.collection_id = collection;
  request.include = KALOS_INCLUDE_TEXT;
  request.page_limit = 1000;
  ReadJob job;
  job.request = request;
  ReadJob* jobs[] = {&job};
  database.serve_reads(jobs);
  if (job.reply.status != KALOS_STATUS_OK) return std::nullopt;
  const char* bytes = reinterpret_cast<const char*>(job.reply.message.data());
  kalos_hits_reply head{};
  std::memcpy(&head, bytes, sizeof head);
  Rows rows;
  for (uint32_t i = 0; i < head.row_count; ++i) {
    kalos_hit_fields fields{};
    std::memcpy(&fields, bytes + head.fields.offset + i * sizeof fields, sizeof fields);
    rows[std::string(bytes + fields.id.offset, fields.id.bytes)] =
        std::string(bytes + fields.text.offset, fields.text.bytes);
  }
  return rows;
}

// The job of a step: the same for the same seed and number, so that it can be sent again.
std::unique_ptr<WriteJob> make_step(uint64_t seed, size_t number, uint64_t collection, Rows& rows) {
  std::mt19937_64 dice(seed * 1000 + number);
  WriteId id{};
  std::memcpy(id.data(), &seed, sizeof seed);
  id[15] = static_cast<uint8_t>(number);
  auto job = new_job(id);
  job->durability = dice() % 3 == 0 ? KALOS_DURABILITY_RELAXED : KALOS_DURABILITY_COMMIT;
  std::vector<std::string> ids;
  for (size_t i = 0, count = 1 + dice() % 6; i < count; ++i) ids.push_back("row" + std::to_string(dice() % 20));
  if (dice() % 4 == 0) {
    job->operations.push_back(delete_ids(*job, collection, ids));
    for (const std::string& one : ids) rows.erase(one);
    return job;
  }
  std::vector<RowSpec> specs;
  for (const std::string& one : ids) {
    std::string text = std::to_string(number) + std::string(dice() % 3000, 'x');
    specs.push_back({one, text});
    rows[one] = text;
  }
  job->operations.push_back(upsert(*job, collection, specs));
  return job;
}

constexpr size_t kSteps = 30;
constexpr size_t kSessions = 3;

// Writes, with the store closed and opened again in between, until the power is gone.
Run run_until_cut(const std::string& directory, uint64_t seed) {
  std::mt19937_64 dice(seed);
  Run run;
  Rows rows;
  for (size_t session = 0; session < kSessions; ++session) {
    auto database = open_database(directory, dice() % 2 ? 1 : 60'000);
    if (!database) break;
    if (run.steps.empty()) {
      Reply reply = write(*database, open_job("notes", 3));
      run.steps.push_back({{}, reply.status == KALOS_STATUS_OK, KALOS_DURABILITY_COMMIT, database->commit_sequence()});
    }
    uint64_t collection = collection_of(*database);
    while (!power_cut::is_off() && collection != 0 && run.steps.size() < (session + 1) * (kSteps / kSessions)) {
      auto job = make_step(seed, run.steps.size(), collection, rows);
      kalos_durability durability = job->durability;
      Reply reply = write(*database, std::move(job));
      bool acknowledged = reply.status == KALOS_STATUS_OK;
      run.steps.push_back({rows, acknowledged, durability, acknowledged ? parse(reply.message).commit_sequence : 0});
      if (!acknowledged) break;
      if (dice() % 4 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));  // room for a checkpoint
    }
    database.reset();
    if (power_cut::is_off()) break;
  }
  run.died = power_cut::is_off();
  return run;
}

// The last step that must be there; steps.size() where none must.
size_t last_durable(const Run& run) {
  for (size_t i = run.steps.size(); i-- > 0;) {
    if (run.steps[i].acknowledged && run.steps[i].durability == KALOS_DURABILITY_COMMIT) return i;
  }
  return run.steps.size();
}

// Which step the state is that of. -1: before the first; -2: of none that it may be.
int64_t find_state(const Run& run, Database& database) {
  size_t must = last_durable(run);
  uint64_t collection = collection_of(database);
  if (collection == 0) return must == run.steps.size() ? -1 : -2;
  std::optional<Rows> found = rows_of(database, collection);
  if (!found) return -2;
  for (size_t i = run.steps.size(); i-- > (must == run.steps.size() ? 0 : must);) {
    if (run.steps[i].after == *found) return static_cast<int64_t>(i);
  }
  return -2;
}

struct Outcome {
  bool died = false;
  bool lost = false;  // something that was promised
};

Outcome cut_and_look(uint64_t seed, int64_t off_at, bool lies) {
  Scratch before, after;
  std::mt19937_64 dice(seed ^ 0xD15C);
  power_cut::start(off_at, lies);
  Run run = run_until_cut(before.path(), seed);
  power_cut::restore(after.path(), dice);
  auto database = open_database(after.path());
  if (!database) return {run.died, true};
  int64_t state = find_state(run, *database);
  if (state == -2) return {run.died, true};
  if (lies || run.steps.empty()) return {run.died, false};
  size_t must = last_durable(run);
  if (must < run.steps.size()) CHECK(database->commit_sequence() >= run.steps[must].sequence);
  // Sent again, the last write is there once, and with its first answer where it had one.
  size_t last = run.steps.size() - 1;
  if (last > 0 && state >= static_cast<int64_t>(last) - 1) {
    Rows rows = run.steps[last - 1].after;
    uint64_t before_resend = database->commit_sequence();
    Reply reply = write(*database, make_step(seed, last, collection_of(*database), rows));
    CHECK_EQ(KALOS_STATUS_OK, reply.status);
    if (reply.status != KALOS_STATUS_OK) return {run.died, false};
    uint64_t sequence = parse(reply.message).commit_sequence;
    CHECK(rows_of(*database, collection_of(*database)) == run.steps[last].after);
    if (run.steps[last].acknowledged && state == static_cast<int64_t>(last)) {
      bool was_there = run.steps[last].after != run.steps[last - 1].after;
      if (was_there) CHECK_EQ(run.steps[last].sequence, sequence);
      if (was_there) CHECK_EQ(before_resend, database->commit_sequence());
    }
  }
  return {run.died, false};
}

int64_t operations_of_a_run() {
  Scratch scratch;
  power_cut::start();
  run_until_cut(scratch.path(), 1);
  int64_t operations = power_cut::operations();
  std::mt19937_64 dice(1);
  Scratch ignored;
  power_cut::restore(ignored.path(), dice);
  return operations;
}

uint64_t from_environment(const char* name, uint64_t otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::strtoull(value, nullptr, 10);
}

}  // namespace

// KALOS_POWER_CUTS=N makes more of them, KALOS_POWER_CUT_SEED=S others.
TEST(acknowledged_commits_survive_power_cuts) {
  int64_t operations = operations_of_a_run();
  uint64_t first = from_environment("KALOS_POWER_CUT_SEED", 1), cuts = from_environment("KALOS_POWER_CUTS", 300);
  uint64_t died = 0;
  for (uint64_t seed = first; seed < first + cuts; ++seed) {
    std::mt19937_64 dice(seed);
    Outcome outcome = cut_and_look(seed, 1 + static_cast<int64_t>(dice() % static_cast<uint64_t>(operations)), false);
    died += outcome.died;
    if (outcome.lost) check::fail(__FILE__, __LINE__, "lost with KALOS_POWER_CUT_SEED=" + std::to_string(seed));
  }
  CHECK(died > cuts / 2);
}

// The test above can fail: on a disk that says it flushed and did not, it finds that acknowledged writes are lost.
TEST(a_disk_that_lies_is_found_out) {
  int64_t operations = operations_of_a_run();
  int lost = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    std::mt19937_64 dice(seed);
    lost += cut_and_look(seed, operations / 2 + static_cast<int64_t>(dice() % 20), true).lost;
  }
  CHECK(lost > 0);
}

// Full disk and I/O errors at every operation of a run in turn.
TEST(a_failing_disk_loses_nothing) {
  int64_t operations = operations_of_a_run();
  struct Kind {
    int code;
    int failures;
  };
  for (Kind kind : {Kind{SQLITE_FULL, 1}, Kind{SQLITE_FULL, 40}, Kind{SQLITE_IOERR_WRITE, 1}}) {
    for (int64_t at = 1; at <= operations; at += 1 + operations / 60) {
      Scratch scratch;
      power_cut::start();
      power_cut::fail_from(at, kind.failures, kind.code);
      Run run;
      Rows rows;
      std::string words_of_failure;
      {
        auto database = open_database(scratch.path());
        for (int attempt = 0; !database && attempt < 100; ++attempt) database = open_database(scratch.path());
        if (!database) {
          check::fail(__FILE__, __LINE__, "the store does not open once the disk is well again");
          continue;
        }
        Reply created = write(*database, open_job("notes", 3));
        for (int attempt = 0; created.status == KALOS_STATUS_STORE_ERROR && attempt < 100; ++attempt) {
          created = write(*database, open_job("notes", 3));
        }
        uint64_t collection = collection_of(*database);
        if (collection == 0) continue;  // a flush failed: nobody knows, and no write is taken
        run.steps.push_back({{}, true, KALOS_DURABILITY_COMMIT, database->commit_sequence()});
        for (size_t i = 1; i < kSteps; ++i) {
          Rows next = rows;
          Reply reply = write(*database, make_step(7, i, collection, next));
          bool acknowledged = reply.status == KALOS_STATUS_OK;
          if (acknowledged) {
            rows = next;
          } else {
            words_of_failure = words(reply);
            CHECK(reply.status == KALOS_STATUS_STORE_ERROR || reply.status == KALOS_STATUS_UNKNOWN_OUTCOME);
            CHECK(words_of_failure.size() > 40);
          }
          // Reads go on, and see exactly what was acknowledged.
          CHECK(rows_of(*database, collection) == rows);
          bool unknown = reply.status == KALOS_STATUS_UNKNOWN_OUTCOME;
          if (acknowledged || unknown) run.steps.push_back({next, acknowledged, KALOS_DURABILITY_COMMIT, 0});
          if (unknown) break;
        }
      }
      power_cut::fail_from(power_cut::kNever, 0, SQLITE_OK);
      auto database = open_database(scratch.path());
      if (database) {
        if (find_state(run, *database) == -2) {
          check::fail(__FILE__, __LINE__,
                      "code " + std::to_string(kind.code) + " at " + std::to_string(at) + " lost something");
        }
        Rows next = rows_of(*database, collection_of(*database)).value_or(Rows{});
        CHECK_EQ(KALOS_STATUS_OK, write(*database, make_step(8, 1, collection_of(*database), next)).status);
        CHECK(rows_of(*database, collection_of(*database)) == next);
      } else {
        check::fail(__FILE__, __LINE__, "the store does not open after a failure");
      }
      database.reset();
      std::mt19937_64 dice(1);
      Scratch ignored;
      power_cut::restore(ignored.path(), dice);
    }
  }
}

int main() {
  power_cut::install();
  return check::run();
}
