// The store: one SQLite file, kalos.db, that is the truth. The index is rebuilt from it at every start.
//
// One thread writes (store/writer.h). Loading uses read-only connections of its own and may run in several threads.
// The layout of the file stands in store/schema.h.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/collection.h"
#include "engine/requests.h"
#include "store/schema.h"

namespace kalos {

struct StoreOptions {
  std::string data_dir;
  uint32_t page_bytes = 8192;
  // Another version and other migrations are for tests.
  int32_t version = kStoreVersion;
  std::vector<Migration> migrations = store_migrations();
};

class Store {
 public:
  // Creates or opens. Errors in words: not a Kalos file, a newer user_version, a read-only or full file system, a damaged
  // file. An older user_version is copied beside (kalos.db.v<version>) and migrated in one transaction.
  static Result<std::unique_ptr<Store>> open(StoreOptions options);
  ~Store();

  const std::string& path() const;
  uint64_t commit_sequence() const;  // of the last commit
  uint64_t file_bytes() const;
  uint64_t wal_bytes() const;

  // ---- any thread; each call has a read-only connection of its own ----

  Result<uint64_t> row_count(const CollectionInfo& info) const;
  struct CollectionSize {
    uint64_t rows = 0;
    uint64_t id_bytes = 0, text_bytes = 0, metadata_bytes = 0;
  };
  // Reads the whole collection but for its vectors.
  Result<CollectionSize> size_of(const CollectionInfo& info) const;

  // Calls `take` for each row of the collection in rising row sequence. `percent` rises to 100. `take` returns false to
  // stop, which is not an error.
  Result<> load(const CollectionInfo& info, std::atomic<uint32_t>& percent,
                const std::function<bool(std::unique_ptr<Row>)>& take) const;

  // ---- the writer's thread only ----

  Result<std::vector<CollectionInfo>> collections();  // in the order in which they were created

  Result<> begin(kalos_durability durability);

  // In a transaction.
  //
  // Inserts or replaces; the row comes back with its sequence, created_us and updated_us set. A row that has expired
  // counts as absent: its successor is a new row.
  Result<> upsert(const CollectionInfo& info, Row& row, int64_t now_us);
  enum class Removal { ABSENT, EXPIRED, LIVE };  // what was removed; an expired row was not there for anyone
  Result<Removal> remove(const CollectionInfo& info, std::string_view namespace_key, std::string_view id,
                         int64_t now_us);
  struct RowSize {
    size_t text_bytes = 0, metadata_bytes = 0;
    bool has_vector = false;
  };
  Result<std::optional<RowSize>> row_size(const CollectionInfo& info, std::string_view namespace_key,
                                          std::string_view id);
  Result<CollectionInfo> create_collection(CollectionInfo info);  // comes back with its id
  Result<> set_embedder(uint64_t collection_id, std::string_view name, std::string_view fingerprint);
  Result<> drop_collection(uint64_t collection_id);

  // The answer of an earlier write with this id, for KALOS_WRITE_ID_KEPT_S.
  struct Remembered {
    uint64_t commit_sequence = 0;
    std::vector<std::byte> reply;
  };
  Result<std::optional<Remembered>> recall_write(const WriteId& id, int64_t now_us);
  Result<> remember_write(const WriteId& id, const Remembered& answer, int64_t now_us);

  uint64_t next_commit_sequence() const;  // that commit() will give to what is pending
  // On disk as the durability of begin() says. STORE_ERROR: nothing of it is on disk, and the transaction is over.
  // UNKNOWN_OUTCOME: it may be (a failed fsync), and the store is poisoned.
  Result<> commit();
  void rollback();
  // No write is accepted until a restart: after a failed fsync nobody knows what the disk holds.
  bool poisoned() const;

  // Moves the log into the file. With truncate the log is emptied too, so that deleted bytes are nowhere on disk; false
  // where a reader (a collection being loaded) is still in its way.
  Result<bool> checkpoint(bool truncate);

 private:
  struct State;
  explicit Store(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace kalos
