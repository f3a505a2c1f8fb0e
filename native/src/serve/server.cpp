#include "serve/server.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <thread>

#include "base/clock.h"
#include "base/cpus.h"
#include "base/log.h"
#include "serve/fault_guard.h"
#include "serve/hello.h"

namespace kalos {
namespace {

using nlohmann::json;

constexpr int64_t second_ns = 1'000'000'000;
constexpr int64_t drain_limit_ns = 30 * second_ns;
constexpr int64_t half_open_limit_ns = 10 * second_ns;

int open_spare() { return open("/dev/null", O_RDONLY | O_CLOEXEC); }

// A client takes two descriptors, and the usual soft limit of 1,024 is there for programs that use select().
void raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

int Server::run(const ServerOptions& options) {
  sigset_t signals;
  sigemptyset(&signals);
  for (int number : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&signals, number);
  // Blocked before any thread starts, so that only the loop sees them.
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  install_fault_guard();
  raise_descriptor_limit();

  bool held = false;
  int code = run_in_directory(options, held);
  // Whatever came of it, also where its creator went away while it started.
  if (options.ephemeral && !held) {
    std::error_code error;
    std::filesystem::remove_all(options.data_dir, error);
  }
  return code;
}

int Server::run_in_directory(const ServerOptions& options, bool& held) {
  auto rendezvous = Rendezvous::take(options.data_dir, held);
  if (!rendezvous) {
    log(LogLevel::error, rendezvous.error().words);
    return held ? exit_held : exit_unusable;
  }
  sweep_dead_lanes();
  DatabaseOptions database_options;
  database_options.data_dir = (*rendezvous)->data_dir();
  database_options.memory_limit_bytes = options.memory_limit_bytes;
  database_options.checkpoint_interval_ms = options.checkpoint_s * 1000;
  database_options.text_in_file = options.text_in_file;
  auto database = Database::open(database_options);
  if (!database) {
    log(LogLevel::error, database.error().words);
    return exit_unusable;
  }
  Server server(options, std::move(*rendezvous), std::move(*database));
  if (auto opened = server.open(); !opened) {
    log(LogLevel::error, opened.error().words);
    return exit_unusable;
  }
  return server.serve();
}

Server::Server(const ServerOptions& options, std::unique_ptr<Rendezvous> rendezvous, std::unique_ptr<Database> database)
    : options_(options),
      rendezvous_(std::move(rendezvous)),
      database_(std::move(database)),
      governor_(effective_cpus(), options.spin_us),
      combiner_(std::make_unique<Combiner>(*database_, counters_)),
      services_(new LaneServices{*database_, *combiner_, counters_, governor_}),
      started_ns_(monotonic_ns()),
      idle_since_ns_(started_ns_) {}

Server::~Server() {
  for (auto& [fd, client] : clients_) {
    if (client->lane) closing_.push_back(client->lane);
  }
  clients_.clear();  // closes the lanes
  dropped_.clear();
  for (int ms = 0; services_->running_lanes.load() > 0 && ms < 5000; ++ms) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (ms % 100 == 99) call_closing_lanes();
  }
  combiner_.reset();
  database_.reset();  // finishes what is queued, checkpoints
  for (int fd : {epoll_fd_, listen_fd_, signal_fd_, timer_fd_, spare_fd_}) {
    if (fd >= 0) close(fd);
  }
}

Result<> Server::open() {
  if (getrandom(instance_.data(), instance_.size(), 0) != static_cast<ssize_t>(instance_.size())) {
    return Error{KALOS_STATUS_INTERNAL, "getrandom failed"};
  }
  for (uint8_t byte : instance_) {
    char text[3];
    snprintf(text, sizeof text, "%02x", byte);
    instance_hex_ += text;
  }
  auto fd = rendezvous_->listen(options_.socket, {getpid(), instance_hex_, KALOS_VERSION, "", options_.autostarted});
  if (!fd) return fd.error();
  listen_fd_ = *fd;
  sigset_t signals;
  sigemptyset(&signals);
  for (int number : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&signals, number);
  signal_fd_ = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
  timer_fd_ = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
  epoll_fd_ = epoll_create1(EPOLL_CLOEXEC);
  spare_fd_ = open_spare();
  if (signal_fd_ < 0 || timer_fd_ < 0 || epoll_fd_ < 0 || !watch(listen_fd_, EPOLLIN) || !watch(signal_fd_, EPOLLIN) ||
      !watch(timer_fd_, EPOLLIN)) {
    return Error{KALOS_STATUS_INTERNAL, std::string("the event loop cannot be made: ") + strerror(errno)};
  }
  if (options_.ephemeral && !watch(STDIN_FILENO, EPOLLIN)) {
    return Error{KALOS_STATUS_INTERNAL, "an ephemeral kalosd needs a pipe as its stdin, held by its creator"};
  }
  log(LogLevel::info, "kalosd " KALOS_VERSION " serves " + rendezvous_->data_dir() + " on " +
                          rendezvous_->socket_path() + " (pid " + std::to_string(getpid()) + ", cpu)");
  return Unit{};
}

bool Server::watch(int fd, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  return epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event) == 0;
}

void Server::unwatch(int fd) { epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, fd, nullptr); }

int Server::serve() {
  while (!finished()) {
    set_tick();
    epoll_event events[32];
    int count = epoll_wait(epoll_fd_, events, 32, draining_ ? 2 : -1);
    if (count < 0 && errno != EINTR) {
      log(LogLevel::error, std::string("epoll_wait failed: ") + strerror(errno));
      return exit_fault;
    }
    for (int i = 0; i < count; ++i) {
      int fd = events[i].data.fd;
      if (fd == listen_fd_) {
        accept_clients();
      } else if (fd == signal_fd_) {
        on_signal();
      } else if (fd == timer_fd_) {
        on_tick();
      } else if (options_.ephemeral && fd == STDIN_FILENO) {
        char ignored[64];
        if (read(STDIN_FILENO, ignored, sizeof ignored) <= 0) {
          unwatch(STDIN_FILENO);
          drain("its creator ended");
        }
      } else if (auto found = pid_fds_.find(fd); found != pid_fds_.end()) {
        drop(found->second);  // the process died, whoever may still hold its socket
      } else {
        on_client(fd, events[i].events);
      }
    }
    dropped_.clear();
  }
  log(LogLevel::info, "kalosd ends");
  return exit_ok;
}

void Server::on_signal() {
  signalfd_siginfo info;
  while (read(signal_fd_, &info, sizeof info) == sizeof info) drain(strsignal(static_cast<int>(info.ssi_signo)));
}

void Server::set_tick() {
  bool leftovers = std::any_of(clients_.begin(), clients_.end(),
                               [](auto& entry) { return entry.second->lane && entry.second->lane->has_leftovers(); });
  bool half_open = std::any_of(clients_.begin(), clients_.end(), [](auto& entry) { return entry.second->half_open(); });
  bool watching = leftovers || half_open || !closing_.empty() || (clients_.empty() && options_.idle_s > 0);
  // Otherwise only the socket's path is looked at, now and then.
  int64_t period_s = watching ? 1 : 10;
  if (period_s == tick_period_s_) return;
  tick_period_s_ = period_s;
  itimerspec spec{};
  spec.it_interval.tv_sec = spec.it_value.tv_sec = period_s;
  timerfd_settime(timer_fd_, 0, &spec, nullptr);
}

void Server::on_tick() {
  uint64_t times;
  if (read(timer_fd_, &times, sizeof times) < 0) return;
  int64_t now_ns = monotonic_ns();
  for (auto& [fd, client] : clients_) {
    if (client->lane) client->lane->drop_stale(now_ns);
  }
  call_closing_lanes();
  drop_half_open(now_ns);
  if (!draining_ && rendezvous_->lost()) {
    log(LogLevel::error,
        "the data directory " + rendezvous_->data_dir() +
            " was removed, moved or replaced: kalosd ends, so that whoever serves that path next is the only one");
    drain("its data directory was removed, moved or replaced");
  }
  if (!draining_) {
    if (auto again = rendezvous_->listen_again_if_vanished(); again && *again >= 0) {
      unwatch(listen_fd_);
      close(listen_fd_);
      listen_fd_ = *again;
      watch(listen_fd_, EPOLLIN);
    } else if (!again) {
      log(LogLevel::warning, again.error().words);
    }
  }
  if (clients_.empty() && options_.idle_s > 0 && now_ns - idle_since_ns_ > options_.idle_s * second_ns) {
    drain("idle for " + std::to_string(options_.idle_s) + " s");
  }
}

// Whoever has connected but not said who it is, or was granted a lane and does not attach it.
void Server::drop_half_open(int64_t now_ns) {
  std::vector<int> late;
  for (auto& [fd, client] : clients_) {
    if (client->half_open() && now_ns - client->since_ns > half_open_limit_ns) late.push_back(fd);
  }
  for (int fd : late) {
    refuse(*clients_[fd], invalid("the hello was not finished within 10 s"));
    drop(fd);
  }
}

// A lane's thread may have been on its way to sleep when it was called.
void Server::call_closing_lanes() {
  std::erase_if(closing_, [](const std::weak_ptr<Lane>& lane) { return lane.expired(); });
  for (auto& closing : closing_) {
    if (auto lane = closing.lock()) lane->call_thread();
  }
}

void Server::accept_clients() {
  while (true) {
    int fd = accept4(listen_fd_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0 && (errno == EMFILE || errno == ENFILE)) return turn_away();
    if (fd < 0) return;
    auto client = std::make_unique<Connection>(fd);
    if (!watch(fd, EPOLLIN | EPOLLRDHUP)) continue;
    if (client->peer_uid() != geteuid()) {
      refuse(*client, invalid("this kalosd belongs to user id " + std::to_string(geteuid()) +
                              " and serves nobody else; "
                              "you are user id " +
                              std::to_string(client->peer_uid())));
      continue;
    }
    if (client->pid_fd() >= 0 && watch(client->pid_fd(), EPOLLIN)) pid_fds_[client->pid_fd()] = fd;
    client->since_ns = monotonic_ns();
    clients_[fd] = std::move(client);
  }
}

// Without this the one that waits would keep the loop awake, and would itself never hear why.
void Server::turn_away() {
  log(LogLevel::warning, "a client is turned away: no file descriptor is left");
  close(spare_fd_);
  if (int fd = accept4(listen_fd_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK); fd >= 0) {
    Connection client(fd);
    refuse(client, {KALOS_STATUS_OVERLOADED, "kalosd has no file descriptor left for another client (" +
                                                 std::to_string(clients_.size()) +
                                                 " are connected): close some, or raise its limit (ulimit -n)"});
  }
  spare_fd_ = open_spare();
}

void Server::on_client(int fd, uint32_t events) {
  auto found = clients_.find(fd);
  if (found == clients_.end()) return;
  Connection& client = *found->second;
  bool alive = client.flush() && client.receive();
  while (alive && !client.ending) {
    auto frame = client.next();
    if (!frame) {
      refuse(client, frame.error());
      alive = false;
    } else if (!*frame) {
      break;
    } else {
      alive = on_frame(client, **frame);
    }
  }
  if (!alive || (events & (EPOLLERR | EPOLLHUP | EPOLLRDHUP)) || (client.ending && !client.wants_to_write())) {
    return drop(fd);
  }
  epoll_event event{};
  event.events = EPOLLIN | EPOLLRDHUP | (client.wants_to_write() ? uint32_t{EPOLLOUT} : 0u);
  event.data.fd = fd;
  epoll_ctl(epoll_fd_, EPOLL_CTL_MOD, fd, &event);
}

void Server::drop(int fd) {
  auto found = clients_.find(fd);
  if (found == clients_.end()) return;
  if (int pid_fd = found->second->pid_fd(); pid_fd >= 0) {
    unwatch(pid_fd);
    pid_fds_.erase(pid_fd);
  }
  unwatch(fd);
  if (found->second->lane) closing_.push_back(found->second->lane);
  dropped_.push_back(std::move(found->second));
  clients_.erase(found);
  if (clients_.empty()) idle_since_ns_ = monotonic_ns();
}

bool Server::on_frame(Connection& client, const Connection::Frame& frame) {
  if (!client.greeted && frame.type != KALOS_CONTROL_HELLO) {
    refuse(client, invalid("the first frame must be a HELLO"));
    return false;
  }
  switch (frame.type) {
    case KALOS_CONTROL_HELLO:
      return on_hello(client, frame.body);
    case KALOS_CONTROL_ATTACHED:
      return on_attached(client);
    case KALOS_CONTROL_STATUS:
      return client.send(KALOS_CONTROL_REPORT, report());
    case KALOS_CONTROL_PING:
      return client.send(KALOS_CONTROL_PONG, json::object());
    case KALOS_CONTROL_DRAIN: {
      std::string reason = words_of(frame.body, "reason");
      drain(reason.empty() ? "asked by a client" : reason);
      return true;
    }
    default:
      refuse(client, invalid("control frame type " + std::to_string(frame.type) + " is not known"));
      return false;
  }
}

bool Server::on_hello(Connection& client, const json& body) {
  if (client.greeted) return refuse(client, invalid("a second HELLO"));
  auto hello = parse_hello(body);
  if (!hello) return refuse(client, hello.error());
  client.client = hello->client;
  if (draining_) return refuse(client, {KALOS_STATUS_DRAINING, "kalosd is ending; connect again"});

  if (hello->lane) {
    int64_t apart = 0;
    bool durations =
        __builtin_sub_overflow(hello->monotonic_ns, monotonic_ns(), &apart) || apart > second_ns || apart < -second_ns;
    auto lane = Lane::create(*hello->lane, ++last_lane_id_, instance_, durations, *services_);
    if (!lane) {
      log(LogLevel::warning, "no lane for pid " + std::to_string(client.peer_pid()) + ": " + lane.error().words);
      return refuse(client, lane.error());
    }
    client.lane = std::move(*lane);
    client.lane_id = last_lane_id_;
    json answer = welcome(client);
    answer["deadline"] = durations ? "duration" : "absolute";
    client.greeted = true;
    return client.send(KALOS_CONTROL_WELCOME, answer);
  }
  client.greeted = true;
  return client.send(KALOS_CONTROL_WELCOME, welcome(client));
}

json Server::welcome(const Connection& client) const {
  json lane = nullptr;
  if (client.lane) {
    LaneMemory& memory = client.lane->memory();
    const auto& names = memory.names();
    lane = {{"lane_id", client.lane_id},
            {"name", names[0]},
            {"lane_bytes", memory.bytes()},
            {"slot_count", memory.shape().slot_count},
            {"slot_bytes", memory.shape().slot_bytes},
            {"request_semaphore", names[1]},
            {"reply_semaphores", std::vector<std::string>(names.begin() + 2, names.end())}};
  }
  return {{"abi_major", KALOS_ABI_MAJOR}, {"abi_minor", KALOS_ABI_MINOR},
          {"version", KALOS_VERSION},     {"pid", getpid()},
          {"instance", instance_hex_},    {"autostarted", options_.autostarted},
          {"deadline", "absolute"},       {"spin_us", governor_.limit_us()},
          {"lane", std::move(lane)}};
}

bool Server::on_attached(Connection& client) {
  if (!client.lane || client.attached) return refuse(client, invalid("ATTACHED without a lane that waits for it"));
  client.attached = true;
  if (!client.lane->start()) {
    return refuse(client, {KALOS_STATUS_OVERLOADED,
                           "kalosd cannot start a thread for another client (" + std::to_string(clients_.size()) +
                               " are connected): close some, or raise its limit (ulimit -u, the cgroup's pids.max)"});
  }
  return client.send(KALOS_CONTROL_READY, json::object());
}

// True: the frame is on its way and the connection ends once it is sent.
bool Server::refuse(Connection& client, const Error& error) {
  client.ending = true;
  return client.send(KALOS_CONTROL_ERROR, {{"status", static_cast<int>(error.status)},
                                           {"message", error.words},
                                           {"pid", getpid()},
                                           {"version", KALOS_VERSION},
                                           {"abi_major", KALOS_ABI_MAJOR},
                                           {"autostarted", options_.autostarted}});
}

void Server::drain(const std::string& reason) {
  if (draining_) return;
  draining_ = true;
  drain_until_ns_ = monotonic_ns() + drain_limit_ns;
  services_->draining = true;
  log(LogLevel::info, "draining: " + reason);
  for (auto& [fd, client] : clients_) {
    if (client->lane) client->lane->announce_drain();
    client->send(KALOS_CONTROL_DRAINING, {{"reason", reason}});
  }
}

bool Server::finished() const {
  if (!draining_) return false;
  if (counters_.in_flight.load(std::memory_order_acquire) == 0) return true;
  return monotonic_ns() > drain_until_ns_;
}

}  // namespace kalos
