#include "store/scrub.h"

#include <sqlite3.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace kalos {

namespace {

// The first byte of an overflow page is the top of a page number: beyond this many pages it could pass for the type of
// a table's page. A file that large (137 GB) is written as it comes.
constexpr int64_t kMaxPages = int64_t{1} << 24;

struct State {
  std::vector<uint8_t> copy;
  int64_t file_bytes = 0;  // that the file has, or will have at the end of a checkpoint
};

// What SQLite sees as its file. The real one lies right behind.
struct ScrubbedFile {
  sqlite3_file base;
  State* state;
};

sqlite3_file* real(sqlite3_file* file) {
  return reinterpret_cast<sqlite3_file*>(reinterpret_cast<ScrubbedFile*>(file) + 1);
}
State& state_of(sqlite3_file* file) { return *reinterpret_cast<ScrubbedFile*>(file)->state; }

uint32_t big_endian_16(const uint8_t* bytes) { return uint32_t{bytes[0]} << 8 | bytes[1]; }

sqlite3_vfs*& below() {
  static sqlite3_vfs* vfs = nullptr;
  return vfs;
}

int close(sqlite3_file* file) {
  delete reinterpret_cast<ScrubbedFile*>(file)->state;
  return real(file)->pMethods->xClose(real(file));
}

int write(sqlite3_file* file, const void* data, int bytes, sqlite3_int64 offset) {
  State& state = state_of(file);
  state.file_bytes = std::max<int64_t>(state.file_bytes, offset + bytes);
  bool whole_page = bytes >= 512 && offset % bytes == 0;
  if (whole_page && state.file_bytes / bytes < kMaxPages) {
    std::span page(static_cast<const uint8_t*>(data), static_cast<size_t>(bytes));
    Middle middle = unused_middle(page, offset == 0);
    if (middle.begin < middle.end) {
      state.copy.assign(page.begin(), page.end());
      std::memset(state.copy.data() + middle.begin, 0, middle.end - middle.begin);
      data = state.copy.data();
    }
  }
  return real(file)->pMethods->xWrite(real(file), data, bytes, offset);
}

int file_control(sqlite3_file* file, int operation, void* argument) {
  if (operation == SQLITE_FCNTL_SIZE_HINT) {
    State& state = state_of(file);
    state.file_bytes = std::max<int64_t>(state.file_bytes, *static_cast<sqlite3_int64*>(argument));
  }
  return real(file)->pMethods->xFileControl(real(file), operation, argument);
}

// Everything but the three above goes on as it comes. No xFetch (version 2): pages are never mapped.
const sqlite3_io_methods kMethods = {
    .iVersion = 2,
    .xClose = close,
    .xRead = [](sqlite3_file* f, void* p, int n,
                sqlite3_int64 at) { return real(f)->pMethods->xRead(real(f), p, n, at); },
    .xWrite = write,
    .xTruncate = [](sqlite3_file* f, sqlite3_int64 n) { return real(f)->pMethods->xTruncate(real(f), n); },
    .xSync = [](sqlite3_file* f, int flags) { return real(f)->pMethods->xSync(real(f), flags); },
    .xFileSize = [](sqlite3_file* f, sqlite3_int64* n) { return real(f)->pMethods->xFileSize(real(f), n); },
    .xLock = [](sqlite3_file* f, int lock) { return real(f)->pMethods->xLock(real(f), lock); },
    .xUnlock = [](sqlite3_file* f, int lock) { return real(f)->pMethods->xUnlock(real(f), lock); },
    .xCheckReservedLock = [](sqlite3_file* f, int* is) { return real(f)->pMethods->xCheckReservedLock(real(f), is); },
    .xFileControl = file_control,
    .xSectorSize = [](sqlite3_file* f) { return real(f)->pMethods->xSectorSize(real(f)); },
    .xDeviceCharacteristics = [](sqlite3_file* f) { return real(f)->pMethods->xDeviceCharacteristics(real(f)); },
    .xShmMap = [](sqlite3_file* f, int region, int bytes, int extend,
                  void volatile** at) { return real(f)->pMethods->xShmMap(real(f), region, bytes, extend, at); },
    .xShmLock = [](sqlite3_file* f, int from, int n,
                   int flags) { return real(f)->pMethods->xShmLock(real(f), from, n, flags); },
    .xShmBarrier = [](sqlite3_file* f) { real(f)->pMethods->xShmBarrier(real(f)); },
    .xShmUnmap = [](sqlite3_file* f, int remove) { return real(f)->pMethods->xShmUnmap(real(f), remove); },
    .xFetch = nullptr,
    .xUnfetch = nullptr,
};

int open(sqlite3_vfs*, const char* name, sqlite3_file* file, int flags, int* out_flags) {
  // Logs and temporary files need no scrubbing: they are truncated, or never reach a disk.
  if ((flags & SQLITE_OPEN_MAIN_DB) == 0) return below()->xOpen(below(), name, file, flags, out_flags);
  auto* self = reinterpret_cast<ScrubbedFile*>(file);
  self->base.pMethods = nullptr;
  int code = below()->xOpen(below(), name, real(file), flags, out_flags);
  if (real(file)->pMethods == nullptr) return code;
  if (code != SQLITE_OK) {
    real(file)->pMethods->xClose(real(file));
    return code;
  }
  sqlite3_int64 bytes = 0;
  real(file)->pMethods->xFileSize(real(file), &bytes);
  self->state = new State;
  self->state->file_bytes = bytes;
  self->base.pMethods = &kMethods;
  return SQLITE_OK;
}

}  // namespace

Middle unused_middle(std::span<const uint8_t> page, bool is_first) {
  size_t head = is_first ? 100 : 0;
  if (page.size() < head + 12) return {};
  uint8_t type = page[head];
  bool is_leaf = type == 10 || type == 13;
  bool is_interior = type == 2 || type == 5;
  if (!is_leaf && !is_interior) return {};
  size_t cells = big_endian_16(&page[head + 3]);
  size_t content = big_endian_16(&page[head + 5]);
  if (content == 0) content = 65536;
  size_t begin = head + (is_leaf ? 8 : 12) + 2 * cells;
  if (begin > content || content > page.size()) return {};
  return {begin, content};
}

const char* scrubbing_vfs() {
  static sqlite3_vfs vfs = [] {
    sqlite3_initialize();
    below() = sqlite3_vfs_find(nullptr);
    sqlite3_vfs made = *below();
    made.zName = "kalos-scrub";
    made.pNext = nullptr;
    made.szOsFile = static_cast<int>(sizeof(ScrubbedFile)) + below()->szOsFile;
    made.xOpen = open;
    return made;
  }();
  static int registered = sqlite3_vfs_register(&vfs, /*makeDflt=*/0);
  return registered == SQLITE_OK ? vfs.zName : nullptr;
}

}  // namespace kalos
