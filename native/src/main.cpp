// kalosd: the command line.
#include <getopt.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>

#include "base/log.h"
#include "base/utf8.h"
#include "compute/cpu/kernels.h"
#include "serve/abi_table.h"
#include "serve/server.h"

namespace kalos {
namespace {

constexpr char usage[] =
    "kalosd " KALOS_VERSION R"(: the sidecar of Kalos. It serves one data directory to the processes of one user.

usage: kalosd --data-dir DIR [options]

  --data-dir DIR        where the store lies and clients find this kalosd (default: $KALOS_DATA_DIR,
                        else $XDG_DATA_HOME/kalos, else ~/.local/share/kalos)
  --socket PATH         the control socket, instead of DIR/kalosd.sock ($KALOS_SOCKET)
  --memory SIZE         most memory for rows, e.g. 4G (default: 70 % of the smaller of RAM and cgroup; $KALOS_MEMORY)
  --text memory|file    keep texts and metadata in memory, or in a mapped file (default: memory)
  --idle-s N            end after N seconds without a client; 0: never (default: 0; $KALOS_IDLE_S)
  --spin-us N           longest time that one lane polls before it sleeps; 0: never poll (default: 200; $KALOS_SPIN_US)
  --checkpoint-s N      deleted bytes are overwritten on disk within N seconds (default: 60)
  --log-level LEVEL     error, warning, info or debug (default: info)
  --autostarted         a client started this kalosd: another major version may ask it to end
  --ephemeral           end with standard input, and remove the data directory then
  --print-abi           print the layout of the shared memory as JSON
  --version, --help

  $KALOS_KERNELS        portable, avx2, avx512 or amx: the inner loops of searches (default: the best that the CPU has)

exit codes: 0 ended as asked; 1 fault; 2 bad command line; 3 another kalosd serves DIR; 4 DIR or the store cannot be used
)";

[[noreturn]] void bad_usage(const std::string& words) {
  fprintf(stderr, "kalosd: %s\n`kalosd --help` lists the options.\n", words.c_str());
  exit(exit_usage);
}

std::optional<int64_t> whole_number(const char* text) {
  char* end = nullptr;
  errno = 0;
  long long value = strtoll(text, &end, 10);
  if (errno != 0 || end == text || *end != 0 || value < 0) return std::nullopt;
  return value;
}

int64_t number_option(const char* name, const char* text) {
  auto value = whole_number(text);
  if (!value || *value > 1'000'000'000) bad_usage(std::string(name) + " takes a whole number from 0, not " + text);
  return *value;
}

// "4G", "512M", "1073741824".
uint64_t size_option(const char* name, const char* text) {
  std::string digits = text;
  uint64_t unit = 1;
  if (!digits.empty()) {
    switch (toupper(digits.back())) {
      case 'K':
        unit = 1ull << 10;
        break;
      case 'M':
        unit = 1ull << 20;
        break;
      case 'G':
        unit = 1ull << 30;
        break;
      case 'T':
        unit = 1ull << 40;
        break;
    }
    if (unit != 1) digits.pop_back();
  }
  auto value = whole_number(digits.c_str());
  if (!value || static_cast<uint64_t>(*value) > (1ull << 60) / unit) {
    bad_usage(std::string(name) + " takes a size such as 512M or 4G, not " + text);
  }
  return static_cast<uint64_t>(*value) * unit;
}

// 70 % of the smaller of RAM and the memory limit of the cgroup (version 2, then 1).
uint64_t default_memory_limit() {
  uint64_t bytes = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGE_SIZE));
  auto take = [&](const std::string& path) {
    std::ifstream file(path);
    std::string text;
    if (!(file >> text)) return;
    if (auto limit = whole_number(text.c_str()); limit && *limit > 0) {
      bytes = std::min(bytes, static_cast<uint64_t>(*limit));
    }
  };
  std::ifstream self("/proc/self/cgroup");
  std::string line;
  while (std::getline(self, line)) {
    if (line.rfind("0::", 0) == 0) take("/sys/fs/cgroup" + line.substr(3) + "/memory.max");
  }
  take("/sys/fs/cgroup/memory.max");
  take("/sys/fs/cgroup/memory/memory.limit_in_bytes");
  return bytes / 10 * 7;
}

std::string default_data_dir() {
  if (const char* given = getenv("KALOS_DATA_DIR"); given != nullptr && *given != 0) return given;
  if (const char* xdg = getenv("XDG_DATA_HOME"); xdg != nullptr && *xdg == '/') return std::string(xdg) + "/kalos";
  const char* home = getenv("HOME");
  if (home == nullptr || *home == 0) bad_usage("there is no $HOME to find a data directory by: give --data-dir");
  return std::string(home) + "/.local/share/kalos";
}

ServerOptions parse(int argc, char** argv) {
  ServerOptions options;
  options.memory_limit_bytes = default_memory_limit();
  auto environment = [](const char* name, auto use) {
    if (const char* value = getenv(name); value != nullptr && *value != 0) use(value);
  };
  environment("KALOS_SOCKET", [&](const char* value) { options.socket = value; });
  environment("KALOS_MEMORY",
              [&](const char* value) { options.memory_limit_bytes = size_option("KALOS_MEMORY", value); });
  environment("KALOS_IDLE_S", [&](const char* value) { options.idle_s = number_option("KALOS_IDLE_S", value); });
  environment("KALOS_KERNELS", [&](std::string_view value) {
    if (std::ranges::find(kernel_names, value) == std::end(kernel_names)) {
      bad_usage("KALOS_KERNELS is \"" + std::string(value) + "\", expected portable, avx2, avx512 or amx");
    }
  });
  environment("KALOS_SPIN_US", [&](const char* value) { options.spin_us = number_option("KALOS_SPIN_US", value); });

  enum : int {
    data_dir = 256,
    socket,
    memory,
    text,
    idle,
    spin,
    checkpoint,
    log_level,
    autostarted,
    ephemeral,
    abi,
    version
  };
  static const option known[] = {{"data-dir", required_argument, nullptr, data_dir},
                                 {"socket", required_argument, nullptr, socket},
                                 {"memory", required_argument, nullptr, memory},
                                 {"text", required_argument, nullptr, text},
                                 {"idle-s", required_argument, nullptr, idle},
                                 {"spin-us", required_argument, nullptr, spin},
                                 {"checkpoint-s", required_argument, nullptr, checkpoint},
                                 {"log-level", required_argument, nullptr, log_level},
                                 {"autostarted", no_argument, nullptr, autostarted},
                                 {"ephemeral", no_argument, nullptr, ephemeral},
                                 {"print-abi", no_argument, nullptr, abi},
                                 {"version", no_argument, nullptr, version},
                                 {"help", no_argument, nullptr, 'h'},
                                 {nullptr, 0, nullptr, 0}};
  opterr = 0;
  int which;
  while ((which = getopt_long(argc, argv, "h", known, nullptr)) != -1) {
    switch (which) {
      case data_dir:
        options.data_dir = optarg;
        break;
      case socket:
        options.socket = optarg;
        break;
      case memory:
        options.memory_limit_bytes = size_option("--memory", optarg);
        break;
      case text:
        if (strcmp(optarg, "memory") != 0 && strcmp(optarg, "file") != 0) bad_usage("--text takes memory or file");
        options.text_in_file = strcmp(optarg, "file") == 0;
        break;
      case idle:
        options.idle_s = number_option("--idle-s", optarg);
        break;
      case spin:
        options.spin_us = number_option("--spin-us", optarg);
        break;
      case checkpoint:
        options.checkpoint_s = number_option("--checkpoint-s", optarg);
        break;
      case log_level: {
        LogLevel level;
        if (!parse_log_level(optarg, level)) bad_usage("--log-level takes error, warning, info or debug");
        set_log_level(level);
        break;
      }
      case autostarted:
        options.autostarted = true;
        break;
      case ephemeral:
        options.ephemeral = true;
        break;
      case abi:
        puts(abi_json().c_str());
        exit(exit_ok);
      case version:
        puts("kalosd " KALOS_VERSION);
        exit(exit_ok);
      case 'h':
        fputs(usage, stdout);
        exit(exit_ok);
      default:
        bad_usage(std::string("option ") + argv[optind - 1] + " is not known or lacks its value");
    }
  }
  if (optind < argc) bad_usage(std::string("unexpected argument ") + argv[optind]);
  if (options.data_dir.empty()) options.data_dir = default_data_dir();
  if (!valid_utf8(options.socket)) {
    bad_usage(
        "the socket's path is not UTF-8, as the lock file that tells clients of it must be: choose another --socket "
        "(KALOS_SOCKET), or none: " +
        options.socket);
  }
  return options;
}

}  // namespace
}  // namespace kalos

int main(int argc, char** argv) {
  umask(077);
  return kalos::Server::run(kalos::parse(argc, argv));
}
