#include "store/schema.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>

#include "base/failpoint.h"
#include "base/log.h"
#include "store/scrub.h"

namespace kalos {

namespace {

constexpr const char* kSchema = R"sql(
CREATE TABLE meta(key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO meta(key, value) VALUES ('commit_sequence', 0), ('next_row_sequence', 1);
CREATE TABLE collections(
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  name TEXT NOT NULL UNIQUE,
  dimension INTEGER NOT NULL,
  metric INTEGER NOT NULL,
  embedder_name TEXT NOT NULL,
  embedder_fingerprint TEXT NOT NULL,
  created_us INTEGER NOT NULL);
CREATE TABLE write_ids(
  write_id BLOB PRIMARY KEY,
  commit_sequence INTEGER NOT NULL,
  reply BLOB NOT NULL,
  created_us INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX write_ids_by_time ON write_ids(created_us);
)sql";

Error file_error(const std::string& doing, const std::string& path, int code) {
  return {KALOS_STATUS_STORE_ERROR, "cannot " + doing + " " + path + ": " + std::strerror(code) +
                                        "; check the path, its permissions and the space on its file system"};
}

// So that a name made in it survives a power cut. A file system that cannot do it has nothing to lose by it.
void flush_directory(const std::string& directory) {
  int fd = open(directory.empty() ? "." : directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  fsync(fd);
  close(fd);
}

// Copies the file beside itself before a migration touches it: "kalos.db.v1".
Result<> copy_beside(sqlite::Connection& connection, int32_t version) {
  std::string target = connection.path() + ".v" + std::to_string(version);
  std::string partial = target + ".partial";
  unlink(partial.c_str());
  // Made here because VACUUM INTO would make it with the umask's mode.
  int file = open(partial.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
  if (file < 0) return file_error("create the copy", partial, errno);
  std::string quoted;
  for (char letter : partial) quoted.append(letter == '\'' ? 2 : 1, letter);
  auto copied = connection.execute("VACUUM INTO '" + quoted + "'", "copy the store before its migration");
  bool durable = copied && fsync(file) == 0 && rename(partial.c_str(), target.c_str()) == 0;
  int code = errno;
  close(file);
  if (!copied) unlink(partial.c_str());
  if (!copied) return copied.error();
  if (!durable) return file_error("write the copy", target, code);
  flush_directory(std::filesystem::path(target).parent_path().string());
  return Unit{};
}

Result<> migrate(sqlite::Connection& connection, int32_t from, int32_t to, const std::vector<Migration>& migrations) {
  std::string sql = "BEGIN IMMEDIATE;";
  int32_t version = from;
  for (const Migration& migration : migrations) {
    if (migration.from_version != version) continue;
    sql += migration.sql + ";";
    ++version;
  }
  if (version != to) {
    return Error{KALOS_STATUS_STORE_ERROR, "the store " + connection.path() + " has version " + std::to_string(from) +
                                               ", which this kalosd (version " + std::to_string(to) +
                                               ") no longer knows how to migrate; open it with an older kalosd first"};
  }
  if (auto copied = copy_beside(connection, from); !copied) return copied;
  failpoint("migration_copied");
  log(LogLevel::info, "the store is migrated from version " + std::to_string(from) + " to " + std::to_string(to) +
                          "; as it was it lies beside, delete that file when it is no longer wanted: " +
                          connection.path() + ".v" + std::to_string(from));
  sql += "PRAGMA user_version = " + std::to_string(to);
  const std::string doing =
      "migrate the store from version " + std::to_string(from) + " to " + std::to_string(to) + "; it is unchanged";
  auto done = connection.execute(sql, doing);
  if (done) {
    failpoint("migration_done");
    done = connection.execute("COMMIT", doing);
  }
  if (!done && sqlite3_get_autocommit(connection.handle()) == 0) {
    sqlite3_exec(connection.handle(), "ROLLBACK", nullptr, nullptr, nullptr);
  }
  return done;
}

Result<> create(sqlite::Connection& connection, uint32_t page_bytes, int32_t version) {
  constexpr std::string_view doing = "create the store";
  auto sized = connection.execute("PRAGMA page_size = " + std::to_string(page_bytes), doing);
  if (!sized) return sized;
  // A file in WAL mode from its first page on; the identity and the tables come in one transaction. EXTRA, because going
  // over to WAL leaves a rollback journal to be deleted: were the deletion lost in a power cut, however much later, the
  // journal would come back and empty the store.
  auto mode =
      connection.execute("PRAGMA synchronous = EXTRA; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL", doing);
  if (!mode) return mode;
  std::string sql = "BEGIN IMMEDIATE; PRAGMA application_id = " + std::to_string(kStoreApplicationId) + ";" + kSchema +
                    "PRAGMA user_version = " + std::to_string(version) + "; COMMIT";
  return connection.execute(sql, doing);
}

// Is the file ours, and of which version? 0: it is empty. Changes nothing.
Result<int32_t> recognise(sqlite::Connection& connection, int32_t version) {
  constexpr std::string_view doing = "read the store's header";
  auto application = connection.query_integer("PRAGMA application_id", doing);
  if (!application) return application.error();
  auto found = connection.query_integer("PRAGMA user_version", doing);
  if (!found) return found.error();
  auto tables = connection.query_integer("SELECT count(*) FROM sqlite_master", doing);
  if (!tables) return tables.error();
  if (*application == 0 && *found == 0 && *tables == 0) return 0;
  if (*application != kStoreApplicationId) {
    char id[16];
    std::snprintf(id, sizeof id, "0x%08X", static_cast<unsigned>(*application));
    return Error{KALOS_STATUS_STORE_ERROR, connection.path() +
                                               " is a SQLite file, but not one of Kalos (application_id " + id +
                                               ", expected 0x4B414C4F); choose another data directory or move the "
                                               "file aside"};
  }
  if (*found > version) {
    return Error{KALOS_STATUS_STORE_ERROR, "the store " + connection.path() + " has version " + std::to_string(*found) +
                                               ", this kalosd knows versions up to " + std::to_string(version) +
                                               "; install a newer kalosd"};
  }
  return static_cast<int32_t>(*found);
}

Result<> set_up(sqlite::Connection& connection) {
  // wal_autocheckpoint is off because a failed checkpoint must not look like a failed commit: the writer does its own.
  constexpr const char* pragmas =
      "PRAGMA trusted_schema = OFF; PRAGMA foreign_keys = ON; PRAGMA secure_delete = ON; PRAGMA temp_store = MEMORY;"
      "PRAGMA cache_size = -65536; PRAGMA journal_size_limit = 67108864; PRAGMA wal_autocheckpoint = 0;"
      "PRAGMA synchronous = FULL;";
  return connection.execute(pragmas, "set up the store");
}

}  // namespace

const std::vector<Migration>& store_migrations() {
  static const std::vector<Migration> none;
  return none;
}

std::string rows_table(uint64_t collection_id) { return "rows_" + std::to_string(collection_id); }

std::string create_rows_table(uint64_t collection_id) {
  // The vector comes last: whoever wants the other columns of a wide row does not walk through its pages.
  return "CREATE TABLE " + rows_table(collection_id) +
         "(sequence INTEGER PRIMARY KEY, namespace BLOB NOT NULL, id TEXT NOT NULL, created_us INTEGER NOT NULL, "
         "updated_us INTEGER NOT NULL, expires_us INTEGER NOT NULL, text TEXT, metadata TEXT, vector BLOB, "
         "UNIQUE(namespace, id))";
}

Result<> make_private_file(const std::string& data_dir, const std::string& path) {
  std::string parent;
  std::error_code ignored;
  for (const auto& part : std::filesystem::path(data_dir)) {
    parent = (std::filesystem::path(parent) / part).string();
    if (parent.empty() || std::filesystem::exists(parent, ignored)) continue;
    if (mkdir(parent.c_str(), 0700) != 0 && errno != EEXIST) return file_error("create the directory", parent, errno);
    flush_directory(std::filesystem::path(parent).parent_path().string());
  }
  // SQLite gives the log and the index beside it the mode of the file.
  int file = open(path.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
  if (file >= 0) {
    close(file);
    flush_directory(data_dir);
    return Unit{};
  }
  if (errno != EEXIST) return file_error("create the store", path, errno);
  struct stat status;
  if (stat(path.c_str(), &status) != 0) return file_error("open the store", path, errno);
  if ((status.st_mode & 0077) != 0) chmod(path.c_str(), status.st_mode & 0700);
  return Unit{};
}

Result<sqlite::Connection> open_for_writing(const std::string& path, uint32_t page_bytes, int32_t version,
                                            const std::vector<Migration>& migrations) {
  auto connection = sqlite::Connection::open(path, SQLITE_OPEN_READWRITE, scrubbing_vfs());
  if (!connection) return connection;
  // Before anything is written, so that a file of somebody else stays as it is.
  auto found = recognise(*connection, version);
  if (!found) return found.error();
  if (sqlite3_db_readonly(connection->handle(), "main") == 1) {
    return Error{KALOS_STATUS_STORE_ERROR,
                 "the store " + path +
                     " cannot be written: the file or its file system is read-only; give this "
                     "user write access, or choose another data directory"};
  }
  if (auto set = set_up(*connection); !set) return set.error();
  if (*found == 0) {
    if (auto created = create(*connection, page_bytes, version); !created) return created.error();
  } else {
    if (auto mode = connection->execute("PRAGMA journal_mode = WAL", "open the store"); !mode) return mode.error();
    if (*found < version) {
      if (auto migrated = migrate(*connection, *found, version, migrations); !migrated) return migrated.error();
    }
  }
  return connection;
}

Result<sqlite::Connection> open_for_reading(const std::string& path) {
  auto connection = sqlite::Connection::open(path, SQLITE_OPEN_READONLY);
  if (!connection) return connection;
  auto set = connection->execute("PRAGMA trusted_schema = OFF; PRAGMA query_only = ON; PRAGMA cache_size = -4096;",
                                 "set up the store for reading");
  if (!set) return set.error();
  return connection;
}

}  // namespace kalos
