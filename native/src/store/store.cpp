// The store's writing half: transactions, rows, collections, remembered writes, checkpoints.
#include "store/store.h"

#include <errno.h>
#include <sys/stat.h>

#include <cstring>

#include "base/failpoint.h"
#include "base/log.h"
#include "store/store_state.h"

namespace kalos {

namespace {

constexpr size_t kMaxCachedCollections = 256;
constexpr int64_t kForgetWritesEveryUs = 30'000'000;

std::string_view view(const WriteId& id) { return {reinterpret_cast<const char*>(id.data()), id.size()}; }
std::string_view view(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
std::string_view view(const std::vector<float>& vector) {
  return {reinterpret_cast<const char*>(vector.data()), vector.size() * sizeof(float)};
}

uint64_t size_on_disk(const std::string& path) {
  struct stat status;
  return stat(path.c_str(), &status) == 0 ? static_cast<uint64_t>(status.st_size) : 0;
}

// A failed flush, or a failure at a place where the commit may already be in the log: a recovery could bring it back. A
// write that was cut short for want of space left a frame with a wrong checksum, which no recovery takes.
bool outcome_unknown(sqlite3* database) {
  int code = sqlite3_extended_errcode(database);
  switch (code & 0xff) {
    case SQLITE_FULL:
    case SQLITE_BUSY:
    case SQLITE_CONSTRAINT:
    case SQLITE_READONLY:
      return false;
  }
  int system_error = sqlite3_system_errno(database);
  return code != SQLITE_IOERR_WRITE || (system_error != EDQUOT && system_error != EFBIG);
}

// Runs a statement that returns no row.
Result<> run(sqlite::Connection& database, sqlite::Statement& statement, std::string_view doing) {
  sqlite::Reset reset(statement);
  int code = statement.step();
  if (code != SQLITE_DONE && code != SQLITE_ROW) return database.failure(doing);
  return Unit{};
}

}  // namespace

Store::Store(std::unique_ptr<State> state) : state_(std::move(state)) {}

Store::~Store() {
  // After a failed flush the file is left for the recovery of the next start: a checkpoint could hide what was lost.
  if (state_->poisoned) {
    sqlite3_db_config(state_->database.handle(), SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, nullptr);
  }
  if (state_->in_transaction) rollback();
}

Result<std::unique_ptr<Store>> Store::open(StoreOptions options) {
  auto state = std::make_unique<State>();
  state->options = std::move(options);
  state->path = state->options.data_dir + "/kalos.db";
  state->log_path = state->path + "-wal";
  // SQLite's own account of its memory costs a lock for each allocation, and nobody asks for it. Too late, and without
  // effect, once SQLite is in use.
  sqlite3_config(SQLITE_CONFIG_MEMSTATUS, 0);
  if (auto made = make_private_file(state->options.data_dir, state->path); !made) return made.error();
  auto database =
      open_for_writing(state->path, state->options.page_bytes, state->options.version, state->options.migrations);
  if (!database) return database.error();
  state->database = std::move(*database);
  struct stat file{};
  if (stat(state->path.c_str(), &file) == 0) {
    state->device = file.st_dev;
    state->inode = file.st_ino;
  }
  if (auto prepared = state->prepare_all(); !prepared) return prepared.error();
  constexpr const char* meta = "SELECT value FROM meta WHERE key = ";
  auto commit = state->database.query_integer(std::string(meta) + "'commit_sequence'", "read the store's sequences");
  if (!commit) return commit.error();
  auto row = state->database.query_integer(std::string(meta) + "'next_row_sequence'", "read the store's sequences");
  if (!row) return row.error();
  state->commit_sequence = static_cast<uint64_t>(*commit);
  state->next_row_sequence = state->committed_row_sequence = static_cast<uint64_t>(*row);
  return std::unique_ptr<Store>(new Store(std::move(state)));
}

// A file that was removed is written to as well as any other: nothing of it would be there after a restart.
bool Store::State::is_at_its_path() const {
  struct stat file{};
  if (stat(path.c_str(), &file) != 0) return errno != ENOENT && errno != ENOTDIR;
  return file.st_dev == device && file.st_ino == inode;
}

Error Store::State::lost() {
  poisoned = true;
  return {KALOS_STATUS_STORE_ERROR,
          "the store " + path +
              " was removed, moved or replaced while kalosd serves it: what is written would be lost, "
              "so no more writes are taken; put it back and restart kalosd"};
}

Result<> Store::State::prepare_all() {
  constexpr std::string_view doing = "read the store's layout";
  struct {
    sqlite::Statement& statement;
    const char* sql;
  } wanted[] = {
      {recall_write, "SELECT commit_sequence, reply FROM write_ids WHERE write_id = ?1 AND created_us > ?2"},
      {remember_write, "INSERT OR REPLACE INTO write_ids VALUES (?1, ?2, ?3, ?4)"},
      {forget_writes, "DELETE FROM write_ids WHERE created_us <= ?1"},
      {set_sequences,
       "UPDATE meta SET value = iif(key = 'commit_sequence', ?1, ?2) "
       "WHERE key IN ('commit_sequence', 'next_row_sequence')"},
  };
  for (auto& [statement, sql] : wanted) {
    auto prepared = database.prepare(sql, doing);
    if (!prepared) return prepared.error();
    statement = std::move(*prepared);
  }
  return Unit{};
}

const std::string& Store::path() const { return state_->path; }
uint64_t Store::commit_sequence() const { return state_->commit_sequence; }
uint64_t Store::next_commit_sequence() const { return state_->commit_sequence + 1; }
bool Store::poisoned() const { return state_->poisoned; }
uint64_t Store::file_bytes() const { return size_on_disk(state_->path); }
uint64_t Store::wal_bytes() const { return size_on_disk(state_->log_path); }

// ---- transactions --------------------------------------------------------------------------------------------------

Result<> Store::begin(kalos_durability durability) {
  State& state = *state_;
  if (state.poisoned) {
    return Error{KALOS_STATUS_STORE_ERROR, "the store " + state.path +
                                               " takes no writes since a flush to disk failed; look at the disk, then "
                                               "restart kalosd"};
  }
  if (!state.is_at_its_path()) {
    Error error = state.lost();
    log(LogLevel::error, error.words);
    return error;
  }
  if (durability != state.synchronous) {
    bool full = durability == KALOS_DURABILITY_COMMIT;
    auto set = state.database.execute(full ? "PRAGMA synchronous = FULL" : "PRAGMA synchronous = NORMAL",
                                      "set the store's durability");
    if (!set) return set;
    state.synchronous = durability;
  }
  if (auto begun = state.database.execute("BEGIN IMMEDIATE", "begin a write in the store"); !begun) return begun;
  state.in_transaction = true;
  return Unit{};
}

Result<> Store::commit() {
  State& state = *state_;
  uint64_t sequence = next_commit_sequence();
  state.set_sequences.bind(1, static_cast<int64_t>(sequence));
  state.set_sequences.bind(2, static_cast<int64_t>(state.next_row_sequence));
  if (auto set = run(state.database, state.set_sequences, "write to the store"); !set) {
    rollback();
    return set;
  }
  failpoint("before_commit");
  if (sqlite3_exec(state.database.handle(), "COMMIT", nullptr, nullptr, nullptr) != SQLITE_OK) {
    // Before any words: they take memory, and what there is none for must not make this a write that surely failed.
    bool unknown = outcome_unknown(state.database.handle());
    if (unknown) state.poisoned = true;
    Error error = state.database.failure("commit to the store");
    if (unknown) {
      error.status = KALOS_STATUS_UNKNOWN_OUTCOME;
      error.words += "; the write may or may not be on disk, and no more are taken until kalosd is restarted";
      log(LogLevel::error, error.words);
    }
    rollback();
    return error;
  }
  failpoint("after_commit");
  if (!state.is_at_its_path()) {
    Error error = state.lost();
    error.status = KALOS_STATUS_UNKNOWN_OUTCOME;
    log(LogLevel::error, error.words);
    rollback();
    return error;
  }
  state.in_transaction = false;
  state.commit_sequence = sequence;
  state.committed_row_sequence = state.next_row_sequence;
  return Unit{};
}

void Store::rollback() {
  // SQLite may have rolled back by itself already (a full disk, an I/O error): then there is nothing to end.
  if (sqlite3_get_autocommit(state_->database.handle()) == 0) {
    sqlite3_exec(state_->database.handle(), "ROLLBACK", nullptr, nullptr, nullptr);
  }
  state_->in_transaction = false;
  state_->next_row_sequence = state_->committed_row_sequence;
}

Result<bool> Store::checkpoint(bool truncate) {
  State& state = *state_;
  if (state.poisoned) {
    return Error{KALOS_STATUS_STORE_ERROR, "the store " + state.path + " is not written since a flush failed"};
  }
  failpoint("checkpoint");
  int mode = truncate ? SQLITE_CHECKPOINT_TRUNCATE : SQLITE_CHECKPOINT_PASSIVE;
  // A reader in the way is not waited for: the writer has better things to do, and comes again.
  sqlite3_busy_timeout(state.database.handle(), 0);
  int code = sqlite3_wal_checkpoint_v2(state.database.handle(), "main", mode, nullptr, nullptr);
  sqlite3_busy_timeout(state.database.handle(), 5000);
  if (code == SQLITE_OK) return true;
  if ((code & 0xff) == SQLITE_BUSY || (code & 0xff) == SQLITE_LOCKED) return false;
  Error error = state.database.failure("move the store's log into its file");
  if (code == SQLITE_IOERR_FSYNC || code == SQLITE_IOERR_DIR_FSYNC) {
    state.poisoned = true;
    error.words += "; no more writes are taken until kalosd is restarted";
    log(LogLevel::error, error.words);
  }
  return error;
}

// ---- rows ----------------------------------------------------------------------------------------------------------

Result<Store::State::RowStatements*> Store::State::statements_of(uint64_t collection_id) {
  if (auto found = row_statements.find(collection_id); found != row_statements.end()) return &found->second;
  if (row_statements.size() >= kMaxCachedCollections) row_statements.clear();
  const std::string table = rows_table(collection_id);
  const std::string by_name = " WHERE namespace = ?1 AND id = ?2";
  RowStatements made;
  struct {
    sqlite::Statement& statement;
    std::string sql;
  } wanted[] = {
      {made.insert, "INSERT INTO " + table +
                        "(namespace, id, text, metadata, vector, expires_us, updated_us, sequence, created_us) "
                        "VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?7) ON CONFLICT(namespace, id) DO NOTHING"},
      {made.find, "SELECT sequence, created_us, expires_us FROM " + table + by_name},
      {made.update, "UPDATE " + table +
                        " SET text = ?3, metadata = ?4, vector = ?5, expires_us = ?6, updated_us = ?7 "
                        "WHERE sequence = ?8"},
      {made.remove, "DELETE FROM " + table + by_name + " RETURNING expires_us"},
      {made.size,
       "SELECT length(CAST(text AS BLOB)), length(CAST(metadata AS BLOB)), vector IS NOT NULL FROM " + table + by_name},
  };
  for (auto& [statement, sql] : wanted) {
    auto prepared = database.prepare(sql, "write to a collection");
    if (!prepared) return prepared.error();
    statement = std::move(*prepared);
  }
  return &row_statements.emplace(collection_id, std::move(made)).first->second;
}

namespace {

// Parameters 3 to 8 of the statements that write a row.
void bind_row(sqlite::Statement& statement, const Row& row, int64_t now_us, uint64_t sequence) {
  row.has_text ? statement.bind_text(3, row.text) : statement.bind_null(3);
  row.has_metadata ? statement.bind_text(4, row.metadata) : statement.bind_null(4);
  row.vector.empty() ? statement.bind_null(5) : statement.bind_blob(5, view(row.vector));
  statement.bind(6, row.expires_us);
  statement.bind(7, now_us);
  statement.bind(8, static_cast<int64_t>(sequence));
}

}  // namespace

// True where the row is a new one; false, and nothing changed, where there is one with its name.
Result<bool> Store::State::insert(RowStatements& statements, Row& row, int64_t now_us) {
  sqlite::Statement& insert = statements.insert;
  sqlite::Reset reset(insert);
  insert.bind_blob(1, row.namespace_key);
  insert.bind_text(2, row.id);
  bind_row(insert, row, now_us, next_row_sequence);
  if (insert.step() != SQLITE_DONE) return database.failure("write a row");
  if (sqlite3_changes(database.handle()) == 0) return false;
  row.sequence = next_row_sequence++;
  row.created_us = row.updated_us = now_us;
  return true;
}

// New rows are the common case, so the row is inserted first and looked for only where that found its name taken.
Result<> Store::upsert(const CollectionInfo& info, Row& row, int64_t now_us) {
  State& state = *state_;
  auto found = state.statements_of(info.id);
  if (!found) return found.error();
  State::RowStatements& statements = **found;
  auto inserted = state.insert(statements, row, now_us);
  if (!inserted) return inserted.error();
  if (*inserted) return Unit{};
  int64_t expires_us = 0;
  {
    sqlite::Reset reset(statements.find);
    statements.find.bind_blob(1, row.namespace_key);
    statements.find.bind_text(2, row.id);
    if (statements.find.step() != SQLITE_ROW) return state.database.failure("read a row");
    row.sequence = static_cast<uint64_t>(statements.find.integer(0));
    row.created_us = statements.find.integer(1);
    expires_us = statements.find.integer(2);
  }
  // An expired row is as good as deleted: what replaces it is a new row, with a place and a time of its own.
  if (expires_us != 0 && expires_us <= now_us) {
    if (auto removed = remove(info, row.namespace_key, row.id, now_us); !removed) return removed.error();
    auto again = state.insert(statements, row, now_us);
    if (!again) return again.error();
    return Unit{};
  }
  bind_row(statements.update, row, now_us, row.sequence);
  row.updated_us = now_us;
  return run(state.database, statements.update, "write a row");
}

Result<Store::Removal> Store::remove(const CollectionInfo& info, std::string_view namespace_key, std::string_view id,
                                     int64_t now_us) {
  State& state = *state_;
  auto statements = state.statements_of(info.id);
  if (!statements) return statements.error();
  sqlite::Statement& remove = (*statements)->remove;
  sqlite::Reset reset(remove);
  remove.bind_blob(1, namespace_key);
  remove.bind_text(2, id);
  int code = remove.step();
  if (code == SQLITE_DONE) return Removal::ABSENT;
  if (code != SQLITE_ROW) return state.database.failure("delete a row");
  int64_t expires_us = remove.integer(0);
  return expires_us != 0 && expires_us <= now_us ? Removal::EXPIRED : Removal::LIVE;
}

Result<std::optional<Store::RowSize>> Store::row_size(const CollectionInfo& info, std::string_view namespace_key,
                                                      std::string_view id) {
  auto statements = state_->statements_of(info.id);
  if (!statements) return statements.error();
  sqlite::Statement& size = (*statements)->size;
  sqlite::Reset reset(size);
  size.bind_blob(1, namespace_key);
  size.bind_text(2, id);
  int code = size.step();
  if (code == SQLITE_DONE) return std::optional<RowSize>{};
  if (code != SQLITE_ROW) return state_->database.failure("read a row");
  return std::optional(
      RowSize{static_cast<size_t>(size.integer(0)), static_cast<size_t>(size.integer(1)), size.integer(2) != 0});
}

// ---- collections ---------------------------------------------------------------------------------------------------

Result<std::vector<CollectionInfo>> Store::collections() {
  constexpr std::string_view doing = "read the collections of the store";
  auto rows = state_->database.prepare(
      "SELECT id, name, dimension, metric, embedder_name, embedder_fingerprint, created_us FROM collections ORDER BY "
      "id",
      doing);
  if (!rows) return rows.error();
  std::vector<CollectionInfo> collections;
  int code;
  while ((code = rows->step()) == SQLITE_ROW) {
    CollectionInfo info;
    info.id = static_cast<uint64_t>(rows->integer(0));
    info.name = rows->bytes(1);
    info.dimension = static_cast<uint32_t>(rows->integer(2));
    info.metric = static_cast<kalos_metric>(rows->integer(3));
    info.embedder_name = rows->bytes(4);
    info.embedder_fingerprint = rows->bytes(5);
    info.created_us = rows->integer(6);
    collections.push_back(std::move(info));
  }
  if (code != SQLITE_DONE) return state_->database.failure(doing);
  return collections;
}

Result<CollectionInfo> Store::create_collection(CollectionInfo info) {
  const std::string doing = "create collection \"" + info.name + "\"";
  auto insert = state_->database.prepare(
      "INSERT INTO collections(name, dimension, metric, embedder_name, embedder_fingerprint, created_us) "
      "VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
      doing);
  if (!insert) return insert.error();
  insert->bind_text(1, info.name);
  insert->bind(2, info.dimension);
  insert->bind(3, info.metric);
  insert->bind_text(4, info.embedder_name);
  insert->bind_text(5, info.embedder_fingerprint);
  insert->bind(6, info.created_us);
  if (auto done = run(state_->database, *insert, doing); !done) return done.error();
  info.id = static_cast<uint64_t>(sqlite3_last_insert_rowid(state_->database.handle()));
  if (auto made = state_->database.execute(create_rows_table(info.id), doing); !made) return made.error();
  return info;
}

Result<> Store::set_embedder(uint64_t collection_id, std::string_view name, std::string_view fingerprint) {
  constexpr std::string_view doing = "record the embedder of a collection";
  auto update = state_->database.prepare(
      "UPDATE collections SET embedder_name = ?2, embedder_fingerprint = ?3 WHERE id = ?1", doing);
  if (!update) return update.error();
  update->bind(1, static_cast<int64_t>(collection_id));
  update->bind_text(2, name);
  update->bind_text(3, fingerprint);
  return run(state_->database, *update, doing);
}

Result<> Store::drop_collection(uint64_t collection_id) {
  constexpr std::string_view doing = "drop a collection";
  state_->row_statements.erase(collection_id);
  auto dropped = state_->database.execute("DROP TABLE IF EXISTS " + rows_table(collection_id), doing);
  if (!dropped) return dropped;
  return state_->database.execute("DELETE FROM collections WHERE id = " + std::to_string(collection_id), doing);
}

// ---- remembered writes ---------------------------------------------------------------------------------------------

Result<std::optional<Store::Remembered>> Store::recall_write(const WriteId& id, int64_t now_us) {
  sqlite::Statement& recall = state_->recall_write;
  sqlite::Reset reset(recall);
  recall.bind_blob(1, view(id));
  recall.bind(2, now_us - int64_t{KALOS_WRITE_ID_KEPT_S} * 1'000'000);
  int code = recall.step();
  if (code == SQLITE_DONE) return std::optional<Remembered>{};
  if (code != SQLITE_ROW) return state_->database.failure("look up an earlier write");
  Remembered answer;
  answer.commit_sequence = static_cast<uint64_t>(recall.integer(0));
  std::string_view reply = recall.bytes(1);
  answer.reply.resize(reply.size());
  if (!reply.empty()) std::memcpy(answer.reply.data(), reply.data(), reply.size());
  return std::optional(std::move(answer));
}

Result<> Store::remember_write(const WriteId& id, const Remembered& answer, int64_t now_us) {
  State& state = *state_;
  constexpr std::string_view doing = "remember a write";
  if (now_us - state.writes_forgotten_us >= kForgetWritesEveryUs || now_us < state.writes_forgotten_us) {
    state.forget_writes.bind(1, now_us - int64_t{KALOS_WRITE_ID_KEPT_S} * 1'000'000);
    if (auto forgotten = run(state.database, state.forget_writes, doing); !forgotten) return forgotten;
    state.writes_forgotten_us = now_us;
  }
  state.remember_write.bind_blob(1, view(id));
  state.remember_write.bind(2, static_cast<int64_t>(answer.commit_sequence));
  state.remember_write.bind_blob(3, view(answer.reply));
  state.remember_write.bind(4, now_us);
  return run(state.database, state.remember_write, doing);
}

}  // namespace kalos
