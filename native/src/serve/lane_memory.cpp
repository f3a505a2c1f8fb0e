#include "serve/lane_memory.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <atomic>
#include <map>

#include "base/log.h"
#include "serve/fault_guard.h"

namespace kalos {
namespace {

constexpr size_t group_name_bytes = 3 + 8 + 1 + 10;  // kl.<8>.<10>

std::string hex(const uint8_t* bytes, size_t count) {
  static const char digits[] = "0123456789abcdef";
  std::string out;
  for (size_t i = 0; i < count; ++i) {
    out += digits[bytes[i] >> 4];
    out += digits[bytes[i] & 15];
  }
  return out;
}

std::string member(const std::string& group, size_t index) {
  auto number = static_cast<uint8_t>(index);
  return "/" + group + hex(&number, 1);
}

Error shm_error(const std::string& what, int code, size_t needed) {
  std::string words = what + ": " + strerror(code);
  struct statvfs space;
  if ((code == ENOSPC || code == ENOMEM) && statvfs("/dev/shm", &space) == 0) {
    words =
        "/dev/shm is full: a lane needs " + std::to_string(needed) + " bytes, " +
        std::to_string(uint64_t{space.f_bavail} * space.f_frsize) +
        " are free. Free some, or raise its size (docker run --shm-size, or sizeLimit of the emptyDir in Kubernetes)";
  }
  return {KALOS_STATUS_OVERLOADED, words};
}

// A named semaphore as glibc's sem_open finds it: a sem_t in the file /dev/shm/sem.NAME. Made by hand, because sem_open
// makes it under a temporary name that a kill would leave behind for good, and because a mapping of ours can be guarded.
// Nobody knows the name before it is whole.
Result<sem_t*> create_semaphore(const std::string& name) {
  std::string path = "/dev/shm/sem." + name.substr(1);
  int fd = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return shm_error("a lane's semaphore cannot be made", errno, sizeof(sem_t));
  auto give_up = [&](int code) {
    unlink(path.c_str());
    close(fd);
    return shm_error("a lane's semaphore cannot be made", code, sizeof(sem_t));
  };
  if (int code = posix_fallocate(fd, 0, sizeof(sem_t)); code != 0) return give_up(code);
  void* base = mmap(nullptr, sizeof(sem_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) return give_up(errno);
  auto* semaphore = static_cast<sem_t*>(base);
  if (!guard_range(base, sizeof(sem_t)) || sem_init(semaphore, /*pshared=*/1, 0) != 0) {
    unguard_range(base);
    munmap(base, sizeof(sem_t));
    return give_up(ENOMEM);
  }
  close(fd);
  return semaphore;
}

}  // namespace

Result<std::unique_ptr<LaneMemory>> LaneMemory::create(const LaneShape& shape, uint64_t lane_id,
                                                       const std::array<uint8_t, 16>& instance) {
  std::unique_ptr<LaneMemory> lane(new LaneMemory);
  lane->shape_ = shape;
  lane->bytes_ = KALOS_LANE_HEADER_BYTES + size_t{shape.slot_count} * shape.slot_bytes;

  std::string group;
  int fd = -1;
  for (int attempt = 0; attempt < 16; ++attempt) {
    uint8_t random[5];
    if (getrandom(random, sizeof random, 0) != sizeof random) return Error{KALOS_STATUS_INTERNAL, "getrandom failed"};
    group = "kl." + hex(instance.data(), 4) + "." + hex(random, sizeof random);
    fd = shm_open(member(group, 0).c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 && errno != EEXIST) break;
    if (fd < 0) continue;
    // Between making the name and locking it a sweep may have taken it for a dead one: then another name.
    struct stat status;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 && fstat(fd, &status) == 0 && status.st_nlink > 0) break;
    close(fd);
    fd = -1;
  }
  if (fd < 0) return shm_error("a lane's shared memory cannot be made", errno, lane->bytes_);
  lane->lock_fd_ = fd;
  lane->named_ = true;
  lane->names_.push_back(member(group, 0));
  // Real pages before anyone maps it: a full /dev/shm is an error in words here, not a SIGBUS later.
  if (int code = posix_fallocate(fd, 0, static_cast<off_t>(lane->bytes_)); code != 0) {
    return shm_error("a lane's shared memory cannot be filled", code, lane->bytes_);
  }
  void* base = mmap(nullptr, lane->bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  if (base == MAP_FAILED) return shm_error("a lane cannot be mapped", errno, lane->bytes_);
  lane->base_ = static_cast<std::byte*>(base);
  if (!guard_range(base, lane->bytes_)) return Error{KALOS_STATUS_OVERLOADED, "too many lanes are open already"};

  for (uint32_t i = 0; i < shape.slot_count + 2; ++i) {
    std::string name = member(group, 1 + i);
    auto semaphore = create_semaphore(name);
    if (!semaphore) return semaphore.error();
    lane->names_.push_back(std::move(name));
    lane->semaphores_.push_back(*semaphore);
  }

  kalos_lane_header& header = lane->header();
  header.abi_major = KALOS_ABI_MAJOR;
  header.abi_minor = KALOS_ABI_MINOR;
  header.header_bytes = KALOS_LANE_HEADER_BYTES;
  header.lane_bytes = lane->bytes_;
  header.slot_count = shape.slot_count;
  header.slot_bytes = shape.slot_bytes;
  header.slot_header_bytes = KALOS_SLOT_HEADER_BYTES;
  header.reply_semaphore_count = shape.slot_count + 1;
  header.lane_id = lane_id;
  memcpy(header.instance, instance.data(), instance.size());
  std::atomic_ref<uint64_t>(header.magic).store(KALOS_LANE_MAGIC, std::memory_order_release);
  return lane;
}

void LaneMemory::unlink_names() {
  if (!named_) return;
  named_ = false;
  // The memory last: as long as it has a name, a sweep finds the rest of the lane through it.
  for (size_t i = names_.size(); i-- > 1;) sem_unlink(names_[i].c_str());
  if (!names_.empty()) shm_unlink(names_[0].c_str());
  close(lock_fd_);
  lock_fd_ = -1;
}

LaneMemory::~LaneMemory() {
  unlink_names();
  for (sem_t* semaphore : semaphores_) {
    unguard_range(semaphore);
    munmap(semaphore, sizeof(sem_t));
  }
  if (base_ != nullptr) {
    unguard_range(base_);
    munmap(base_, bytes_);
  }
  if (lock_fd_ >= 0) close(lock_fd_);
}

size_t sweep_dead_lanes() {
  std::map<std::string, std::vector<std::string>> groups;  // group -> file names in /dev/shm
  DIR* folder = opendir("/dev/shm");
  if (folder == nullptr) return 0;
  while (dirent* entry = readdir(folder)) {
    std::string file = entry->d_name;
    std::string name = file.rfind("sem.", 0) == 0 ? file.substr(4) : file;
    if (name.size() != group_name_bytes + 2 || name.rfind("kl.", 0) != 0 || name[11] != '.') continue;
    struct stat status;
    if (stat(("/dev/shm/" + file).c_str(), &status) != 0 || status.st_uid != geteuid()) continue;
    groups[name.substr(0, group_name_bytes)].push_back(file);
  }
  closedir(folder);

  size_t removed = 0;
  for (auto& [group, files] : groups) {
    int fd = shm_open(member(group, 0).c_str(), O_RDWR | O_CLOEXEC, 0);
    if (fd < 0) continue;  // gone meanwhile
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
      std::string memory = member(group, 0).substr(1);
      for (const std::string& file : files) {
        if (file != memory && unlink(("/dev/shm/" + file).c_str()) == 0) ++removed;
      }
      if (unlink(("/dev/shm/" + memory).c_str()) == 0) ++removed;
    }
    close(fd);
  }
  if (removed > 0)
    log(LogLevel::info, "removed " + std::to_string(removed) + " names that dead sidecars left in /dev/shm");
  return removed;
}

}  // namespace kalos
