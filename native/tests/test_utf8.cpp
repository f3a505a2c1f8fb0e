// valid_utf8 against the table of Unicode 15, section 3.9, and against every code point.
#include "base/utf8.h"

#include <cstdint>
#include <string>

#include "base/case_fold.h"
#include "check.h"

using kalos::fold_case;
using kalos::to_utf8;
using kalos::valid_utf8;

namespace {

std::string encode(uint32_t point, int bytes) {
  static const int leads[] = {0, 0, 0xC0, 0xE0, 0xF0};
  if (bytes == 1) return std::string(1, char(point));
  std::string text(size_t(bytes), 0);
  for (int i = bytes - 1; i > 0; --i, point >>= 6) text[size_t(i)] = char(0x80 | (point & 0x3F));
  text[0] = char(leads[bytes] | int(point));
  return text;
}

int shortest(uint32_t point) { return point < 0x80 ? 1 : point < 0x800 ? 2 : point < 0x10000 ? 3 : 4; }

}  // namespace

TEST(every_code_point_in_its_shortest_form_and_no_other) {
  int wrong = 0;
  for (uint32_t point = 0; point < 0x120000; ++point) {
    bool scalar = point < 0xD800 || (point >= 0xE000 && point < 0x110000);
    wrong += valid_utf8(encode(point, shortest(point))) != scalar;
    for (int bytes = shortest(point) + 1; bytes <= 4; ++bytes) wrong += valid_utf8(encode(point, bytes));
  }
  CHECK_EQ(0, wrong);
}

TEST(truncated_and_stray_bytes_are_refused_wherever_they_stand) {
  for (std::string bad :
       {"\x80", "\xC3", "\xE2\x82", "\xF0\x9F\x98", "\xFF", "\xC0\x80", "\xF5\x80\x80\x80", "\xC3(", "\xE2(\xA1"}) {
    for (size_t before : {0u, 1u, 7u, 8u, 9u, 30u}) {
      CHECK(!valid_utf8(std::string(before, 'a') + bad));
      CHECK(!valid_utf8(std::string(before, 'a') + bad + std::string(20, 'b')));
    }
  }
  CHECK(valid_utf8(""));
  CHECK(valid_utf8(std::string_view("a\0b", 3)));
}

// Whatever it is made of, the words are well-formed; what was well-formed stays as it was.
TEST(any_bytes_become_words) {
  const std::string mark = "\xEF\xBF\xBD";
  CHECK_EQ("/tmp/" + mark + mark + "/a", to_utf8("/tmp/\xFF\xFE/a"));
  CHECK_EQ("é" + mark + "漢" + mark, to_utf8("é\xC3漢\xE2"));
  CHECK_EQ(mark + mark + mark, to_utf8("\xED\xA0\x80"));  // a surrogate
  CHECK_EQ(std::string("a\0b", 3), to_utf8(std::string_view("a\0b", 3)));
  std::string all;
  for (int first = 0; first < 256; ++first) {
    for (int second = 0; second < 256; ++second) all += {char(first), char(second)};
  }
  CHECK(valid_utf8(to_utf8(all)));
  CHECK(to_utf8(to_utf8(all)) == to_utf8(all));
}

TEST(folding_is_simple_and_covers_the_scripts) {
  CHECK_EQ(std::string("straße"), fold_case("STRAßE"));
  CHECK_EQ(fold_case("ÀÉÎÕÜ"), fold_case("àéîõü"));
  CHECK_EQ(fold_case("ΟΔΥΣΣΕΥΣ"), fold_case("οδυσσευς"));  // the final sigma too
  CHECK_EQ(fold_case("ПРИВЕТ Ё"), fold_case("привет ё"));
  CHECK_EQ(fold_case("ԱՐԵՒ"), fold_case("արեւ"));
  CHECK_EQ(fold_case("\xE1\xBA\x9E"), fold_case("ß"));                     // capital sharp s
  CHECK_EQ(fold_case("\xF0\x90\x90\x80"), fold_case("\xF0\x90\x90\xA8"));  // Deseret
  CHECK_EQ(std::string("漢字 123 \xFF\xC3"), fold_case("漢字 123 \xFF\xC3"));
  CHECK_EQ(std::string("İ"), fold_case("İ"));
}

TEST_MAIN
