// Which kernels this CPU can run, and which of them are the fastest. KALOS_KERNELS asks for one set, for tests and for
// comparisons; where the CPU lacks it, the next best is taken.
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <cstdlib>
#include <iterator>

#include "compute/cpu/kernels.h"

namespace kalos {
namespace {

#if defined(__x86_64__)
bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
}
bool has_amx() {
  constexpr unsigned tiles = 1u << 24, int8 = 1u << 25;
  unsigned a = 0, b = 0, c = 0, d = 0;
  return has_avx512() && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & tiles) && (d & int8) && may_use_tiles();
}
#endif

// The best of those at or below the one asked for.
const Kernels& choose() {
  const char* given = std::getenv("KALOS_KERNELS");
  const std::string_view asked = given && *given ? given : kernel_names[0];
  const Kernels* sets[] = {amx_kernels(), avx512_kernels(), avx2_kernels(), &portable_kernels()};
  bool reached = false;
  for (size_t i = 0; i < std::size(sets); ++i) {
    reached = reached || asked == kernel_names[i];
    if (reached && sets[i]) return *sets[i];
  }
  return portable_kernels();
}

}  // namespace

const Kernels& portable_kernels() {
  static const Kernels kernels{kernel_names[3].data(), portable_canonical_kernels(), portable_code_kernels()};
  return kernels;
}

const Kernels* avx2_kernels() {
#if defined(__x86_64__)
  static const Kernels kernels{kernel_names[2].data(), avx2_canonical_kernels(), avx2_code_kernels()};
  return has_avx2() ? &kernels : nullptr;
#else
  return nullptr;
#endif
}

const Kernels* avx512_kernels() {
#if defined(__x86_64__)
  static const Kernels kernels{kernel_names[1].data(), avx2_canonical_kernels(), avx512_code_kernels()};
  return has_avx512() ? &kernels : nullptr;
#else
  return nullptr;
#endif
}

const Kernels* amx_kernels() {
#if defined(__x86_64__)
  static const Kernels kernels{kernel_names[0].data(), avx2_canonical_kernels(), amx_code_kernels()};
  static const bool there = has_amx();
  return there ? &kernels : nullptr;
#else
  return nullptr;
#endif
}

const Kernels& best_kernels() {
  static const Kernels& kernels = choose();
  return kernels;
}

}  // namespace kalos
