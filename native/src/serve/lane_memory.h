// The shared objects of one lane: made with names nobody has, whole in memory before anyone maps them, and without names
// as soon as both sides are attached.
//
// Names: /kl.<8 hex of the instance>.<10 hex of the lane><2 hex>, where 00 is the memory, 01 the request semaphore, 02
// and on the reply semaphores. While the memory has a name kalosd holds a lock (flock) on it: a lane whose lock is free
// belonged to a kalosd that is dead, and the next start sweeps it.
#pragma once

#include <semaphore.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"

namespace kalos {

struct LaneShape {
  uint32_t slot_count = KALOS_DEFAULT_SLOT_COUNT;
  uint32_t slot_bytes = KALOS_DEFAULT_SLOT_BYTES;
};

class LaneMemory {
 public:
  // Errors: /dev/shm is full (needs, has, what to raise), or not usable.
  static Result<std::unique_ptr<LaneMemory>> create(const LaneShape& shape, uint64_t lane_id,
                                                    const std::array<uint8_t, 16>& instance);
  ~LaneMemory();
  LaneMemory(const LaneMemory&) = delete;

  void unlink_names();

  kalos_lane_header& header() const { return *reinterpret_cast<kalos_lane_header*>(base_); }
  kalos_slot_header& slot(uint32_t index) const {
    return *reinterpret_cast<kalos_slot_header*>(base_ + KALOS_LANE_HEADER_BYTES + size_t{index} * shape_.slot_bytes);
  }
  std::byte* payload(uint32_t index) const {
    return reinterpret_cast<std::byte*>(&slot(index)) + KALOS_SLOT_HEADER_BYTES;
  }
  size_t payload_bytes() const { return shape_.slot_bytes - KALOS_SLOT_HEADER_BYTES; }
  const LaneShape& shape() const { return shape_; }
  size_t bytes() const { return bytes_; }
  sem_t* request_semaphore() const { return semaphores_[0]; }
  sem_t* reply_semaphore(uint32_t index) const { return semaphores_[1 + index]; }
  const std::vector<std::string>& names() const { return names_; }  // memory, request, replies

 private:
  LaneMemory() = default;
  LaneShape shape_;
  std::byte* base_ = nullptr;
  size_t bytes_ = 0;
  int lock_fd_ = -1;
  std::vector<std::string> names_;
  std::vector<sem_t*> semaphores_;
  bool named_ = false;
};

// Removes what kalosd processes of this user that are dead left in /dev/shm. Returns how many names.
size_t sweep_dead_lanes();

}  // namespace kalos
