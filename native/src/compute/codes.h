// Codes: what a search reads of most rows, an eighth of their vectors' bytes.
//
// A row is coded as c in [-127, 127] for each component (engine/coding.h), kept as u = c + 128 in two planes of
// nibbles. The high plane is scanned; the low one is read only for rows that the high one cannot rule out.
//
//   quad        8 components, 4 bytes of a plane: byte b holds component b in its low half and component b + 4 in its
//               high half
//   high plane  groups of 16 rows: for each quad, 4 bytes of each of the 16 rows; then three or two columns of 16
//               floats: scale, error of the high plane and, for l2, square. So one register of 64 bytes adds to 16 sums.
//   low plane   row by row, one quad after the other, because single rows are read
#pragma once

#include <cstddef>
#include <cstdint>

namespace kalos {

inline constexpr uint32_t rows_a_group = 16;
inline constexpr uint32_t groups_a_block = 4;
inline constexpr uint32_t rows_a_block = rows_a_group * groups_a_block;  // what one call scans: bits of a word

struct CodeShape {
  uint32_t quads = 0;    // of a row: padded_dimension / 8
  bool squares = false;  // l2

  size_t low_bytes() const { return size_t{quads} * 4; }
  size_t columns_at() const { return size_t{quads} * 4 * rows_a_group; }
  size_t group_bytes() const { return columns_at() + (squares ? 3 : 2) * rows_a_group * sizeof(float); }
};

// A query as the scan needs it: components in steps, split as the nibbles are.
struct CodeQuery {
  CodeShape shape;
  const int8_t* low_halves = nullptr;   // int8[quads * 4]: byte b of a quad is for component b
  const int8_t* high_halves = nullptr;  // likewise for component b + 4
  int32_t sum = 0;                      // of all components
};

// How a row's upper bound comes from S, in float32, one rounding for each operation:
//
//   similarity   upper = scale * (S * step) + (error * weight + base)
//   distance     upper = error * weight - sqrt(max(0, square * keep + base - scale * (S * step))) * shrink
//
// Higher is better: a distance is negated. The parameters hold what must be added for the roundings.
struct BoundTerms {
  float step = 0;
  float weight = 0;
  float base = 0;
  float keep = 0;
  float shrink = 0;
};

// S = 2 (query . c'), c' being the middle of the values that a row's high nibbles leave open: 16 h + 7.5 - 128. An
// integer, exact: for 8192 components it stays below 2^30.
inline constexpr int32_t twice_the_middle = 241;  // 2 * (128 - 7.5)

}  // namespace kalos
