// Metadata that may enter, and the words for what may not.
#include "base/json_check.h"

#include <string>

#include "check.h"

using kalos::check_metadata;

namespace {

std::string refusal(const std::string& json) {
  auto checked = check_metadata(json);
  if (checked) return "accepted";
  CHECK_EQ(int(KALOS_STATUS_INVALID_REQUEST), int(checked.error().status));
  return checked.error().words;
}

bool says(const std::string& json, const std::string& part) {
  std::string words = refusal(json);
  if (words.find(part) != std::string::npos) return true;
  std::cerr << json.substr(0, 80) << ": " << words << "\n";
  return false;
}

std::string nested(size_t depth) {
  std::string json = "1";
  for (size_t i = 0; i < depth; ++i) json = "{\"k\":" + json + "}";
  return json;
}

}  // namespace

TEST(what_json_objects_may_hold) {
  for (std::string json : {"{}", " {\"a\" : null } ", "{\"a\":[1,2,{\"a\":1}],\"b\":{\"a\":true}}",
                           "{\"\":\"\\u00e9\\ud83d\\ude00\"}", "{\"n\":9223372036854775807,\"m\":-9223372036854775808}",
                           "{\"x\":1e308,\"y\":-0,\"z\":1e-400}", "{\"x\":9223372036854775808.0,\"y\":1e19}"}) {
    CHECK_EQ(std::string("accepted"), refusal(json));
  }
}

TEST(only_objects) {
  for (std::string json : {"[]", "1", "null", "\"a\"", "true", "[{}]"}) CHECK(says(json, "must be a JSON object"));
}

TEST(integers_beyond_int64_are_refused_however_long_and_the_key_is_named) {
  for (std::string number :
       {"9223372036854775808", "-9223372036854775809", "18446744073709551615", "18446744073709551616",
        "123456789012345678901234567890", "-123456789012345678901234567890"}) {
    CHECK(says("{\"ok\":1,\"big\":" + number + "}", "\"big\""));
    CHECK(says("{\"ok\":1,\"big\":[" + number + "]}", "int64"));
  }
}

TEST(numbers_that_are_not_finite_are_refused) {
  CHECK(says("{\"x\":1e999}", "\"x\""));
  CHECK(says("{\"x\":-1e999}", "beyond float64"));
  CHECK(says("{\"x\":NaN}", "NaN"));
  CHECK(says("{\"x\":Infinity}", "Infinity"));
  CHECK(says("{\"x\":-Infinity}", "not valid JSON"));
}

TEST(keys_are_unique_in_each_object_also_when_spelled_differently) {
  CHECK(says("{\"a\":1,\"a\":2}", "\"a\" twice"));
  CHECK(says("{\"b\":{\"a\":1,\"c\":2,\"a\":3}}", "\"a\" twice"));
  CHECK(says("{\"a\":1,\"\\u0061\":2}", "twice"));
  CHECK(says("{\"l\":[{\"q\":1,\"q\":1}]}", "\"q\" twice"));
  CHECK_EQ(std::string("accepted"), refusal("{\"a\":{\"a\":{\"a\":1}},\"b\":{\"a\":1}}"));
}

TEST(depth_counts_the_outermost_object) {
  CHECK_EQ(std::string("accepted"), refusal(nested(KALOS_MAX_METADATA_DEPTH)));
  CHECK(says(nested(KALOS_MAX_METADATA_DEPTH + 1), "nested more than 32"));
  CHECK(says("{\"a\":" + std::string(100000, '['), "nested more than 32"));
}

TEST(size_is_bounded) {
  std::string json = "{\"a\":\"" + std::string(KALOS_MAX_METADATA_BYTES - 8, 'x') + "\"}";
  CHECK_EQ(size_t{KALOS_MAX_METADATA_BYTES}, json.size());
  CHECK_EQ(std::string("accepted"), refusal(json));
  CHECK(says(json + " ", "1048577 bytes"));
}

TEST(what_is_not_json_is_refused) {
  for (std::string json :
       {"", " ", "{", "{\"a\"}", "{\"a\":}", "{\"a\":1,}", "{a:1}", "{} {}", "{}x", "{\"a\":01}", "{\"a\":'b'}",
        "{\"a\":\"\n\"}", "{\"a\":\"\xC3\"}", "{\"a\":\"\\ud800\"}", "{/*c*/}", "{\"a\":tru}"}) {
    CHECK(says(json, "not valid JSON"));
  }
  CHECK(says(std::string("{}\0", 3), "zero byte"));
  CHECK(says(std::string("{}\0garbage", 10), "zero byte"));
  CHECK(says("\xEF\xBB\xBF{}", "byte order mark"));
}

TEST(words_name_the_key_and_stay_short) {
  CHECK(says("{\"price\":tru}", "price"));
  std::string words = refusal("{\"" + std::string(5000, 'k') + "\":1e999}");
  CHECK(words.size() < 300);
}

TEST_MAIN
