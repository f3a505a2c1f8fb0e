// The data directory as the meeting point: its lock says whether a kalosd runs, and where.
//
// kalosd.lock is held with flock for as long as kalosd lives (the kernel lets go at any death) and says in one JSON line
// who holds it and where its socket is. Two starters never race: one gets the lock, the other is told who has it.
#pragma once

#include <array>
#include <memory>
#include <string>

#include "base/result.h"

namespace kalos {

class Rendezvous {
 public:
  struct Holder {  // what the lock file says
    int pid = 0;
    std::string instance, version, socket;
    bool autostarted = false;
  };

  // Makes the directory (0700) and takes the lock. Errors: the directory cannot be used; `held` is set where another
  // kalosd holds the lock, and the words name it.
  static Result<std::unique_ptr<Rendezvous>> take(const std::string& data_dir, bool& held);
  ~Rendezvous();

  // A listening socket: at `path`, or where the data directory's rule puts it. Writes the lock file.
  Result<int> listen(const std::string& path, const Holder& self);
  // Is the directory that was locked not at its path any more, because it was removed, moved or replaced? Then the lock
  // keeps nobody else away, and this kalosd has to end.
  bool lost() const;
  // Binds again if the socket's path vanished or is another's (a login's end, an overeager cleaner). The new descriptor,
  // or -1 where all is well.
  Result<int> listen_again_if_vanished();

  const std::string& data_dir() const { return data_dir_; }
  const std::string& socket_path() const { return socket_path_; }

 private:
  Rendezvous() = default;
  Result<int> bind_socket();
  Result<> write_lock_file();

  std::string data_dir_;
  std::string socket_path_;
  Holder self_;
  int lock_fd_ = -1;
  uint64_t socket_inode_ = 0;
};

}  // namespace kalos
