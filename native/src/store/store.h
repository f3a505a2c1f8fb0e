// The store: one SQLite file, kalos.db, that is the truth. The index is rebuilt from it at every start.
//
// One thread writes (store/writer.h). Loading uses read-only connections of its own and may run in several threads.
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

namespace kalos {

struct StoreOptions {
  std::string data_dir;
  uint32_t page_bytes = 8192;
};

class Store {
 public:
  // Creates or opens. Errors in words: not a Kalos file, a newer user_version, a read-only or full file system, a damaged
  // file. An older user_version is copied beside and migrated in one transaction.
  static Result<std::unique_ptr<Store>> open(StoreOptions options);
  ~Store();

  std::vector<CollectionInfo> collections();  // smallest first
  uint64_t commit_sequence() const;           // of the last commit
  struct CollectionSize {
    uint64_t rows = 0;
    uint64_t id_bytes = 0, text_bytes = 0, metadata_bytes = 0;
  };
  Result<CollectionSize> size_of(const CollectionInfo& info);

  // Calls `take` for each row of the collection in rising row sequence, from a read-only connection of its own.
  // `percent` rises to 100. `take` returns false to stop.
  Result<> load(const CollectionInfo& info, std::atomic<uint32_t>& percent,
                const std::function<bool(std::unique_ptr<Row>)>& take);

  // ---- the writer's thread only ----

  Result<> begin(kalos_durability durability);
  // In a transaction. Inserts or replaces; the row comes back with its sequence, created_us and updated_us set.
  Result<> upsert(const CollectionInfo& info, Row& row, int64_t now_us);
  Result<bool> remove(const CollectionInfo& info, std::string_view namespace_key, std::string_view id);
  Result<CollectionInfo> create_collection(CollectionInfo info);
  Result<> set_embedder(uint64_t collection_id, std::string_view name, std::string_view fingerprint);
  Result<> drop_collection(uint64_t collection_id);

  // The answer of an earlier write with this id, while remembered.
  struct Remembered {
    uint64_t commit_sequence = 0;
    std::vector<std::byte> reply;
  };
  Result<std::optional<Remembered>> recall_write(const WriteId& id);
  Result<> remember_write(const WriteId& id, const Remembered& answer, int64_t now_us);

  uint64_t next_commit_sequence() const;  // that commit() will give to what is pending
  Result<> commit();                      // on disk as the durability of begin() says; after a failed fsync: poisoned
  void rollback();
  bool poisoned() const;  // no write is accepted until a restart

  // Moves the log into the file and truncates it, so that deleted bytes are overwritten on disk.
  Result<> checkpoint();

 private:
  struct State;
  explicit Store(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace kalos
