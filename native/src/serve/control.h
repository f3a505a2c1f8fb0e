// One client on the control socket: frames in and out, without blocking. What the frames mean is the server's business.
#pragma once

#include <sys/types.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/result.h"
#include "serve/lane.h"

namespace kalos {

class Connection {
 public:
  struct Frame {
    uint16_t type = 0;
    nlohmann::json body;
  };

  explicit Connection(int fd);
  ~Connection();
  Connection(const Connection&) = delete;

  int fd() const { return fd_; }
  int pid_fd() const { return pid_fd_; }  // readable when the peer's process ends; -1 where it cannot be seen
  uid_t peer_uid() const { return peer_uid_; }
  pid_t peer_pid() const { return peer_pid_; }

  // Reads what is there. False: end of file or a broken socket.
  bool receive();
  // The next whole frame, if there is one. An Error: this is no client of ours; end the connection.
  Result<std::optional<Frame>> next();
  // Queues a frame and sends what the socket takes. False: broken.
  bool send(kalos_control type, const nlohmann::json& body);
  bool flush();
  bool wants_to_write() const { return !out_.empty(); }

  // The server's notes on this client.
  bool greeted = false;  // HELLO was answered
  bool attached = false;
  // Between the connection and the end of the hello: a client has that in a moment, or is none.
  bool half_open() const { return !greeted || (lane && !attached); }
  int64_t since_ns = 0;
  bool ending = false;  // close once everything is sent
  std::string client;   // as it named itself
  uint64_t lane_id = 0;
  std::shared_ptr<Lane> lane;

 private:
  int fd_;
  int pid_fd_ = -1;
  uid_t peer_uid_ = static_cast<uid_t>(-1);
  pid_t peer_pid_ = 0;
  std::string in_, out_;
};

}  // namespace kalos
