// Keeps deleted bytes out of the file. secure_delete overwrites what is deleted, but when SQLite splits or merges pages it
// leaves copies of the moved rows in the unused middle of the old page; a row deleted later is overwritten only where it
// lies then. So the writer's connection goes through a file layer of our own, which writes zeros there.
//
// A page of a table or index (https://sqlite.org/fileformat2.html, section 1.6): a header of 8 bytes (leaf) or 12, u16
// pointers to the cells, an unused middle, the cells. Other pages have no such middle and pass unchanged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace kalos {

// The name of the layer over SQLite's default one, for sqlite3_open_v2. Registers it when first called.
const char* scrubbing_vfs();

// Where the unused middle lies; empty where the page has none or does not look like a page. `is_first`: the page begins
// with the file's header.
struct Middle {
  size_t begin = 0;
  size_t end = 0;
};
Middle unused_middle(std::span<const uint8_t> page, bool is_first);

}  // namespace kalos
