#include "store/write_queue.h"

namespace kalos {

namespace {

Error overloaded(uint64_t waiting, uint64_t limit) {
  return {KALOS_STATUS_OVERLOADED, "writes of " + bytes_in_words(waiting) + " wait to be committed already (" +
                                       bytes_in_words(limit) +
                                       " may wait in all, half of it from one client); nothing was done; try again "
                                       "later"};
}

}  // namespace

Result<> WriteQueue::push(std::unique_ptr<WriteTask>& task, uint64_t lane) {
  auto found = shares_.find(lane);
  uint64_t of_lane = found == shares_.end() ? 0 : found->second.bytes;
  uint64_t cost = task->queued_bytes;
  // What is too large for any queue is let into an empty one.
  if (bytes_ > 0 && bytes_ + cost > limit_bytes_) return overloaded(bytes_, limit_bytes_);
  if (of_lane > 0 && of_lane + cost > limit_bytes_ / 2) return overloaded(of_lane, limit_bytes_);

  std::list<std::unique_ptr<WriteTask>> node(1);
  if (found == shares_.end()) {
    Share made;
    made.turn.push_back(nullptr);
    found = shares_.emplace(lane, std::move(made)).first;
  }
  // From here on nothing fails.
  Share& share = found->second;
  share.bytes += cost;
  bytes_ += cost;
  node.front() = std::move(task);
  share.waiting.splice(share.waiting.end(), node);
  if (!share.turn.empty()) {
    share.turn.front() = &share;
    turns_.splice(turns_.end(), share.turn);
  }
  return Unit{};
}

void WriteQueue::take(Tasks& group) {
  uint64_t bytes = 0;
  while (!turns_.empty() && group.size() < kMaxGroupWrites) {
    Share& share = *turns_.front();
    const WriteTask& next = *share.waiting.front();
    bool alone = WriteRunner::stands_alone(*next.job);
    if (!group.empty() && (alone || bytes + next.queued_bytes > kMaxGroupBytes)) return;
    bytes += next.queued_bytes;
    group.push_back(std::move(share.waiting.front()));
    share.waiting.pop_front();
    if (share.waiting.empty()) {
      share.turn.splice(share.turn.end(), turns_, turns_.begin());
    } else {
      turns_.splice(turns_.end(), turns_, turns_.begin());
    }
    if (alone) return;
  }
}

void WriteQueue::release(uint64_t lane, uint64_t bytes) {
  auto found = shares_.find(lane);
  found->second.bytes -= bytes;
  bytes_ -= bytes;
  if (found->second.bytes == 0) shares_.erase(found);
}

}  // namespace kalos
