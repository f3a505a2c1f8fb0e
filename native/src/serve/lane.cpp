#include "serve/lane.h"

#include <signal.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <new>
#include <system_error>
#include <thread>

#include "base/clock.h"
#include "base/log.h"
#include "base/utf8.h"
#include "engine/collections_json.h"
#include "engine/reply.h"
#include "serve/lane_semaphore.h"
#include "serve/messages.h"
#include "store/exception_reply.h"

namespace kalos {
namespace {

// Parts of a request that has no deadline may be this far apart.
constexpr int64_t longest_pause_ns = 60'000'000'000;

Bytes to_bytes(std::string_view text) {
  auto view = std::as_bytes(std::span(text.data(), text.size()));
  return Bytes(view.begin(), view.end());
}

std::string_view text_of(const Bytes& bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

}  // namespace

Lane::Lane(std::unique_ptr<LaneMemory> memory, uint64_t lane_id, bool deadlines_are_durations, LaneServices& services)
    : memory_(std::move(memory)),
      services_(services),
      deadlines_are_durations_(deadlines_are_durations),
      slots_(memory_->shape().slot_count) {
  waiting_.id = lane_id;
}

Lane::~Lane() {
  for (Slot& slot : slots_) drop_staged(slot);
}

Result<std::shared_ptr<Lane>> Lane::create(const LaneShape& shape, uint64_t lane_id,
                                           const std::array<uint8_t, 16>& instance, bool deadlines_are_durations,
                                           LaneServices& services) {
  auto memory = LaneMemory::create(shape, lane_id, instance);
  if (!memory) return memory.error();
  return std::shared_ptr<Lane>(new Lane(std::move(*memory), lane_id, deadlines_are_durations, services));
}

bool Lane::start() {
  // A signal without effect but that of ending a wait, see call_thread().
  static const bool interrupts = [] {
    struct sigaction interrupt{};
    interrupt.sa_handler = [](int) {};
    return sigaction(SIGUSR1, &interrupt, nullptr) == 0;
  }();
  (void)interrupts;
  memory_->unlink_names();
  services_.running_lanes.fetch_add(1);
  try {
    std::thread([self = shared_from_this()] {
      self->run();
      self->services_.running_lanes.fetch_sub(1);
    }).detach();
  } catch (const std::system_error&) {
    services_.running_lanes.fetch_sub(1);
    return false;
  }
  return true;
}

void Lane::close() {
  if (closed_.exchange(true)) return;
  std::atomic_ref(memory_->header().server_state).store(KALOS_SERVER_GONE, std::memory_order_release);
  post_token(memory_->request_semaphore());
  call_thread();
}

// A client that shrank its request semaphore while the lane's thread slept on it took the way to wake it: the thread
// sleeps on a page that is gone. A signal still reaches it.
void Lane::call_thread() {
  std::lock_guard lock(thread_mutex_);
  if (thread_) pthread_kill(*thread_, SIGUSR1);
}

void Lane::announce_drain() {
  std::atomic_ref(memory_->header().server_state).store(KALOS_SERVER_DRAINING, std::memory_order_release);
}

void Lane::run() {
  {
    std::lock_guard lock(thread_mutex_);
    thread_ = pthread_self();
  }
  while (true) {
    services_.governor.wait(waiting_, memory_->request_semaphore());
    if (closed_) break;
    for (uint32_t i = 0; i < slots_.size(); ++i) take_posted(i);
  }
  for (Slot& slot : slots_) {
    std::lock_guard lock(slot.mutex);
    drop_staged(slot);
    slot.held_id = 0;
    slot.held = {};
  }
  std::lock_guard lock(thread_mutex_);
  thread_.reset();
}

void Lane::take_posted(uint32_t index) {
  Slot& slot = slots_[index];
  kalos_slot_header& shared = memory_->slot(index);
  uint64_t sequence = std::atomic_ref(shared.request_sequence).load(std::memory_order_acquire);
  if (sequence == slot.seen_sequence || sequence == 0 || slot.in_flight.load(std::memory_order_acquire)) return;
  Posted posted;
  posted.slot = index;
  std::memcpy(&posted.header, &shared, offsetof(kalos_slot_header, reply_sequence));
  posted.header.request_sequence = sequence;
  // Abandoned before it was seen: it is served all the same, since each post is answered with one token.
  if (posted.header.request_state != KALOS_REQUEST_POSTED && posted.header.request_state != KALOS_REQUEST_ABANDONED) {
    return;
  }
  slot.seen_sequence = sequence;
  slot.in_flight.store(true, std::memory_order_relaxed);
  std::atomic_ref(shared.reply_state).store(KALOS_REPLY_SERVING, std::memory_order_relaxed);
  posted.received_ns = monotonic_ns();
  if (posted.header.deadline_ns != 0) {
    posted.deadline_ns = posted.header.deadline_ns;
    if (deadlines_are_durations_ &&
        __builtin_add_overflow(posted.deadline_ns, posted.received_ns, &posted.deadline_ns)) {
      posted.deadline_ns = 0;
    }
  }
  Counters& counters = services_.counters;
  counters.count(counters.requests);
  // Before `draining` is read (sequentially consistent, as its store is): a drain either sees this request or stops it.
  counters.in_flight.fetch_add(1);
  if (posted.header.opcode < counters.by_opcode.size()) counters.count(counters.by_opcode[posted.header.opcode]);
  try {
    handle(posted);
  } catch (const std::exception&) {  // before anybody else had it: whoever takes it over answers for it
    complete(posted, exception_reply());
  }
}

void Lane::handle(const Posted& posted) {
  if (posted.header.reply_semaphore != posted.slot && posted.header.reply_semaphore != slots_.size()) {
    return fail(posted, invalid("reply_semaphore is neither this slot's nor the shared one"));
  }
  if (auto unknown = unknown_bits(posted.header.request_flags, KALOS_FLAG_BEGIN | KALOS_FLAG_COMMIT, "request_flags")) {
    return fail(posted, std::move(*unknown));
  }
  switch (posted.header.opcode) {
    case KALOS_OP_NOOP:
      return complete(posted, Reply{});
    case KALOS_OP_CONTINUE:
      return continue_reply(posted);
    case KALOS_OP_ABORT: {
      Slot& slot = slots_[posted.slot];
      {
        std::lock_guard lock(slot.mutex);
        drop_staged(slot);
        slot.held_id = 0;
        slot.held = {};
      }
      return complete(posted, Reply{});
    }
    default:
      return handle_message(posted);
  }
}

void Lane::handle_message(const Posted& posted) {
  if (services_.draining) {
    return fail(posted, {KALOS_STATUS_DRAINING, "kalosd is ending and takes no new request; connect again"});
  }
  // Here, so that no opcode answers after it. NOOP, CONTINUE and ABORT do: they ask for no work.
  if (posted.deadline_ns != 0 && monotonic_ns() >= posted.deadline_ns) {
    Slot& slot = slots_[posted.slot];
    {
      std::lock_guard lock(slot.mutex);
      drop_staged(slot);
    }
    return fail(posted, {KALOS_STATUS_EXPIRED, "the deadline passed before the request was there; nothing was done"});
  }
  std::optional<Bytes> message = collect(posted);
  if (message) dispatch(posted, std::move(*message));
}

std::optional<Bytes> Lane::collect(const Posted& posted) {
  const kalos_slot_header& header = posted.header;
  Slot& slot = slots_[posted.slot];
  auto refuse = [&](std::string words) {
    fail(posted, invalid(std::move(words)));
    return std::nullopt;
  };
  if (header.message_id == 0) return refuse("message_id is 0");
  if (header.part_bytes > memory_->payload_bytes()) return refuse("part_bytes is larger than the slot's payload");
  if (header.message_bytes > KALOS_MAX_MESSAGE_BYTES) {
    return refuse("the message has " + std::to_string(header.message_bytes) + " bytes, at most " +
                  std::to_string(KALOS_MAX_MESSAGE_BYTES) + " are allowed; send it in several batches");
  }
  const std::byte* part = memory_->payload(posted.slot);
  services_.counters.count(services_.counters.bytes_in, header.part_bytes);
  bool begins = header.request_flags & KALOS_FLAG_BEGIN, commits = header.request_flags & KALOS_FLAG_COMMIT;

  std::unique_lock lock(slot.mutex);
  if (begins) {
    drop_staged(slot);
    slot.held_id = 0;
    slot.held = {};
    if (commits) {
      lock.unlock();
      if (header.part_offset != 0 || header.part_bytes != header.message_bytes) {
        return refuse("a message in one part must have part_offset 0 and part_bytes equal to message_bytes");
      }
      return Bytes(part, part + header.part_bytes);
    }
    slot.staged_id = header.message_id;
    slot.staged_total = header.message_bytes;
  }
  services_.counters.count(services_.counters.parts);
  bool fits = slot.staged_id != 0 && slot.staged_id == header.message_id && slot.staged_total == header.message_bytes &&
              slot.staged.size() == header.part_offset && header.part_bytes <= slot.staged_total - slot.staged.size();
  if (!fits) {
    drop_staged(slot);
    lock.unlock();
    return refuse("this part does not continue the message that is staged in the slot");
  }
  // What has arrived is counted, not what was announced: announcing costs a client nothing.
  if (!count_staged(header.part_bytes)) {
    drop_staged(slot);
    lock.unlock();
    fail(posted,
         {KALOS_STATUS_OVERLOADED,
          "as many bytes of requests are arriving already as may (1 GiB in all, half of it from one client); try "
          "again later"});
    return std::nullopt;
  }
  // Before the next line, which may find no memory: what is counted is what drop_staged() gives back.
  slot.staged_bytes += header.part_bytes;
  slot.staged.insert(slot.staged.end(), part, part + header.part_bytes);
  slot.staged_deadline_ns = posted.deadline_ns != 0 ? posted.deadline_ns : posted.received_ns + longest_pause_ns;
  if (!commits) {
    lock.unlock();
    Reply reply;
    reply.status = KALOS_STATUS_PART;
    complete(posted, std::move(reply));
    return std::nullopt;
  }
  Bytes whole = std::move(slot.staged);
  bool complete_message = whole.size() == slot.staged_total;
  drop_staged(slot);
  lock.unlock();
  if (!complete_message) return refuse("COMMIT came before the whole message");
  return whole;
}

void Lane::continue_reply(const Posted& posted) {
  Slot& slot = slots_[posted.slot];
  std::unique_lock lock(slot.mutex);
  uint64_t offset = posted.header.part_offset;
  if (slot.held_id == 0 || slot.held_id != posted.header.message_id || offset > slot.held.size()) {
    lock.unlock();
    return fail(posted, {KALOS_STATUS_REPLY_GONE, "the rest of the reply is no longer held; ask again"});
  }
  services_.counters.count(services_.counters.parts);
  size_t bytes = std::min<size_t>(memory_->payload_bytes(), slot.held.size() - offset);
  bool last = offset + bytes == slot.held.size();
  Bytes whole;
  std::span<const std::byte> part(slot.held.data() + offset, bytes);
  uint64_t total = slot.held.size();
  if (last) {
    whole = std::move(slot.held);
    slot.held = {};
    slot.held_id = 0;
  } else {
    slot.held_until_ns = monotonic_ns() + KALOS_REPLY_HELD_NS;
  }
  write_part(posted, Reply{}, part, offset, total);
}

void Lane::dispatch(const Posted& posted, Bytes message) {
  uint16_t opcode = posted.header.opcode;
  if (opcode == KALOS_OP_LIST_COLLECTIONS) {
    Reply reply;
    reply.message = to_bytes(collections_json(services_.database.collections()));
    return complete(posted, std::move(reply));
  }
  if (is_write(opcode)) return dispatch_write(posted, std::move(message));
  dispatch_read(posted, std::move(message));
}

void Lane::dispatch_read(const Posted& posted, Bytes message) {
  auto job = std::make_unique<ReadJob>();
  job->message = std::move(message);
  job->deadline_ns = posted.deadline_ns;
  job->received_ns = posted.received_ns;
  auto request = decode_read(posted.header.opcode, job->message);
  if (!request) return fail(posted, request.error());
  job->request = std::move(*request);
  auto read = std::make_unique<PendingRead>();
  read->jobs.push_back(std::move(job));
  read->done = completion(posted);
  services_.combiner.submit(std::move(read));
}

void Lane::dispatch_write(const Posted& posted, Bytes message) {
  auto job = std::make_unique<WriteJob>();
  job->message = std::move(message);
  job->deadline_ns = posted.deadline_ns;
  job->received_ns = posted.received_ns;
  if (auto decoded = decode_write(posted.header.opcode, *job); !decoded) return fail(posted, decoded.error());
  if (!job->is_batch || !job->operations.empty()) {
    job->done = completion(posted);
    return services_.database.submit(std::move(job), waiting_.id);
  }

  // A batch of reads alone need not queue behind writes: one pass, one snapshot.
  auto read = std::make_unique<PendingRead>();
  for (ReadRequest& request : job->reads) {
    auto one = std::make_unique<ReadJob>();
    one->request = std::move(request);
    one->deadline_ns = posted.deadline_ns;
    one->received_ns = posted.received_ns;
    one->bytes_of_batch = read->jobs.empty() ? &one->batch_bytes : read->jobs[0]->bytes_of_batch;
    read->jobs.push_back(std::move(one));
  }
  read->is_batch = true;
  read->message = std::move(job->message);
  read->done = completion(posted);
  services_.combiner.submit(std::move(read));
}

std::function<void(Reply)> Lane::completion(const Posted& posted) {
  return [self = shared_from_this(), posted](Reply reply) { self->complete(posted, std::move(reply)); };
}

void Lane::fail(const Posted& posted, Error error) { complete(posted, error_reply(error)); }

void Lane::complete(const Posted& posted, Reply reply) {
  Counters& counters = services_.counters;
  if (reply.status == KALOS_STATUS_EXPIRED) {
    counters.count(counters.expired);
  } else if (reply.status >= KALOS_STATUS_INVALID_REQUEST && reply.status != KALOS_STATUS_NOT_FOUND &&
             reply.status != KALOS_STATUS_LOADING && reply.status != KALOS_STATUS_BEHIND) {
    // Those three are answers to a client that asks whether something is there yet.
    counters.count(counters.errors);
  }
  bool in_words = reply.status >= KALOS_STATUS_INVALID_REQUEST;
  if (in_words && !valid_utf8(text_of(reply.message))) {  // they may quote a path
    try {
      reply.message = to_bytes(to_utf8(text_of(reply.message)));
    } catch (const std::bad_alloc&) {  // then without words
      reply.message.clear();
    }
  }
  size_t capacity = memory_->payload_bytes();
  if (reply.message.size() <= capacity) {
    return write_part(posted, reply, reply.message, 0, reply.message.size());
  }
  Slot& slot = slots_[posted.slot];
  std::lock_guard lock(slot.mutex);
  slot.held = std::move(reply.message);
  slot.held_id = posted.header.message_id;
  slot.held_until_ns = monotonic_ns() + KALOS_REPLY_HELD_NS;
  write_part(posted, reply, std::span(slot.held).first(capacity), 0, slot.held.size());
}

void Lane::write_part(const Posted& posted, const Reply& reply, std::span<const std::byte> part, uint64_t offset,
                      uint64_t total) {
  kalos_slot_header& shared = memory_->slot(posted.slot);
  if (!part.empty()) std::memcpy(memory_->payload(posted.slot), part.data(), part.size());
  shared.status = static_cast<uint16_t>(reply.status);
  shared.reply_flags = offset + part.size() < total ? KALOS_REPLY_MORE : 0;
  shared.reply_message_id = posted.header.message_id;
  shared.reply_bytes = total;
  shared.reply_part_offset = offset;
  shared.reply_part_bytes = static_cast<uint32_t>(part.size());
  shared.queue_ns = reply.timings.queue_ns;
  shared.search_ns = reply.timings.search_ns;
  shared.fetch_ns = reply.timings.fetch_ns;
  Counters& counters = services_.counters;
  counters.count(counters.bytes_out, part.size());
  counters.in_flight.fetch_sub(1, std::memory_order_release);
  uint32_t semaphore = posted.header.reply_semaphore <= slots_.size() ? posted.header.reply_semaphore : posted.slot;
  // From here on the client may post again in this slot.
  slots_[posted.slot].in_flight.store(false, std::memory_order_release);
  std::atomic_ref(shared.reply_state).store(KALOS_REPLY_DONE, std::memory_order_relaxed);
  std::atomic_ref(shared.reply_sequence).store(posted.header.request_sequence, std::memory_order_release);
  post_token(memory_->reply_semaphore(semaphore));
}

bool Lane::count_staged(uint64_t bytes) {
  if (staged_bytes_.load() + bytes > KALOS_MAX_STAGED_BYTES / 2) return false;
  if (services_.counters.staged_bytes.fetch_add(bytes) + bytes > KALOS_MAX_STAGED_BYTES) {
    services_.counters.staged_bytes.fetch_sub(bytes);
    return false;
  }
  staged_bytes_.fetch_add(bytes);
  return true;
}

void Lane::drop_staged(Slot& slot) {
  if (slot.staged_id == 0) return;
  services_.counters.staged_bytes.fetch_sub(slot.staged_bytes);
  staged_bytes_.fetch_sub(slot.staged_bytes);
  slot.staged_bytes = 0;
  slot.staged_id = 0;
  slot.staged_total = 0;
  slot.staged = {};
}

bool Lane::has_leftovers() {
  for (Slot& slot : slots_) {
    std::lock_guard lock(slot.mutex);
    if (slot.staged_id != 0 || slot.held_id != 0) return true;
  }
  return false;
}

void Lane::drop_stale(int64_t now_ns) {
  for (Slot& slot : slots_) {
    std::lock_guard lock(slot.mutex);
    if (slot.held_id != 0 && now_ns > slot.held_until_ns) {
      slot.held_id = 0;
      slot.held = {};
    }
    if (slot.staged_id != 0 && slot.staged_deadline_ns != 0 && now_ns > slot.staged_deadline_ns) drop_staged(slot);
  }
}

}  // namespace kalos
