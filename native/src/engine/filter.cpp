#include "engine/filter.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/case_fold.h"
#include "base/json_check.h"
#include "engine/filter_tree.h"

namespace kalos {
namespace {

// Deep enough for KALOS_MAX_FILTER_DEPTH operators (two levels each) around a metadata value of full depth.
constexpr size_t deepest_json = 2 * KALOS_MAX_FILTER_DEPTH + KALOS_MAX_METADATA_DEPTH + 4;
std::string canonical_of(JsonValue value) {
  std::string canonical;
  append_canonical(value, canonical);
  return canonical;
}

// What one row's metadata holds for each field of the filter, found in a single walk over the text.
class RowFields {
 public:
  void resolve(std::string_view metadata, const std::vector<JsonPath>& fields) {
    found_.assign(fields.size(), {});
    heads_.assign(fields.size(), {});
    size_t left = fields.size();
    std::string_view raw_key;
    JsonValue value;
    for (JsonMembers walk(json_object(metadata)); left != 0 && walk.next(raw_key, value);) {
      std::string_view key = json_unescape(raw_key, scratch);
      for (size_t i = 0; i < fields.size(); ++i) {
        if (key == fields[i].name()) {
          found_[i] = value;
          --left;
        } else if (key == fields[i].head()) {
          heads_[i] = value;
        }
      }
    }
    for (size_t i = 0; i < fields.size(); ++i) {
      if (found_[i].kind == JsonKind::missing) found_[i] = fields[i].find_below(heads_[i]);
    }
  }
  JsonValue operator[](size_t field) const { return found_[field]; }

  std::string scratch;  // for strings with escapes

 private:
  std::vector<JsonValue> found_;
  std::vector<JsonValue> heads_;  // of paths: the value of the first part
};

bool equals(const FilterOperand& operand, JsonValue value, std::string& scratch) {
  if (value.kind != operand.value.kind) return false;
  switch (value.kind) {
    case JsonKind::missing:
      return false;
    case JsonKind::null:
      return true;
    case JsonKind::boolean:
      return value.is_true() == operand.value.is_true();
    case JsonKind::number:
      return compare(json_number(value), operand.number) == 0;
    case JsonKind::string:
      return json_string(value, scratch) == operand.string;
    default:
      return canonical_of(value) == operand.canonical;
  }
}

// The order of the value against the operand, or nothing where they have none.
std::optional<int> order(JsonValue value, const FilterOperand& operand, std::string& scratch) {
  if (value.kind != operand.value.kind) return std::nullopt;
  if (value.kind == JsonKind::number) return compare(json_number(value), operand.number);
  // UTF-8 orders bytes as code points.
  if (value.kind == JsonKind::string) return json_string(value, scratch).compare(operand.string);
  return std::nullopt;
}

bool is_in(const FilterNode& node, JsonValue value, std::string& scratch) {
  if (value.kind == JsonKind::missing) return false;
  if (!node.canonical.empty()) return node.canonical.contains(canonical_of(value));
  return std::any_of(node.values.begin(), node.values.end(),
                     [&](const FilterOperand& operand) { return equals(operand, value, scratch); });
}

bool contains(const FilterOperand& operand, JsonValue value, bool fold, std::string& scratch) {
  bool strings = operand.value.kind == JsonKind::string;
  if (value.kind == JsonKind::string) {
    if (!strings) return false;
    std::string_view text = json_string(value, scratch);
    if (!fold) return text.find(operand.string) != std::string_view::npos;
    return fold_case(text).find(operand.folded) != std::string::npos;
  }
  JsonValue item;
  for (JsonItems walk(value); walk.next(item);) {
    if (fold && strings && item.kind == JsonKind::string) {
      if (fold_case(json_string(item, scratch)) == operand.folded) return true;
    } else if (equals(operand, item, scratch)) {
      return true;
    }
  }
  return false;
}

bool has_subset(JsonValue wanted, JsonValue value) {
  if (wanted.kind != JsonKind::object) return wanted.kind == value.kind && canonical_of(wanted) == canonical_of(value);
  if (value.kind != JsonKind::object) return false;
  std::string_view raw_wanted, raw_key;
  JsonValue wanted_member, member;
  std::string wanted_scratch, scratch;
  for (JsonMembers walk(wanted); walk.next(raw_wanted, wanted_member);) {
    std::string_view key = json_unescape(raw_wanted, wanted_scratch);
    bool found = false;
    for (JsonMembers candidates(value); !found && candidates.next(raw_key, member);) {
      if (json_unescape(raw_key, scratch) != key) continue;
      if (!has_subset(wanted_member, member)) return false;
      found = true;
    }
    if (!found) return false;
  }
  return true;
}

bool holds(const FilterNode& node, RowFields& row) {
  auto child_holds = [&](const FilterNode& child) { return holds(child, row); };
  switch (node.op) {
    case FilterOp::all:
      return std::all_of(node.children.begin(), node.children.end(), child_holds);
    case FilterOp::any:
      return std::any_of(node.children.begin(), node.children.end(), child_holds);
    case FilterOp::none:
      return std::none_of(node.children.begin(), node.children.end(), child_holds);
    default:
      return matches_value(node, row[node.field], row.scratch);
  }
}

// {}, {"$and": []} and the like. A filter that happens to match all rows does say something.
bool says_nothing(const FilterNode& node) {
  return node.op == FilterOp::all && std::all_of(node.children.begin(), node.children.end(), says_nothing);
}

}  // namespace

bool matches_value(const FilterNode& node, JsonValue value, std::string& scratch) {
  switch (node.op) {
    case FilterOp::eq:
      return equals(node.operand, value, scratch);
    case FilterOp::ne:
      return !equals(node.operand, value, scratch);
    case FilterOp::in:
      return is_in(node, value, scratch);
    case FilterOp::nin:
      return !is_in(node, value, scratch);
    case FilterOp::exists:
      return (value.kind != JsonKind::missing) == node.operand.value.is_true();
    case FilterOp::contains:
      return contains(node.operand, value, false, scratch);
    case FilterOp::icontains:
      return contains(node.operand, value, true, scratch);
    case FilterOp::subset:
      return value.kind == JsonKind::object && has_subset(node.operand.value, value);
    default:
      break;
  }
  auto ordered = order(value, node.operand, scratch);
  if (!ordered) return false;
  switch (node.op) {
    case FilterOp::gt:
      return *ordered > 0;
    case FilterOp::gte:
      return *ordered >= 0;
    case FilterOp::lt:
      return *ordered < 0;
    default:
      return *ordered <= 0;
  }
}

struct Filter::State {
  FilterTree tree;
  RowFields row;  // of the row at hand; kept for its memory
};

Filter::Filter(std::unique_ptr<State> state) : state_(std::move(state)) {}
Filter::Filter(Filter&&) noexcept = default;
Filter& Filter::operator=(Filter&&) noexcept = default;
Filter::~Filter() = default;

Result<Filter> Filter::parse(std::string_view json) {
  if (auto checked = check_json_object(json, "filter", KALOS_MAX_MESSAGE_BYTES, deepest_json); !checked) {
    return checked.error();
  }
  auto state = std::make_unique<State>();
  state->tree.text = json;
  if (auto parsed = parse_filter_tree(state->tree); !parsed) return parsed.error();
  return Filter(std::move(state));
}

bool Filter::matches_all() const { return says_nothing(state_->tree.root); }

const FilterTree& Filter::tree() const { return state_->tree; }

bool Filter::matches(std::string_view metadata) {
  state_->row.resolve(metadata, state_->tree.fields);
  return holds(state_->tree.root, state_->row);
}

JsonPath::JsonPath(std::string_view name) : name_(name) {
  if (name.find('.') == std::string_view::npos) return;
  for (size_t at = 0;;) {
    size_t dot = name.find('.', at);
    parts_.emplace_back(name.substr(at, dot - at));
    if (dot == std::string_view::npos) return;
    at = dot + 1;
  }
}

JsonValue JsonPath::find(JsonValue object) const {
  std::string_view head_part = this->head();
  JsonValue head;
  std::string_view raw_key;
  JsonValue value;
  std::string scratch;
  for (JsonMembers walk(object); walk.next(raw_key, value);) {
    std::string_view key = json_unescape(raw_key, scratch);
    if (key == name_) return value;
    if (key == head_part) head = value;
  }
  return find_below(head);
}

JsonValue JsonPath::find_below(JsonValue head) const {
  if (parts_.empty()) return {};
  for (size_t i = 1; i < parts_.size(); ++i) {
    JsonValue next, value;
    std::string_view raw_key;
    std::string scratch;
    for (JsonMembers walk(head); walk.next(raw_key, value);) {
      if (json_unescape(raw_key, scratch) != parts_[i]) continue;
      next = value;
      break;
    }
    head = next;
  }
  return head;
}

}  // namespace kalos
