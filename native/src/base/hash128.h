// MurmurHash3_x64_128 of Austin Appleby (2011, public domain), bit for bit that of the reference: 128 bits by which two
// runs of bytes are told apart. Fast and small, and no defence against somebody who looks for a collision on purpose.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kalos {

using Hash128 = std::array<uint8_t, 16>;

Hash128 hash_128(std::span<const std::byte> bytes, uint32_t seed);

}  // namespace kalos
