#include "serve/rendezvous.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/log.h"
#include "base/utf8.h"

namespace kalos {
namespace {

constexpr size_t lock_file_bytes = 4096;
constexpr size_t longest_socket_path = 100;  // sun_path holds 108

Error store_error(std::string words) { return {KALOS_STATUS_STORE_ERROR, std::move(words)}; }

Error failed(const std::string& what) { return store_error(what + ": " + strerror(errno)); }

// FNV-1a: names a folder's socket, nothing depends on it being hard to guess (the folder is ours alone).
std::string path_hash(const std::string& path) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (unsigned char byte : path) hash = (hash ^ byte) * 0x100000001b3u;
  char text[17];
  snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

// A socket's address takes so many bytes, and the lock file that tells clients of it is JSON, which holds no other bytes
// than UTF-8. A data directory may have any path.
bool can_be_named(const std::string& path, size_t bytes_to_come) {
  return path.size() + bytes_to_come <= longest_socket_path && valid_utf8(path);
}

// A folder of ours that nobody else can enter.
Result<> private_folder(const std::string& path) {
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return failed(path + " cannot be made");
  struct stat status;
  if (lstat(path.c_str(), &status) != 0) return failed(path + " cannot be read");
  if (!S_ISDIR(status.st_mode)) return store_error(path + " is not a directory");
  if (status.st_uid != geteuid()) return store_error(path + " belongs to another user; choose another --data-dir");
  if ((status.st_mode & 077) != 0 && chmod(path.c_str(), 0700) != 0) return failed(path + " cannot be made private");
  return Unit{};
}

sockaddr_un address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  memcpy(address.sun_path, path.c_str(), path.size());
  return address;
}

// Who listens on the path, in words; nullopt where nobody does. The pid is 0 where it is of another pid namespace.
std::optional<std::string> listener_on(const std::string& path) {
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return std::nullopt;
  sockaddr_un address = address_of(path);
  std::optional<std::string> who;
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) {
    who = "somebody";
    ucred peer{};
    socklen_t bytes = sizeof peer;
    bool told = getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 && peer.pid > 0;
    if (told) *who += " (pid " + std::to_string(peer.pid) + ")";
  }
  close(fd);
  return who;
}

std::string holder_words(int lock_fd, const std::string& data_dir) {
  char text[lock_file_bytes + 1] = {};
  ssize_t bytes = pread(lock_fd, text, lock_file_bytes, 0);
  std::string who = "another kalosd";
  if (bytes > 0) {
    auto said = nlohmann::json::parse(std::string(text, static_cast<size_t>(bytes)), nullptr, false);
    if (said.is_object() && said.contains("pid") && said["pid"].is_number_integer()) {
      who += " (pid " + std::to_string(said["pid"].get<int>());
      if (said.contains("version") && said["version"].is_string()) {
        who += ", version " + said["version"].get<std::string>();
      }
      who += ")";
    }
  }
  return who + " serves " + data_dir + " already; connect to it, or end it with `kalos stop`";
}

}  // namespace

Result<std::unique_ptr<Rendezvous>> Rendezvous::take(const std::string& data_dir, bool& held) {
  held = false;
  std::unique_ptr<Rendezvous> self(new Rendezvous);
  std::error_code ignored;
  auto parent = std::filesystem::absolute(data_dir).parent_path();
  std::filesystem::create_directories(parent, ignored);
  // A link that the user made is followed: what it points at is the data directory.
  char real[PATH_MAX];
  const std::string place = realpath(data_dir.c_str(), real) != nullptr ? real : data_dir;
  if (auto made = private_folder(place); !made) return made.error();
  if (realpath(place.c_str(), real) == nullptr) return failed(data_dir + " cannot be resolved");
  self->data_dir_ = real;
  std::string path = self->data_dir_ + "/kalosd.lock";
  int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return failed(path + " cannot be opened");
  // A client that looks whether the lock is free holds it for an instant: not everyone who has it is a kalosd.
  for (int attempt = 0; flock(fd, LOCK_EX | LOCK_NB) != 0; ++attempt) {
    held = errno == EWOULDBLOCK && attempt == 20;
    if (held || errno != EWOULDBLOCK) {
      Error error = held ? store_error(holder_words(fd, self->data_dir_)) : failed(path + " cannot be locked");
      close(fd);
      return error;
    }
    usleep(5000);
  }
  self->lock_fd_ = fd;  // only now: the destructor empties the file, which is for its holder alone
  return self;
}

Rendezvous::~Rendezvous() {
  if (socket_inode_ != 0) {
    struct stat status;
    if (lstat(socket_path_.c_str(), &status) == 0 && status.st_ino == socket_inode_) unlink(socket_path_.c_str());
  }
  if (lock_fd_ >= 0) {
    // Emptied while still held, so that nobody reads of a socket that is gone.
    if (ftruncate(lock_fd_, 0) != 0) log(LogLevel::debug, "the lock file could not be emptied");
    close(lock_fd_);
  }
}

Result<int> Rendezvous::listen(const std::string& path, const Holder& self) {
  self_ = self;
  socket_path_ = path.empty() ? data_dir_ + "/kalosd.sock" : path;
  if (!path.empty() && path.size() > longest_socket_path) {
    return store_error("the socket path has " + std::to_string(path.size()) + " bytes, at most " +
                       std::to_string(longest_socket_path) + " work: " + path);
  }
  if (!can_be_named(socket_path_, 0)) {
    const char* temp = getenv("TMPDIR");
    std::string folder = (temp != nullptr && *temp != 0 ? temp : "/tmp");
    folder += "/kalos-" + std::to_string(geteuid());
    if (!can_be_named(folder, 22)) folder = "/tmp/kalos-" + std::to_string(geteuid());
    if (auto made = private_folder(folder); !made) return made.error();
    socket_path_ = folder + "/" + path_hash(data_dir_) + ".sock";
  }
  if (!path.empty()) {
    if (auto who = listener_on(path)) {
      return store_error(*who + " listens on " + path + " already; choose another --socket");
    }
  }
  auto bound = bind_socket();
  if (!bound) return bound;
  if (auto written = write_lock_file(); !written) {
    close(*bound);
    return written.error();
  }
  return bound;
}

Result<int> Rendezvous::bind_socket() {
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return failed("a socket cannot be made");
  sockaddr_un address = address_of(socket_path_);
  unlink(socket_path_.c_str());  // stale: the lock is ours, so whoever bound it is dead
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    Error error = failed("the socket " + socket_path_ + " cannot be bound");
    close(fd);
    return error;
  }
  struct stat status;
  if (chmod(socket_path_.c_str(), 0600) != 0 || lstat(socket_path_.c_str(), &status) != 0 || ::listen(fd, 128) != 0) {
    Error error = failed("the socket " + socket_path_ + " cannot be used");
    close(fd);
    return error;
  }
  socket_inode_ = status.st_ino;
  return fd;
}

Result<> Rendezvous::write_lock_file() {
  nlohmann::ordered_json said = {{"pid", self_.pid},
                                 {"instance", self_.instance},
                                 {"abi", std::to_string(KALOS_ABI_MAJOR) + "." + std::to_string(KALOS_ABI_MINOR)},
                                 {"version", self_.version},
                                 {"socket", socket_path_},
                                 {"autostarted", self_.autostarted}};
  std::string text = said.dump();
  text.resize(lock_file_bytes - 1, ' ');
  text += '\n';
  if (pwrite(lock_fd_, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) {
    return failed(data_dir_ + "/kalosd.lock cannot be written");
  }
  return Unit{};
}

bool Rendezvous::lost() const {
  struct stat here, held;
  std::string path = data_dir_ + "/kalosd.lock";
  if (fstat(lock_fd_, &held) != 0) return false;
  return lstat(path.c_str(), &here) != 0 ? errno == ENOENT || errno == ENOTDIR
                                         : here.st_ino != held.st_ino || here.st_dev != held.st_dev;
}

Result<int> Rendezvous::listen_again_if_vanished() {
  struct stat status;
  if (lstat(socket_path_.c_str(), &status) == 0 && status.st_ino == socket_inode_) return -1;
  log(LogLevel::warning, "the socket " + socket_path_ + " vanished; it is made again");
  auto slash = socket_path_.rfind('/');
  std::string folder = socket_path_.substr(0, slash);
  if (folder != data_dir_) {
    if (auto made = private_folder(folder); !made) return made.error();
  }
  return bind_socket();
}

}  // namespace kalos
