// Promises of the writer: what waits is committed together, a failing write disturbs nobody else, an acknowledged write is
// on disk and visible, a resend gets the first answer, and no write is taken after a failed flush.
#include "store/writer.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "check.h"
#include "fault_vfs.h"
#include "scratch.h"
#include "write_jobs.h"

using namespace kalos;
using namespace write_jobs;

namespace {

// A store, an index and a writer over a directory; collection "c" of dimension 3.
struct House {
  explicit House(const Scratch& scratch, WriterOptions options = {}, bool start = true) {
    auto opened = Store::open({.data_dir = scratch.path()});
    if (!opened) {
      std::fprintf(stderr, "%s\n", opened.error().words.c_str());
      std::abort();
    }
    store = std::move(*opened);
    auto collections = store->collections();
    index.apply({}, store->commit_sequence());
    for (const CollectionInfo& info : *collections) {
      auto collection = std::make_unique<Collection>(info);
      std::atomic<uint32_t> percent{0};
      CHECK(store->load(info, percent, [&](std::unique_ptr<Row> row) {
        collection->put(std::move(row));
        return true;
      }));
      index.set_loaded(std::move(collection));
    }
    writer = std::make_unique<Writer>(*store, index, engine, options);
    writer->index_changed();
    if (!start) return;
    writer->start();
    Reply reply = write(*writer, open_job("c", 3));
    CHECK_EQ(KALOS_STATUS_OK, reply.status);
    c = nlohmann::json::parse(words(reply))["id"];
  }

  uint64_t rows() {
    std::lock_guard lock(engine);
    return index.row_count();
  }
  std::vector<std::string> texts(const std::vector<std::string>& ids, const std::string& name_space = "") {
    GetRequest request;
    request.collection_id = c;
    request.scope.namespace_key = name_space;
    request.include = KALOS_INCLUDE_TEXT;
    for (const auto& id : ids) request.ids.push_back(id);
    std::lock_guard lock(engine);
    Reply reply = index.read_one(request, 0);
    CHECK_EQ(KALOS_STATUS_OK, reply.status);
    return parse_texts(reply.message);
  }
  std::string text(const std::string& id) { return texts({id})[0]; }
  Reply put(const std::string& id, const std::string& text) { return write(*writer, upsert_job(c, {{id, text}})); }

  std::unique_ptr<Store> store;
  FairMutex engine;
  Index index;
  std::unique_ptr<Writer> writer;  // ends before what it writes to
  uint64_t c = 0;
};

bool holds(const std::string& words, const std::string& part) {
  if (words.find(part) != std::string::npos) return true;
  std::fprintf(stderr, "\"%s\" does not say \"%s\"\n", words.c_str(), part.c_str());
  return false;
}

void run_sql(const Scratch& scratch, const std::string& sql) {
  sqlite3* database = nullptr;
  CHECK_EQ(SQLITE_OK, sqlite3_open((scratch / "kalos.db").c_str(), &database));
  sqlite3_busy_timeout(database, 10'000);
  CHECK_EQ(SQLITE_OK, sqlite3_exec(database, sql.c_str(), nullptr, nullptr, nullptr));
  sqlite3_close(database);
}

uint64_t stored_rows(const Store& store) {
  CollectionInfo info;
  info.id = 1;
  auto rows = store.row_count(info);
  CHECK(rows);
  return rows ? *rows : 0;
}

// Waits for what must come true, with a watchdog.
template <class Condition>
void wait_until(Condition condition) {
  int64_t give_up = monotonic_ns() + int64_t{120} * 1'000'000'000;
  while (!condition()) {
    if (monotonic_ns() > give_up) {
      check::fail(__FILE__, __LINE__, "waited for two minutes in vain");
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

}  // namespace

// Whatever waits when the writer comes is one commit with one sequence, and each write has its own count.
TEST(waiting_writes_are_one_commit) {
  Scratch scratch;
  {
    House house(scratch);
  }
  House house(scratch, {}, /*start=*/false);
  house.c = 1;
  std::vector<std::future<Reply>> answers;
  for (int i = 0; i < 50; ++i) {
    answers.push_back(send(*house.writer, upsert_job(1, {{"r" + std::to_string(i), "t"}, {"s" + std::to_string(i)}})));
  }
  house.writer->start();
  uint64_t sequence = 0;
  for (auto& answer : answers) {
    Reply reply = wait(answer);
    CHECK_EQ(KALOS_STATUS_OK, reply.status);
    auto parsed = parse(reply.message);
    CHECK_EQ(2u, parsed.count);
    if (sequence == 0) sequence = parsed.commit_sequence;
    CHECK_EQ(sequence, parsed.commit_sequence);
  }
  CHECK_EQ(1u, house.writer->counters().commits.load());
  CHECK_EQ(50u, house.writer->counters().writes.load());
  CHECK_EQ(100u, house.rows());
  CHECK_EQ(sequence, house.store->commit_sequence());
}

// An acknowledged write is in the index and in the store; a restart finds the same.
TEST(acknowledged_is_visible_and_stored) {
  Scratch scratch;
  {
    House house(scratch);
    Reply reply = house.put("x", "hello");
    CHECK_EQ(KALOS_STATUS_OK, reply.status);
    CHECK_EQ(parse(reply.message).commit_sequence, house.index.commit_sequence());
    CHECK_EQ(std::string("hello"), house.text("x"));
    CHECK_EQ(KALOS_STATUS_OK, house.put("x", "hello again").status);
  }
  House house(scratch);
  CHECK_EQ(1u, house.rows());
  CHECK_EQ(std::string("hello again"), house.text("x"));
}

// "relaxed" does not flush; one "commit" write among relaxed ones makes the whole group flush.
TEST(durability_of_a_group) {
  Scratch scratch;
  {
    House house(scratch);
  }
  auto flushes_of = [&](std::vector<kalos_durability> durabilities) {
    House house(scratch, {}, /*start=*/false);
    std::vector<std::future<Reply>> answers;
    for (kalos_durability durability : durabilities) {
      auto job = upsert_job(1, {{"x", "t"}});
      job->durability = durability;
      answers.push_back(send(*house.writer, std::move(job)));
    }
    int before = fault_vfs::syncs;
    house.writer->start();
    for (auto& answer : answers) CHECK_EQ(KALOS_STATUS_OK, wait(answer).status);
    return fault_vfs::syncs - before;
  };
  // The first write after a checkpoint flushes the head of the log in any case.
  int relaxed = flushes_of({KALOS_DURABILITY_RELAXED, KALOS_DURABILITY_RELAXED});
  int mixed = flushes_of({KALOS_DURABILITY_RELAXED, KALOS_DURABILITY_COMMIT, KALOS_DURABILITY_RELAXED});
  CHECK_EQ(relaxed + 1, mixed);
}

// A single acknowledged write costs one flush, no more and no less; a relaxed one costs none.
TEST(one_flush_for_each_write) {
  Scratch scratch;
  House house(scratch);
  house.put("first", "t");  // after a checkpoint the head of the log is flushed too
  auto flushes_of = [&](kalos_durability durability) {
    int before = fault_vfs::syncs;
    for (int i = 0; i < 20; ++i) {
      auto job = upsert_job(house.c, {{"r" + std::to_string(i), "t"}});
      job->durability = durability;
      CHECK_EQ(KALOS_STATUS_OK, write(*house.writer, std::move(job)).status);
    }
    return fault_vfs::syncs - before;
  };
  CHECK_EQ(20, flushes_of(KALOS_DURABILITY_COMMIT));
  CHECK_EQ(0, flushes_of(KALOS_DURABILITY_RELAXED));
  CHECK_EQ(20, flushes_of(KALOS_DURABILITY_COMMIT));  // the way back from relaxed
}

// Each broken request is refused in words that name what is wrong, and the others of its group are done.
TEST(broken_writes_disturb_nobody) {
  Scratch scratch;
  {
    House house(scratch);
  }
  House house(scratch, {}, /*start=*/false);
  house.c = 1;
  auto good1 = send(*house.writer, upsert_job(1, {{"good1", "t"}}));
  auto dimension = send(*house.writer, upsert_job(1, {{"bad", "t", {}, {1, 2}}}));
  auto nan = send(*house.writer, upsert_job(1, {{"ok", "t"}, {"the-row", "t", {}, {1, NAN, 2}}}));
  auto inf = send(*house.writer, upsert_job(1, {{"the-row", "t", {}, {1, 2, -INFINITY}}}));
  auto unknown = send(*house.writer, upsert_job(77, {{"bad", "t"}}));
  DeleteRequest nothing;
  nothing.collection_id = 1;
  auto no_scope = send(*house.writer, delete_job(nothing));
  auto late_job = upsert_job(1, {{"late", "t"}});
  late_job->deadline_ns = monotonic_ns() - 1;
  auto late = send(*house.writer, std::move(late_job));
  auto good2 = send(*house.writer, upsert_job(1, {{"good2", "t"}}));
  house.writer->start();

  CHECK_EQ(KALOS_STATUS_OK, wait(good1).status);
  Reply reply = wait(dimension);
  CHECK_EQ(KALOS_STATUS_INVALID_REQUEST, reply.status);
  CHECK(holds(words(reply), "dimension 2") && holds(words(reply), "dimension 3"));
  reply = wait(nan);
  CHECK_EQ(KALOS_STATUS_INVALID_REQUEST, reply.status);
  CHECK(holds(words(reply), "component 1") && holds(words(reply), "\"the-row\""));
  reply = wait(inf);
  CHECK(holds(words(reply), "component 2") && holds(words(reply), "-inf"));
  CHECK_EQ(KALOS_STATUS_NOT_FOUND, wait(unknown).status);
  reply = wait(no_scope);
  CHECK_EQ(KALOS_STATUS_INVALID_REQUEST, reply.status);
  CHECK(holds(words(reply), "everything=True"));
  CHECK_EQ(KALOS_STATUS_EXPIRED, wait(late).status);
  CHECK_EQ(KALOS_STATUS_OK, wait(good2).status);
  CHECK_EQ(2u, house.rows());
  CHECK_EQ(1u, house.writer->counters().commits.load());
  CHECK_EQ(6u, house.writer->counters().write_errors.load());
}

// Of two equal ids in a batch: the first's place, the last's value; the count is of distinct ids.
TEST(equal_ids_in_one_write) {
  Scratch scratch;
  {
    House house(scratch);
    Reply reply =
        write(*house.writer, upsert_job(house.c, {{"a", "a1"}, {"b", "b1"}, {"a", "a2"}, {"c", "c1"}, {"a", "a3"}}));
    CHECK_EQ(3u, parse(reply.message).count);
    CHECK_EQ(std::string("a3"), house.text("a"));
  }
  auto store = Store::open({.data_dir = scratch.path()});
  CHECK(store);
  CollectionInfo info;
  info.id = 1;
  info.dimension = 3;
  std::string order;
  std::atomic<uint32_t> percent{0};
  CHECK((*store)->load(info, percent, [&](std::unique_ptr<Row> row) {
    order += row->id;
    return true;
  }));
  CHECK_EQ(std::string("abc"), order);
}

// When SQL fails in the middle of a write, that write is undone whole and says so; the others of its group are done.
TEST(sql_failure_hits_only_the_guilty) {
  Scratch scratch;
  {
    House house(scratch);
  }
  run_sql(scratch,
          "CREATE TRIGGER injected BEFORE INSERT ON rows_1 WHEN NEW.id = 'guilty' "
          "BEGIN SELECT RAISE(ABORT, 'injected fault'); END");
  House house(scratch, {}, /*start=*/false);
  house.c = 1;
  auto first = send(*house.writer, upsert_job(1, {{"first", "t"}}));
  auto guilty = send(*house.writer, upsert_job(1, {{"half", "t"}, {"guilty", "t"}, {"other half", "t"}}));
  auto last = send(*house.writer, upsert_job(1, {{"last", "t"}}));
  house.writer->start();
  CHECK_EQ(KALOS_STATUS_OK, wait(first).status);
  Reply reply = wait(guilty);
  CHECK_EQ(KALOS_STATUS_STORE_ERROR, reply.status);
  CHECK(holds(words(reply), "injected fault"));
  CHECK_EQ(KALOS_STATUS_OK, wait(last).status);
  CHECK_EQ(2u, house.rows());
  CHECK_EQ(std::string("?"), house.text("half"));
  CHECK_EQ(2u, stored_rows(*house.store));
}

// A resend gets the first answer and changes nothing: while the first still waits, later, and after a restart.
TEST(resent_writes_get_the_first_answer) {
  Scratch scratch;
  const WriteId id{7, 7, 7};
  kalos_write_reply answer{};
  {
    House house(scratch);
  }
  {
    House house(scratch, {}, /*start=*/false);
    house.c = 1;
    auto first = send(*house.writer, upsert_job(1, {{"x", "first"}, {"y", "first"}}, id));
    auto between = send(*house.writer, upsert_job(1, {{"x", "between"}}));
    auto again = send(*house.writer, upsert_job(1, {{"x", "first"}, {"y", "first"}}, id));
    house.writer->start();
    answer = parse(wait(first).message);
    CHECK_EQ(2u, answer.count);
    CHECK_EQ(KALOS_STATUS_OK, wait(between).status);
    CHECK(std::memcmp(&answer, wait(again).message.data(), sizeof answer) == 0);
    CHECK_EQ(std::string("between"), house.text("x"));
    Reply later = write(*house.writer, upsert_job(1, {{"x", "first"}, {"y", "first"}}, id));
    CHECK(std::memcmp(&answer, later.message.data(), sizeof answer) == 0);
  }
  House house(scratch);
  Reply restarted = write(*house.writer, upsert_job(1, {{"x", "first"}, {"y", "first"}}, id));
  CHECK_EQ(KALOS_STATUS_OK, restarted.status);
  CHECK(std::memcmp(&answer, restarted.message.data(), sizeof answer) == 0);
  CHECK_EQ(std::string("between"), house.text("x"));
}

// A write id that comes again with another request is refused in words, and neither is taken for the other: in one group
// with the first, later, after a restart; a batch as well. What is refused leaves the first one's answer as it was.
TEST(a_write_id_is_one_request_s) {
  Scratch scratch;
  const WriteId id{8, 8, 8}, of_batch{9, 9, 9};
  auto upsert_x = [&](const std::string& text) { return upsert_job(1, {{"x", text}}, id); };
  auto everything = [&] {
    auto job = new_job(id);
    DeleteRequest request;
    request.collection_id = 1;
    request.everything = true;
    job->operations.push_back(request);
    return job;
  };
  auto batch = [&](const std::string& text) {
    auto job = new_job(of_batch);
    job->is_batch = true;
    job->operations.push_back(upsert(*job, 1, {{"y", text}}));
    job->write_positions = {0};
    return job;
  };
  auto refused = [](const Reply& reply) {
    CHECK_EQ(KALOS_STATUS_INVALID_REQUEST, reply.status);
    return holds(words(reply), "used before") && holds(words(reply), "was not done");
  };
  {
    House house(scratch);
  }
  kalos_write_reply answer{};
  {
    House house(scratch, {}, /*start=*/false);
    house.c = 1;
    auto first = send(*house.writer, upsert_x("first"));
    auto other = send(*house.writer, upsert_x("other"));
    auto again = send(*house.writer, upsert_x("first"));
    auto removal = send(*house.writer, everything());
    house.writer->start();
    answer = parse(wait(first).message);
    CHECK(refused(wait(other)));
    CHECK(std::memcmp(&answer, wait(again).message.data(), sizeof answer) == 0);
    CHECK(refused(wait(removal)));
    CHECK_EQ(std::string("first"), house.text("x"));
    CHECK_EQ(KALOS_STATUS_OK, write(*house.writer, batch("batch")).status);
    CHECK(refused(write(*house.writer, batch("other"))));
    CHECK(refused(write(*house.writer, everything())));
  }
  House house(scratch);
  CHECK(refused(write(*house.writer, upsert_x("other"))));
  CHECK(refused(write(*house.writer, everything())));
  CHECK(refused(write(*house.writer, batch("other"))));
  CHECK((std::vector<std::string>{"first", "batch"} == house.texts({"x", "y"})));
  Reply restarted = write(*house.writer, upsert_x("first"));
  CHECK(std::memcmp(&answer, restarted.message.data(), sizeof answer) == 0);
  CHECK_EQ(KALOS_STATUS_OK, write(*house.writer, batch("batch")).status);
}

// The first of two requests with one write id fails: nothing is remembered, and the other is the id's first request.
TEST(a_refused_write_does_not_take_its_write_id) {
  Scratch scratch;
  {
    House house(scratch);
  }
  House house(scratch, {}, /*start=*/false);
  house.c = 1;
  auto wrong = upsert_job(1, {{"x", "t", {}, {1}}}, {4});
  auto right = upsert_job(1, {{"x", "t"}}, {4});
  auto first = send(*house.writer, std::move(wrong));
  auto second = send(*house.writer, std::move(right));
  house.writer->start();
  CHECK_EQ(KALOS_STATUS_INVALID_REQUEST, wait(first).status);
  CHECK_EQ(KALOS_STATUS_OK, wait(second).status);
}

// What a kalosd before digests remembered is answered still; only the number of writes can tell a reuse there. One that is
// cut off is a fault in words, and the write is not done.
TEST(answers_without_a_digest_are_read) {
  Scratch scratch;
  const WriteId old_form{1}, cut{2}, cut_in_digest{3};
  House house(scratch);
  house.writer->stop();
  CHECK(house.store->begin(KALOS_DURABILITY_COMMIT));
  const struct {
    uint32_t bytes = sizeof(kalos_write_reply);
    uint32_t reply[4] = {77, 0, 3, 0};
  } packed;
  auto remember = [&](const WriteId& id, std::span<const std::byte> from) {
    CHECK(house.store->remember_write(id, {77, Bytes(from.begin(), from.end())}, wall_us()));
  };
  remember(old_form, std::as_bytes(std::span(&packed, 1)));
  remember(cut, std::as_bytes(std::span(&packed, 1)).first(19));
  const uint32_t with_digest[] = {0x80000001, 1, 2};
  remember(cut_in_digest, std::as_bytes(std::span(with_digest)));
  CHECK(house.store->commit());
  house.writer = std::make_unique<Writer>(*house.store, house.index, house.engine, WriterOptions{});
  house.writer->start();
  auto resend = [&](const WriteId& id) { return write(*house.writer, upsert_job(house.c, {{"x", "t"}}, id)); };
  Reply answer = resend(old_form);
  CHECK_EQ(KALOS_STATUS_OK, answer.status);
  CHECK_EQ(77u, parse(answer.message).commit_sequence);
  CHECK_EQ(3u, parse(answer.message).count);
  for (const WriteId& id : {cut, cut_in_digest}) {
    Reply damaged = resend(id);
    CHECK_EQ(KALOS_STATUS_INTERNAL, damaged.status);
    CHECK(holds(words(damaged), "damaged"));
  }
  CHECK_EQ(0u, house.rows());
}

// A delete that found nothing is remembered too; a refused write is not, and may be tried again with the same id.
TEST(what_is_remembered) {
  Scratch scratch;
  House house(scratch);
  auto remove = [&](WriteId id) {
    auto job = new_job(id);
    job->operations.push_back(delete_ids(*job, house.c, {"x"}));
    return write(*house.writer, std::move(job));
  };
  CHECK_EQ(0u, parse(remove({1}).message).count);
  house.put("x", "t");
  CHECK_EQ(0u, parse(remove({1}).message).count);
  CHECK_EQ(1u, parse(remove({2}).message).count);
  CHECK_EQ(KALOS_STATUS_INVALID_REQUEST, write(*house.writer, upsert_job(house.c, {{"y", "t", {}, {1}}}, {3})).status);
  CHECK_EQ(KALOS_STATUS_OK, write(*house.writer, upsert_job(house.c, {{"y", "t"}}, {3})).status);
}

// Deletes by ids, filter, both, everything, with and without the subtree; the count is of rows that were there.
TEST(deletes) {
  Scratch scratch;
  House house(scratch);
  const std::string a("\0\1a", 3), ab("\0\1a\0\1b", 6);
  auto fill = [&] {
    for (const std::string& name_space : {std::string(), a, ab}) {
      std::vector<RowSpec> rows = {{"1", "t", "{\"colour\":\"red\"}"}, {"2", "t", "{\"colour\":\"blue\"}"}, {"3", "t"}};
      CHECK_EQ(KALOS_STATUS_OK, write(*house.writer, upsert_job(house.c, rows, {}, name_space)).status);
    }
  };
  auto count_deleted = [&](auto change) {
    fill();
    auto job = new_job();
    DeleteRequest request;
    request.collection_id = house.c;
    request.scope.namespace_key = keep(*job, a);
    change(request);
    job->operations.push_back(std::move(request));
    Reply reply = write(*house.writer, std::move(job));
    CHECK_EQ(KALOS_STATUS_OK, reply.status);
    uint64_t count = parse(reply.message).count;
    CHECK_EQ(9 - count, house.rows());
    return count;
  };
  CHECK_EQ(2u, count_deleted([](DeleteRequest& r) { r.by_ids = true, r.ids = {"1", "2", "1", "9"}; }));
  CHECK_EQ(0u, count_deleted([](DeleteRequest& r) { r.by_ids = true; }));
  CHECK_EQ(4u, count_deleted([](DeleteRequest& r) { r.by_ids = r.scope.subtree = true, r.ids = {"1", "2"}; }));
  CHECK_EQ(1u, count_deleted([](DeleteRequest& r) { r.filter = "{\"colour\":\"red\"}"; }));
  CHECK_EQ(2u, count_deleted([](DeleteRequest& r) { r.filter = "{\"colour\":\"red\"}", r.scope.subtree = true; }));
  CHECK_EQ(1u, count_deleted(
                   [](DeleteRequest& r) { r.filter = "{\"colour\":\"red\"}", r.by_ids = true, r.ids = {"1", "2"}; }));
  CHECK_EQ(3u, count_deleted([](DeleteRequest& r) { r.everything = true; }));
  CHECK_EQ(3u, count_deleted([](DeleteRequest& r) { r.everything = true, r.filter = "{}"; }));
  // A filter that says nothing is no way to delete everything by accident, whoever the caller is.
  for (const char* nothing : {"{}", R"({"$and": []})", R"({"$and": [{}, {"$and": []}]})"}) {
    fill();
    auto job = new_job();
    DeleteRequest request;
    request.collection_id = house.c;
    request.filter = keep(*job, nothing);
    job->operations.push_back(std::move(request));
    CHECK_EQ(KALOS_STATUS_INVALID_REQUEST, write(*house.writer, std::move(job)).status);
    CHECK_EQ(9u, house.rows());
  }
  CHECK_EQ(6u, count_deleted([](DeleteRequest& r) { r.everything = r.scope.subtree = true; }));
  CHECK_EQ(9u,
           count_deleted([](DeleteRequest& r) { r.scope.namespace_key = "", r.everything = r.scope.subtree = true; }));
}

// A delete by filter sees what was written just before it, although both wait at the same time.
TEST(deletes_see_earlier_writes) {
  Scratch scratch;
  {
    House house(scratch);
  }
  House house(scratch, {}, /*start=*/false);
  house.c = 1;
  auto first = send(*house.writer, upsert_job(1, {{"x", "t", "{\"a\":1}"}, {"y", "t", "{\"a\":2}"}}));
  auto job = new_job();
  DeleteRequest request;
  request.collection_id = 1;
  request.filter = keep(*job, "{\"a\":1}");
  job->operations.push_back(request);
  auto second = send(*house.writer, std::move(job));
  auto third = send(*house.writer, upsert_job(1, {{"z", "t", "{\"a\":1}"}}));
  house.writer->start();
  CHECK_EQ(1u, parse(wait(second).message).count);
  CHECK_EQ(KALOS_STATUS_OK, wait(third).status);
  CHECK((std::vector<std::string>{"?", "t", "t"} == house.texts({"x", "y", "z"})));
}

// A batch: its reads see the state before its writes, its writes come in order, a failing one leaves nothing.
TEST(batches) {
  Scratch scratch;
  House house(scratch);
  house.put("old", "old");
  auto make = [&](bool broken) {
    auto job = new_job({5, broken});
    job->is_batch = true;
    CountRequest count;
    count.collection_id = house.c;
    GetRequest get;
    get.collection_id = house.c;
    get.include = KALOS_INCLUDE_TEXT;
    get.ids = {"old", "new"};
    // Positions: upsert, count, delete by filter, get, delete by id.
    job->operations.push_back(
        upsert(*job, house.c, {{"new", "new", "{\"a\":1}"}, {"old", "newer", "{\"a\":1}"}, {"kept", "k"}}));
    DeleteRequest filtered;
    filtered.collection_id = house.c;
    filtered.filter = "{\"a\":1}";
    job->operations.push_back(filtered);
    job->operations.push_back(delete_ids(*job, broken ? 99 : house.c, {"nobody"}));
    job->write_positions = {0, 2, 4};
    job->reads = {count, get};
    job->read_positions = {1, 3};
    return job;
  };
  uint64_t before = house.store->commit_sequence();
  Reply reply = write(*house.writer, make(true));
  CHECK_EQ(KALOS_STATUS_NOT_FOUND, reply.status);
  CHECK(holds(words(reply), "operation 4 of the batch"));
  CHECK_EQ(1u, house.rows());
  CHECK_EQ(before, house.store->commit_sequence());

  for (int attempt = 0; attempt < 2; ++attempt) {
    reply = write(*house.writer, make(false));
    CHECK_EQ(KALOS_STATUS_OK, reply.status);
    auto replies = parse_batch(reply);
    CHECK_EQ(5u, replies.size());
    CHECK_EQ(3u, parse(replies[0]).count);
    CHECK_EQ(before + 1, parse(replies[0]).commit_sequence);
    CHECK_EQ(1u, parse_count(replies[1]));
    CHECK_EQ(2u, parse(replies[2]).count);
    // The resend's reads see the present: what was deleted is kept for nobody.
    CHECK((parse_texts(replies[3]) == std::vector<std::string>{attempt == 0 ? "old" : "?", "?"}));
    CHECK_EQ(0u, parse(replies[4]).count);
    CHECK_EQ(before + 1, house.store->commit_sequence());
  }
  CHECK((std::vector<std::string>{"?", "?", "k"} == house.texts({"old", "new", "kept"})));
}

// A write that would exceed the memory limit is refused before anything is stored, naming need, limit and the flag.
// One that replaces rows by rows of the same size passes, and so does one after a delete.
TEST(memory_limit) {
  Scratch scratch;
  WriterOptions options;
  options.memory_limit_bytes = 3'000'000;
  House house(scratch, options);
  const std::string text(100'000, 't');
  int stored = 0;
  Reply reply;
  for (; stored < 100; ++stored) {
    reply = house.put("r" + std::to_string(stored), text);
    if (reply.status != KALOS_STATUS_OK) break;
  }
  CHECK(stored > 5 && stored < 35);
  CHECK_EQ(KALOS_STATUS_STORE_ERROR, reply.status);
  CHECK(holds(words(reply), "3.0 MB") && holds(words(reply), "100.") && holds(words(reply), "--memory"));
  CHECK_EQ(static_cast<uint64_t>(stored), house.rows());
  CHECK_EQ(KALOS_STATUS_OK, house.put("r0", text).status);
  CHECK_EQ(KALOS_STATUS_OK, house.put("r1", "short").status);
  CHECK_EQ(KALOS_STATUS_STORE_ERROR, house.put("r2", text + text + text).status);
  CHECK_EQ(text, house.text("r2"));
  auto job = new_job();
  job->operations.push_back(delete_ids(*job, house.c, {"r3", "r4", "r5", "r6"}));
  job->operations.push_back(upsert(*job, house.c, {{"r7", text}, {"new", text}}));
  job->is_batch = true;
  job->write_positions = {0, 1};
  CHECK_EQ(KALOS_STATUS_OK, write(*house.writer, std::move(job)).status);
  CHECK_EQ(static_cast<uint64_t>(stored) - 3, house.rows());
}

// What filters keep in memory counts, but no write is refused for it: it is given back, and filters find the same rows.
TEST(columns_give_way_to_rows) {
  Scratch scratch;
  WriterOptions options;
  options.memory_limit_bytes = 8'000'000;
  House house(scratch, options);
  auto count = [&](const std::string& filter) {
    CountRequest request;
    request.collection_id = house.c;
    request.filter = filter;
    std::lock_guard lock(house.engine);
    Reply reply = house.index.read_one(request, 0);
    CHECK_EQ(KALOS_STATUS_OK, reply.status);
    kalos_count_reply answer{};
    std::memcpy(&answer, reply.message.data(), sizeof answer);
    return answer.count;
  };
  auto bytes = [&] {
    std::lock_guard lock(house.engine);
    return house.index.bytes();
  };
  for (int batch = 0; batch < 10; ++batch) {
    std::vector<RowSpec> rows;
    for (int i = batch * 1000; i < (batch + 1) * 1000; ++i) {
      rows.push_back({std::to_string(i), std::nullopt, "{\"n\":" + std::to_string(i) + "}"});
    }
    CHECK_EQ(KALOS_STATUS_OK, write(*house.writer, upsert_job(house.c, rows)).status);
  }
  const uint64_t rows_alone = bytes();
  CHECK(rows_alone < 4'000'000);
  for (int i = 0; i < 80; ++i) CHECK_EQ(uint64_t{10'000}, count("{\"no" + std::to_string(i) + "\":{\"$ne\":1}}"));
  CHECK_EQ(uint64_t{5000}, count("{\"n\":{\"$lt\":5000}}"));
  CHECK(bytes() > rows_alone + 2'000'000);
  // Would not fit beside the columns. So much is kept free for the next chunk of texts.
  const uint64_t kept_free = uint64_t{1} << 20;
  const std::string text(100'000, 't');
  while (bytes() + kept_free + 6 * text.size() < options.memory_limit_bytes) {
    std::string id = "large" + std::to_string(house.rows());
    CHECK_EQ(KALOS_STATUS_OK, house.put(id, text).status);
  }
  CHECK_EQ(uint64_t{5000}, count("{\"n\":{\"$lt\":5000}}"));
  CHECK_EQ(KALOS_STATUS_OK, house.put("more", text + text).status);
  CHECK_EQ(KALOS_STATUS_OK, house.put("most", text + text).status);
  CHECK(bytes() < options.memory_limit_bytes);
  CHECK_EQ(uint64_t{5000}, count("{\"n\":{\"$lt\":5000}}"));
}

// New rows keep within the limit to the byte, though memory comes in chunks: short texts and long ones, one namespace and
// many, up to the write that is refused.
TEST(new_rows_keep_within_the_memory_limit) {
  for (size_t text : {size_t{10}, size_t{300}, size_t{5'000}, size_t{50'000}}) {
    for (int spaces : {1, 50}) {
      Scratch scratch;
      WriterOptions options;
      options.memory_limit_bytes = 3'000'000;
      House house(scratch, options);
      uint64_t most = 0;
      Reply reply;
      int written = 0;
      for (; reply.status == KALOS_STATUS_OK; ++written) {
        const std::string name_space = std::string{'\0', 1} + static_cast<char>('0' + written % spaces);
        std::vector<RowSpec> rows;
        for (int row = 0; row < 4; ++row) {
          rows.push_back({"r" + std::to_string(written * 4 + row), std::string(text, 't')});
        }
        auto job = upsert_job(house.c, rows, {}, name_space);
        job->durability = KALOS_DURABILITY_RELAXED;
        reply = write(*house.writer, std::move(job));
        std::lock_guard lock(house.engine);
        most = std::max(most, house.index.bytes());
      }
      CHECK_EQ(KALOS_STATUS_STORE_ERROR, reply.status);
      CHECK(most <= options.memory_limit_bytes);
      CHECK(most > options.memory_limit_bytes / 2);
    }
  }
}

// A row goes by itself once its time has come: from the index and from the disk.
TEST(rows_expire) {
  Scratch scratch;
  House house(scratch);
  int64_t soon = wall_us() + 150'000;
  std::vector<RowSpec> rows;
  for (int i = 0; i < 2500; ++i) rows.push_back({"mortal" + std::to_string(i), "t", {}, {1, 2, 3}, soon});
  rows.push_back({"immortal", "t"});
  rows.push_back({"later", "t", {}, {1, 2, 3}, wall_us() + int64_t{3600} * 1'000'000});
  CHECK_EQ(KALOS_STATUS_OK, write(*house.writer, upsert_job(house.c, rows)).status);
  wait_until([&] { return house.rows() == 2; });
  CHECK((std::vector<std::string>{"?", "t", "t"} == house.texts({"mortal0", "immortal", "later"})));
  CHECK_EQ(2500u, house.writer->counters().expired_rows.load());
  CHECK_EQ(2u, stored_rows(*house.store));
}

// More than the queue may hold is refused as overload, and more than half of it from one client; the refused write changed
// nothing, the others are done, and what was done makes room.
TEST(overload) {
  Scratch scratch;
  {
    House house(scratch);
  }
  WriterOptions options;
  options.queue_limit_bytes = 500'000;
  House house(scratch, options, /*start=*/false);
  house.c = 1;
  auto put = [&](const std::string& id, uint64_t lane) {
    return send(*house.writer, upsert_job(1, {{id, std::string(100'000, 't')}}), lane);
  };
  std::vector<std::future<Reply>> taken, refused;
  taken.push_back(put("a0", 1));
  taken.push_back(put("a1", 1));
  refused.push_back(put("a2", 1));
  taken.push_back(put("b0", 2));
  taken.push_back(put("b1", 2));
  refused.push_back(put("c0", 3));
  for (auto& answer : refused) {  // at once, though the writer has not begun
    Reply reply = wait(answer);
    CHECK_EQ(KALOS_STATUS_OVERLOADED, reply.status);
    CHECK(holds(words(reply), "half of it from one client"));
  }
  house.writer->start();
  for (auto& answer : taken) CHECK_EQ(KALOS_STATUS_OK, wait(answer).status);
  CHECK_EQ(4u, house.rows());
  for (const char* id : {"a2", "a3"}) CHECK_EQ(KALOS_STATUS_OK, wait(put(id, 1)).status);
}

// A client with a backlog of large writes does not keep another one waiting for it: they take turns.
TEST(lanes_take_turns) {
  Scratch scratch;
  {
    House house(scratch);
  }
  House house(scratch, {}, /*start=*/false);
  house.c = 1;
  std::mutex mutex;
  std::vector<std::string> order;
  auto put = [&](const std::string& id, size_t bytes, uint64_t lane) {
    auto job = upsert_job(1, {{id, std::string(bytes, 't')}});
    auto promise = std::make_shared<std::promise<Reply>>();
    job->done = [&, id, promise](Reply reply) {
      std::lock_guard lock(mutex);
      order.push_back(id);
      promise->set_value(std::move(reply));
    };
    auto answer = promise->get_future();
    house.writer->submit(std::move(job), lane);
    return answer;
  };
  std::vector<std::future<Reply>> answers;
  for (int i = 0; i < 24; ++i) answers.push_back(put("large" + std::to_string(i), 4'000'000, 1));
  for (int i = 0; i < 5; ++i) answers.push_back(put("small" + std::to_string(i), 10, 2));
  house.writer->start();
  for (auto& answer : answers) CHECK_EQ(KALOS_STATUS_OK, wait(answer).status);
  std::vector<std::string> expected;
  for (int i = 0; i < 24; ++i) {
    expected.push_back("large" + std::to_string(i));
    if (i < 5) expected.push_back("small" + std::to_string(i));
  }
  CHECK(expected == order);
  CHECK_EQ(2u, house.writer->counters().commits.load());  // and are still committed together
}

// After stop nothing is taken, and what was queued before it was done.
TEST(stop_drains) {
  Scratch scratch;
  House house(scratch);
  std::vector<std::future<Reply>> answers;
  for (int i = 0; i < 20; ++i)
    answers.push_back(send(*house.writer, upsert_job(house.c, {{"r" + std::to_string(i), "t"}})));
  house.writer->stop();
  for (auto& answer : answers) CHECK_EQ(KALOS_STATUS_OK, wait(answer).status);
  CHECK_EQ(KALOS_STATUS_DRAINING, house.put("late", "t").status);
  CHECK_EQ(20u, house.rows());
  CHECK_EQ(0u, house.store->wal_bytes());
}

// Opening creates or agrees; what differs is named with both values; an embedder is recorded once; ids are new ones.
TEST(collections_open_and_drop) {
  Scratch scratch;
  House house(scratch);
  using Open = OpenCollectionRequest;
  auto open = [&](const std::function<void(Open&)>& say = [](Open&) {}) {
    auto job = new_job();
    Open request;
    request.name = "new";
    say(request);
    job->operations.push_back(request);
    return write(*house.writer, std::move(job));
  };
  Reply reply = open();
  CHECK_EQ(KALOS_STATUS_NOT_FOUND, reply.status);
  reply = open([](Open& r) { r.dimension = 4, r.metric = KALOS_METRIC_L2; });
  auto made = nlohmann::json::parse(words(reply));
  CHECK_EQ(4, made["dimension"].get<int>());
  CHECK_EQ(std::string("l2"), made["metric"].get<std::string>());
  CHECK(made["embedder"].is_null());
  uint64_t commits = house.writer->counters().commits;
  CHECK(made == nlohmann::json::parse(words(open())));
  CHECK_EQ(commits, house.writer->counters().commits.load());
  reply = open([](Open& r) { r.dimension = 5; });
  CHECK_EQ(KALOS_STATUS_COLLECTION_MISMATCH, reply.status);
  CHECK(holds(words(reply), "dimension 4") && holds(words(reply), "5 was given"));
  reply = open([](Open& r) { r.metric = KALOS_METRIC_DOT; });
  CHECK_EQ(KALOS_STATUS_COLLECTION_MISMATCH, reply.status);
  CHECK(holds(words(reply), "l2") && holds(words(reply), "dot"));
  reply = open([](Open& r) { r.embedder_name = "mini", r.embedder_fingerprint = "f1"; });
  CHECK_EQ(std::string("mini"), nlohmann::json::parse(words(reply))["embedder"]["name"].get<std::string>());
  reply = open([](Open& r) { r.embedder_name = "other", r.embedder_fingerprint = "f2"; });
  CHECK_EQ(KALOS_STATUS_COLLECTION_MISMATCH, reply.status);
  CHECK(holds(words(reply), "f1") && holds(words(reply), "f2"));

  auto drop = [&](const std::string& name) {
    auto job = new_job();
    job->operations.push_back(DropCollectionRequest{name});
    return write(*house.writer, std::move(job));
  };
  reply = drop("new");
  CHECK_EQ(KALOS_STATUS_OK, reply.status);
  CHECK_EQ(house.store->commit_sequence(), nlohmann::json::parse(words(reply))["commit_sequence"].get<uint64_t>());
  CHECK_EQ(KALOS_STATUS_NOT_FOUND, drop("new").status);
  uint64_t id = made["id"];
  CHECK_EQ(KALOS_STATUS_NOT_FOUND, write(*house.writer, upsert_job(id, {{"x", "t", {}, {1, 2, 3, 4}}})).status);
  reply = open([](Open& r) { r.dimension = 4; });
  CHECK(nlohmann::json::parse(words(reply))["id"].get<uint64_t>() > id);
}

// Between writes the log is moved into the file and emptied, and then nothing more is done.
TEST(checkpoints_come_and_end) {
  Scratch scratch;
  WriterOptions options;
  options.checkpoint_interval_ms = 30;
  House house(scratch, options);
  house.put("x", "t");
  wait_until([&] { return house.writer->counters().checkpoints > 0 && house.store->wal_bytes() == 0; });
  uint64_t checkpoints = house.writer->counters().checkpoints;
  std::this_thread::sleep_for(std::chrono::milliseconds(150));
  CHECK_EQ(checkpoints, house.writer->counters().checkpoints.load());
}

// How often the threads of this process went to sleep: one that sleeps on does not count.
long sleeps() {
  long total = 0;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    if (thread.path().filename() == std::to_string(getpid())) continue;
    std::string status = read_file(thread.path() / "status");
    const std::string key = "\nvoluntary_ctxt_switches:";
    size_t at = status.find(key);
    if (at != std::string::npos) total += std::atol(status.c_str() + at + key.size());
  }
  return total;
}

// With nothing to do the writer's thread does not wake up at all, also while a row expires in the far future.
TEST(idle_writer_sleeps) {
  Scratch scratch;
  WriterOptions options;
  options.checkpoint_interval_ms = 1;
  House house(scratch, options);
  int64_t tomorrow = wall_us() + int64_t{86'400} * 1'000'000;
  write(*house.writer, upsert_job(house.c, {{"x", "t", {}, {1, 2, 3}, tomorrow}}));
  wait_until([&] { return house.store->wal_bytes() == 0; });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
#if defined(__SANITIZE_THREAD__)
  return;  // the sanitizer has a thread of its own, which does
#endif
  long before = sleeps();
  CHECK(before > 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  CHECK_EQ(before, sleeps());
}

// A full disk refuses the write in words and loses nothing; when there is room again, writes pass.
TEST(full_disk) {
  Scratch scratch;
  House house(scratch);
  CHECK_EQ(KALOS_STATUS_OK, house.put("before", "t").status);
  fault_vfs::full = true;
  Reply reply = house.put("x", "t");
  fault_vfs::full = false;
  CHECK_EQ(KALOS_STATUS_STORE_ERROR, reply.status);
  CHECK(holds(words(reply), "disk is full") && holds(words(reply), "kalos.db"));
  CHECK(!house.store->poisoned());
  CHECK_EQ(std::string("?"), house.text("x"));
  CHECK_EQ(KALOS_STATUS_OK, house.put("x", "again").status);
  CHECK_EQ(std::string("t"), house.text("before"));
}

// After a failed flush the outcome is unknown and said to be, also to a resend; no write is taken until a restart; reads
// go on. After the restart the resend is answered for good.
TEST(failed_flush_poisons) {
  Scratch scratch;
  {
    House house(scratch);
    CHECK_EQ(KALOS_STATUS_OK, house.put("before", "t").status);
    fault_vfs::fail_sync = true;
    Reply reply = write(*house.writer, upsert_job(house.c, {{"x", "t"}}, {4}));
    fault_vfs::fail_sync = false;
    CHECK_EQ(KALOS_STATUS_UNKNOWN_OUTCOME, reply.status);
    CHECK(house.store->poisoned());
    reply = house.put("y", "t");
    CHECK_EQ(KALOS_STATUS_STORE_ERROR, reply.status);
    CHECK(holds(words(reply), "restart"));
    CHECK_EQ(KALOS_STATUS_UNKNOWN_OUTCOME, write(*house.writer, upsert_job(house.c, {{"x", "t"}}, {4})).status);
    CHECK_EQ(std::string("t"), house.text("before"));
    CHECK_EQ(std::string("?"), house.text("x"));
  }
  House house(scratch);
  CHECK_EQ(KALOS_STATUS_OK, write(*house.writer, upsert_job(house.c, {{"x", "t"}}, {4})).status);
  CHECK_EQ(std::string("t"), house.text("x"));
  CHECK_EQ(std::string("?"), house.text("y"));
}

// The faults lie below the store's own file layer, which takes what is the default when the first store is opened.
int main() {
  fault_vfs::install();
  return check::run();
}
