#include "engine/filter_mask.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "engine/filter_tree.h"
#include "engine/mask_kernels.h"

namespace kalos {
namespace {

using Words = std::vector<uint64_t>;

constexpr double two_to_53 = 9007199254740992.0;
// As many loops over codes are faster than looking verdicts up.
constexpr size_t most_codes_to_compare = 4;
// Deadline: a word of a column is worth as much as this many rows of plain work.
constexpr uint64_t rows_a_word_costs = 1;

bool is_group(const FilterNode& node) {
  return node.op == FilterOp::all || node.op == FilterOp::any || node.op == FilterOp::none;
}

uint64_t count_ones(const Words& words) {
  uint64_t ones = 0;
  for (uint64_t word : words) ones += uint64_t(std::popcount(word));
  return ones;
}

// Operators whose answer is that of another one, turned round: $ne and $nin.
FilterOp positive(FilterOp op) {
  if (op == FilterOp::ne) return FilterOp::eq;
  return op == FilterOp::nin ? FilterOp::in : op;
}

void invert(Words& words) {
  for (uint64_t& word : words) word = ~word;
}

// The evaluation of one filter over one table. Every function answers false once the deadline has passed.
//
// `care` says for which rows the answer matters; others may come out anyhow. Rows are asked only where it does.
class Evaluation {
 public:
  Evaluation(const FilterTree& tree, const std::vector<const Column*>& columns, const RowTable& rows,
             Deadline& deadline)
      : tree_(tree),
        columns_(columns),
        rows_(rows),
        deadline_(deadline),
        word_count_((size_t{rows.size()} + 63) / 64) {}

  bool run(Words& mask) {
    Words everyone(word_count_, ~uint64_t{0});
    if (rows_.size() % 64 != 0) everyone.back() = (uint64_t{1} << rows_.size() % 64) - 1;
    if (!evaluate(tree_.root, everyone, mask)) return false;
    for (size_t w = 0; w < word_count_; ++w) mask[w] &= everyone[w];
    return true;
  }

 private:
  bool evaluate(const FilterNode& node, const Words& care, Words& mask) {
    switch (node.op) {
      case FilterOp::all:
        return all(node, care, mask);
      case FilterOp::any:
        return any(node, care, mask);
      case FilterOp::none:
        if (!any(node, care, mask)) return false;
        invert(mask);
        return true;
      default:
        return leaf(node, care, mask);
    }
  }

  bool all(const FilterNode& node, const Words& care, Words& mask) {
    if (node.children.size() == 1) return evaluate(node.children[0], care, mask);
    mask = care;
    Words part;
    for (const FilterNode* child : cheapest_first(node)) {
      if (!evaluate(*child, mask, part)) return false;
      for (size_t w = 0; w < word_count_; ++w) mask[w] &= part[w];
    }
    return true;
  }

  bool any(const FilterNode& node, const Words& care, Words& mask) {
    if (node.children.size() == 1) return evaluate(node.children[0], care, mask);
    mask.assign(word_count_, 0);
    Words open = care, part;
    for (const FilterNode* child : cheapest_first(node)) {
      if (!evaluate(*child, open, part)) return false;
      for (size_t w = 0; w < word_count_; ++w) {
        mask[w] |= part[w] & open[w];
        open[w] &= ~part[w];
      }
    }
    return true;
  }

  // Those that ask rows come last, when fewer rows are left to ask.
  std::vector<const FilterNode*> cheapest_first(const FilterNode& node) const {
    std::vector<const FilterNode*> children;
    for (const FilterNode& child : node.children) children.push_back(&child);
    std::stable_sort(children.begin(), children.end(),
                     [&](const FilterNode* a, const FilterNode* b) { return cost(*a) < cost(*b); });
    return children;
  }

  uint64_t cost(const FilterNode& node) const {
    uint64_t sum = 0;
    for (const FilterNode& child : node.children) sum += cost(child);
    if (is_group(node)) return sum;
    const Column* column = columns_[node.field];
    return column ? column->values().size() + 1 : uint64_t{2} * rows_.size() + 1;
  }

  bool leaf(const FilterNode& node, const Words& care, Words& mask) {
    const Column* column = columns_[node.field];
    mask.assign(word_count_, 0);
    if (!column) {
      mask = care;
      return ask_rows(node, false, mask);
    }
    FilterOp op = positive(node.op);
    bool turned = op != node.op;
    Words ties;
    if (column->has_numbers()) numbers(node, op, *column, mask, ties);
    bool in_time = op == FilterOp::eq || op == FilterOp::in ? named_codes(node, op, *column, mask)
                                                            : judged_codes(node, *column, care, mask);
    if (!in_time || deadline_.passed_after(word_count_ * rows_a_word_costs)) return false;
    if (!ties.empty()) {
      for (size_t w = 0; w < word_count_; ++w) ties[w] &= care[w] & ~mask[w];
      if (!ask_rows(node, turned, ties)) return false;
      for (size_t w = 0; w < word_count_; ++w) mask[w] |= ties[w];
    }
    if (turned) invert(mask);
    return true;
  }

  // Leaves of the rows in the mask those that match (turned: that do not).
  bool ask_rows(const FilterNode& node, bool turned, Words& mask) {
    for (size_t w = 0; w < word_count_; ++w) {
      for (uint64_t left = mask[w]; left != 0; left &= left - 1) {
        auto row = uint32_t(w * 64 + size_t(std::countr_zero(left)));
        JsonValue value = tree_.fields[node.field].find(json_object(rows_.entry(row).record->metadata()));
        if (matches_value(node, value, scratch_) == turned) mask[w] &= ~(left & -left);
        if (deadline_.passed_after(rows_a_filter_costs)) return false;
      }
    }
    return true;
  }

  // ---- numbers in the column ----

  // Adds the rows whose number matches for sure; ties: rows that must be asked.
  void numbers(const FilterNode& node, FilterOp op, const Column& column, Words& mask, Words& ties) {
    if (op == FilterOp::in) return numbers_in(node, column, mask, ties);
    if (node.operand.value.kind != JsonKind::number) return;
    double x = as_double(node.operand.number);
    auto compare = [&](Comparison comparison, Words& to) {
      column.numbers().for_each_chunk([&](const double* numbers, size_t first, size_t words) {
        mask_numbers(numbers, words, comparison, x, &to[first]);
      });
    };
    // Below 2^53 nothing is rounded, so that equal is equal.
    bool exact = std::abs(x) < two_to_53;
    if (!exact) ties.assign(word_count_, 0);
    switch (op) {
      case FilterOp::eq:
        return compare(Comparison::equal, exact ? mask : ties);
      case FilterOp::gt:
      case FilterOp::gte:
        compare(exact && op == FilterOp::gte ? Comparison::greater_or_equal : Comparison::greater, mask);
        break;
      case FilterOp::lt:
      case FilterOp::lte:
        compare(exact && op == FilterOp::lte ? Comparison::less_or_equal : Comparison::less, mask);
        break;
      default:
        return ties.clear();
    }
    if (!exact) compare(Comparison::equal, ties);
  }

  void numbers_in(const FilterNode& node, const Column& column, Words& mask, Words& ties) {
    std::vector<double> exact, rounded;
    auto take = [&](const JsonNumber& number) {
      double x = as_double(number);
      (std::abs(x) < two_to_53 ? exact : rounded).push_back(x);
    };
    for (const FilterOperand& operand : node.values) {
      if (operand.value.kind == JsonKind::number) take(operand.number);
    }
    for (const std::string& canonical : node.canonical) {
      if (auto number = number_of_canonical(canonical)) take(*number);
    }
    auto find = [&](std::vector<double>& wanted, Words& to) {
      if (wanted.empty()) return;
      to.resize(word_count_);
      bool compare = wanted.size() <= most_codes_to_compare;
      NumberSet set(compare ? std::vector<double>() : std::move(wanted));
      column.numbers().for_each_chunk([&](const double* numbers, size_t first, size_t words) {
        if (!compare) return mask_numbers_in(numbers, words, set, &to[first]);
        for (double x : wanted) mask_numbers(numbers, words, Comparison::equal, x, &to[first]);
      });
    };
    find(exact, mask);
    find(rounded, ties);
  }

  // ---- codes ----

  // $eq, $in: the values are known, and so their codes.
  bool named_codes(const FilterNode& node, FilterOp op, const Column& column, Words& mask) {
    std::vector<uint32_t> codes;
    auto find = [&](std::string_view canonical) {
      if (uint32_t code = column.values().find(canonical)) codes.push_back(code);
    };
    auto find_value = [&](const FilterOperand& operand) {
      scratch_.clear();
      append_canonical(operand.value, scratch_);
      find(scratch_);
    };
    if (op == FilterOp::eq) find_value(node.operand);
    for (const FilterOperand& operand : node.values) find_value(operand);
    for (const std::string& canonical : node.canonical) find(canonical);
    if (codes.size() <= most_codes_to_compare) {
      for (uint32_t code : codes) add_code(column, code, mask);
      return true;
    }
    verdicts_.assign(column.values().end_code(), 0);
    for (uint32_t code : codes) verdicts_[code] = 1;
    add_verdicts(column, mask);
    return true;
  }

  // The others: each distinct value is asked, or each row where few matter.
  bool judged_codes(const FilterNode& node, const Column& column, const Words& care, Words& mask) {
    const ValueDictionary& values = column.values();
    bool wants_numbers = node.op == FilterOp::exists && node.operand.value.is_true();
    if (count_ones(care) < values.size() / 2) return judged_rows(node, column, wants_numbers, care, mask);
    verdicts_.assign(values.end_code(), 0);
    verdicts_[Column::missing_code] = matches_value(node, {}, scratch_);
    verdicts_[Column::number_code] = wants_numbers;
    std::vector<uint32_t> yes, no;
    for (uint32_t code = 0; code < values.end_code(); ++code) {
      if (code >= ValueDictionary::first_code) {
        if (!values.has(code)) continue;
        verdicts_[code] = matches_value(node, values.value(code), scratch_);
        if (deadline_.passed_after(rows_a_filter_costs)) return false;
      } else if (code == Column::number_code && !column.has_numbers()) {
        continue;
      }
      auto& side = verdicts_[code] ? yes : no;
      if (side.size() <= most_codes_to_compare) side.push_back(code);
    }
    if (yes.size() <= most_codes_to_compare) {
      for (uint32_t code : yes) add_code(column, code, mask);
    } else if (no.size() <= most_codes_to_compare && !column.has_numbers()) {
      // What is not among these: the mask is empty so far, and is turned round.
      for (uint32_t code : no) add_code(column, code, mask);
      invert(mask);
    } else {
      add_verdicts(column, mask);
    }
    return true;
  }

  bool judged_rows(const FilterNode& node, const Column& column, bool wants_numbers, const Words& care, Words& mask) {
    const ValueDictionary& values = column.values();
    for (size_t w = 0; w < word_count_; ++w) {
      for (uint64_t left = care[w]; left != 0; left &= left - 1) {
        uint32_t code = column.codes().get(uint32_t(w * 64 + size_t(std::countr_zero(left))));
        bool matches = wants_numbers;
        if (code != Column::number_code) {
          matches = matches_value(node, code == Column::missing_code ? JsonValue{} : values.value(code), scratch_);
        }
        if (matches) mask[w] |= left & -left;
        if (deadline_.passed_after(rows_a_filter_costs)) return false;
      }
    }
    return true;
  }

  void add_code(const Column& column, uint32_t code, Words& mask) {
    column.codes().for_each_chunk(
        [&](const uint32_t* codes, size_t first, size_t words) { mask_code(codes, words, code, &mask[first]); });
  }

  void add_verdicts(const Column& column, Words& mask) {
    column.codes().for_each_chunk([&](const uint32_t* codes, size_t first, size_t words) {
      mask_verdicts(codes, words, verdicts_.data(), &mask[first]);
    });
  }

  const FilterTree& tree_;
  const std::vector<const Column*>& columns_;  // by field; null: the rows are asked
  const RowTable& rows_;
  Deadline& deadline_;
  size_t word_count_;
  std::vector<uint8_t> verdicts_;  // by code
  std::string scratch_;
};

// The same by asking every row.
bool ask_all(Filter& filter, const RowTable& rows, Deadline& deadline, Words& mask) {
  mask.assign((size_t{rows.size()} + 63) / 64, 0);
  for (size_t chunk = 0; chunk < rows.run_count(); ++chunk) {
    RowTable::Run run = rows.run(chunk);
    for (uint32_t i = 0; i < run.count; ++i) {
      uint32_t row = run.first + i;
      if (filter.matches(run.entries[i].record->metadata())) mask[row / 64] |= uint64_t{1} << row % 64;
      if (deadline.passed_after(rows_a_filter_costs)) return false;
    }
  }
  return true;
}

// The columns of the filter's fields; false: the bounds were reached.
bool find_columns(const Filter& filter, ColumnSet& set, const RowTable& rows, BuildBounds& bounds,
                  std::vector<const Column*>& columns) {
  set.begin_use();
  for (const JsonPath& field : filter.tree().fields) {
    columns.push_back(set.column(field, rows, bounds));
    if (bounds.reached) return false;
  }
  return true;
}

}  // namespace

bool build_columns(const Filter& filter, ColumnSet& set, const RowTable& rows, uint64_t most_rows) {
  if (rows.size() < fewest_rows_for_columns) return true;
  Deadline none(0);
  BuildBounds bounds{none, most_rows};
  std::vector<const Column*> columns;
  return find_columns(filter, set, rows, bounds, columns);
}

Result<FilterMask> match_rows(Filter& filter, ColumnSet& set, const RowTable& rows, Deadline& deadline) {
  FilterMask mask;
  bool in_time = true;
  if (rows.size() < fewest_rows_for_columns) {
    in_time = ask_all(filter, rows, deadline, mask.words);
  } else if (const FilterMask* kept = set.find_mask(filter.tree().text)) {
    return *kept;
  } else {
    BuildBounds bounds{deadline};
    std::vector<const Column*> columns;
    if (!find_columns(filter, set, rows, bounds, columns)) return expired_error();
    bool any = std::any_of(columns.begin(), columns.end(), [](const Column* column) { return column != nullptr; });
    in_time = any || columns.empty() ? Evaluation(filter.tree(), columns, rows, deadline).run(mask.words)
                                     : ask_all(filter, rows, deadline, mask.words);
  }
  if (!in_time) return expired_error();
  mask.matches = count_ones(mask.words);
  if (rows.size() >= fewest_rows_for_columns) set.keep_mask(filter.tree().text, mask);
  return mask;
}

}  // namespace kalos
