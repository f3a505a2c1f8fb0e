// The hash of requests is the published one, so that what an older kalosd remembered is recognised by a newer one.
#include "base/hash128.h"

#include <string>
#include <vector>

#include "check.h"

using namespace kalos;

// How the reference checks itself (SMHasher, VerificationTest): all lengths from 0 to 255, and the published number.
TEST(the_hash_is_the_reference_s) {
  std::vector<std::byte> key(256), hashes;
  for (uint32_t length = 0; length < 256; ++length) {
    key[length] = static_cast<std::byte>(length);
    Hash128 hash = hash_128(std::span(key).first(length), 256 - length);
    auto bytes = std::as_bytes(std::span(hash));
    hashes.insert(hashes.end(), bytes.begin(), bytes.end());
  }
  Hash128 all = hash_128(hashes, 0);
  uint32_t verification = all[0] | all[1] << 8 | all[2] << 16 | static_cast<uint32_t>(all[3]) << 24;
  CHECK_EQ(0x6384BA69u, verification);
}

// Where the bytes lie makes no difference.
TEST(the_hash_reads_from_any_place) {
  const std::string text = "the same forty-one bytes at eight places..";
  Hash128 expected = hash_128(std::as_bytes(std::span(text)), 1);
  for (size_t shift = 0; shift < 8; ++shift) {
    std::string moved = std::string(shift, '-') + text;
    CHECK(expected == hash_128(std::as_bytes(std::span(moved).subspan(shift)), 1));
  }
}

TEST_MAIN
