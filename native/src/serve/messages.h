// Request messages from bytes: every length bounded, every offset inside, every namespace and string well-formed. What
// comes out points into the message and needs no further checks of form; what depends on a collection's state (it exists,
// the dimension agrees, numbers are finite) is checked by the engine and the writer.
#pragma once

#include <memory>
#include <optional>

#include "base/result.h"
#include "engine/jobs.h"

namespace kalos {

// UNSUPPORTED, naming the field and the bits that are not among those known: what was asked for by them would silently not
// be done.
std::optional<Error> unknown_bits(uint32_t given, uint32_t known, const char* field);

bool is_write(uint16_t opcode);  // UPSERT, DELETE, OPEN_COLLECTION, DROP_COLLECTION, and BATCH

Result<ReadRequest> decode_read(uint16_t opcode, std::span<const std::byte> message);

// Fills write_id, durability and operations (and reads, for a batch) of the job, whose message is set.
Result<> decode_write(uint16_t opcode, WriteJob& job);

}  // namespace kalos
