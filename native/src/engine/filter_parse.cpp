// Filters from JSON text to a tree. The grammar stands in filter.h.
#include <optional>
#include <utility>

#include "base/case_fold.h"
#include "engine/filter_tree.h"

namespace kalos {
namespace {

constexpr size_t fewest_values_to_hash = 8;
constexpr std::string_view known_operators =
    "$eq $ne $gt $gte $lt $lte $in $nin $exists $contains $icontains $subset $and $or $not";

std::optional<FilterOp> field_operator(std::string_view name) {
  static constexpr std::pair<std::string_view, FilterOp> table[] = {
      {"$eq", FilterOp::eq},
      {"$ne", FilterOp::ne},
      {"$gt", FilterOp::gt},
      {"$gte", FilterOp::gte},
      {"$lt", FilterOp::lt},
      {"$lte", FilterOp::lte},
      {"$in", FilterOp::in},
      {"$nin", FilterOp::nin},
      {"$exists", FilterOp::exists},
      {"$contains", FilterOp::contains},
      {"$icontains", FilterOp::icontains},
      {"$subset", FilterOp::subset},
  };
  for (const auto& [known, op] : table) {
    if (known == name) return op;
  }
  return std::nullopt;
}

FilterOperand make_operand(JsonValue value) {
  FilterOperand operand;
  operand.value = value;
  std::string scratch;
  switch (value.kind) {
    case JsonKind::number:
      operand.number = json_number(value);
      break;
    case JsonKind::string:
      operand.string = json_string(value, scratch);
      break;
    case JsonKind::array:
    case JsonKind::object:
      append_canonical(value, operand.canonical);
      break;
    default:
      break;
  }
  return operand;
}

std::string canonical_of(JsonValue value) {
  std::string canonical;
  append_canonical(value, canonical);
  return canonical;
}

class Parser {
 public:
  explicit Parser(std::vector<JsonPath>& fields) : fields_(fields) {}

  bool filter(JsonValue object, size_t depth, FilterNode& node) {
    node.op = FilterOp::all;
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

  bool member(const std::string& key, JsonValue value, size_t depth, FilterNode& node) {
    if (key == "$and" || key == "$or") {
      if (!count()) return false;
      if (value.kind != JsonKind::array) return refuse(key + " takes a list of filters");
      FilterNode& group = node.children.emplace_back();
      group.op = key == "$and" ? FilterOp::all : FilterOp::any;
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
      FilterNode& negation = node.children.emplace_back();
      negation.op = FilterOp::none;
      return filter(value, depth + 1, negation.children.emplace_back());
    }
    if (key.starts_with('$')) {
      if (!field_operator(key)) return unknown(key);
      return refuse(key + " stands below a metadata key: {\"key\": {\"" + key + "\": …}}");
    }
    return condition(field_of(key), value, depth, node);
  }

  size_t field_of(const std::string& key) {
    for (size_t i = 0; i < fields_.size(); ++i) {
      if (fields_[i].name() == key) return i;
    }
    fields_.emplace_back(key);
    return fields_.size() - 1;
  }

  bool unknown(std::string_view name) {
    return refuse("unknown operator " + std::string(name.substr(0, 64)) + "; known are " +
                  std::string(known_operators));
  }

  // Are the members of this object operators? Neither or both is an error of the caller's.
  bool is_operators(size_t field, JsonValue value, bool& operators) {
    size_t with = 0, without = 0;
    std::string_view raw_key;
    JsonValue member;
    std::string scratch;
    for (JsonMembers walk(value); walk.next(raw_key, member);) {
      ++(json_unescape(raw_key, scratch).starts_with('$') ? with : without);
    }
    operators = with > 0;
    if (with == 0 || without == 0) return true;
    return refuse("\"" + fields_[field].name() +
                  "\" mixes operators with other keys; use $eq to compare with an object");
  }

  bool condition(size_t field, JsonValue value, size_t depth, FilterNode& node) {
    bool operators = false;
    if (value.kind == JsonKind::object && !is_operators(field, value, operators)) return false;
    if (!operators) return leaf(FilterOp::eq, "$eq", field, value, node);
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
        FilterNode& negation = node.children.emplace_back();
        negation.op = FilterOp::none;
        bool nested = false;
        if (operand.kind == JsonKind::object && !is_operators(field, operand, nested)) return false;
        if (!nested) return refuse("$not below a key takes an object of operators: {\"$not\": {\"$gt\": 3}}");
        FilterNode& inner = negation.children.emplace_back();
        if (!condition(field, operand, depth + 1, inner)) return false;
        continue;
      }
      auto op = field_operator(name);
      if (!op && (name == "$and" || name == "$or"))
        return refuse(name + " combines filters; it cannot stand below a key");
      if (!op) return unknown(name);
      if (!leaf(*op, name, field, operand, node)) return false;
    }
    return true;
  }

  bool leaf(FilterOp op, const std::string& name, size_t field, JsonValue value, FilterNode& parent) {
    if (!count()) return false;
    FilterNode& node = parent.children.emplace_back();
    node.op = op;
    node.field = field;
    if (op == FilterOp::in || op == FilterOp::nin) return values(name, value, node);
    if (op == FilterOp::exists && value.kind != JsonKind::boolean) return refuse("$exists takes true or false");
    if (op == FilterOp::subset && value.kind != JsonKind::object) return refuse("$subset takes a JSON object");
    node.operand = make_operand(value);
    if (op == FilterOp::icontains) node.operand.folded = fold_case(node.operand.string);
    return true;
  }

  bool values(const std::string& name, JsonValue value, FilterNode& node) {
    if (value.kind != JsonKind::array) return refuse(name + " takes a list of values");
    JsonValue item;
    for (JsonItems walk(value); walk.next(item);) {
      if (node.values.size() == KALOS_MAX_FILTER_LIST) {
        return refuse(name + " takes at most " + std::to_string(KALOS_MAX_FILTER_LIST) + " values");
      }
      node.values.push_back(make_operand(item));
    }
    if (node.values.size() < fewest_values_to_hash) return true;
    for (const FilterOperand& operand : node.values) node.canonical.insert(canonical_of(operand.value));
    node.values.clear();
    return true;
  }

  std::vector<JsonPath>& fields_;
  size_t operators_ = 0;
  std::string words_;
};

}  // namespace

Result<> parse_filter_tree(FilterTree& tree) {
  Parser parser(tree.fields);
  if (parser.filter(json_root(tree.text), 1, tree.root)) return Unit{};
  return invalid("filter: " + parser.take_words());
}

}  // namespace kalos
