// Filters: a JSON object of Mongo-style operators, parsed once and asked of each row's metadata.
//
//   filter      {key: condition, ..., "$and": [filter, ...], "$or": [filter, ...], "$not": filter}     all must hold
//   condition   a value (equal to it), or {operator: operand, ...}                                    all must hold
//   operators   $eq $ne $in $nin $gt $gte $lt $lte $exists $contains $icontains $subset $not
//
// A key is first a member of that very name, then a path: "a.b" is b of the object a. A row without metadata is an
// empty object. A missing key matches $ne, $nin and "$exists": false only. Equality is that of JSON values
// (base/json_view.h); $gt and its kin compare number with number and string with string by code points; other types
// never match.
//   $contains   an array that holds the operand, or a string that holds it as a substring
//   $icontains  the same after simple case folding
//   $subset     an object that has all the operand's members, objects within objects likewise
// {} matches every row; so does "$and": []; "$or": [] matches none.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_view.h"
#include "base/result.h"

namespace kalos {

struct FilterTree;

class Filter {
 public:
  // Errors: InvalidRequest in words, for what does not parse or passes the limits of abi.h.
  static Result<Filter> parse(std::string_view json);

  Filter(Filter&&) noexcept;
  Filter& operator=(Filter&&) noexcept;
  ~Filter();

  bool matches_all() const;  // says nothing, as {} and {"$and": []} do
  // metadata: checked JSON, or empty where the row has none.
  bool matches(std::string_view metadata);

  const FilterTree& tree() const;  // engine/filter_tree.h

 private:
  struct State;
  explicit Filter(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// A metadata key or path, looked up as filters do.
class JsonPath {
 public:
  explicit JsonPath(std::string_view name);

  JsonValue find(JsonValue object) const;  // missing where there is none
  const std::string& name() const { return name_; }
  // Of a path: its first part, and what the rest of it finds in that part's value. Of a plain key: nothing.
  std::string_view head() const { return parts_.empty() ? std::string_view() : parts_.front(); }
  JsonValue find_below(JsonValue head) const;

 private:
  std::string name_;
  std::vector<std::string> parts_;  // of a path; empty where the name has no dot
};

}  // namespace kalos
