// A disk that forgets what was not flushed, under SQLite, and that fails on demand.
//
// Every write, truncation and deletion is kept beside the real file until it is flushed. At the power cut, which comes at
// the n-th operation, the disk stops: nothing is done any more. What a machine would then find after its restart is
// written elsewhere by restore(): what was flushed, and of the rest nothing, everything, or a seeded choice of sectors.
//
// A file that was created counts as there once it was flushed, as journaling file systems have it.
#pragma once

#include <sqlite3.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <vector>

namespace power_cut {

constexpr int64_t kNever = INT64_MAX;
constexpr size_t kSectorBytes = 512;

struct Change {
  bool truncates = false;
  int64_t at = 0;  // the new size, for a truncation
  std::string data;
};

struct Image {
  std::string flushed;
  bool exists = false;
  std::vector<Change> pending;
  bool deleted = false;    // but the directory was not flushed since
  bool has_older = false;  // made anew after a deletion, and not flushed since: the old file may come back
  std::string older;
};

struct Disk {
  std::mutex mutex;
  std::map<std::string, Image> images;  // by path
  bool recording = false;
  bool lies = false;  // says that it flushed, and did not
  bool off = false;   // the power is gone
  int64_t operations = 0;
  int64_t off_at = kNever;
  // From the n-th operation on, `failures_left` operations fail with this code.
  int64_t fail_at = kNever;
  int failures_left = 0;
  int write_code = SQLITE_IOERR_WRITE;
};
inline Disk& disk() {
  static Disk the_disk;
  return the_disk;
}

inline void apply(std::string& bytes, const Change& change) {
  if (change.truncates) {
    bytes.resize(static_cast<size_t>(change.at));
    return;
  }
  size_t end = static_cast<size_t>(change.at) + change.data.size();
  if (bytes.size() < end) bytes.resize(end);
  std::memcpy(bytes.data() + change.at, change.data.data(), change.data.size());
}

struct File {
  sqlite3_file base;
  std::string* path;  // null: not recorded
  sqlite3_file* real;
};
inline sqlite3_vfs*& real_vfs() {
  static sqlite3_vfs* vfs = nullptr;
  return vfs;
}
inline sqlite3_file* real(sqlite3_file* file) { return reinterpret_cast<File*>(file)->real; }
inline std::string* path_of(sqlite3_file* file) { return reinterpret_cast<File*>(file)->path; }

// With the lock held. SQLITE_OK: go on.
inline int count_operation(Disk& the, int failure) {
  if (the.off) return failure;
  ++the.operations;
  if (the.operations >= the.off_at) {
    the.off = true;
    return failure;
  }
  if (the.operations >= the.fail_at && the.failures_left > 0) {
    --the.failures_left;
    return failure;
  }
  return SQLITE_OK;
}

inline int write(sqlite3_file* file, const void* data, int bytes, sqlite3_int64 at) {
  if (std::string* path = path_of(file)) {
    Disk& the = disk();
    std::lock_guard lock(the.mutex);
    if (int code = count_operation(the, the.write_code); code != SQLITE_OK) return code;
    the.images[*path].pending.push_back({false, at, std::string(static_cast<const char*>(data), size_t(bytes))});
  }
  return real(file)->pMethods->xWrite(real(file), data, bytes, at);
}
inline int truncate(sqlite3_file* file, sqlite3_int64 bytes) {
  if (std::string* path = path_of(file)) {
    Disk& the = disk();
    std::lock_guard lock(the.mutex);
    if (int code = count_operation(the, SQLITE_IOERR_TRUNCATE); code != SQLITE_OK) return code;
    the.images[*path].pending.push_back({true, bytes, {}});
  }
  return real(file)->pMethods->xTruncate(real(file), bytes);
}
// The real disk is never asked to flush: that is what this one is for, and it costs.
inline int sync(sqlite3_file* file, int) {
  std::string* path = path_of(file);
  if (path == nullptr) return SQLITE_OK;
  Disk& the = disk();
  std::lock_guard lock(the.mutex);
  if (int code = count_operation(the, SQLITE_IOERR_FSYNC); code != SQLITE_OK) return code;
  if (the.lies) return SQLITE_OK;
  Image& image = the.images[*path];
  for (const Change& change : image.pending) apply(image.flushed, change);
  image.pending.clear();
  image.exists = true;
  image.has_older = false;
  return SQLITE_OK;
}
inline int remove(sqlite3_vfs*, const char* path, int flush_directory) {
  Disk& the = disk();
  {
    std::lock_guard lock(the.mutex);
    auto found = the.images.find(path);
    if (found != the.images.end()) {
      if (int code = count_operation(the, SQLITE_IOERR_DELETE); code != SQLITE_OK) return code;
      found->second.deleted = true;
      if (flush_directory && !the.lies) the.images.erase(found);
    }
  }
  return real_vfs()->xDelete(real_vfs(), path, 0);
}

inline const sqlite3_io_methods* methods() {
  static const sqlite3_io_methods table = [] {
    sqlite3_io_methods m{};
    m.iVersion = 2;
    m.xClose = [](sqlite3_file* f) {
      delete path_of(f);
      return real(f)->pMethods->xClose(real(f));
    };
    m.xRead = [](sqlite3_file* f, void* p, int n, sqlite3_int64 o) {
      return real(f)->pMethods->xRead(real(f), p, n, o);
    };
    m.xWrite = write;
    m.xTruncate = truncate;
    m.xSync = sync;
    m.xFileSize = [](sqlite3_file* f, sqlite3_int64* n) { return real(f)->pMethods->xFileSize(real(f), n); };
    m.xLock = [](sqlite3_file* f, int l) { return real(f)->pMethods->xLock(real(f), l); };
    m.xUnlock = [](sqlite3_file* f, int l) { return real(f)->pMethods->xUnlock(real(f), l); };
    m.xCheckReservedLock = [](sqlite3_file* f, int* r) { return real(f)->pMethods->xCheckReservedLock(real(f), r); };
    m.xFileControl = [](sqlite3_file* f, int o, void* p) { return real(f)->pMethods->xFileControl(real(f), o, p); };
    m.xSectorSize = [](sqlite3_file* f) { return real(f)->pMethods->xSectorSize(real(f)); };
    m.xDeviceCharacteristics = [](sqlite3_file* f) { return real(f)->pMethods->xDeviceCharacteristics(real(f)); };
    m.xShmMap = [](sqlite3_file* f, int a, int b, int c, void volatile** p) {
      return real(f)->pMethods->xShmMap(real(f), a, b, c, p);
    };
    m.xShmLock = [](sqlite3_file* f, int a, int b, int c) { return real(f)->pMethods->xShmLock(real(f), a, b, c); };
    m.xShmBarrier = [](sqlite3_file* f) { real(f)->pMethods->xShmBarrier(real(f)); };
    m.xShmUnmap = [](sqlite3_file* f, int d) { return real(f)->pMethods->xShmUnmap(real(f), d); };
    return m;
  }();
  return &table;
}

inline std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline int open(sqlite3_vfs*, const char* name, sqlite3_file* file, int flags, int* out_flags) {
  auto* self = reinterpret_cast<File*>(file);
  self->real = reinterpret_cast<sqlite3_file*>(self + 1);
  self->path = nullptr;
  self->base.pMethods = nullptr;
  Disk& the = disk();
  bool recorded = false;
  if (name != nullptr && (flags & (SQLITE_OPEN_MAIN_DB | SQLITE_OPEN_WAL | SQLITE_OPEN_MAIN_JOURNAL)) != 0) {
    std::lock_guard lock(the.mutex);
    recorded = the.recording;
    if (recorded && the.off) return SQLITE_CANTOPEN;
    if (recorded) {
      auto [image, is_new] = the.images.try_emplace(name);
      if (is_new && std::filesystem::exists(name)) {
        image->second.flushed = contents(name);
        image->second.exists = true;
      }
      if (image->second.deleted) {
        Image made;
        made.has_older = image->second.exists;
        made.older = std::move(image->second.flushed);
        image->second = std::move(made);
      }
    }
  }
  int code = real_vfs()->xOpen(real_vfs(), name, self->real, flags, out_flags);
  if (self->real->pMethods == nullptr) return code;
  if (recorded) self->path = new std::string(name);
  self->base.pMethods = methods();
  return code;
}

// Before the first store is opened.
inline void install() {
  if (real_vfs() != nullptr) return;
  sqlite3_initialize();
  real_vfs() = sqlite3_vfs_find(nullptr);
  static sqlite3_vfs vfs = *real_vfs();
  vfs.zName = "kalos-power-cut";
  vfs.szOsFile = static_cast<int>(sizeof(File)) + real_vfs()->szOsFile;
  vfs.xOpen = open;
  vfs.xDelete = remove;
  sqlite3_vfs_register(&vfs, 1);
}

// Files that are opened from now on are on the disk that forgets.
inline void start(int64_t off_at = kNever, bool lies = false) {
  Disk& the = disk();
  std::lock_guard lock(the.mutex);
  the.images.clear();
  the.recording = true;
  the.lies = lies;
  the.off = false;
  the.operations = 0;
  the.off_at = off_at;
  the.fail_at = kNever;
  the.failures_left = 0;
}
inline void fail_from(int64_t operation, int failures, int write_code) {
  Disk& the = disk();
  std::lock_guard lock(the.mutex);
  the.fail_at = operation;
  the.failures_left = failures;
  the.write_code = write_code;
}
inline bool is_off() {
  std::lock_guard lock(disk().mutex);
  return disk().off;
}
inline int64_t operations() {
  std::lock_guard lock(disk().mutex);
  return disk().operations;
}

// What is found after the restart, as files in `directory`. Nothing is recorded any more.
inline void restore(const std::string& directory, std::mt19937_64& dice) {
  Disk& the = disk();
  std::lock_guard lock(the.mutex);
  the.recording = false;
  for (auto& [path, image] : the.images) {
    if (image.deleted && dice() % 2 == 0) continue;
    std::string bytes = image.flushed;
    unsigned mode = dice() % 3;
    bool exists = image.exists;
    if (image.has_older && dice() % 2 == 0) {
      bytes = image.older;
      exists = true;
      mode = 0;
    }
    for (const Change& change : image.pending) {
      if (mode == 0) break;
      exists = true;
      if (mode == 1 || change.truncates) {
        if (mode == 1 || dice() % 2 == 0) apply(bytes, change);
        continue;
      }
      if (dice() % 4 == 0) continue;
      // A write is done sector by sector, in any order.
      for (size_t from = 0; from < change.data.size();) {
        size_t sector_end = (static_cast<size_t>(change.at) + from) / kSectorBytes * kSectorBytes + kSectorBytes;
        size_t to = std::min(change.data.size(), sector_end - static_cast<size_t>(change.at));
        if (dice() % 8 != 0) {
          apply(bytes, {false, change.at + static_cast<int64_t>(from), change.data.substr(from, to - from)});
        }
        from = to;
      }
    }
    if (!exists) continue;
    std::ofstream(std::filesystem::path(directory) / std::filesystem::path(path).filename(), std::ios::binary) << bytes;
  }
  the.images.clear();
}

}  // namespace power_cut
