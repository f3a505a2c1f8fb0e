// What searches rows: one small interface. The CPU stands behind it.
//
// A device answers with canonical scores (compute/cpu/portable/canonical.h), bit for bit the same on every device. It
// knows nothing of namespaces, filters or sockets: it is given blocks of rows and a query.
#pragma once

#include <kalos/abi.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace kalos {

// Floats that a vector takes in memory: rows are padded with zeros to a multiple of 8, which no sum can see.
constexpr uint32_t padded_dimension(uint32_t dimension) { return (dimension + 7) & ~7u; }

// Consecutive rows. vectors: float32[count][stride], norms: float64[count].
struct RowBlock {
  const float* vectors = nullptr;
  const double* norms = nullptr;
  uint32_t stride = 0;  // padded_dimension of the collection
  uint32_t count = 0;
};

// A query, widened once. components: float64[stride].
struct PreparedQuery {
  std::vector<double> components;
  double norm = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string_view name() const = 0;
  // scores: float64[rows.count]. Called once for each block, never for each row.
  virtual void score(kalos_metric metric, const RowBlock& rows, const PreparedQuery& query, double* scores) const = 0;
};

// The fastest instruction set that this CPU has.
std::unique_ptr<Device> make_cpu_device();

}  // namespace kalos
