// What a filter costs over a table of rows: build/…/bench_columns [rows …]. Not a test: it prints times, in microseconds.
//
// Each line: building the columns that the filter needs (once); the mask with warm columns but asked for the first time
// (median and 99th percentile); the mask asked again; the same by asking every row. Rows have no vectors: a mask does not
// look at them.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "engine/filter_mask.h"
#include "metadata_family.h"

using namespace kalos;

namespace {

template <class Body>
double microseconds(Body body) {
  auto started = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - started).count();
}

// As a chat's memories have them: a speaker, a time, a document of many parts, tags, a unique id.
std::string metadata_of(family::Random& random, size_t row) {
  static const std::vector<std::string> speakers{"user", "assistant"};
  static const std::vector<std::string> topics{"travel", "food", "work", "family", "music", "health", "money", "sport"};
  std::string text = "{\"speaker\":\"" + random.of(speakers) + "\",\"at\":" + std::to_string(1'700'000'000 + row * 7);
  text += ",\"weight\":" + std::to_string(double(random.below(1'000'000)) / 1e6) + ",\"topic\":\"" + random.of(topics);
  text += "\",\"document\":\"manual-" + std::to_string(row / 20) + ".pdf\",\"tags\":[\"" + random.of(topics) + "\",\"";
  text += random.of(topics) + "\"],\"place\":{\"city\":\"c" + std::to_string(random.below(300)) + "\"},\"id\":\"";
  return text + std::to_string(random.below(1'000'000'000)) + "-" + std::to_string(row) + "\"}";
}

void measure(RowTable& rows, const std::string& text) {
  ColumnMemory memory;
  memory.allow_beside(uint64_t{16} << 30);
  ColumnSet columns(memory);
  Filter filter = std::move(*Filter::parse(text));
  Deadline none(0);
  uint64_t matches = 0;
  double build = microseconds([&] { matches = match_rows(filter, columns, rows, none)->matches; });
  uint64_t bytes = memory.bytes();
  std::vector<double> cold;
  for (int i = 0; i < 101; ++i) {
    // Another text, so that the mask is not remembered.
    Filter fresh = std::move(*Filter::parse(text + std::string(size_t(i) + 1, ' ')));
    cold.push_back(microseconds([&] { matches = match_rows(fresh, columns, rows, none)->matches; }));
  }
  std::sort(cold.begin(), cold.end());
  match_rows(filter, columns, rows, none)->matches;
  double again = microseconds([&] { matches = match_rows(filter, columns, rows, none)->matches; });
  double by_row = microseconds([&] {
    for (uint32_t row = 0; row < rows.size(); ++row) matches -= filter.matches(rows.entry(row).record->metadata());
  });
  std::printf("%8u %5.1f B/row  build %9.0f  mask %8.1f (p99 %8.1f)  again %6.1f  by row %9.0f  %s%s\n", rows.size(),
              double(bytes) / rows.size(), build, cold[50], cold[99], again, by_row, text.substr(0, 90).c_str(),
              matches == 0 ? "" : "  WRONG");
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<size_t> sizes;
  for (int i = 1; i < argc; ++i) sizes.push_back(std::strtoul(argv[i], nullptr, 10));
  if (sizes.empty()) sizes = {10'000, 100'000, 1'000'000};
  for (size_t size : sizes) {
    family::Random random(1);
    Arena arena({});
    RowTable rows(nullptr);
    for (size_t row = 0; row < size; ++row) {
      std::string metadata = metadata_of(random, row);
      RowEntry entry;
      entry.record = arena.add({"id", std::nullopt, metadata});
      rows.append(entry, {});
    }
    std::string many = "{\"document\":{\"$in\":[\"manual-0.pdf\"";
    for (int i = 1; i < 1000; ++i) many += ",\"manual-" + std::to_string(i * 3) + ".pdf\"";
    for (const std::string& text : std::vector<std::string>{
             R"({"speaker":"user"})",
             R"({"topic":{"$ne":"food"}})",
             R"({"topic":{"$in":["travel","food","work","music"]}})",
             R"({"place.city":{"$gte":"c2"}})",
             R"({"weight":{"$lt":0.5}})",
             R"({"at":{"$gte":1700100000,"$lt":1700400000}})",
             R"({"tags":{"$contains":"music"}})",
             R"({"document":"manual-77.pdf"})",
             many + "]}}",
             R"({"document":{"$icontains":"7"}})",
             R"({"id":"1-1"})",
             R"({"id":{"$contains":"77"}})",
             R"({"speaker":"user","topic":"food","id":{"$contains":"77"}})",
             R"({"$or":[{"speaker":"user","weight":{"$gt":0.25}},{"$not":{"topic":"work"}}]})",
         }) {
      measure(rows, text);
    }
  }
}
