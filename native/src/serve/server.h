// The server: one epoll loop for the control socket, signals and time; everything else happens in the lanes' threads, the
// combiner's helper and the writer's thread.
//
// The loop sleeps: it wakes once a second only while a message is staged or held, or while an idle end may be coming, and
// otherwise every ten seconds to see that the socket's path is still there.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "serve/combining.h"
#include "serve/control.h"
#include "serve/counters.h"
#include "serve/lane.h"
#include "serve/rendezvous.h"
#include "serve/waiting.h"

namespace kalos {

struct ServerOptions {
  std::string data_dir;
  std::string socket;
  uint64_t memory_limit_bytes = 0;
  int64_t idle_s = 0;  // end after this long without a client; 0: never
  int64_t spin_us = 200;
  int64_t checkpoint_s = 60;
  bool text_in_file = false;
  bool autostarted = false;
  bool ephemeral = false;  // end with stdin's end of file, remove the data directory
};

// Process exit codes, documented in docs/abi.md.
enum ExitCode { exit_ok = 0, exit_fault = 1, exit_usage = 2, exit_held = 3, exit_unusable = 4 };

class Server {
 public:
  // Runs until drained. Returns an exit code.
  static int run(const ServerOptions& options);

 private:
  static int run_in_directory(const ServerOptions& options, bool& held);
  Server(const ServerOptions& options, std::unique_ptr<Rendezvous> rendezvous, std::unique_ptr<Database> database);
  ~Server();

  int serve();
  Result<> open();
  bool watch(int fd, uint32_t events);
  void unwatch(int fd);
  void on_signal();
  void on_tick();
  void call_closing_lanes();
  void drop_half_open(int64_t now_ns);
  void set_tick();
  void accept_clients();
  void on_client(int fd, uint32_t events);
  void drop(int fd);
  void turn_away();

  // Frames. False: drop the client.
  bool on_frame(Connection& client, const Connection::Frame& frame);
  bool on_hello(Connection& client, const nlohmann::json& body);
  bool on_attached(Connection& client);
  bool refuse(Connection& client, const Error& error);
  nlohmann::json welcome(const Connection& client) const;
  nlohmann::json report();

  void drain(const std::string& reason);
  bool finished() const;

  const ServerOptions options_;
  std::unique_ptr<Rendezvous> rendezvous_;
  std::unique_ptr<Database> database_;
  Counters counters_;
  SpinGovernor governor_;
  std::unique_ptr<Combiner> combiner_;
  std::unique_ptr<LaneServices> services_;

  std::array<uint8_t, 16> instance_{};
  std::string instance_hex_;
  int64_t started_ns_ = 0;
  int epoll_fd_ = -1, listen_fd_ = -1, signal_fd_ = -1, timer_fd_ = -1;
  int64_t tick_period_s_ = 0;
  std::map<int, std::unique_ptr<Connection>> clients_;
  std::map<int, int> pid_fds_;  // pid descriptor -> its client's
  // Dropped while a batch of events is worked off. Their descriptors stay open until its end, so that no event of the
  // batch means a later client that was given the same number.
  std::vector<std::unique_ptr<Connection>> dropped_;
  std::vector<std::weak_ptr<Lane>> closing_;  // whose threads have not ended yet, as far as is known
  int spare_fd_ = -1;  // given up for a moment to turn a client away in words when there is no other
  uint64_t last_lane_id_ = 0;
  int64_t idle_since_ns_ = 0;
  bool draining_ = false;
  int64_t drain_until_ns_ = 0;
};

}  // namespace kalos
