#include "base/hash128.h"

#include <bit>
#include <cstring>

namespace kalos {
namespace {

constexpr uint64_t kFirst = 0x87c37b91114253d5u;
constexpr uint64_t kSecond = 0x4cf5ad432745937fu;

uint64_t mix_first(uint64_t word) { return std::rotl(word * kFirst, 31) * kSecond; }
uint64_t mix_second(uint64_t word) { return std::rotl(word * kSecond, 33) * kFirst; }

uint64_t finish(uint64_t word) {
  word = (word ^ (word >> 33)) * 0xff51afd7ed558ccdu;
  word = (word ^ (word >> 33)) * 0xc4ceb9fe1a85ec53u;
  return word ^ (word >> 33);
}

}  // namespace

Hash128 hash_128(std::span<const std::byte> bytes, uint32_t seed) {
  uint64_t words[2];
  uint64_t low = seed, high = seed;
  size_t at = 0;
  for (; bytes.size() - at >= sizeof words; at += sizeof words) {
    std::memcpy(words, bytes.data() + at, sizeof words);
    low = (std::rotl(low ^ mix_first(words[0]), 27) + high) * 5 + 0x52dce729;
    high = (std::rotl(high ^ mix_second(words[1]), 31) + low) * 5 + 0x38495ab5;
  }
  // The rest with zeros behind it: the length, mixed in below, tells it from a longer one.
  words[0] = words[1] = 0;
  if (at < bytes.size()) std::memcpy(words, bytes.data() + at, bytes.size() - at);
  low ^= mix_first(words[0]) ^ bytes.size();
  high ^= mix_second(words[1]) ^ bytes.size();
  low += high;
  high += low;
  low = finish(low);
  high = finish(high);
  low += high;
  high += low;
  Hash128 hash;
  std::memcpy(hash.data(), &low, sizeof low);
  std::memcpy(hash.data() + sizeof low, &high, sizeof high);
  return hash;
}

}  // namespace kalos
