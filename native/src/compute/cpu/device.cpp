// The CPU as a device: the sums of the best kernels, finished into scores.
#include <cmath>

#include "compute/cpu/kernels.h"
#include "compute/device.h"

namespace kalos {
namespace {

class CpuDevice : public Device {
 public:
  std::string_view name() const override { return "cpu"; }

  void score(kalos_metric metric, const RowBlock& rows, const PreparedQuery& query, double* scores) const override {
    const double* components = query.components.data();
    if (metric == KALOS_METRIC_L2) {
      kernels_.squared_distance(rows.vectors, rows.stride, rows.count, components, scores);
      for (uint32_t row = 0; row < rows.count; ++row) scores[row] = std::sqrt(scores[row]);
      return;
    }
    kernels_.dot(rows.vectors, rows.stride, rows.count, components, scores);
    if (metric != KALOS_METRIC_COSINE) return;
    for (uint32_t row = 0; row < rows.count; ++row) {
      bool zero = query.norm == 0 || rows.norms[row] == 0;
      scores[row] = zero ? 0.0 : scores[row] / (query.norm * rows.norms[row]);
    }
  }

 private:
  const CanonicalKernels kernels_ = best_kernels().canonical;
};

}  // namespace

std::unique_ptr<Device> make_cpu_device() { return std::make_unique<CpuDevice>(); }

}  // namespace kalos
