// Reply messages as abi.h lays them out, from the engine's answers.
//
// A message is its struct, then the columns, then the bytes that spans point at. Columns and vectors start at multiples
// of 8. Offset 0 is absent; a run that is present but empty has a nonzero offset.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "engine/jobs.h"
#include "engine/requests.h"

namespace kalos {

// A row on its way into a reply. Views live until it is encoded.
struct Hit {
  bool found = true;  // get: false where there is no such row; then nothing else is read
  double score = 0;
  int64_t created_us = 0;
  int64_t updated_us = 0;
  std::string_view id;
  std::string_view namespace_key;
  std::optional<std::string_view> text;
  std::optional<std::string_view> metadata;
  const float* vector = nullptr;  // `dimension` floats, or none
};

struct HitsAnswer {
  uint64_t commit_sequence = 0;
  uint32_t include = 0;
  uint32_t dimension = 0;
  std::vector<uint32_t> groups;  // group_count + 1 positions in hits, the first 0
  std::vector<Hit> hits;
  bool has_scores = false;
  bool has_cursor = false;
  uint64_t cursor_sequence = 0;
  int64_t cursor_updated_us = 0;
  std::optional<std::string> explain;  // JSON
};

// Bytes of a hit in a reply, at most: what a page of a scan is measured by.
uint64_t hit_bytes(const Hit& hit, uint32_t dimension);

// Errors: InvalidRequest where the message would be longer than KALOS_MAX_MESSAGE_BYTES, saying what to ask for
// instead.
Result<Bytes> encode_hits(const HitsAnswer& answer);
Result<Bytes> encode_namespaces(uint64_t commit_sequence, std::span<const std::string_view> keys);
Bytes encode_count_reply(uint64_t commit_sequence, uint64_t count);

Bytes encode_write_reply(uint64_t commit_sequence, uint64_t count);
// replies: whole reply messages, in the order of the batch's operations. Longer than KALOS_MAX_MESSAGE_BYTES: an error.
Result<Bytes> encode_batch_reply(uint64_t commit_sequence, std::span<const Bytes> replies);

// Counts a reply among those of its batch, where it has one. An error once they are more than one message holds: checked
// one by one, so that a batch never takes much more memory than it may answer with.
Result<> count_in_batch(uint64_t* bytes_of_batch, uint64_t reply_bytes);

// The message of a Reply whose status is not OK: its words.
Reply error_reply(const Error& error);

}  // namespace kalos
