// The semantics of filters, one promise a test, and random filters against a plain evaluator over a JSON tree.
#include "engine/filter.h"

#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "check.h"

using kalos::Filter;
using nlohmann::json;

namespace {

bool matches(const std::string& filter, const std::string& metadata) {
  auto parsed = Filter::parse(filter);
  if (!parsed) {
    check::fail(__FILE__, __LINE__, filter + ": " + parsed.error().words);
    return false;
  }
  return parsed->matches(metadata);
}

bool refused(const std::string& filter, const std::string& part) {
  auto parsed = Filter::parse(filter);
  if (parsed) {
    std::cerr << "accepted: " << filter.substr(0, 200) << "\n";
    return false;
  }
  CHECK_EQ(int(KALOS_STATUS_INVALID_REQUEST), int(parsed.error().status));
  if (parsed.error().words.find(part) != std::string::npos) return true;
  std::cerr << filter.substr(0, 200) << ": " << parsed.error().words << "\n";
  return false;
}

// Which of $gt $gte $lt $lte hold, as letters.
std::string ranges(const std::string& value, const std::string& operand) {
  std::string metadata = "{\"x\":" + value + "}", letters;
  if (matches("{\"x\":{\"$gt\":" + operand + "}}", metadata)) letters += ">";
  if (matches("{\"x\":{\"$gte\":" + operand + "}}", metadata)) letters += "]";
  if (matches("{\"x\":{\"$lt\":" + operand + "}}", metadata)) letters += "<";
  if (matches("{\"x\":{\"$lte\":" + operand + "}}", metadata)) letters += "[";
  return letters;
}

bool equal(const std::string& a, const std::string& b) {
  bool by_eq = matches("{\"x\":{\"$eq\":" + b + "}}", "{\"x\":" + a + "}");
  CHECK_EQ(by_eq, matches("{\"x\":{\"$in\":[" + b + "]}}", "{\"x\":" + a + "}"));
  CHECK_EQ(by_eq, !matches("{\"x\":{\"$ne\":" + b + "}}", "{\"x\":" + a + "}"));
  CHECK_EQ(by_eq, !matches("{\"x\":{\"$nin\":[" + b + "]}}", "{\"x\":" + a + "}"));
  CHECK_EQ(by_eq, matches("{\"x\":{\"$contains\":" + b + "}}", "{\"x\":[" + a + "]}"));
  // More values than are compared one by one, so that the set of them answers.
  CHECK_EQ(by_eq, matches("{\"x\":{\"$in\":[\"p1\",\"p2\",\"p3\",\"p4\",\"p5\",\"p6\",\"p7\",\"p8\"," + b + "]}}",
                          "{\"x\":" + a + "}"));
  return by_eq;
}

}  // namespace

TEST(the_empty_filter_matches_every_row) {
  auto filter = Filter::parse("{}");
  CHECK(filter && filter->matches_all() && filter->matches("") && filter->matches("{\"a\":1}"));
  for (const char* nothing : {R"({"$and": []})", R"({"$and": [{}, {"$and": [{}]}]})"}) {
    CHECK(Filter::parse(nothing)->matches_all());
  }
  for (const char* something : {R"({"$or": []})", R"({"$or": [{}]})", R"({"$not": {}})", R"({"a": 1})",
                                R"({"$and": [{"a": {"$exists": true}}]})"}) {
    CHECK(!Filter::parse(something)->matches_all());
  }
  CHECK(matches("{\"$and\":[]}", "{}"));
  CHECK(!matches("{\"$or\":[]}", "{}"));
  CHECK(matches("{\"$or\":[{}]}", "{}"));
}

TEST(equality_is_that_of_json_values) {
  CHECK(equal("1", "1"));
  CHECK(equal("1", "1.0"));
  CHECK(equal("1e2", "100"));
  CHECK(equal("-0.0", "0"));
  CHECK(!equal("1", "true"));
  CHECK(!equal("0", "false"));
  CHECK(!equal("1", "\"1\""));
  CHECK(equal("null", "null"));
  CHECK(!equal("null", "0"));
  CHECK(!equal("null", "false"));
  CHECK(!equal("\"\"", "null"));
  CHECK(equal("\"caf\\u00e9\"", "\"café\""));
  CHECK(equal("\"\\ud83d\\ude00\\n\\/\"", "\"😀\\u000a/\""));
  CHECK(!equal("\"a\"", "\"A\""));
  CHECK(equal("[1,[2.0],\"x\"]", "[1.0,[2],\"x\"]"));
  CHECK(!equal("[1,2]", "[2,1]"));
  CHECK(!equal("[1]", "1"));
  CHECK(!equal("[]", "{}"));
  CHECK(equal("[]", "[ ]"));
  CHECK(!equal("[[1],2]", "[1,[2]]"));
}

TEST(objects_are_equal_as_sets_of_pairs) {
  CHECK(matches("{\"x\":{\"a\":1,\"b\":{\"c\":[2]}}}", "{\"x\": { \"b\" : {\"c\":[2.0]}, \"a\":1 } }"));
  CHECK(!matches("{\"x\":{\"a\":1}}", "{\"x\":{\"a\":1,\"b\":2}}"));
  CHECK(!matches("{\"x\":{\"a\":1,\"b\":2}}", "{\"x\":{\"a\":1}}"));
  CHECK(matches("{\"x\":{}}", "{\"x\":{}}"));
  CHECK(!matches("{\"x\":{}}", "{\"x\":{\"a\":1}}"));
  CHECK(matches("{\"x\":{\"$eq\":{\"$a\":1}}}", "{\"x\":{\"$a\":1}}"));
  CHECK(equal("{\"a\":\"b\"}", "{\"\\u0061\":\"b\"}"));
  CHECK(!equal("{\"ab\":\"c\"}", "{\"a\":\"bc\"}"));
}

TEST(integers_and_floats_compare_exactly) {
  CHECK(!equal("9007199254740993", "9007199254740992.0"));
  CHECK(equal("9007199254740992", "9007199254740992.0"));
  CHECK(!equal("9223372036854775807", "9223372036854775808.0"));
  CHECK(equal("-9223372036854775808", "-9223372036854775808.0"));
  CHECK(!equal("9007199254740993", "9007199254740992"));
  CHECK_EQ(std::string(">]"), ranges("9007199254740993", "9007199254740992.0"));
  CHECK_EQ(std::string("<["), ranges("9007199254740992.0", "9007199254740993"));
  CHECK_EQ(std::string("<["), ranges("9223372036854775807", "9223372036854775808.0"));
  CHECK_EQ(std::string("<["), ranges("9223372036854775807", "1e300"));
  CHECK_EQ(std::string(">]"), ranges("-9223372036854775808", "-1e300"));
  CHECK_EQ(std::string("<["), ranges("-3", "-2.5"));
  CHECK_EQ(std::string(">]"), ranges("-2", "-2.5"));
  CHECK_EQ(std::string("<["), ranges("2", "2.5"));
  CHECK_EQ(std::string("]["), ranges("2", "2.0"));
  CHECK_EQ(std::string("]["), ranges("0", "-0.0"));
  CHECK_EQ(std::string("<["), ranges("0", "1e-320"));
  CHECK_EQ(std::string("]["), ranges("0", "1e-400"));
}

TEST(strings_compare_by_code_points) {
  CHECK_EQ(std::string("<["), ranges("\"a\"", "\"b\""));
  CHECK_EQ(std::string("<["), ranges("\"Z\"", "\"a\""));
  CHECK_EQ(std::string("<["), ranges("\"a\"", "\"aa\""));
  CHECK_EQ(std::string("]["), ranges("\"\\u0061\"", "\"a\""));
  CHECK_EQ(std::string("<["), ranges("\"z\"", "\"é\""));
  // U+FFFD before U+1F600, which UTF-16 would order the other way.
  CHECK_EQ(std::string("<["), ranges("\"\xEF\xBF\xBD\"", "\"😀\""));
}

TEST(ranges_over_other_types_never_match_and_never_raise) {
  for (std::string value : {"null", "true", "[1]", "{\"a\":1}", "\"5\"", "5"}) {
    for (std::string operand : {"null", "true", "[1]", "{\"a\":1}", "\"5\"", "5"}) {
      if (value == operand && (value == "5" || value == "\"5\"")) continue;
      CHECK_EQ(std::string(""), ranges(value, operand));
    }
  }
}

TEST(a_missing_key_matches_only_ne_nin_and_exists_false) {
  for (std::string row : {"", "{}", "{\"y\":1}"}) {
    CHECK(matches("{\"x\":{\"$ne\":1}}", row));
    CHECK(matches("{\"x\":{\"$ne\":null}}", row));
    CHECK(matches("{\"x\":{\"$nin\":[1,null]}}", row));
    CHECK(matches("{\"x\":{\"$nin\":[]}}", row));
    CHECK(matches("{\"x\":{\"$exists\":false}}", row));
    for (std::string condition :
         {"1", "null", "{\"$eq\":null}", "{\"$in\":[null]}", "{\"$exists\":true}", "{\"$gt\":0}", "{\"$lte\":0}",
          "{\"$contains\":1}", "{\"$contains\":\"\"}", "{\"$icontains\":\"\"}", "{\"$subset\":{}}"}) {
      CHECK(!matches("{\"x\":" + condition + "}", row));
    }
  }
  CHECK(matches("{\"x\":{\"$exists\":true}}", "{\"x\":null}"));
  CHECK(matches("{\"x\":null}", "{\"x\":null}"));
  CHECK(!matches("{\"x\":{\"$in\":[]}}", "{\"x\":1}"));
}

TEST(a_key_is_first_literal_then_a_path) {
  CHECK(matches("{\"a.b\":1}", "{\"a.b\":1}"));
  CHECK(matches("{\"a.b\":1}", "{\"a\":{\"b\":1}}"));
  CHECK(matches("{\"a.b\":1}", "{\"a\":{\"b\":2},\"a.b\":1}"));
  CHECK(!matches("{\"a.b\":2}", "{\"a\":{\"b\":2},\"a.b\":1}"));
  CHECK(matches("{\"a.b.c\":1}", "{\"z\":0,\"a\":{\"y\":[],\"b\":{\"c\":1}}}"));
  CHECK(!matches("{\"a.b.c\":1}", "{\"a\":{\"b\":1}}"));
  CHECK(!matches("{\"a.0\":1}", "{\"a\":[1]}"));
  CHECK(matches("{\"a.b\":{\"$exists\":false}}", "{\"a\":3}"));
  CHECK(matches("{\"a.\\u0062\":1,\"a\":{\"$exists\":true}}", "{\"\\u0061\":{\"b\":1}}"));
  CHECK(matches("{\".x\":1}", "{\"\":{\"x\":1}}"));
}

TEST(contains_is_membership_or_a_substring) {
  CHECK(matches("{\"t\":{\"$contains\":\"b\"}}", "{\"t\":[\"a\",\"b\"]}"));
  CHECK(!matches("{\"t\":{\"$contains\":\"b\"}}", "{\"t\":[\"ab\"]}"));
  CHECK(matches("{\"t\":{\"$contains\":2}}", "{\"t\":[1,2.0]}"));
  CHECK(!matches("{\"t\":{\"$contains\":1}}", "{\"t\":[true]}"));
  CHECK(matches("{\"t\":{\"$contains\":[1]}}", "{\"t\":[[1.0]]}"));
  CHECK(matches("{\"t\":{\"$contains\":null}}", "{\"t\":[null]}"));
  CHECK(matches("{\"t\":{\"$contains\":\"b\\\"c\"}}", "{\"t\":\"ab\\\"cd\"}"));
  CHECK(!matches("{\"t\":{\"$contains\":\"B\"}}", "{\"t\":\"abc\"}"));
  CHECK(!matches("{\"t\":{\"$contains\":1}}", "{\"t\":\"1\"}"));
  CHECK(!matches("{\"t\":{\"$contains\":\"a\"}}", "{\"t\":{\"a\":1}}"));
}

TEST(icontains_folds_case) {
  CHECK(matches("{\"t\":{\"$icontains\":\"STRASSE\"}}", "{\"t\":\"Hauptstrasse 5\"}"));
  CHECK(matches("{\"t\":{\"$icontains\":\"привет\"}}", "{\"t\":\"О, ПРИВЕТ!\"}"));
  CHECK(matches("{\"t\":{\"$icontains\":\"ΣΟΦΟΣ\"}}", "{\"t\":\"σοφος\"}"));
  CHECK(matches("{\"t\":{\"$icontains\":\"Red\"}}", "{\"t\":[\"blue\",\"RED\"]}"));
  CHECK(!matches("{\"t\":{\"$icontains\":\"re\"}}", "{\"t\":[\"RED\"]}"));
  CHECK(!matches("{\"t\":{\"$icontains\":\"x\"}}", "{\"t\":\"abc\"}"));
}

TEST(subset_is_nested) {
  CHECK(matches("{\"m\":{\"$subset\":{\"a\":1}}}", "{\"m\":{\"a\":1.0,\"b\":2}}"));
  CHECK(matches("{\"m\":{\"$subset\":{\"a\":{\"b\":1}}}}", "{\"m\":{\"a\":{\"b\":1,\"c\":2}}}"));
  CHECK(!matches("{\"m\":{\"$subset\":{\"a\":{\"b\":1}}}}", "{\"m\":{\"a\":1}}"));
  CHECK(!matches("{\"m\":{\"$subset\":{\"a\":[1]}}}", "{\"m\":{\"a\":[1,2]}}"));
  CHECK(matches("{\"m\":{\"$subset\":{\"a\":[1,2]}}}", "{\"m\":{\"a\":[1,2.0]}}"));
  CHECK(matches("{\"m\":{\"$subset\":{}}}", "{\"m\":{\"a\":1}}"));
  CHECK(!matches("{\"m\":{\"$subset\":{\"a\":null}}}", "{\"m\":{\"b\":1}}"));
  CHECK(!matches("{\"m\":{\"$subset\":{}}}", "{\"m\":[1]}"));
}

TEST(logic_nests) {
  CHECK(matches("{\"$or\":[{\"a\":1},{\"b\":{\"$gt\":5}}]}", "{\"a\":2,\"b\":6}"));
  CHECK(!matches("{\"$or\":[{\"a\":1},{\"b\":{\"$gt\":5}}],\"c\":1}", "{\"a\":2,\"b\":6}"));
  CHECK(matches("{\"$not\":{\"a\":1}}", "{\"a\":2}"));
  CHECK(matches("{\"$not\":{\"a\":1}}", "{}"));
  CHECK(!matches("{\"$not\":{\"a\":1,\"b\":2}}", "{\"a\":1,\"b\":2}"));
  CHECK(matches("{\"$not\":{\"a\":1,\"b\":2}}", "{\"a\":1,\"b\":3}"));
  CHECK(matches("{\"a\":{\"$not\":{\"$gt\":1,\"$lt\":3}}}", "{\"a\":3}"));
  CHECK(!matches("{\"a\":{\"$not\":{\"$gt\":1,\"$lt\":3}}}", "{\"a\":2}"));
  CHECK(matches("{\"a\":{\"$gt\":0,\"$not\":{\"$in\":[2,3]}}}", "{\"a\":1}"));
  CHECK(matches("{\"a\":{\"$not\":{\"$not\":{\"$eq\":1}}}}", "{\"a\":1}"));
  CHECK(matches("{\"$and\":[{\"$or\":[{\"a\":1},{\"a\":2}]},{\"$not\":{\"a\":1}}]}", "{\"a\":2}"));
  CHECK(matches("{\"a\":{\"$gte\":1,\"$lt\":2}}", "{\"a\":1}"));
}

TEST(what_is_wrong_is_said) {
  CHECK(refused("{\"a\":{\"$regex\":\"x\"}}", "unknown operator $regex; known are $eq"));
  CHECK(refused("{\"$nor\":[]}", "unknown operator $nor"));
  CHECK(refused("{\"$eq\":1}", "stands below a metadata key"));
  CHECK(refused("{\"a\":{\"$gt\":1,\"b\":2}}", "mixes operators"));
  CHECK(refused("{\"a\":{\"$in\":3}}", "$in takes a list"));
  CHECK(refused("{\"a\":{\"$exists\":1}}", "true or false"));
  CHECK(refused("{\"a\":{\"$subset\":[1]}}", "$subset takes"));
  CHECK(refused("{\"$and\":{}}", "list of filters"));
  CHECK(refused("{\"$or\":[1]}", "list of filters"));
  CHECK(refused("{\"$not\":[]}", "$not takes"));
  CHECK(refused("{\"a\":{\"$not\":1}}", "$not below a key"));
  CHECK(refused("{\"a\":{\"$not\":{\"b\":1}}}", "$not below a key"));
  CHECK(refused("{\"a\":{\"$or\":[]}}", "cannot stand below a key"));
  CHECK(refused("[]", "must be a JSON object"));
  CHECK(refused("{\"a\":", "not valid JSON"));
  CHECK(refused("", "not valid JSON"));
  CHECK(refused("{\"a\":1,\"a\":2}", "twice"));
  CHECK(refused("{\"a\":9223372036854775808}", "int64"));
}

TEST(limits_hold_and_what_they_allow_passes) {
  std::string filter = "{\"$or\":[{\"a\":0}";
  for (int i = 1; i < 63; ++i) filter += ",{\"a\":" + std::to_string(i) + "}";
  CHECK(matches(filter + "]}", "{\"a\":62}"));
  CHECK(refused(filter + ",{\"a\":63}]}", "more than 64"));
  std::string list = "{\"a\":{\"$in\":[0";
  for (int i = 1; i < 10000; ++i) list += "," + std::to_string(i);
  CHECK(matches(list + "]}}", "{\"a\":9999}"));
  CHECK(!matches(list + "]}}", "{\"a\":10000}"));
  CHECK(refused(list + ",10000]}}", "at most 10000"));
  auto nested = [](int depth) {
    std::string text = "{\"a\":1}";
    for (int i = 1; i < depth; ++i) text = "{\"$not\":" + text + "}";
    return text;
  };
  CHECK(!matches(nested(16), "{\"a\":1}"));
  CHECK(refused(nested(17), "deeper than 16"));
  CHECK(refused("{\"$and\":" + std::string(200000, '['), "nested more than"));
}

TEST(hostile_metadata_never_reads_past_its_end) {
  std::string whole = "{\"a\\u0062\":[1,{\"b\":\"x\\\"\\ud83d\\ude00\"},null],\"x\":{\"y\":[true,false]},\"n\":-1.5e3}";
  auto filter = Filter::parse(
      "{\"$or\":[{\"ab\":{\"$contains\":{\"b\":\"x\"}}},{\"x.y\":[true]},{\"n\":{\"$gt\":5}},{\"ab\":{\"$icontains\":"
      "\"q\"}}]}");
  CHECK(bool(filter));
  for (size_t cut = 0; cut <= whole.size(); ++cut) {
    // Its own allocation, so that a sanitizer sees the end.
    std::string part(whole.data(), cut);
    filter->matches(std::string_view(std::vector<char>(part.begin(), part.end()).data(), cut));
  }
}

// ---- random filters against a plain evaluator ----

namespace {

using Random = std::mt19937;

size_t pick(Random& random, size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random); }

json any_scalar(Random& random) {
  static const json scalars[] = {nullptr, true, false, 0, 1, 1.0, 1.5, 2, -1, "", "a", "b", "ab", "é"};
  return scalars[pick(random, std::size(scalars))];
}

json any_value(Random& random, int depth) {
  size_t kind = pick(random, depth > 0 ? 8 : 6);
  if (kind < 6) return any_scalar(random);
  json value = kind == 6 ? json::array() : json::object();
  for (size_t i = pick(random, 3); i > 0; --i) {
    if (kind == 6)
      value.push_back(any_value(random, depth - 1));
    else
      value[std::string(1, char('a' + pick(random, 3)))] = any_value(random, depth - 1);
  }
  return value;
}

std::string any_key(Random& random) {
  static const char* keys[] = {"a", "b", "c", "a.b", "a.b.c", "b.a"};
  return keys[pick(random, 6)];
}

json any_condition(Random& random, int depth) {
  static const char* operators[] = {"$eq", "$ne",  "$gt",     "$gte",      "$lt",    "$lte",
                                    "$in", "$nin", "$exists", "$contains", "$subset"};
  if (pick(random, 4) == 0) return any_scalar(random);
  json condition = json::object();
  for (size_t i = 1 + pick(random, 2); i > 0; --i) {
    std::string op = operators[pick(random, std::size(operators))];
    if (op == "$exists")
      condition[op] = pick(random, 2) == 0;
    else if (op == "$in" || op == "$nin")
      condition[op] = json::array({any_value(random, 1), any_value(random, 1)});
    else if (op == "$subset")
      condition[op] = json{{"a", any_value(random, 1)}};
    else
      condition[op] = any_value(random, 2);
  }
  if (depth > 0 && pick(random, 5) == 0) condition["$not"] = json{{"$gt", any_scalar(random)}};
  return condition;
}

json any_filter(Random& random, int depth) {
  json filter = json::object();
  for (size_t i = pick(random, 3); i > 0; --i) filter[any_key(random)] = any_condition(random, depth);
  if (depth == 0) return filter;
  static const char* groups[] = {"$and", "$or"};
  if (pick(random, 2) == 0)
    filter[groups[pick(random, 2)]] = json::array({any_filter(random, depth - 1), any_filter(random, depth - 1)});
  if (pick(random, 4) == 0) filter["$not"] = any_filter(random, depth - 1);
  return filter;
}

const json* look_up(const json& row, const std::string& key) {
  if (row.contains(key)) return &row[key];
  const json* at = &row;
  std::stringstream parts(key);
  for (std::string part; std::getline(parts, part, '.');) {
    if (!at->is_object() || !at->contains(part)) return nullptr;
    at = &(*at)[part];
  }
  return at;
}

bool subset(const json& wanted, const json& value) {
  if (!wanted.is_object()) return wanted == value;
  if (!value.is_object()) return false;
  for (auto& [key, member] : wanted.items()) {
    if (!value.contains(key) || !subset(member, value[key])) return false;
  }
  return true;
}

bool plain_condition(const json& condition, const json* value);

bool plain_operator(const std::string& op, const json& operand, const json* value) {
  if (op == "$not") return !plain_condition(operand, value);
  if (op == "$exists") return (value != nullptr) == operand.get<bool>();
  if (op == "$eq") return value && *value == operand;
  if (op == "$ne") return !(value && *value == operand);
  bool in = false;
  if (op == "$in" || op == "$nin") {
    for (auto& item : operand) in = in || (value && *value == item);
    return in == (op == "$in");
  }
  if (!value) return false;
  if (op == "$subset") return value->is_object() && subset(operand, *value);
  if (op == "$contains") {
    if (value->is_string())
      return operand.is_string() && value->get<std::string>().find(operand.get<std::string>()) != std::string::npos;
    if (value->is_array())
      for (auto& item : *value) in = in || item == operand;
    return in;
  }
  bool comparable = (value->is_number() && operand.is_number()) || (value->is_string() && operand.is_string());
  if (!comparable) return false;
  return op == "$gt"    ? *value > operand
         : op == "$gte" ? *value >= operand
         : op == "$lt"  ? *value < operand
                        : *value <= operand;
}

bool plain_condition(const json& condition, const json* value) {
  bool operators = condition.is_object() && !condition.empty() && condition.begin().key().starts_with("$");
  if (!operators) return value && *value == condition;
  for (auto& [op, operand] : condition.items()) {
    if (!plain_operator(op, operand, value)) return false;
  }
  return true;
}

bool plain_matches(const json& filter, const json& row) {
  for (auto& [key, condition] : filter.items()) {
    bool holds = key == "$or" ? false : true;
    if (key == "$and")
      for (auto& item : condition) holds = holds && plain_matches(item, row);
    else if (key == "$or")
      for (auto& item : condition) holds = holds || plain_matches(item, row);
    else if (key == "$not")
      holds = !plain_matches(condition, row);
    else
      holds = plain_condition(condition, look_up(row, key));
    if (!holds) return false;
  }
  return true;
}

}  // namespace

TEST(random_filters_agree_with_a_plain_evaluator) {
  Random random(7);
  int matched = 0, total = 0;
  for (int i = 0; i < 4000; ++i) {
    json filter = any_filter(random, 2);
    auto parsed = Filter::parse(filter.dump());
    if (!parsed) {
      check::fail(__FILE__, __LINE__, filter.dump() + ": " + parsed.error().words);
      continue;
    }
    for (int j = 0; j < 10; ++j) {
      json row = any_value(random, 3);
      if (!row.is_object()) row = json{{"a", row}, {"b", any_value(random, 2)}};
      bool expected = plain_matches(filter, row);
      matched += expected;
      ++total;
      if (expected != parsed->matches(row.dump())) check::fail(__FILE__, __LINE__, filter.dump() + " on " + row.dump());
    }
  }
  CHECK(matched > total / 10 && matched < total * 9 / 10);
}

TEST_MAIN
