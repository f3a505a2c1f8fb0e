// Scans for many queries at once with AMX: a tile instruction multiplies 16 queries by 16 rows, 64 components of each.
//
// A group's plane already lies as the tiles want it: for each quad 4 bytes of each of the 16 rows. Its halves are taken
// apart once for all queries, both 16 times too large, so that one sum takes them; the queries' halves are
// brought together, 16 queries at a time. Sums are integers, so the bits are those of every other set; bounds and single
// queries are those of AVX-512.
#if defined(__x86_64__)

#include "compute/cpu/avx512/bounds.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#define KALOS_AMX __attribute__((target("amx-tile,amx-int8,avx512f,avx512bw,avx512vl,avx512vnni")))

namespace kalos {
namespace {

constexpr uint32_t tile_rows = 16, tile_bytes = 64;
constexpr uint32_t quads_a_tile = 16;    // of a half
constexpr uint32_t most_tiles = 2 * 16;  // of a row, both halves: 2048 dimensions; longer ones go one by one
constexpr uint32_t fewest_queries = 4;   // for fewer, taking the halves apart does not pay

struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes_a_row[16] = {};
  uint8_t rows[16] = {};
};

struct Tile {
  alignas(64) uint8_t bytes[tile_rows][tile_bytes];
};

// A half's quads in whole tiles.
uint32_t tiles_a_half(const CodeShape& shape) { return (shape.quads + quads_a_tile - 1) / quads_a_tile; }

// rows := the group's halves, sixteenfold: the low ones, then the high ones. What is left of a half's last tile meets
// zeros of the queries.
KALOS_AMX void take_apart(const uint8_t* group, const CodeShape& shape, Tile* rows) {
  const __m512i mask = _mm512_set1_epi8(char(0xf0));
  const uint32_t tiles = tiles_a_half(shape);
  for (uint32_t quad = 0; quad < tiles * quads_a_tile; ++quad) {
    __m512i two = quad < shape.quads ? _mm512_loadu_si512(group + size_t{quad} * tile_bytes) : _mm512_setzero_si512();
    const uint32_t tile = quad / quads_a_tile, at = quad % quads_a_tile;
    _mm512_store_si512(rows[tile].bytes[at], _mm512_and_si512(_mm512_slli_epi16(two, 4), mask));
    _mm512_store_si512(rows[tiles + tile].bytes[at], _mm512_and_si512(two, mask));
  }
}

KALOS_AMX void bring_together(const BlockScan* scans, uint32_t count, Tile* queries) {
  const CodeShape& shape = scans[0].query->shape;
  const uint32_t tiles = tiles_a_half(shape), bytes = shape.quads * 4;
  for (uint32_t i = 0; i < tile_rows; ++i) {
    const int8_t* halves[] = {scans[i < count ? i : 0].query->low_halves, scans[i < count ? i : 0].query->high_halves};
    for (uint32_t half = 0; half < 2; ++half) {
      for (uint32_t tile = 0; tile < tiles; ++tile) {
        const uint32_t at = tile * tile_bytes, left = bytes - at;
        const __mmask64 there = left >= tile_bytes ? ~__mmask64{0} : (__mmask64{1} << left) - 1;
        _mm512_store_si512(queries[half * tiles + tile].bytes[i], _mm512_maskz_loadu_epi8(there, halves[half] + at));
      }
    }
  }
}

// found[g][i]: sixteen times (query i . the halves) of the 16 rows of group g. `rows`: `tiles` tiles for each group.
template <uint32_t count>
KALOS_AMX inline void multiply(const Tile* queries, const Tile* rows, uint32_t tiles, Tile* found) {
  _tile_zero(0);
  if constexpr (count > 1) _tile_zero(1);
  if constexpr (count > 2) _tile_zero(2);
  if constexpr (count > 3) _tile_zero(3);
  for (uint32_t tile = 0; tile < tiles; ++tile) {
    _tile_loadd(4, queries[tile].bytes, tile_bytes);
    _tile_loadd(5, rows[tile].bytes, tile_bytes);
    _tile_dpbsud(0, 4, 5);
    if constexpr (count > 1) {
      _tile_loadd(6, rows[tiles + tile].bytes, tile_bytes);
      _tile_dpbsud(1, 4, 6);
    }
    if constexpr (count > 2) {
      _tile_loadd(5, rows[2 * tiles + tile].bytes, tile_bytes);
      _tile_dpbsud(2, 4, 5);
    }
    if constexpr (count > 3) {
      _tile_loadd(6, rows[3 * tiles + tile].bytes, tile_bytes);
      _tile_dpbsud(3, 4, 6);
    }
  }
  _tile_stored(0, found[0].bytes, tile_bytes);
  if constexpr (count > 1) _tile_stored(1, found[1].bytes, tile_bytes);
  if constexpr (count > 2) _tile_stored(2, found[2].bytes, tile_bytes);
  if constexpr (count > 3) _tile_stored(3, found[3].bytes, tile_bytes);
}

template <class Bounds, uint32_t groups_there>
KALOS_AMX void scan_tiles(const uint8_t* groups, BlockScan* scans, uint32_t count) {
  const CodeShape& shape = scans[0].query->shape;
  const uint32_t tiles = 2 * tiles_a_half(shape);
  Tile rows[groups_a_block * most_tiles], queries[most_tiles], found[groups_a_block];
  for (uint32_t g = 0; g < groups_there; ++g) take_apart(groups + g * shape.group_bytes(), shape, rows + g * tiles);
  TileShapes shapes;
  std::fill_n(shapes.bytes_a_row, 8, uint16_t{tile_bytes});
  std::fill_n(shapes.rows, 8, uint8_t{tile_rows});
  _tile_loadconfig(&shapes);
  for (uint32_t first = 0; first < count; first += tile_rows) {
    const uint32_t together = std::min(tile_rows, count - first);
    bring_together(scans + first, together, queries);
    multiply<groups_there>(queries, rows, tiles, found);
    for (uint32_t i = 0; i < together; ++i) {
      BlockScan& scan = scans[first + i];
      const __m512i offset = _mm512_set1_epi32(twice_the_middle * scan.query->sum);
      __m512i sums[groups_there];
      for (uint32_t g = 0; g < groups_there; ++g) {
        __m512i sixteenfold = _mm512_load_si512(found[g].bytes[i]);
        sums[g] = _mm512_sub_epi32(_mm512_slli_epi32(sixteenfold, 1), offset);
      }
      store_bounds<groups_there>(groups, Bounds(scan.terms), sums, scan);
    }
  }
  _tile_release();  // or the system would save them whenever it takes the thread from its CPU
}

template <class Bounds>
KALOS_AMX void scan(const uint8_t* groups, uint32_t group_count, BlockScan* scans, uint32_t count) {
  switch (group_count) {
    case 4:
      return scan_tiles<Bounds, 4>(groups, scans, count);
    case 3:
      return scan_tiles<Bounds, 3>(groups, scans, count);
    case 2:
      return scan_tiles<Bounds, 2>(groups, scans, count);
    default:
      return scan_tiles<Bounds, 1>(groups, scans, count);
  }
}

bool is_worth_tiles(const BlockScan* scans, uint32_t count) {
  return count >= fewest_queries && 2 * tiles_a_half(scans[0].query->shape) <= most_tiles;
}

void scan_similarity(const uint8_t* groups, uint32_t group_count, BlockScan* scans, uint32_t count) {
  if (!is_worth_tiles(scans, count)) return avx512_code_kernels().scan_similarity(groups, group_count, scans, count);
  scan<Similarity>(groups, group_count, scans, count);
}

void scan_distance(const uint8_t* groups, uint32_t group_count, BlockScan* scans, uint32_t count) {
  if (!is_worth_tiles(scans, count)) return avx512_code_kernels().scan_distance(groups, group_count, scans, count);
  scan<Distance>(groups, group_count, scans, count);
}

}  // namespace

CodeKernels amx_code_kernels() {
  CodeKernels kernels = avx512_code_kernels();
  kernels.scan_similarity = scan_similarity;
  kernels.scan_distance = scan_distance;
  return kernels;
}

// Linux, since 5.16, gives the tiles' registers to a process that asks: arch/x86/xstate in the kernel's documentation.
bool may_use_tiles() {
  constexpr long request_permission = 0x1023, tile_data = 18;
  return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

}  // namespace kalos

#endif
