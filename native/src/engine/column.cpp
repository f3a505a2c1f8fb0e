#include "engine/column.h"

#include <limits>

namespace kalos {
namespace {

constexpr double no_number = std::numeric_limits<double>::quiet_NaN();

}  // namespace

Column::Cell Column::cell(JsonValue value) {
  if (value.kind == JsonKind::missing) return {missing_code, no_number};
  if (has_numbers_ && value.kind == JsonKind::number) return {number_code, as_double(json_number(value))};
  return {values_.add(value), no_number};
}

void Column::append(std::string_view metadata) {
  codes_.reserve_one();
  if (has_numbers_) numbers_.reserve_one();
  Cell added = cell(field_.find(json_object(metadata)));
  codes_.push(added.code);
  if (has_numbers_) numbers_.push(added.number);
  if (values_.number_count() > most_numbers_in_dictionary) move_numbers();
}

void Column::set(uint32_t row, Cell cell) noexcept {
  codes_.set(row, cell.code);
  if (has_numbers_) numbers_.set(row, cell.number);
}

void Column::remove(uint32_t row) noexcept {
  uint32_t last = size() - 1;
  release(codes_.get(row));
  if (row != last) set(row, {codes_.get(last), has_numbers_ ? numbers_.get(last) : no_number});
  codes_.pop();
  if (has_numbers_) numbers_.pop();
}

void Column::replace(uint32_t row, std::string_view metadata) {
  uint32_t before = codes_.get(row);
  set(row, cell(field_.find(json_object(metadata))));
  release(before);
  if (values_.number_count() > most_numbers_in_dictionary) move_numbers();
}

// Out of the dictionary. Never back: a field with many numbers will have them again.
void Column::move_numbers() {
  for (uint32_t row = 0; row < size(); ++row) {
    uint32_t code = codes_.get(row);
    bool is_number = code >= ValueDictionary::first_code && values_.value(code).kind == JsonKind::number;
    numbers_.push(is_number ? as_double(json_number(values_.value(code))) : no_number);
    if (!is_number) continue;
    codes_.set(row, number_code);
    values_.release(code);
  }
  has_numbers_ = true;
}

}  // namespace kalos
