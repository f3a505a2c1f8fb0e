// Promises of combining: reads that meet are served in one pass, each gets its own answer in the order in which it came,
// what goes wrong in one is its own affair, and none is left without an answer, whatever ends when.
#include "serve/combining.h"

#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/failpoint.h"
#include "check.h"
#include "no_memory.h"
#include "scratch.h"
#include "write_jobs.h"

using namespace kalos;
using namespace write_jobs;

namespace {

// A database with one collection, and a combiner over it. Passes wait while there is a file `gate`.
struct House {
  House() : gate(scratch / "gate") {
    arm_failpoint("pass@" + gate);
    auto opened = Database::open({.data_dir = scratch.path()});
    if (!opened) {
      std::fprintf(stderr, "%s\n", opened.error().words.c_str());
      std::abort();
    }
    database = std::move(*opened);
    Reply reply = write(*database, open_job("c", 3));
    c = nlohmann::json::parse(words(reply))["id"];
    write(*database, upsert_job(c, {{"small", "t"}, {"large", std::string(3'000'000, 't')}}));
    combiner = std::make_unique<Combiner>(*database, counters);
    submits_to = combiner.get();
  }
  ~House() {
    combiner.reset();
    database.reset();
    arm_failpoint("");
  }

  void close_gate() { std::ofstream(gate) << "closed"; }
  void open_gate() { unlink(gate.c_str()); }

  GetRequest get(const char* id) {
    GetRequest request;
    request.collection_id = c;
    request.include = KALOS_INCLUDE_TEXT;
    request.ids = {id};
    return request;
  }

  struct Answer {
    std::string name;
    Reply reply;
  };

  std::future<Reply> submit(const std::string& name, std::vector<ReadRequest> requests, bool is_batch = false) {
    auto read = std::make_unique<PendingRead>();
    read->is_batch = is_batch;
    for (ReadRequest& request : requests) {
      auto job = std::make_unique<ReadJob>();
      job->request = std::move(request);
      job->received_ns = monotonic_ns();
      if (is_batch) job->bytes_of_batch = read->jobs.empty() ? &job->batch_bytes : read->jobs[0]->bytes_of_batch;
      read->jobs.push_back(std::move(job));
    }
    auto promise = std::make_shared<std::promise<Reply>>();
    read->done = [this, name, promise](Reply reply) {
      {
        std::lock_guard lock(mutex);
        order.push_back(name);
      }
      promise->set_value(std::move(reply));
    };
    auto future = promise->get_future();
    submits_to->submit(std::move(read));
    return future;
  }

  // A thread whose read is being served, and waits at the gate.
  std::thread first(std::future<Reply>& answer) {
    close_gate();
    uint64_t before = counters.passes;
    std::thread thread([&, this] { answer = submit("first", {get("small")}); });
    while (counters.passes == before) std::this_thread::yield();
    return thread;
  }

  Scratch scratch;
  std::string gate;
  std::unique_ptr<Database> database;
  Counters counters;
  std::unique_ptr<Combiner> combiner;
  Combiner* submits_to = nullptr;  // the same; not changed while threads are in it
  uint64_t c = 0;
  std::mutex mutex;
  std::vector<std::string> order;
};

}  // namespace

// A read that finds nobody is served by its own thread, in a pass of its own.
TEST(alone) {
  House house;
  for (uint64_t i = 1; i <= 3; ++i) {
    auto answer = house.submit("a", {house.get("small")});
    CHECK(answer.wait_for(std::chrono::seconds(0)) == std::future_status::ready);
    CHECK((parse_texts(wait(answer).message) == std::vector<std::string>{"t"}));
    CHECK_EQ(i, house.counters.passes.load());
  }
  CHECK_EQ(0u, house.counters.combined.load());
}

// Whatever comes while a pass runs is left behind without waiting, served in one pass afterwards, and answered in the
// order in which it came. Nobody sees the thread of the first one again.
TEST(reads_that_meet_are_one_pass) {
  House house;
  std::future<Reply> first;
  std::thread thread = house.first(first);
  std::vector<std::future<Reply>> answers;
  CountRequest count;
  count.collection_id = house.c;
  for (int i = 0; i < 20; ++i) {
    ReadRequest request = i % 2 == 0 ? ReadRequest(house.get("small")) : ReadRequest(count);
    answers.push_back(house.submit("r" + std::to_string(i), {request}));
  }
  for (auto& answer : answers) CHECK(answer.wait_for(std::chrono::seconds(0)) != std::future_status::ready);
  house.open_gate();
  thread.join();
  for (int i = 0; i < 20; ++i) {
    Reply reply = wait(answers[size_t(i)]);
    CHECK_EQ(KALOS_STATUS_OK, reply.status);
    if (i % 2 == 0) {
      CHECK((parse_texts(reply.message) == std::vector<std::string>{"t"}));
    } else {
      CHECK_EQ(2u, parse_count(reply.message));
    }
  }
  CHECK_EQ(KALOS_STATUS_OK, wait(first).status);
  CHECK_EQ(2u, house.counters.passes.load());
  CHECK_EQ(20u, house.counters.combined.load());
  std::vector<std::string> expected{"first"};
  for (int i = 0; i < 20; ++i) expected.push_back("r" + std::to_string(i));
  CHECK(expected == house.order);
}

// A request that is refused is refused alone.
TEST(a_broken_request_among_others) {
  House house;
  std::future<Reply> first;
  std::thread thread = house.first(first);
  auto good = house.submit("good", {house.get("small")});
  GetRequest elsewhere = house.get("small");
  elsewhere.collection_id = 99;
  auto broken = house.submit("broken", {elsewhere});
  auto last = house.submit("last", {house.get("small")});
  house.open_gate();
  thread.join();
  CHECK_EQ(KALOS_STATUS_OK, wait(good).status);
  CHECK_EQ(KALOS_STATUS_NOT_FOUND, wait(broken).status);
  CHECK_EQ(KALOS_STATUS_OK, wait(last).status);
  CHECK_EQ(2u, house.counters.passes.load());
}

// One whose answer finds no memory ends the pass; it is made again for each alone, and only the guilty one fails, by its
// own thread and by the helper's. What comes afterwards is served.
TEST(an_exception_fails_the_guilty_one_alone) {
  House house;
  no_memory::too_large = 2'000'000;
  Reply alone = wait(house.submit("alone", {house.get("large")}));
  CHECK_EQ(KALOS_STATUS_OVERLOADED, alone.status);
  CHECK(words(alone).find("kalosd got no memory for this request") == 0);

  std::future<Reply> first;
  std::thread thread = house.first(first);
  auto good = house.submit("good", {house.get("small")});
  auto guilty = house.submit("guilty", {house.get("large")});
  auto batch = house.submit("batch", {house.get("small"), house.get("small")}, true);
  auto guilty_batch = house.submit("guilty batch", {house.get("small"), house.get("large")}, true);
  house.open_gate();
  thread.join();
  CHECK((parse_texts(wait(good).message) == std::vector<std::string>{"t"}));
  CHECK_EQ(KALOS_STATUS_OVERLOADED, wait(guilty).status);
  Reply reply = wait(batch);
  CHECK_EQ(KALOS_STATUS_OK, reply.status);
  CHECK_EQ(2u, parse_batch(reply).size());
  for (auto message : parse_batch(reply)) CHECK((parse_texts(message) == std::vector<std::string>{"t"}));
  reply = wait(guilty_batch);
  CHECK_EQ(KALOS_STATUS_OVERLOADED, reply.status);
  CHECK(words(reply).find("operation ") == 0);
  CHECK((std::vector<std::string>{"alone", "first", "good", "guilty", "batch", "guilty batch"} == house.order));
  no_memory::too_large = 0;
  CHECK_EQ(KALOS_STATUS_OK, wait(house.submit("later", {house.get("large")})).status);
}

// Whichever allocation fails in the thread that brings a read and serves it: that read was not taken, or is answered, and
// those that come later are served.
TEST(any_allocation_may_fail) {
  House house;
  uint64_t refused = 0;
  for (long failures : {1L, 20L}) {
    for (long successes = 0;; ++successes) {
      std::promise<Reply> promise;
      auto answer = promise.get_future();
      auto read = std::make_unique<PendingRead>();
      read->is_batch = true;
      for (int i = 0; i < 2; ++i) {
        read->jobs.push_back(std::make_unique<ReadJob>());
        read->jobs[size_t(i)]->request = house.get("small");
        read->jobs[size_t(i)]->bytes_of_batch = &read->jobs[0]->batch_bytes;
      }
      read->done = [&](Reply reply) { promise.set_value(std::move(reply)); };
      bool taken = true;
      no_memory::chosen = true;
      no_memory::arm(successes, failures);
      try {
        house.combiner->submit(std::move(read));
      } catch (const std::bad_alloc&) {
        taken = false;
      }
      long failed = no_memory::disarm();
      no_memory::chosen = false;
      if (taken) {
        Reply reply = wait(answer);
        if (reply.status != KALOS_STATUS_OK) {
          CHECK_EQ(KALOS_STATUS_OVERLOADED, reply.status);
          ++refused;
        }
        if (failed == 0) CHECK_EQ(KALOS_STATUS_OK, reply.status);
      }
      CHECK_EQ(KALOS_STATUS_OK, wait(house.submit("next", {house.get("small")})).status);
      if (failed == 0) break;
    }
  }
  CHECK(refused > 5);
}

// A combiner that ends has answered everything that it took, also what still waited behind a pass.
TEST(the_end_waits_for_every_answer) {
  for (int attempt = 0; attempt < 50; ++attempt) {
    House house;
    std::future<Reply> first;
    std::thread thread = house.first(first);
    std::vector<std::future<Reply>> answers;
    for (int i = 0; i < attempt % 4; ++i) answers.push_back(house.submit("r", {house.get("small")}));
    std::thread opener([&] { house.open_gate(); });
    house.combiner.reset();
    for (auto& answer : answers) {
      CHECK(answer.wait_for(std::chrono::seconds(0)) == std::future_status::ready);
      CHECK_EQ(KALOS_STATUS_OK, wait(answer).status);
    }
    opener.join();
    thread.join();
    CHECK_EQ(KALOS_STATUS_OK, wait(first).status);
  }
}

// Many threads, each with its own questions: every answer is its own, whoever served it.
TEST(many_threads) {
  House house;
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 300; ++i) {
        bool is_small = (i + t) % 3 != 0;
        Reply reply = wait(house.submit("r", {house.get(is_small ? "small" : "nobody")}));
        if (parse_texts(reply.message) != std::vector<std::string>{is_small ? "t" : "?"}) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(0, wrong.load());
  CHECK_EQ(2400u, house.order.size());
  CHECK(house.counters.passes.load() <= 2400);
}

TEST_MAIN
