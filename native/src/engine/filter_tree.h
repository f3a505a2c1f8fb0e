// A parsed filter, between the parser (filter_parse.cpp) and what asks it: of one row's metadata (filter.cpp), of the
// columns of a table (filter_mask.cpp).
#pragma once

#include <string>
#include <unordered_set>
#include <vector>

#include "engine/filter.h"

namespace kalos {

enum class FilterOp { all, any, none, eq, ne, gt, gte, lt, lte, in, nin, exists, contains, icontains, subset };

// An operand, with what can be known of it before any row is seen. Views point into FilterTree::text.
struct FilterOperand {
  JsonValue value;
  JsonNumber number;      // of a number
  std::string string;     // of a string, unescaped
  std::string folded;     // of a string, for $icontains
  std::string canonical;  // of an array or object
};

struct FilterNode {
  FilterOp op = FilterOp::all;
  std::vector<FilterNode> children;  // all, any, none
  size_t field = 0;                  // of the other operators: which of FilterTree::fields
  FilterOperand operand;
  std::vector<FilterOperand> values;          // in, nin
  std::unordered_set<std::string> canonical;  // in, nin with many values
};

struct FilterTree {
  std::string text;
  std::vector<JsonPath> fields;
  FilterNode root;
};

// Fills the tree from its text, which is JSON that was checked. Errors: InvalidRequest in words.
Result<> parse_filter_tree(FilterTree& tree);

// What an operator of a field says of its value, which may be missing. scratch: for strings with escapes.
bool matches_value(const FilterNode& node, JsonValue value, std::string& scratch);

}  // namespace kalos
