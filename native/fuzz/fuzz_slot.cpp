// A lane as its client may write it: an input is a series of posts, each a slot's request block and a payload with
// whatever in them, to a real lane over a real database. Promises: every post that kalosd can see is answered once, with
// a reply that keeps to its bounds; nothing else happens to kalosd.
#include <errno.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/log.h"
#include "serve/lane.h"
#include "store/database.h"

using namespace kalos;

namespace {

constexpr uint32_t kSlots = 2;

struct [[gnu::packed]] Post {
  uint8_t slot;
  uint8_t plausible;  // 1: the fields that say where the message lies are put right
  uint16_t opcode;
  uint16_t flags;
  uint16_t payload_bytes;  // that follow
  uint32_t part_bytes;
  uint32_t reply_semaphore;
  uint32_t state;
  uint64_t message_id;
  uint64_t message_bytes;
  uint64_t part_offset;
  int64_t deadline_ns;
};

// One kalosd for all inputs: what one leaves behind, the next one finds.
struct World {
  std::string directory;
  std::unique_ptr<Database> database;
  Counters counters;
  std::unique_ptr<Combiner> combiner;
  SpinGovernor governor{1, 0};
  std::unique_ptr<LaneServices> services;
  std::shared_ptr<Lane> lane;
  uint64_t sequence = 0;

  World() {
    set_log_level(LogLevel::error);
    // A file system in memory, where there is one: a flush must cost nothing here.
    std::string name = std::filesystem::exists("/dev/shm") ? "/dev/shm/kalos-fuzz-XXXXXX" : "/tmp/kalos-fuzz-XXXXXX";
    directory = mkdtemp(name.data()) != nullptr ? name : "";
    DatabaseOptions options;
    options.data_dir = directory;
    options.memory_limit_bytes = uint64_t{64} << 20;
    auto opened = Database::open(options);
    if (!opened) std::abort();
    database = std::move(*opened);
    combiner = std::make_unique<Combiner>(*database, counters);
    services.reset(new LaneServices{*database, *combiner, counters, governor});
    auto made = Lane::create({kSlots, KALOS_MIN_SLOT_BYTES}, 1, {}, false, *services);
    if (!made || !(*made)->start()) std::abort();
    lane = std::move(*made);
    open_collection();
  }
  ~World() {
    lane->close();
    while (services->running_lanes.load() > 0) std::this_thread::yield();
    lane.reset();
    combiner.reset();
    database.reset();
    std::error_code ignored;
    std::filesystem::remove_all(directory, ignored);
  }

  void open_collection() {
    std::string body = R"({"name": "notes", "dimension": 4})";
    Post post{0, 1, KALOS_OP_OPEN_COLLECTION, 0, static_cast<uint16_t>(body.size()), 0, 0, 0, 0, 0, 0, 0};
    send(post, reinterpret_cast<const uint8_t*>(body.data()), body.size());
  }

  void send(Post post, const uint8_t* payload, size_t bytes) {
    LaneMemory& memory = lane->memory();
    uint32_t index = post.slot % kSlots;
    if (post.plausible & 1) {
      post.state = KALOS_REQUEST_POSTED;
      post.flags = KALOS_FLAG_BEGIN | KALOS_FLAG_COMMIT;
      post.part_bytes = static_cast<uint32_t>(bytes);
      post.message_bytes = bytes;
      post.part_offset = 0;
      post.message_id = sequence + 1;
      post.reply_semaphore = index;
      post.deadline_ns = 0;
    }
    kalos_slot_header& slot = memory.slot(index);
    std::memcpy(memory.payload(index), payload, std::min(bytes, memory.payload_bytes()));
    slot.request_state = post.state;
    slot.opcode = post.opcode;
    slot.request_flags = post.flags;
    slot.message_id = post.message_id;
    slot.message_bytes = post.message_bytes;
    slot.part_offset = post.part_offset;
    slot.part_bytes = post.part_bytes;
    slot.reply_semaphore = post.reply_semaphore;
    slot.deadline_ns = post.deadline_ns;
    // Any other state and kalosd does not see the post; a later one in its slot would be written while it looks.
    if (post.state != KALOS_REQUEST_POSTED) slot.request_state = KALOS_REQUEST_ABANDONED;
    std::atomic_ref(slot.request_sequence).store(++sequence, std::memory_order_release);
    sem_post(memory.request_semaphore());
    await(index, post.reply_semaphore <= kSlots ? post.reply_semaphore : index);
    std::atomic_ref(slot.request_state).store(KALOS_REQUEST_FREE);
  }

  void await(uint32_t index, uint32_t semaphore) {
    LaneMemory& memory = lane->memory();
    timespec end{};
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += 60;  // a watchdog
    kalos_slot_header& slot = memory.slot(index);
    int waited;
    do waited = sem_timedwait(memory.reply_semaphore(semaphore), &end);
    while (waited != 0 && errno == EINTR);  // libFuzzer's alarm
    if (waited != 0) fail("no answer came");
    if (std::atomic_ref(slot.reply_sequence).load(std::memory_order_acquire) != sequence) fail("another's answer");
    if (slot.reply_part_bytes > memory.payload_bytes() || slot.reply_part_offset > slot.reply_bytes ||
        slot.reply_part_bytes > slot.reply_bytes - slot.reply_part_offset ||
        slot.reply_bytes > KALOS_MAX_MESSAGE_BYTES) {
      fail("the reply leaves its bounds");
    }
    int left = 0;
    sem_getvalue(memory.reply_semaphore(semaphore), &left);
    if (left != 0) fail("more than one token came");
    if (slot.status >= KALOS_STATUS_INVALID_REQUEST && slot.reply_bytes == 0) fail("an error without words");
    if (slot.status == KALOS_STATUS_INTERNAL) fail("a fault of kalosd");
  }

  static void fail(const char* what) {
    std::fprintf(stderr, "%s\n", what);
    std::abort();
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static std::unique_ptr<World> world;
  // Rows and collections heap up: a new one now and then.
  if (!world || world->sequence > 20'000) {
    world.reset();
    world = std::make_unique<World>();
  }
  for (size_t at = 0; size - at >= sizeof(Post);) {
    Post post;
    std::memcpy(&post, data + at, sizeof post);
    at += sizeof post;
    // The collection that the corpus names must stay.
    if (post.opcode == KALOS_OP_DROP_COLLECTION) post.opcode = KALOS_OP_LIST_COLLECTIONS;
    size_t bytes = std::min<size_t>(post.payload_bytes, size - at);
    world->send(post, data + at, bytes);
    at += bytes;
  }
  return 0;
}
