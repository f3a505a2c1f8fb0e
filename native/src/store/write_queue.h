// What waits to be written. Each lane's writes keep their order, and lanes take turns, one write each: a client with a
// backlog delays everybody else by one write of its own in each group, however much of it waits. All together may have
// so many bytes waiting or being written, one lane half of them.
//
// Only push() takes memory, and takes it before it changes anything: the writer's thread cannot fail here.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <vector>

#include "base/result.h"
#include "store/write_task.h"

namespace kalos {

class WriteQueue {
 public:
  using Tasks = std::vector<std::unique_ptr<WriteTask>>;

  // A group holds its rows twice (in messages and on their way into the index) and is published in one piece.
  static constexpr uint64_t kMaxGroupBytes = uint64_t{64} << 20;
  static constexpr size_t kMaxGroupWrites = 4096;

  explicit WriteQueue(uint64_t limit_bytes) : limit_bytes_(limit_bytes) {}

  // Takes the task; OVERLOADED in words where there is no room, and then it is still the caller's.
  Result<> push(std::unique_ptr<WriteTask>& task, uint64_t lane);

  bool empty() const { return turns_.empty(); }
  // Moves the next group to the end of `group`, which has room for kMaxGroupWrites. A write that stands alone
  // (WriteRunner::stands_alone) ends the group before it and is the next one.
  void take(Tasks& group);
  // A task that was taken is answered: its bytes make room.
  void release(uint64_t lane, uint64_t bytes);

 private:
  struct Share {
    uint64_t bytes = 0;  // waiting, and taken but not released
    std::list<std::unique_ptr<WriteTask>> waiting;
    std::list<Share*> turn;  // this share's node while it is not among turns_: no memory is needed to put it there
  };

  const uint64_t limit_bytes_;
  uint64_t bytes_ = 0;
  std::map<uint64_t, Share> shares_;  // by lane; one without bytes is removed
  std::list<Share*> turns_;           // those with something waiting, in the order of their turns
};

}  // namespace kalos
