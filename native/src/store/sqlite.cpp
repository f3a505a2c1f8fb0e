#include "store/sqlite.h"

#include <cstring>

namespace kalos::sqlite {

namespace {

// What a person can do about it. Empty: nothing more specific than trying again.
std::string_view advice(int code) {
  switch (code & 0xff) {
    case SQLITE_FULL:
      return "free some space on that file system and try again";
    case SQLITE_IOERR:
      return "look at the disk and the system's log, then try again";
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return "the file is damaged: put back a backup, or move it aside to begin with an empty store";
    case SQLITE_READONLY:
    case SQLITE_PERM:
    case SQLITE_CANTOPEN:
    case SQLITE_AUTH:
      return "check that the data directory exists and that this user may write in it";
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return "another program holds the file: close it and try again";
    case SQLITE_NOMEM:
      return "memory is short: close other programs or give this one more";
    default:
      return "";
  }
}

}  // namespace

Result<Connection> Connection::open(const std::string& path, int flags, const char* vfs) {
  Connection connection;
  connection.path_ = path;
  sqlite3* handle = nullptr;
  int code = sqlite3_open_v2(path.c_str(), &handle, flags | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE, vfs);
  connection.database_.reset(handle);
  if (handle == nullptr) return Error{KALOS_STATUS_STORE_ERROR, "cannot open the store " + path + ": out of memory"};
  if (code != SQLITE_OK) return connection.failure("open the store");
  sqlite3_busy_timeout(handle, 5000);
  return connection;
}

Error Connection::failure(std::string_view doing) const {
  sqlite3* handle = database_.get();
  int code = sqlite3_extended_errcode(handle);
  std::string words = "cannot ";
  words.append(doing).append(" (").append(path_).append("): ");
  words += code == SQLITE_FULL ? "the disk is full" : sqlite3_errmsg(handle);
  int system_error = sqlite3_system_errno(handle);
  bool from_system = (code & 0xff) == SQLITE_IOERR || (code & 0xff) == SQLITE_CANTOPEN || (code & 0xff) == SQLITE_FULL;
  if (from_system && system_error != 0) words.append(", ").append(std::strerror(system_error));
  if (std::string_view hint = advice(code); !hint.empty()) words.append("; ").append(hint);
  bool no_memory = (code & 0xff) == SQLITE_NOMEM;
  return {no_memory ? KALOS_STATUS_OVERLOADED : KALOS_STATUS_STORE_ERROR, std::move(words)};
}

Result<> Connection::execute(const std::string& sql, std::string_view doing) {
  if (sqlite3_exec(database_.get(), sql.c_str(), nullptr, nullptr, nullptr) != SQLITE_OK) return failure(doing);
  return Unit{};
}

Result<Statement> Connection::prepare(const std::string& sql, std::string_view doing) {
  sqlite3_stmt* raw = nullptr;
  int code = sqlite3_prepare_v3(database_.get(), sql.c_str(), static_cast<int>(sql.size()), SQLITE_PREPARE_PERSISTENT,
                                &raw, nullptr);
  if (code != SQLITE_OK) return failure(doing);
  Statement statement;
  statement.statement_.reset(raw);
  return statement;
}

Result<int64_t> Connection::query_integer(const std::string& sql, std::string_view doing) {
  auto statement = prepare(sql, doing);
  if (!statement) return statement.error();
  if (statement->step() != SQLITE_ROW) return failure(doing);
  return statement->integer(0);
}

}  // namespace kalos::sqlite
