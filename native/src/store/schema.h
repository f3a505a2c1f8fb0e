// The file kalos.db: what it holds, how it is made, recognised, refused and brought to this version.
//
//   application_id  "KALO"; any other SQLite file is refused
//   user_version    the version of this layout; a newer one is refused, an older one is copied beside and migrated
//
//   meta(key, value)             commit_sequence: of the last commit; next_row_sequence: never given twice, also not after
//                                the newest row was deleted
//   collections(id, name, …)     id: AUTOINCREMENT, never given twice
//   rows_<id>(sequence, …)       the rows of one collection, so that loading is one sequential scan and dropping is DROP
//                                TABLE
//   write_ids(write_id, …)       the answers of the last minutes' writes, for a client that asks again
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "store/sqlite.h"

namespace kalos {

constexpr int32_t kStoreApplicationId = 0x4B414C4F;  // "KALO"
constexpr int32_t kStoreVersion = 1;

// Takes a file from `from_version` to the next one.
struct Migration {
  int32_t from_version = 0;
  std::string sql;
};

// Those of this program, oldest first. There is no older version yet.
const std::vector<Migration>& store_migrations();

std::string rows_table(uint64_t collection_id);
std::string create_rows_table(uint64_t collection_id);

// Makes `data_dir` (0700) and an empty kalos.db (0600) where they are missing; an existing file is made private.
Result<> make_private_file(const std::string& data_dir, const std::string& path);

// A connection to the writer's taste: the file created, or recognised and migrated; WAL, secure_delete and the rest set.
Result<sqlite::Connection> open_for_writing(const std::string& path, uint32_t page_bytes, int32_t version,
                                            const std::vector<Migration>& migrations);
// A read-only connection for loading.
Result<sqlite::Connection> open_for_reading(const std::string& path);

}  // namespace kalos
