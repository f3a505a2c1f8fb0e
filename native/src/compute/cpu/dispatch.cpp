// Which kernels this CPU can run, and which of them are the fastest. KALOS_KERNELS=portable|avx2|avx512 asks for one
// set, for tests and for comparisons; a set that the CPU lacks is passed over.
#include <cstdlib>
#include <string_view>

#include "compute/cpu/kernels.h"

namespace kalos {
namespace {

#if defined(__x86_64__)
bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
}
#endif

const Kernels& choose() {
  const char* asked = std::getenv("KALOS_KERNELS");
  std::string_view wanted = asked ? asked : "";
  for (const Kernels* kernels : {avx512_kernels(), avx2_kernels()}) {
    if (kernels && (wanted.empty() || wanted == kernels->name)) return *kernels;
    if (kernels && wanted == "avx512") return *kernels;
  }
  return portable_kernels();
}

}  // namespace

const Kernels& portable_kernels() {
  static const Kernels kernels{"portable", portable_canonical_kernels(), portable_code_kernels()};
  return kernels;
}

const Kernels* avx2_kernels() {
#if defined(__x86_64__)
  static const Kernels kernels{"avx2", avx2_canonical_kernels(), avx2_code_kernels()};
  return has_avx2() ? &kernels : nullptr;
#else
  return nullptr;
#endif
}

const Kernels* avx512_kernels() {
#if defined(__x86_64__)
  static const Kernels kernels{"avx512", avx2_canonical_kernels(), avx512_code_kernels()};
  return has_avx512() ? &kernels : nullptr;
#else
  return nullptr;
#endif
}

const Kernels& best_kernels() {
  static const Kernels& kernels = choose();
  return kernels;
}

}  // namespace kalos
