// The smallest test frame that says what was expected: TEST(name) { CHECK(...); CHECK_EQ(expected, actual); }
#pragma once

#include <cstdio>
#include <functional>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

namespace check {

struct Test {
  const char* name;
  std::function<void()> body;
};
inline std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}
inline int& failures() {
  static int count = 0;
  return count;
}
struct Register {
  Register(const char* name, std::function<void()> body) { tests().push_back({name, std::move(body)}); }
};
inline void fail(const char* file, int line, const std::string& words) {
  ++failures();
  std::cerr << file << ":" << line << ": " << words << "\n";
}
inline int run() {
  for (auto& test : tests()) {
    int before = failures();
    test.body();
    std::cout << (failures() == before ? "ok    " : "FAIL  ") << test.name << "\n";
  }
  std::cout << tests().size() << " tests, " << failures() << " failed checks\n";
  return failures() == 0 ? 0 : 1;
}

}  // namespace check

#define TEST(name)                                            \
  static void test_##name();                                  \
  static check::Register register_##name(#name, test_##name); \
  static void test_##name()
#define CHECK(condition)                                                        \
  do {                                                                          \
    if (!(condition)) check::fail(__FILE__, __LINE__, "expected: " #condition); \
  } while (0)
#define CHECK_EQ(expected, actual)                                                     \
  do {                                                                                 \
    auto&& expected_value = (expected);                                                \
    auto&& actual_value = (actual);                                                    \
    if (!(expected_value == actual_value)) {                                           \
      std::ostringstream words;                                                        \
      words << #actual << ": expected " << expected_value << ", got " << actual_value; \
      check::fail(__FILE__, __LINE__, words.str());                                    \
    }                                                                                  \
  } while (0)
#define TEST_MAIN \
  int main() { return check::run(); }
