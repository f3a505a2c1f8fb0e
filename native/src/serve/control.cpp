#include "serve/control.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace kalos {
namespace {

constexpr size_t most_unsent_bytes = 16 << 20;  // a client that asks and never reads is cut off

}  // namespace

Connection::Connection(int fd) : fd_(fd) {
  ucred peer{};
  socklen_t bytes = sizeof peer;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0) {
    peer_uid_ = peer.uid;
    peer_pid_ = peer.pid;
  }
  if (peer_pid_ > 0) pid_fd_ = static_cast<int>(syscall(SYS_pidfd_open, peer_pid_, 0));
}

Connection::~Connection() {
  if (lane) lane->close();
  if (pid_fd_ >= 0) close(pid_fd_);
  close(fd_);
}

bool Connection::receive() {
  char buffer[16384];
  while (true) {
    ssize_t bytes = recv(fd_, buffer, sizeof buffer, MSG_DONTWAIT);
    if (bytes > 0) {
      in_.append(buffer, static_cast<size_t>(bytes));
      if (in_.size() > KALOS_MAX_CONTROL_BYTES + sizeof(kalos_control_header)) return true;
      continue;
    }
    if (bytes == 0) return false;
    if (errno == EINTR) continue;
    return errno == EAGAIN || errno == EWOULDBLOCK;
  }
}

Result<std::optional<Connection::Frame>> Connection::next() {
  kalos_control_header header;
  if (in_.size() < sizeof header) return std::optional<Frame>();
  memcpy(&header, in_.data(), sizeof header);
  if (header.magic != KALOS_CONTROL_MAGIC) return invalid("this is not a Kalos control frame: its magic is wrong");
  if (header.body_bytes > KALOS_MAX_CONTROL_BYTES) return invalid("a control frame's body is longer than 64 KiB");
  if (in_.size() < sizeof header + header.body_bytes) return std::optional<Frame>();
  Frame frame;
  frame.type = header.type;
  frame.body = nlohmann::json::parse(std::string_view(in_).substr(sizeof header, header.body_bytes), nullptr, false);
  in_.erase(0, sizeof header + header.body_bytes);
  if (!frame.body.is_object()) return invalid("a control frame's body is not a JSON object");
  return std::optional<Frame>(std::move(frame));
}

bool Connection::send(kalos_control type, const nlohmann::json& body) {
  std::string text = body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  kalos_control_header header{KALOS_CONTROL_MAGIC, static_cast<uint16_t>(type), 0, static_cast<uint32_t>(text.size()),
                              0};
  if (out_.size() + text.size() > most_unsent_bytes) return false;
  out_.append(reinterpret_cast<const char*>(&header), sizeof header);
  out_ += text;
  return flush();
}

bool Connection::flush() {
  while (!out_.empty()) {
    ssize_t bytes = ::send(fd_, out_.data(), out_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (bytes > 0) {
      out_.erase(0, static_cast<size_t>(bytes));
    } else if (bytes < 0 && errno == EINTR) {
      continue;
    } else {
      return bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
    }
  }
  return true;
}

}  // namespace kalos
