// The answer to STATUS: health, counters and clients, as docs/abi.md section 2 describes them.
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/cpus.h"
#include "serve/abi_table.h"
#include "serve/server.h"

namespace kalos {

using nlohmann::json;

json Server::report() {
  json database = json::parse(database_->report_json(), nullptr, false);
  bool ready = database.is_object() && database.value("ready", false);
  json by_opcode = json::object();
  const std::pair<int, const char*> opcodes[] = {{KALOS_OP_NOOP, "noop"},
                                                 {KALOS_OP_CONTINUE, "continue"},
                                                 {KALOS_OP_ABORT, "abort"},
                                                 {KALOS_OP_OPEN_COLLECTION, "open_collection"},
                                                 {KALOS_OP_LIST_COLLECTIONS, "list_collections"},
                                                 {KALOS_OP_DROP_COLLECTION, "drop_collection"},
                                                 {KALOS_OP_SEARCH, "search"},
                                                 {KALOS_OP_GET, "get"},
                                                 {KALOS_OP_COUNT, "count"},
                                                 {KALOS_OP_SCAN, "scan"},
                                                 {KALOS_OP_NAMESPACES, "namespaces"},
                                                 {KALOS_OP_UPSERT, "upsert"},
                                                 {KALOS_OP_DELETE, "delete"},
                                                 {KALOS_OP_BATCH, "batch"}};
  for (auto& [opcode, name] : opcodes) by_opcode[name] = counters_.by_opcode[static_cast<size_t>(opcode)].load();
  json clients = json::array();
  for (auto& [fd, client] : clients_) {
    if (!client->lane) continue;
    clients.push_back({{"pid", client->peer_pid()}, {"client", client->client}, {"lane_id", client->lane_id}});
  }
  std::string status = draining_ ? "draining" : ready ? "ready" : "loading";
  std::string words;
  if (database.is_object() && database.contains("collections")) {
    for (const json& collection : database["collections"]) {
      if (collection.value("state", "") != "cold") continue;
      if (status == "ready") status = "degraded";
      words += (words.empty() ? "" : "; ") + collection.value("name", "") + ": " + collection.value("words", "");
    }
  }
  if (database.is_object() && database.contains("store") && database["store"].value("poisoned", false)) {
    if (status == "ready") status = "degraded";
    words += std::string(words.empty() ? "" : "; ") +
             "no write is taken, since a flush to disk failed or the store is not at its path any more (the log says "
             "which): restart kalosd";
  }
  rlimit descriptors{}, address_space{};
  getrlimit(RLIMIT_NOFILE, &descriptors);
  getrlimit(RLIMIT_AS, &address_space);
  json limits = {{"memory_bytes", options_.memory_limit_bytes},
                 {"waiting_write_bytes", kMaxWaitingWriteBytes},
                 {"descriptors", descriptors.rlim_cur},
                 {"address_space_bytes", nullptr},
                 {"contract", abi_limits()}};
  if (address_space.rlim_cur != RLIM_INFINITY) limits["address_space_bytes"] = address_space.rlim_cur;
  return {{"health", {{"status", status}, {"words", words}}},
          {"kalosd",
           {{"pid", getpid()},
            {"version", KALOS_VERSION},
            {"instance", instance_hex_},
            {"abi", std::to_string(KALOS_ABI_MAJOR) + "." + std::to_string(KALOS_ABI_MINOR)},
            {"uptime_s", static_cast<double>(monotonic_ns() - started_ns_) / 1e9},
            {"autostarted", options_.autostarted},
            {"data_dir", rendezvous_->data_dir()},
            {"socket", rendezvous_->socket_path()},
            {"device", "cpu"},
            {"cpus", effective_cpus()}}},
          {"lanes", {{"count", clients.size()}, {"clients", std::move(clients)}}},
          {"requests",
           {{"total", counters_.requests.load()},
            {"by_opcode", std::move(by_opcode)},
            {"errors", counters_.errors.load()},
            {"expired", counters_.expired.load()},
            {"passes", counters_.passes.load()},
            {"combined", counters_.combined.load()},
            {"parts", counters_.parts.load()},
            {"bytes_in", counters_.bytes_in.load()},
            {"bytes_out", counters_.bytes_out.load()},
            {"staged_bytes", counters_.staged_bytes.load()},
            {"in_flight", counters_.in_flight.load()}}},
          {"limits", std::move(limits)},
          {"database", std::move(database)}};
}

}  // namespace kalos
