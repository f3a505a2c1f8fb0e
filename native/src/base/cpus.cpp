#include "base/cpus.h"

#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>

namespace kalos {
namespace {

// The quota of the innermost cgroup that has one, in CPUs; 0 where there is none. Version 2, then version 1.
double cgroup_cpus() {
  double least = 0;
  auto take = [&](double quota, double period) {
    if (quota > 0 && period > 0) least = least == 0 ? quota / period : std::min(least, quota / period);
  };
  std::ifstream self("/proc/self/cgroup");
  std::string line;
  while (std::getline(self, line)) {
    if (line.rfind("0::", 0) == 0) {
      std::string path = line.substr(3);
      while (true) {
        std::ifstream file("/sys/fs/cgroup" + path + "/cpu.max");
        std::string quota;
        double period = 0;
        if (file >> quota >> period && quota != "max") take(atof(quota.c_str()), period);
        size_t slash = path.rfind('/');
        if (path.empty() || path == "/" || slash == std::string::npos) break;
        path.resize(slash);
      }
    }
  }
  for (const char* folder : {"/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"}) {
    std::ifstream quota_file(std::string(folder) + "/cpu.cfs_quota_us");
    std::ifstream period_file(std::string(folder) + "/cpu.cfs_period_us");
    double quota = 0, period = 0;
    if (quota_file >> quota && period_file >> period) take(quota, period);
  }
  return least;
}

}  // namespace

int effective_cpus() {
  cpu_set_t set;
  int cpus = 1;
  if (sched_getaffinity(0, sizeof set, &set) == 0) cpus = CPU_COUNT(&set);
  double quota = cgroup_cpus();
  if (quota > 0) cpus = std::min(cpus, static_cast<int>(quota));
  return std::max(cpus, 1);
}

}  // namespace kalos
