// The store's reading half: sizes and loading, each over a read-only connection of its own.
#include <cmath>
#include <cstring>

#include "base/failpoint.h"
#include "base/json_check.h"
#include "base/utf8.h"
#include "store/store.h"
#include "store/store_state.h"

namespace kalos {

namespace {

Error damaged_row(const std::string& path, const CollectionInfo& info, int64_t sequence, const std::string& what) {
  return {KALOS_STATUS_STORE_ERROR, "row " + std::to_string(sequence) + " of collection \"" + info.name + "\" in " +
                                        path + " is damaged: " + what + "; put back a backup of the data directory"};
}

// The column order of store_read's SELECT.
enum Column { kSequence, kNamespace, kId, kCreated, kUpdated, kExpires, kText, kMetadata, kVector };

bool well_formed_key(std::string_view key) {
  size_t at = 0, segments = 0;
  while (at < key.size()) {
    if (key.size() - at < 2) return false;
    size_t length = static_cast<uint8_t>(key[at]) << 8 | static_cast<uint8_t>(key[at + 1]);
    at += 2;
    if (length == 0 || length > KALOS_MAX_NAMESPACE_SEGMENT_BYTES || length > key.size() - at) return false;
    if (!valid_utf8(key.substr(at, length)) || ++segments > KALOS_MAX_NAMESPACE_SEGMENTS) return false;
    at += length;
  }
  return true;
}

// What is wrong with a row that no kalosd can have written: bytes that rotted on the disk, or that somebody else's hand
// changed. Empty where nothing is. Whoever serves the row relies on it.
std::string damage_of(const Row& row) {
  if (row.id.empty() || row.id.size() > KALOS_MAX_ID_BYTES || !valid_utf8(row.id)) return "its id is no id";
  if (!well_formed_key(row.namespace_key)) return "its namespace is no namespace";
  if (row.has_text && (row.text.size() > KALOS_MAX_TEXT_BYTES || !valid_utf8(row.text))) return "its text is no text";
  if (row.has_metadata) {
    if (auto checked = check_metadata(row.metadata); !checked) return "its metadata: " + checked.error().words;
  }
  if (row.expires_us < 0 || row.created_us < 0 || row.updated_us < 0) return "a time of it lies before 1970";
  for (float number : row.vector) {
    if (!std::isfinite(number)) return "its vector holds a number that is not finite";
  }
  return {};
}

Result<std::unique_ptr<Row>> read_row(const sqlite::Statement& rows, const CollectionInfo& info,
                                      const std::string& path) {
  auto row = std::make_unique<Row>();
  row->sequence = static_cast<uint64_t>(rows.integer(kSequence));
  row->namespace_key = rows.bytes(kNamespace);
  row->id = rows.bytes(kId);
  row->created_us = rows.integer(kCreated);
  row->updated_us = rows.integer(kUpdated);
  row->expires_us = rows.integer(kExpires);
  row->has_text = !rows.is_null(kText);
  if (row->has_text) row->text = rows.bytes(kText);
  row->has_metadata = !rows.is_null(kMetadata);
  if (row->has_metadata) row->metadata = rows.bytes(kMetadata);
  if (!rows.is_null(kVector)) {
    std::string_view vector = rows.bytes(kVector);
    if (vector.size() != size_t{info.dimension} * sizeof(float)) {
      return damaged_row(path, info, rows.integer(kSequence),
                         "its vector has " + std::to_string(vector.size()) + " bytes, expected " +
                             std::to_string(size_t{info.dimension} * sizeof(float)));
    }
    row->vector.resize(info.dimension);
    std::memcpy(row->vector.data(), vector.data(), vector.size());
  }
  if (std::string damage = damage_of(*row); !damage.empty()) {
    return damaged_row(path, info, rows.integer(kSequence), damage);
  }
  return row;
}

std::string doing_with(std::string_view verb, const CollectionInfo& info) {
  return std::string(verb) + " collection \"" + info.name + "\"";
}

}  // namespace

Result<uint64_t> Store::row_count(const CollectionInfo& info) const {
  auto database = open_for_reading(state_->path);
  if (!database) return database.error();
  auto count = database->query_integer("SELECT count(*) FROM " + rows_table(info.id), doing_with("count", info));
  if (!count) return count.error();
  return static_cast<uint64_t>(*count);
}

Result<Store::CollectionSize> Store::size_of(const CollectionInfo& info) const {
  auto database = open_for_reading(state_->path);
  if (!database) return database.error();
  const std::string doing = doing_with("measure", info);
  // length() of a text counts characters up to a NUL, of a blob it counts bytes.
  auto sums = database->prepare(
      "SELECT count(*), coalesce(sum(length(CAST(id AS BLOB))), 0), coalesce(sum(length(CAST(text AS BLOB))), 0), "
      "coalesce(sum(length(CAST(metadata AS BLOB))), 0) FROM " +
          rows_table(info.id),
      doing);
  if (!sums) return sums.error();
  if (sums->step() != SQLITE_ROW) return database->failure(doing);
  CollectionSize size;
  size.rows = static_cast<uint64_t>(sums->integer(0));
  size.id_bytes = static_cast<uint64_t>(sums->integer(1));
  size.text_bytes = static_cast<uint64_t>(sums->integer(2));
  size.metadata_bytes = static_cast<uint64_t>(sums->integer(3));
  return size;
}

Result<> Store::load(const CollectionInfo& info, std::atomic<uint32_t>& percent,
                     const std::function<bool(std::unique_ptr<Row>)>& take) const {
  auto database = open_for_reading(state_->path);
  if (!database) return database.error();
  const std::string doing = doing_with("load", info);
  if (auto begun = database->execute("BEGIN", doing); !begun) return begun;
  auto total = database->query_integer("SELECT count(*) FROM " + rows_table(info.id), doing);
  if (!total) return total.error();
  auto rows = database->prepare(
      "SELECT sequence, namespace, id, created_us, updated_us, expires_us, text, metadata, vector FROM " +
          rows_table(info.id) + " ORDER BY sequence",
      doing);
  if (!rows) return rows.error();
  int64_t loaded = 0;
  int code;
  while ((code = rows->step()) == SQLITE_ROW) {
    auto row = read_row(*rows, info, state_->path);
    if (!row) return row.error();
    failpoint("load");
    if (!take(std::move(*row))) return Unit{};
    ++loaded;
    if (loaded % 1024 == 0 && *total > 0) percent = static_cast<uint32_t>(loaded * 100 / *total);
  }
  if (code != SQLITE_DONE) return database->failure(doing);
  percent = 100;
  return Unit{};
}

}  // namespace kalos
