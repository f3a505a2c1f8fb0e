// SQLite's own file layer with faults on demand: counts flushes, lets them fail, lets the disk be full. Installed as the
// default before a store is opened; files opened earlier are not affected.
#pragma once

#include <sqlite3.h>

#include <atomic>
#include <cstdlib>
#include <cstring>

namespace fault_vfs {

inline std::atomic<int> syncs{0};
inline std::atomic<bool> fail_sync{false};
inline std::atomic<bool> full{false};

struct File {
  sqlite3_file base;
  sqlite3_file* real;  // right behind this struct
};

inline sqlite3_vfs*& real_vfs() {
  static sqlite3_vfs* vfs = nullptr;
  return vfs;
}
inline sqlite3_file* real(sqlite3_file* file) { return reinterpret_cast<File*>(file)->real; }

inline int sync(sqlite3_file* file, int flags) {
  ++syncs;
  if (fail_sync) return SQLITE_IOERR_FSYNC;
  return real(file)->pMethods->xSync(real(file), flags);
}
inline int write(sqlite3_file* file, const void* data, int bytes, sqlite3_int64 offset) {
  if (full) return SQLITE_FULL;
  return real(file)->pMethods->xWrite(real(file), data, bytes, offset);
}
inline const sqlite3_io_methods* methods() {
  static const sqlite3_io_methods table = [] {
    sqlite3_io_methods m{};
    m.iVersion = 2;
    m.xClose = [](sqlite3_file* f) { return real(f)->pMethods->xClose(real(f)); };
    m.xRead = [](sqlite3_file* f, void* p, int n, sqlite3_int64 o) {
      return real(f)->pMethods->xRead(real(f), p, n, o);
    };
    m.xWrite = write;
    m.xTruncate = [](sqlite3_file* f, sqlite3_int64 n) { return real(f)->pMethods->xTruncate(real(f), n); };
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
inline int open(sqlite3_vfs*, const char* name, sqlite3_file* file, int flags, int* out_flags) {
  auto* self = reinterpret_cast<File*>(file);
  self->real = reinterpret_cast<sqlite3_file*>(self + 1);
  self->base.pMethods = nullptr;
  int code = real_vfs()->xOpen(real_vfs(), name, self->real, flags, out_flags);
  if (self->real->pMethods != nullptr) self->base.pMethods = methods();
  return code;
}

inline void install() {
  if (real_vfs() != nullptr) return;
  sqlite3_initialize();
  real_vfs() = sqlite3_vfs_find(nullptr);
  static sqlite3_vfs vfs = *real_vfs();
  vfs.zName = "kalos-fault";
  vfs.szOsFile = static_cast<int>(sizeof(File)) + real_vfs()->szOsFile;
  vfs.xOpen = open;
  sqlite3_vfs_register(&vfs, 1);
}

}  // namespace fault_vfs
