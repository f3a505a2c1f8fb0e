// What the parts of the store (store.cpp, store_read.cpp) share.
#pragma once

#include <atomic>
#include <map>
#include <string>

#include "store/sqlite.h"
#include "store/store.h"

namespace kalos {

struct Store::State {
  StoreOptions options;
  std::string path;
  std::string log_path;  // of its log

  // The writer's connection and its statements.
  sqlite::Connection database;
  struct RowStatements {
    sqlite::Statement insert, find, update, remove, size;
  };
  std::map<uint64_t, RowStatements> row_statements;  // by collection
  sqlite::Statement recall_write, remember_write, forget_writes, set_sequences;

  kalos_durability synchronous = KALOS_DURABILITY_COMMIT;  // as the connection is set
  bool in_transaction = false;
  std::atomic<bool> poisoned{false};
  std::atomic<uint64_t> commit_sequence{0};
  uint64_t next_row_sequence = 1;
  uint64_t committed_row_sequence = 1;  // next_row_sequence as the last commit left it
  int64_t writes_forgotten_us = 0;      // when old write ids were last deleted

  uint64_t device = 0, inode = 0;  // of the file that was opened

  Result<> prepare_all();
  bool is_at_its_path() const;
  Error lost();
  Result<bool> insert(RowStatements& statements, Row& row, int64_t now_us);
  Result<RowStatements*> statements_of(uint64_t collection_id);
};

}  // namespace kalos
