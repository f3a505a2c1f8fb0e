#include "engine/filter.h"

#include <algorithm>
#include <optional>
#include <unordered_set>
#include <utility>

#include "base/case_fold.h"
#include "base/json_check.h"

namespace kalos {
namespace {

// Deep enough for KALOS_MAX_FILTER_DEPTH operators (two levels each) around a metadata value of full depth.
constexpr size_t deepest_json = 2 * KALOS_MAX_FILTER_DEPTH + KALOS_MAX_METADATA_DEPTH + 4;
constexpr size_t fewest_values_to_hash = 8;
constexpr std::string_view known_operators =
    "$eq $ne $gt $gte $lt $lte $in $nin $exists $contains $icontains $subset $and $or $not";

enum class Op { all, any, none, eq, ne, gt, gte, lt, lte, in, nin, exists, contains, icontains, subset };

// An operand, with what can be known of it before any row is seen.
struct Operand {
  JsonValue value;
  JsonNumber number;      // of a number
  std::string string;     // of a string, unescaped
  std::string folded;     // of a string for $icontains
  std::string canonical;  // of an array or object
};

struct Node {
  Op op = Op::all;
  std::vector<Node> children;  // all, any, none
  size_t field = 0;            // of the other operators
  Operand operand;
  std::vector<Operand> values;                // in, nin
  std::unordered_set<std::string> canonical;  // in, nin with many values
};

std::optional<Op> field_operator(std::string_view name) {
  static constexpr std::pair<std::string_view, Op> table[] = {
      {"$eq", Op::eq},         {"$ne", Op::ne},         {"$gt", Op::gt},
      {"$gte", Op::gte},       {"$lt", Op::lt},         {"$lte", Op::lte},
      {"$in", Op::in},         {"$nin", Op::nin},       {"$exists", Op::exists},
      {"$contains", Op::contains}, {"$icontains", Op::icontains}, {"$subset", Op::subset},
  };
  for (const auto& [known, op] : table) {
    if (known == name) return op;
  }
  return std::nullopt;
}

Operand make_operand(JsonValue value) {
  Operand operand;
  operand.value = value;
  std::string scratch;
  switch (value.kind) {
    case JsonKind::number: operand.number = json_number(value); break;
    case JsonKind::string: operand.string = json_string(value, scratch); break;
    case JsonKind::array:
    case JsonKind::object: append_canonical(value, operand.canonical); break;
    default: break;
  }
  return operand;
}

std::string canonical_of(JsonValue value) {
  std::string canonical;
  append_canonical(value, canonical);
  return canonical;
}

// ---- parsing ----

class Parser {
 public:
  explicit Parser(std::vector<JsonPath>& fields) : fields_(fields) {}

  bool filter(JsonValue object, size_t depth, Node& node) {
    node.op = Op::all;
    if (object.kind != JsonKind::object) return refuse("a filter must be a JSON object");
    if (depth > KALOS_MAX_FILTER_DEPTH) {
      return refuse("the filter is nested deeper than " + std::to_string(KALOS_MAX_FILTER_DEPTH) + " operators");
    }
    std::string_view raw_key;
    JsonValue value;
    std::string scratch;
    for (JsonMembers walk(object); walk.next(raw_key, value);) {
      std::string key(json_unescape(raw_key, scratch));
      if (!member(key, value, depth, node)) return false;
    }
    return true;
  }

  std::string take_words() { return std::move(words_); }

 private:
  bool refuse(std::string words) {
    words_ = std::move(words);
    return false;
  }

  bool count() {
    if (++operators_ <= KALOS_MAX_FILTER_OPERATORS) return true;
    return refuse("the filter has more than " + std::to_string(KALOS_MAX_FILTER_OPERATORS) +
                  " operators; use $in for long lists of values");
  }

  bool member(const std::string& key, JsonValue value, size_t depth, Node& node) {
    if (key == "$and" || key == "$or") {
      if (!count()) return false;
      if (value.kind != JsonKind::array) return refuse(key + " takes a list of filters");
      Node& group = node.children.emplace_back();
      group.op = key == "$and" ? Op::all : Op::any;
      JsonValue item;
      for (JsonItems walk(value); walk.next(item);) {
        if (item.kind != JsonKind::object) return refuse(key + " takes a list of filters");
        if (!filter(item, depth + 1, group.children.emplace_back())) return false;
      }
      // One of an empty list is none, which an empty `any` answers by itself.
      return true;
    }
    if (key == "$not") {
      if (!count()) return false;
      if (value.kind != JsonKind::object) return refuse("$not takes a filter, or below a key an object of operators");
      Node& negation = node.children.emplace_back();
      negation.op = Op::none;
      return filter(value, depth + 1, negation.children.emplace_back());
    }
    if (key.starts_with('$')) {
      if (!field_operator(key)) return unknown(key);
      return refuse(key + " stands below a metadata key: {\"key\": {\"" + key + "\": …}}");
    }
    fields_.emplace_back(key);
    return condition(fields_.size() - 1, value, depth, node);
  }

  bool unknown(std::string_view name) {
    return refuse("unknown operator " + std::string(name.substr(0, 64)) + "; known are " + std::string(known_operators));
  }

  // Are the members of this object operators? Neither or both is an error of the caller's.
  bool is_operators(JsonValue value, bool& operators) {
    size_t with = 0, without = 0;
    std::string_view raw_key;
    JsonValue member;
    std::string scratch;
    for (JsonMembers walk(value); walk.next(raw_key, member);) {
      ++(json_unescape(raw_key, scratch).starts_with('$') ? with : without);
    }
    operators = with > 0;
    if (with == 0 || without == 0) return true;
    return refuse("\"" + fields_.back().name() + "\" mixes operators with other keys; use $eq to compare with an object");
  }

  bool condition(size_t field, JsonValue value, size_t depth, Node& node) {
    bool operators = false;
    if (value.kind == JsonKind::object && !is_operators(value, operators)) return false;
    if (!operators) return leaf(Op::eq, "$eq", field, value, node);
    if (depth > KALOS_MAX_FILTER_DEPTH) {
      return refuse("the filter is nested deeper than " + std::to_string(KALOS_MAX_FILTER_DEPTH) + " operators");
    }
    std::string_view raw_key;
    JsonValue operand;
    std::string scratch;
    for (JsonMembers walk(value); walk.next(raw_key, operand);) {
      std::string name(json_unescape(raw_key, scratch));
      if (name == "$not") {
        if (!count()) return false;
        Node& negation = node.children.emplace_back();
        negation.op = Op::none;
        bool nested = false;
        if (operand.kind == JsonKind::object && !is_operators(operand, nested)) return false;
        if (!nested) return refuse("$not below a key takes an object of operators: {\"$not\": {\"$gt\": 3}}");
        Node& inner = negation.children.emplace_back();
        if (!condition(field, operand, depth + 1, inner)) return false;
        continue;
      }
      auto op = field_operator(name);
      if (!op && (name == "$and" || name == "$or")) return refuse(name + " combines filters; it cannot stand below a key");
      if (!op) return unknown(name);
      if (!leaf(*op, name, field, operand, node)) return false;
    }
    return true;
  }

  bool leaf(Op op, const std::string& name, size_t field, JsonValue value, Node& parent) {
    if (!count()) return false;
    Node& node = parent.children.emplace_back();
    node.op = op;
    node.field = field;
    if (op == Op::in || op == Op::nin) return values(name, value, node);
    if (op == Op::exists && value.kind != JsonKind::boolean) return refuse("$exists takes true or false");
    if (op == Op::subset && value.kind != JsonKind::object) return refuse("$subset takes a JSON object");
    node.operand = make_operand(value);
    if (op == Op::icontains) node.operand.folded = fold_case(node.operand.string);
    return true;
  }

  bool values(const std::string& name, JsonValue value, Node& node) {
    if (value.kind != JsonKind::array) return refuse(name + " takes a list of values");
    JsonValue item;
    for (JsonItems walk(value); walk.next(item);) {
      if (node.values.size() == KALOS_MAX_FILTER_LIST) {
        return refuse(name + " takes at most " + std::to_string(KALOS_MAX_FILTER_LIST) + " values");
      }
      node.values.push_back(make_operand(item));
    }
    if (node.values.size() < fewest_values_to_hash) return true;
    for (const Operand& operand : node.values) node.canonical.insert(canonical_of(operand.value));
    node.values.clear();
    return true;
  }

  std::vector<JsonPath>& fields_;
  size_t operators_ = 0;
  std::string words_;
};

// ---- asking ----

// The members of one row's metadata, read off the text once.
class Document {
 public:
  explicit Document(std::string_view metadata) : root_(json_root(metadata)) {}
  JsonValue root() const { return root_; }

  std::string scratch, other_scratch;

 private:
  JsonValue root_;
};

bool equals(const Operand& operand, JsonValue value, Document& row) {
  if (value.kind != operand.value.kind) return false;
  switch (value.kind) {
    case JsonKind::missing: return false;
    case JsonKind::null: return true;
    case JsonKind::boolean: return value.is_true() == operand.value.is_true();
    case JsonKind::number: return compare(json_number(value), operand.number) == 0;
    case JsonKind::string: return json_string(value, row.scratch) == operand.string;
    default: return canonical_of(value) == operand.canonical;
  }
}

// The order of the value against the operand, or nothing where they have none.
std::optional<int> order(JsonValue value, const Operand& operand, Document& row) {
  if (value.kind != operand.value.kind) return std::nullopt;
  if (value.kind == JsonKind::number) return compare(json_number(value), operand.number);
  // UTF-8 orders bytes as code points.
  if (value.kind == JsonKind::string) return json_string(value, row.scratch).compare(operand.string);
  return std::nullopt;
}

bool is_in(const Node& node, JsonValue value, Document& row) {
  if (value.kind == JsonKind::missing) return false;
  if (!node.canonical.empty()) return node.canonical.contains(canonical_of(value));
  return std::any_of(node.values.begin(), node.values.end(),
                     [&](const Operand& operand) { return equals(operand, value, row); });
}

bool contains(const Operand& operand, JsonValue value, bool fold, Document& row) {
  bool strings = operand.value.kind == JsonKind::string;
  if (value.kind == JsonKind::string) {
    if (!strings) return false;
    std::string_view text = json_string(value, row.scratch);
    if (!fold) return text.find(operand.string) != std::string_view::npos;
    return fold_case(text).find(operand.folded) != std::string::npos;
  }
  JsonValue item;
  for (JsonItems walk(value); walk.next(item);) {
    if (fold && strings && item.kind == JsonKind::string) {
      if (fold_case(json_string(item, row.scratch)) == operand.folded) return true;
    } else if (equals(operand, item, row)) {
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

bool holds(const Node& node, const std::vector<JsonPath>& fields, Document& row);

bool holds_for_field(const Node& node, JsonValue value, Document& row) {
  switch (node.op) {
    case Op::eq: return equals(node.operand, value, row);
    case Op::ne: return !equals(node.operand, value, row);
    case Op::in: return is_in(node, value, row);
    case Op::nin: return !is_in(node, value, row);
    case Op::exists: return (value.kind != JsonKind::missing) == node.operand.value.is_true();
    case Op::contains: return contains(node.operand, value, false, row);
    case Op::icontains: return contains(node.operand, value, true, row);
    case Op::subset: return value.kind == JsonKind::object && has_subset(node.operand.value, value);
    default: break;
  }
  auto ordered = order(value, node.operand, row);
  if (!ordered) return false;
  switch (node.op) {
    case Op::gt: return *ordered > 0;
    case Op::gte: return *ordered >= 0;
    case Op::lt: return *ordered < 0;
    default: return *ordered <= 0;
  }
}

bool holds(const Node& node, const std::vector<JsonPath>& fields, Document& row) {
  auto child_holds = [&](const Node& child) { return holds(child, fields, row); };
  switch (node.op) {
    case Op::all: return std::all_of(node.children.begin(), node.children.end(), child_holds);
    case Op::any: return std::any_of(node.children.begin(), node.children.end(), child_holds);
    case Op::none: return std::none_of(node.children.begin(), node.children.end(), child_holds);
    default: return holds_for_field(node, fields[node.field].find(row.root()), row);
  }
}

}  // namespace

struct Filter::State {
  std::string text;  // what all views of the nodes point into
  std::vector<JsonPath> fields;
  Node root;
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
  state->text = json;
  Parser parser(state->fields);
  if (!parser.filter(json_root(state->text), 1, state->root)) return invalid("filter: " + parser.take_words());
  return Filter(std::move(state));
}

bool Filter::matches_all() const { return state_->root.children.empty(); }

bool Filter::matches(std::string_view metadata) const {
  Document row(metadata);
  return holds(state_->root, state_->fields, row);
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

namespace {

JsonValue find_member(JsonValue object, std::string_view name) {
  std::string_view raw_key;
  JsonValue value;
  std::string scratch;
  for (JsonMembers walk(object); walk.next(raw_key, value);) {
    if (json_unescape(raw_key, scratch) == name) return value;
  }
  return {};
}

}  // namespace

JsonValue JsonPath::find(JsonValue object) const {
  JsonValue found = find_member(object, name_);
  if (found.kind != JsonKind::missing || parts_.empty()) return found;
  found = object;
  for (const std::string& part : parts_) {
    found = find_member(found, part);
    if (found.kind == JsonKind::missing) break;
  }
  return found;
}

}  // namespace kalos
