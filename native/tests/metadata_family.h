// Random metadata and filters for the tests and the benchmark of columns: every kind of value, in every spelling of JSON.
#pragma once

#include <random>
#include <string>
#include <vector>

namespace family {

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}

  size_t below(size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(engine_); }
  bool one_in(size_t n) { return below(n) == 0; }
  template <class T>
  const T& of(const std::vector<T>& choices) {
    return choices[below(choices.size())];
  }

 private:
  std::mt19937 engine_;
};

inline std::string quoted(const std::string& text) { return "\"" + text + "\""; }

inline std::string join(const std::vector<std::string>& parts, const char* open, const char* close) {
  std::string text = open;
  for (size_t i = 0; i < parts.size(); ++i) text += (i ? "," : "") + parts[i];
  return text + close;
}

// Numbers where int64 and float64 disagree, and the same ones written in other ways.
inline const std::vector<std::string>& edge_numbers() {
  static const std::vector<std::string> numbers{"0",
                                                "-0.0",
                                                "0.0",
                                                "1",
                                                "1.0",
                                                "1e0",
                                                "10e-1",
                                                "-1",
                                                "2.5",
                                                "1e-320",
                                                "1e-400",
                                                "1e300",
                                                "-1e300",
                                                "9007199254740991",
                                                "9007199254740992",
                                                "9007199254740993",
                                                "9007199254740992.0",
                                                "9007199254740994",
                                                "-9007199254740993",
                                                "-9007199254740992.0",
                                                "9223372036854775807",
                                                "9223372036854775806",
                                                "9223372036854775808.0",
                                                "-9223372036854775808",
                                                "-9223372036854775808.0",
                                                "9223372036854774784.0"};
  return numbers;
}

inline std::string any_string(Random& random) {
  static const std::vector<std::string> strings{"",     "a",       "A",     "ab",
                                                "b",    "\\u0061", "aB c",  "caf\\u00e9",
                                                "café", "CAFÉ",    "ΣΟΦΟΣ", "\\ud83d\\ude00",
                                                "1",    "true",    "null",  "say \\\"a\\\"",
                                                "a\\n", "ba"};
  return quoted(random.of(strings));
}

inline std::string any_scalar(Random& random) {
  switch (random.below(6)) {
    case 0:
      return "null";
    case 1:
      return random.one_in(2) ? "true" : "false";
    case 2:
      return random.of(edge_numbers());
    case 3:
      return std::to_string(random.below(5));
    default:
      return any_string(random);
  }
}

inline std::string any_value(Random& random, int depth) {
  size_t kind = depth > 0 ? random.below(8) : 0;
  if (kind < 6) return any_scalar(random);
  std::vector<std::string> parts;
  for (size_t i = random.below(4); i > 0; --i) {
    std::string part = any_value(random, depth - 1);
    if (kind == 7) part = quoted(std::string(1, char('a' + i))) + (random.one_in(2) ? ":" : " : ") + part;
    parts.push_back(part);
  }
  return kind == 6 ? join(parts, "[", "]") : join(parts, "{", " }");
}

// The fields that rows have: of few values, of many numbers, of many strings, of lists, of anything; literal and nested.
inline std::string any_metadata(Random& random) {
  if (random.one_in(12)) return "{}";
  std::vector<std::string> members;
  auto add = [&](const std::string& key, const std::string& value) { members.push_back(quoted(key) + ": " + value); };
  if (!random.one_in(5)) add("lang", quoted(random.of<std::string>({"en", "de", "uk", "En"})));
  if (!random.one_in(6)) {
    add("n", random.one_in(3) ? random.of(edge_numbers())
             : random.one_in(10)
                 ? any_scalar(random)
                 : std::to_string(int(random.below(200'000)) - 100'000) + (random.one_in(2) ? ".5" : ""));
  }
  if (!random.one_in(6)) add("id", quoted("id" + std::to_string(random.below(100'000))));
  if (!random.one_in(3)) add("any", any_value(random, 2));
  if (!random.one_in(3)) {
    std::vector<std::string> tags;
    for (size_t i = random.below(4); i > 0; --i) tags.push_back(any_scalar(random));
    add("tags", join(tags, "[", "]"));
  }
  if (random.one_in(4)) add(random.one_in(2) ? "a.b" : "a.\\u0062", any_value(random, 1));
  if (random.one_in(2)) add("a", random.one_in(3) ? any_scalar(random) : "{\"b\": " + any_value(random, 1) + "}");
  return join(members, "{", "}");
}

inline std::string any_condition(Random& random, const std::string& field, int depth) {
  auto operand = [&]() -> std::string {
    if (field == "lang" && !random.one_in(3)) return quoted(random.of<std::string>({"en", "de", "e"}));
    if (field == "id" && !random.one_in(3)) return quoted("id" + std::to_string(random.below(100'000)));
    if (field == "n" && !random.one_in(4)) {
      return random.one_in(2) ? random.of(edge_numbers()) : std::to_string(int(random.below(200'000)) - 100'000);
    }
    return any_value(random, 2);
  };
  auto list = [&] {
    std::vector<std::string> values;
    for (size_t i = random.below(random.one_in(3) ? 40 : 5); i > 0; --i) values.push_back(operand());
    return join(values, "[", "]");
  };
  std::string op = random.of<std::string>({"$eq", "$ne", "$gt", "$gte", "$lt", "$lte", "$in", "$nin", "$exists",
                                           "$contains", "$icontains", "$subset", "$not", ""});
  if (op.empty()) {
    std::string value = any_scalar(random);
    return value;
  }
  std::string value = operand();
  if (op == "$in" || op == "$nin") value = list();
  if (op == "$exists") value = random.one_in(2) ? "true" : "false";
  if (op == "$subset") value = random.one_in(3) ? "{}" : "{\"b\": " + any_value(random, 1) + "}";
  if (op == "$not") {
    if (depth == 0) return "{\"$not\": {\"$lt\": " + value + "}}";
    std::string inner = any_condition(random, field, depth - 1);
    if (inner[0] != '{' || inner[1] != '"' || inner[2] != '$') inner = "{\"$eq\": " + inner + "}";
    value = inner;
  }
  return "{\"" + op + "\": " + value + "}";
}

inline std::string any_filter(Random& random, int depth) {
  std::vector<std::string> members;
  auto filters = [&] {
    std::vector<std::string> parts;
    for (size_t i = random.below(4); i > 0; --i) parts.push_back(any_filter(random, depth - 1));
    return join(parts, "[", "]");
  };
  static const std::vector<std::string> fields{"lang", "n", "n", "id", "any", "tags", "a.b", "a", "nobody"};
  std::string first = random.of(fields), second = random.of(fields);
  members.push_back(quoted(first) + ": " + any_condition(random, first, 1));
  if (random.one_in(3) && second != first) members.push_back(quoted(second) + ": " + any_condition(random, second, 1));
  if (depth > 0) {
    if (random.one_in(3)) members.push_back("\"$or\": " + filters());
    if (random.one_in(4)) members.push_back("\"$and\": " + filters());
    if (random.one_in(4)) members.push_back("\"$not\": " + any_filter(random, depth - 1));
    if (random.one_in(5)) members.erase(members.begin());
  }
  return join(members, "{", "}");
}

}  // namespace family
