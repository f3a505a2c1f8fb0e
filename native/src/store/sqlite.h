// A thin skin over SQLite: a connection, a prepared statement, and failures in words.
//
// Text and blobs are bound and read with explicit lengths, so that a NUL inside survives. Nothing here knows of Kalos.
#pragma once

#include <sqlite3.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"

namespace kalos::sqlite {

class Connection;

// A prepared statement. Step it until it is done or reset it: one left in the middle holds locks.
class Statement {
 public:
  Statement() = default;

  explicit operator bool() const { return statement_ != nullptr; }

  // Bound bytes are not copied: they must live until the next reset.
  void bind(int parameter, int64_t value) { sqlite3_bind_int64(statement_.get(), parameter, value); }
  void bind_text(int parameter, std::string_view text) {
    sqlite3_bind_text64(statement_.get(), parameter, text.data() == nullptr ? "" : text.data(), text.size(),
                        SQLITE_STATIC, SQLITE_UTF8);
  }
  void bind_blob(int parameter, std::string_view bytes) {
    sqlite3_bind_blob64(statement_.get(), parameter, bytes.data() == nullptr ? "" : bytes.data(), bytes.size(),
                        SQLITE_STATIC);
  }
  void bind_null(int parameter) { sqlite3_bind_null(statement_.get(), parameter); }

  int step() { return sqlite3_step(statement_.get()); }
  void reset() { sqlite3_reset(statement_.get()); }

  bool is_null(int column) const { return type(column) == SQLITE_NULL; }
  int type(int column) const { return sqlite3_column_type(statement_.get(), column); }
  int64_t integer(int column) const { return sqlite3_column_int64(statement_.get(), column); }
  // Valid until the next step or reset.
  std::string_view bytes(int column) const {
    const void* data = sqlite3_column_blob(statement_.get(), column);
    return {static_cast<const char*>(data), static_cast<size_t>(sqlite3_column_bytes(statement_.get(), column))};
  }

 private:
  friend class Connection;
  struct Finalize {
    void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
  };
  std::unique_ptr<sqlite3_stmt, Finalize> statement_;
};

// Resets a statement at the end of a scope, whatever way it is left.
class Reset {
 public:
  explicit Reset(Statement& statement) : statement_(statement) {}
  ~Reset() { statement_.reset(); }
  Reset(const Reset&) = delete;
  Reset& operator=(const Reset&) = delete;

 private:
  Statement& statement_;
};

// One connection, used by one thread at a time.
class Connection {
 public:
  Connection() = default;

  // flags: SQLITE_OPEN_READONLY, or SQLITE_OPEN_READWRITE with or without SQLITE_OPEN_CREATE. vfs: the file layer.
  static Result<Connection> open(const std::string& path, int flags, const char* vfs = nullptr);

  sqlite3* handle() const { return database_.get(); }
  const std::string& path() const { return path_; }

  Result<> execute(const std::string& sql, std::string_view doing);
  // The first column of the first row as a number.
  Result<int64_t> query_integer(const std::string& sql, std::string_view doing);
  Result<Statement> prepare(const std::string& sql, std::string_view doing);

  // The last failure of this connection as a STORE_ERROR (OVERLOADED where it was no memory): what was being done, the
  // file, the cause, what to do.
  Error failure(std::string_view doing) const;

 private:
  struct Close {
    void operator()(sqlite3* database) const { sqlite3_close_v2(database); }
  };
  std::unique_ptr<sqlite3, Close> database_;
  std::string path_;
};

}  // namespace kalos::sqlite
