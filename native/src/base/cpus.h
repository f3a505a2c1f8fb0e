// How many CPUs are really ours, and how to wait on one.
#pragma once

namespace kalos {

// min(CPUs in the affinity mask, cgroup quota rounded down), at least 1.
int effective_cpus();

// For the body of a loop that polls.
inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace kalos
