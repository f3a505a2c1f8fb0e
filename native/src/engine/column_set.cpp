#include "engine/column_set.h"

#include <algorithm>
#include <new>

#include "engine/pass.h"

namespace kalos {
namespace {

constexpr size_t most_columns = 64;  // no filter names more fields
constexpr size_t most_refused = 64;
constexpr size_t most_masks = 8;
constexpr size_t longest_filter = 65536;  // of which the mask is kept
constexpr uint64_t fewest_writes_to_drop = 1024;
constexpr uint32_t rows_between_counts = 1024;

struct KeptMask {
  std::string filter;
  FilterMask mask;

  uint64_t bytes() const { return sizeof(KeptMask) + filter.capacity() + mask.words.capacity() * sizeof(uint64_t); }
};

// A field whose column did not fit when the table had so many rows.
struct Refused {
  std::string field;
  uint32_t rows = 0;

  bool still(uint32_t now) const { return now / 2 < rows && rows / 2 < now; }
};

}  // namespace

struct ColumnSet::State {
  std::vector<std::unique_ptr<Column>> columns;
  std::vector<Refused> refused;
  std::vector<KeptMask> masks;  // the one asked last first
  std::list<ColumnSet*>::iterator place;
  uint64_t bytes = 0;  // as ColumnMemory has counted them
};

ColumnSet::ColumnSet(ColumnMemory& memory) : memory_(memory) {}
ColumnSet::~ColumnSet() { drop(); }

// ---- memory --------------------------------------------------------------------------------------------------------

void ColumnMemory::drop_all() noexcept {
  while (!sets_.empty()) sets_.back()->drop();
}

void ColumnMemory::make_room() noexcept {
  for (auto at = sets_.end(); over() && at != sets_.begin();) {
    ColumnSet& set = **--at;
    while (over() && set.drop_oldest()) continue;
  }
}

void ColumnSet::count() noexcept {
  uint64_t bytes = sizeof(State) + sizeof(ColumnSet*) * 4;
  for (const auto& column : state_->columns) bytes += column->bytes();
  for (const KeptMask& kept : state_->masks) bytes += kept.bytes();
  memory_.bytes_ += bytes - state_->bytes;
  state_->bytes = bytes;
}

void ColumnSet::drop() noexcept {
  if (!state_) return;
  memory_.bytes_ -= state_->bytes;
  memory_.sets_.erase(state_->place);
  state_.reset();
}

// The column used longest ago, unless the filter at hand uses it; false: there is none.
bool ColumnSet::drop_oldest() noexcept {
  auto& columns = state_->columns;
  auto oldest = std::min_element(columns.begin(), columns.end(),
                                 [](const auto& a, const auto& b) { return a->used_at < b->used_at; });
  if (oldest == columns.end() || (*oldest)->used_at == memory_.uses_) return false;
  columns.erase(oldest);
  drop_masks();
  return true;
}

void ColumnSet::drop_masks() noexcept {
  state_->masks.clear();
  count();
}

// ---- writes --------------------------------------------------------------------------------------------------------

void ColumnSet::drop_unworthy(uint32_t rows) noexcept {
  ++memory_.uses_;  // no filter is at hand
  uint64_t most_writes = std::max<uint64_t>(rows, fewest_writes_to_drop);
  std::erase_if(state_->columns, [&](const auto& column) { return ++column->writes_since_use > most_writes; });
  state_->masks.clear();
  count();
  if (memory_.over()) memory_.make_room();
}

void ColumnSet::follow_append(const RowTable& rows) noexcept {
  uint32_t row = rows.size() - 1;
  std::erase_if(state_->columns, [&](const auto& column) {
    if (column->size() != row) return false;  // still being built: it will come to this row
    try {
      column->append(rows.entry(row).record->metadata());
      return false;
    } catch (const std::bad_alloc&) {
      return true;
    }
  });
  drop_unworthy(rows.size());
}

void ColumnSet::follow_remove(const RowTable& rows, uint32_t row) noexcept {
  uint32_t last = rows.size() - 1;
  if (last == 0) return drop();
  std::erase_if(state_->columns, [&](const auto& column) {
    if (row >= column->size()) return false;
    if (column->size() == rows.size()) {
      column->remove(row);
      return false;
    }
    try {  // still being built: the last row is not in it yet
      column->replace(row, rows.entry(last).record->metadata());
      return false;
    } catch (const std::bad_alloc&) {
      return true;
    }
  });
  drop_unworthy(last);
}

// ---- reads ---------------------------------------------------------------------------------------------------------

void ColumnSet::begin_use() {
  if (!state_) {
    auto state = std::make_unique<State>();
    memory_.sets_.push_front(this);
    state->place = memory_.sets_.begin();
    state_ = std::move(state);
    count();
  }
  memory_.sets_.splice(memory_.sets_.begin(), memory_.sets_, state_->place);
  ++memory_.uses_;
}

const Column* ColumnSet::column(const JsonPath& field, const RowTable& rows, BuildBounds& bounds) {
  auto& columns = state_->columns;
  auto at = std::find_if(columns.begin(), columns.end(),
                         [&](const auto& column) { return column->field().name() == field.name(); });
  if (at == columns.end()) {
    auto& refused = state_->refused;
    std::erase_if(refused, [&](const Refused& one) { return !one.still(rows.size()); });
    for (const Refused& one : refused) {
      if (one.field == field.name()) return nullptr;
    }
    if (columns.size() >= most_columns && !drop_oldest()) return nullptr;
    columns.push_back(std::make_unique<Column>(field));
    at = columns.end() - 1;
  }
  Column& column = **at;
  column.used_at = memory_.uses_;
  column.writes_since_use = 0;
  if (build(column, rows, bounds)) return column.size() == rows.size() ? &column : nullptr;
  std::erase_if(columns, [&](const auto& one) { return one.get() == &column; });
  count();
  if (state_->refused.size() >= most_refused) state_->refused.erase(state_->refused.begin());
  state_->refused.push_back({field.name(), rows.size()});
  return nullptr;
}

// Reads rows until the column has all or the bounds are reached. False: it does not fit.
bool ColumnSet::build(Column& column, const RowTable& rows, BuildBounds& bounds) {
  if (column.size() == rows.size()) return true;
  try {
    for (size_t chunk = 0; chunk < rows.run_count(); ++chunk) {
      RowTable::Run run = rows.run(chunk);
      while (column.size() >= run.first && column.size() - run.first < run.count) {
        bounds.reached = bounds.rows == 0 || bounds.deadline.passed_after(rows_a_filter_costs);
        if (bounds.reached) {
          count();
          return true;
        }
        --bounds.rows;
        column.append(run.entries[column.size() - run.first].record->metadata());
        if (column.size() % rows_between_counts != 0 && column.size() != rows.size()) continue;
        count();
        if (memory_.over()) memory_.make_room();
        if (memory_.over()) return false;
      }
    }
  } catch (const std::bad_alloc&) {
    return false;
  }
  return true;
}

const FilterMask* ColumnSet::find_mask(std::string_view filter) {
  if (!state_) return nullptr;
  auto& masks = state_->masks;
  for (auto at = masks.begin(); at != masks.end(); ++at) {
    if (at->filter != filter) continue;
    std::rotate(masks.begin(), at, at + 1);
    return &masks.front().mask;
  }
  return nullptr;
}

void ColumnSet::keep_mask(std::string_view filter, const FilterMask& mask) {
  if (filter.size() > longest_filter) return;
  auto& masks = state_->masks;
  if (masks.size() >= most_masks) masks.pop_back();
  masks.insert(masks.begin(), {std::string(filter), mask});
  count();
  if (memory_.over()) drop_masks();
}

}  // namespace kalos
