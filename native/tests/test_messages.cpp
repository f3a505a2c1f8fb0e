// Decoding requests: what is well-formed comes out, what is not is refused in words, and no bytes whatever lead outside
// the message.
#include "serve/messages.h"

#include <cstring>
#include <random>

#include "check.h"

using namespace kalos;

namespace {

template <class Head>
Bytes with_head(const Head& head) {
  Bytes out(sizeof head);
  std::memcpy(out.data(), &head, sizeof head);
  return out;
}

kalos_span append(Bytes& message, const void* data, size_t bytes, size_t alignment = 8) {
  while (message.size() % alignment != 0) message.push_back(std::byte{0});
  kalos_span span{static_cast<uint32_t>(message.size()), static_cast<uint32_t>(bytes)};
  auto from = static_cast<const std::byte*>(data);
  message.insert(message.end(), from, from + bytes);
  return span;
}

template <class Head>
void put_head(Bytes& message, const Head& head) {
  std::memcpy(message.data(), &head, sizeof head);
}

Bytes search_message(kalos_search_request head, const std::vector<float>& vectors) {
  Bytes message = with_head(head);
  head.vectors = append(message, vectors.data(), vectors.size() * 4);
  put_head(message, head);
  return message;
}

kalos_search_request search_head() {
  kalos_search_request head{};
  head.collection_id = 7;
  head.query_count = 2;
  head.dimension = 3;
  head.k = 10;
  return head;
}

Bytes upsert_message() {
  kalos_upsert_request head{};
  head.durability = KALOS_DURABILITY_COMMIT;
  head.row_count = 2;
  head.dimension = 2;
  Bytes message = with_head(head);
  std::vector<kalos_span> ids, texts, metadatas;
  for (const char* id : {"one", "two"}) ids.push_back(append(message, id, 3, 1));
  for (const char* text : {"first", "secon"}) texts.push_back(append(message, text, 5, 1));
  for (int i = 0; i < 2; ++i) metadatas.push_back(append(message, "{\"a\":1}", 7, 1));
  head.ids = append(message, ids.data(), ids.size() * 8);
  head.texts = append(message, texts.data(), texts.size() * 8);
  head.metadatas = append(message, metadatas.data(), metadatas.size() * 8);
  std::vector<uint8_t> has_vector = {0, 1};
  head.has_vector = append(message, has_vector.data(), has_vector.size());
  std::vector<float> vectors = {1, 2, 3, 4};
  head.vectors = append(message, vectors.data(), vectors.size() * 4);
  put_head(message, head);
  return message;
}

std::string words(const Error& error) { return error.words; }

}  // namespace

TEST(search_is_decoded) {
  Bytes message = search_message(search_head(), {1, 2, 3, 4, 5, 6});
  auto request = decode_read(KALOS_OP_SEARCH, message);
  CHECK(bool(request));
  const auto& search = std::get<SearchRequest>(*request);
  CHECK_EQ(7u, search.collection_id);
  CHECK_EQ(6u, search.vectors.size());
  CHECK_EQ(6.0f, search.vectors[5]);
  CHECK(!search.min_score && !search.filter && !search.scope.subtree);
}

TEST(search_bounds_are_kept) {
  auto refused = [](kalos_search_request head, size_t floats) {
    Bytes message = search_message(head, std::vector<float>(floats));
    return !decode_read(KALOS_OP_SEARCH, message);
  };
  auto head = search_head();
  head.k = KALOS_MAX_K;
  CHECK(!refused(head, 6));
  head.skip = 1;
  CHECK(refused(head, 6));
  head = search_head();
  head.dimension = 0;
  CHECK(refused(head, 0));
  head.dimension = KALOS_MAX_DIMENSION + 1;
  CHECK(refused(head, 6));
  CHECK(refused(search_head(), 5));
  // query_count x dimension x 4 is 2^64 here: it must not wrap around to an empty column.
  head = search_head();
  head.query_count = 1u << 31;
  head.dimension = 1u << 31;
  CHECK(refused(head, 0));
}

TEST(upsert_is_decoded) {
  WriteJob job;
  job.message = upsert_message();
  CHECK(bool(decode_write(KALOS_OP_UPSERT, job)));
  const auto& upsert = std::get<UpsertRequest>(job.operations.at(0));
  CHECK_EQ(2u, upsert.rows.size());
  CHECK_EQ(std::string("two"), std::string(upsert.rows[1].id));
  CHECK(upsert.rows[0].vector.empty());
  CHECK_EQ(4.0f, upsert.rows[1].vector[1]);
  CHECK_EQ(std::string("secon"), std::string(*upsert.rows[1].text));
}

TEST(namespace_keys_are_checked) {
  auto decode = [](const std::string& key) {
    kalos_count_request head{};
    Bytes message = with_head(head);
    head.name_space = append(message, key.data(), key.size(), 1);
    put_head(message, head);
    return decode_read(KALOS_OP_COUNT, message);
  };
  using namespace std::string_literals;
  CHECK(bool(decode("\0\1a\0\2bc"s)));
  CHECK(bool(decode(""s)));
  CHECK(!decode("\0"s));
  CHECK(!decode("\0\0"s));
  CHECK(!decode("\0\5a"s));
  CHECK(!decode("\0\1\xff"s));
  CHECK(!decode("\1\1"s + std::string(257, 'a')));
  CHECK(bool(decode("\1\0"s + std::string(256, 'a'))));
  std::string deep;
  for (int i = 0; i < 16; ++i) deep += "\0\1a"s;
  CHECK(bool(decode(deep)));
  CHECK(!decode(deep + "\0\1a"s));
}

TEST(delete_needs_a_reason) {
  kalos_delete_request head{};
  head.durability = KALOS_DURABILITY_COMMIT;
  WriteJob job;
  job.message = with_head(head);
  auto decoded = decode_write(KALOS_OP_DELETE, job);
  CHECK(!decoded);
  CHECK(words(decoded.error()).find("everything") != std::string::npos);
  head.flags = KALOS_SCOPE_EVERYTHING;
  WriteJob meant;
  meant.message = with_head(head);
  CHECK(bool(decode_write(KALOS_OP_DELETE, meant)));
}

TEST(a_batch_names_the_operation_that_fails) {
  kalos_batch_request head{};
  head.durability = KALOS_DURABILITY_RELAXED;
  head.operation_count = 2;
  WriteJob job;
  job.message = with_head(head);
  Bytes good = search_message(search_head(), {1, 2, 3, 4, 5, 6});
  kalos_batch_operation operations[2] = {{KALOS_OP_SEARCH, 0, append(job.message, good.data(), good.size())},
                                         {KALOS_OP_SEARCH, 0, append(job.message, good.data(), 20)}};
  head.operations = append(job.message, operations, sizeof operations);
  put_head(job.message, head);
  auto decoded = decode_write(KALOS_OP_BATCH, job);
  CHECK(!decoded);
  CHECK(words(decoded.error()).rfind("operation 1: ", 0) == 0);
}

// Run under the address sanitizer this proves that views stay inside; without it, that nothing hangs or throws.
TEST(mutated_messages_stay_inside) {
  std::mt19937 random(20261201);
  Bytes search = search_message(search_head(), {1, 2, 3, 4, 5, 6});
  const std::pair<uint16_t, Bytes> seeds[] = {{KALOS_OP_SEARCH, search},    {KALOS_OP_UPSERT, upsert_message()},
                                              {KALOS_OP_SCAN, search},      {KALOS_OP_GET, search},
                                              {KALOS_OP_DELETE, search},    {KALOS_OP_BATCH, search},
                                              {KALOS_OP_NAMESPACES, search}};
  size_t touched = 0;
  for (int round = 0; round < 20000; ++round) {
    auto [opcode, message] = seeds[random() % std::size(seeds)];
    for (unsigned i = 0; i < 1 + random() % 6; ++i) {
      size_t at = random() % message.size();
      message[at] = static_cast<std::byte>(random() % 4 == 0 ? 0xff : random() % 32);
    }
    if (random() % 4 == 0) message.resize(random() % (message.size() + 1));
    message.shrink_to_fit();
    if (is_write(opcode)) {
      WriteJob job;
      job.message = message;
      if (!decode_write(opcode, job)) continue;
      for (const auto& operation : job.operations) {
        if (auto upsert = std::get_if<UpsertRequest>(&operation)) {
          for (const auto& row : upsert->rows) {
            for (char c : row.id) touched += static_cast<unsigned char>(c);
            for (float f : row.vector) touched += f > 0;
          }
        }
      }
    } else if (auto request = decode_read(opcode, message)) {
      if (auto found = std::get_if<SearchRequest>(&*request)) {
        for (float f : found->vectors) touched += f > 0;
      }
    }
  }
  CHECK(touched > 0);
}

TEST_MAIN
