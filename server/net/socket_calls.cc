#include "server/net/socket_calls.h"

#include <grpc/grpc.h>
#include <grpc/support/alloc.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"

namespace hydrant {
namespace {

using nlohmann::json;

// Parses an answer of channelz: protobuf's JSON, with 64-bit numbers as strings and without zeros.
json Parsed(char* answer) {
  if (answer == nullptr) return nullptr;
  const std::unique_ptr<char, decltype(&gpr_free)> owner(answer, &gpr_free);
  return json::parse(answer, nullptr, /*allow_exceptions=*/false);
}

const json& At(const json& object, const char* name) {
  static const json kNothing;
  if (!object.is_object()) return kNothing;
  const auto found = object.find(name);
  return found == object.end() ? kNothing : *found;
}

int64_t NumberAt(const json& object, const char* name) {
  const json& value = At(object, name);
  int64_t number = 0;
  if (value.is_string() && absl::SimpleAtoi(value.get_ref<const std::string&>(), &number))
    return number;
  return 0;
}

SocketAddress EndOf(const json& address) {
  const json& tcp = At(address, "tcpip_address");
  const json& bytes = At(tcp, "ip_address");
  SocketAddress end;
  if (!bytes.is_string() ||
      !absl::Base64Unescape(bytes.get_ref<const std::string&>(), &end.address))
    return {};
  const json& port = At(tcp, "port");
  end.port = port.is_number_integer() ? port.get<int>() : 0;
  return end;
}

SocketPair EndsOf(const json& socket) {
  return {.remote = EndOf(At(socket, "remote")), .local = EndOf(At(socket, "local"))};
}

// Calls `take` for each id in a channelz list, page by page.
template <typename Ask, typename Take>
void ForEach(const char* list, const char* ref, const char* id, const Ask& ask, const Take& take) {
  int64_t start = 0;
  while (true) {
    const json answer = Parsed(ask(start));
    const json& items = At(answer, list);
    if (!items.is_array() || items.empty()) return;
    for (const json& item : items) {
      const int64_t number = NumberAt(*ref == '\0' ? item : At(item, ref), id);
      start = std::max(start, number + 1);
      take(number);
    }
    if (const json& end = At(answer, "end"); end.is_boolean() && end.get<bool>()) return;
  }
}

}  // namespace

std::optional<SocketCalls> CallsOfSocket(int64_t id) {
  const json answer = Parsed(grpc_channelz_get_socket(id));
  if (!answer.is_object()) return std::nullopt;
  const json& data = At(At(answer, "socket"), "data");
  const auto count = [&](const char* name) { return static_cast<uint64_t>(NumberAt(data, name)); };
  return SocketCalls{.started = count("streamsStarted"),
                     .succeeded = count("streamsSucceeded"),
                     .failed = count("streamsFailed"),
                     .messages_received = count("messagesReceived"),
                     .messages_sent = count("messagesSent")};
}

std::map<SocketPair, int64_t> SocketIds::New() {
  std::map<SocketPair, int64_t> fresh;
  std::unordered_set<int64_t> all;
  ForEach("server", "ref", "serverId", grpc_channelz_get_servers, [&](int64_t server) {
    const auto sockets = [server](int64_t start) {
      return grpc_channelz_get_server_sockets(server, start, 0);
    };
    ForEach("socketRef", "", "socketId", sockets, [&](int64_t id) {
      all.insert(id);
      if (known_.contains(id)) return;
      const json answer = Parsed(grpc_channelz_get_socket(id));
      if (!answer.is_object()) return;
      // The later of two: gRPC may still list a closed connection with the same addresses.
      int64_t& newest = fresh[EndsOf(At(answer, "socket"))];
      newest = std::max(newest, id);
    });
  });
  known_ = std::move(all);
  return fresh;
}

}  // namespace hydrant
