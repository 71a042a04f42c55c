#include "server/net/listening_sockets.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

absl::Status CannotListen(const std::string& listen, const char* why) {
  return absl::UnavailableError(absl::StrCat("cannot listen on ", listen, ": ", why));
}

bool SetPort(sockaddr* address, int port) {
  if (address->sa_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(address)->sin6_port = htons(static_cast<uint16_t>(port));
  } else if (address->sa_family == AF_INET) {
    reinterpret_cast<sockaddr_in*>(address)->sin_port = htons(static_cast<uint16_t>(port));
  } else {
    return false;
  }
  return true;
}

int PortOf(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET6)
    return ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
  if (address.ss_family == AF_INET)
    return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
  return 0;
}

bool IsLocal(const sockaddr_storage& address) {
  if (address.ss_family == AF_UNIX) return true;
  if (address.ss_family == AF_INET6)
    return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr) != 0;
  const uint32_t four = ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr);
  return address.ss_family == AF_INET && four >> 24 == 127;
}

bool IsEveryAddress(const std::string& host) {
  return host.empty() || host == "*" || host == "0.0.0.0" || host == "::";
}

}  // namespace

absl::StatusOr<HostPort> ParseHostPort(const std::string& listen) {
  const size_t colon = listen.find_last_of(':');
  HostPort parsed;
  const char* const end = listen.data() + listen.size();
  const char* const begin = colon == listen.npos ? end : listen.data() + colon + 1;
  const auto [stop, error] = std::from_chars(begin, end, parsed.port);
  if (begin == end || error != std::errc() || stop != end || parsed.port < 0 || parsed.port > 65535)
    return absl::InvalidArgumentError(
        absl::StrCat("'", listen, "' is not host:port with a port from 0 to 65535"));
  parsed.host = listen.substr(0, colon);
  if (parsed.host.starts_with('[') && parsed.host.ends_with(']'))
    parsed.host = parsed.host.substr(1, parsed.host.size() - 2);
  return parsed;
}

std::string UnixPath(std::string_view listen) {
  constexpr std::string_view kUnix = "unix:";
  if (!listen.starts_with(kUnix)) return {};
  listen.remove_prefix(kUnix.size());
  if (listen.starts_with("//")) listen.remove_prefix(2);  // unix:///path
  return std::string(listen);
}

absl::StatusOr<ListeningSockets> ListeningSockets::Open(const std::string& listen) {
  ListeningSockets sockets;
  absl::Status status;
  if (listen.starts_with("unix:")) {
    status = sockets.OpenUnix(UnixPath(listen));
  } else {
    HYDRANT_ASSIGN_OR_RETURN(const HostPort to, ParseHostPort(listen));
    status = sockets.OpenHost(to);
  }
  if (!status.ok()) return CannotListen(listen, std::string(status.message()).c_str());
  return sockets;
}

ListeningSockets::ListeningSockets(ListeningSockets&& other) noexcept
    : fds_(std::exchange(other.fds_, {})),
      port_(other.port_),
      unix_path_(std::exchange(other.unix_path_, {})),
      unix_file_(other.unix_file_) {}

absl::Status ListeningSockets::OpenUnix(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path))
    return absl::UnavailableError(absl::StrCat("a path of a unix socket has 1 to ",
                                               sizeof(address.sun_path) - 1, " bytes, this one ",
                                               path.size()));
  path.copy(address.sun_path, path.size());
  const SocketFolderLock lock(path);
  HYDRANT_RETURN_IF_ERROR(FreeSocketPath(path));
  const int error = Add(reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  if (error != 0) return absl::UnavailableError(std::strerror(error));
  unix_path_ = path;
  unix_file_ = SocketFileAt(path);
  return absl::OkStatus();
}

absl::Status ListeningSockets::OpenHost(const HostPort& to) {
  const bool every = IsEveryAddress(to.host);
  port_ = to.port;
  if (every) {
    sockaddr_in6 any{};
    any.sin6_family = AF_INET6;
    any.sin6_addr = in6addr_any;
    const int error = Add(reinterpret_cast<const sockaddr*>(&any), sizeof(any));
    if (error == 0) return absl::OkStatus();
    if (error != EAFNOSUPPORT && error != EADDRNOTAVAIL)  // otherwise the machine has no IPv6
      return absl::UnavailableError(std::strerror(error));
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_family = every ? AF_INET : AF_UNSPEC;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  if (getaddrinfo(every ? nullptr : to.host.c_str(), "0", &hints, &found) != 0)
    return absl::UnavailableError("the host is not known");
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, freeaddrinfo);
  int error = EADDRNOTAVAIL;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    const int failed = Add(one->ai_addr, one->ai_addrlen);
    // localhost has an IPv6 address even on machines without IPv6.
    if (failed == EADDRNOTAVAIL || failed == EAFNOSUPPORT) continue;
    error = failed;
    if (failed != 0) break;
  }
  return error == 0 ? absl::OkStatus() : absl::UnavailableError(std::strerror(error));
}

int ListeningSockets::Add(const sockaddr* address, socklen_t size) {
  const int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return errno;
  const int yes = 1, no = 0;
  // No SO_REUSEPORT: two daemons would share the connections at random; the second one must fail.
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  sockaddr_storage own{};
  std::memcpy(&own, address, size);
  SetPort(reinterpret_cast<sockaddr*>(&own), port_);
  if (address->sa_family == AF_INET6) {
    const bool any = IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<sockaddr_in6&>(own).sin6_addr);
    setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, any ? &no : &yes, sizeof(yes));
  }
  if (bind(fd, reinterpret_cast<const sockaddr*>(&own), size) != 0 || listen(fd, SOMAXCONN) != 0) {
    const int error = errno;
    close(fd);
    return error;
  }
  fds_.push_back(fd);
  socklen_t own_size = sizeof(own);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&own), &own_size) == 0) port_ = PortOf(own);
  return 0;
}

bool ListeningSockets::AreLocal() const {
  return std::all_of(fds_.begin(), fds_.end(), [](int fd) {
    sockaddr_storage own{};
    socklen_t size = sizeof(own);
    if (getsockname(fd, reinterpret_cast<sockaddr*>(&own), &size) != 0) return false;
    return IsLocal(own);
  });
}

ListeningSockets::Address ListeningSockets::LocalAddress() const {
  Address address;
  if (fds_.empty()) return address;
  address.size = sizeof(address.bytes);
  getsockname(fds_[0], reinterpret_cast<sockaddr*>(&address.bytes), &address.size);
  const auto& six = reinterpret_cast<const sockaddr_in6&>(address.bytes);
  const auto& four = reinterpret_cast<const sockaddr_in&>(address.bytes);
  const bool every = address.bytes.ss_family == AF_INET6  ? IN6_IS_ADDR_UNSPECIFIED(&six.sin6_addr)
                     : address.bytes.ss_family == AF_INET ? four.sin_addr.s_addr == INADDR_ANY
                                                          : false;
  if (!every) return address;
  sockaddr_in loopback{};
  loopback.sin_family = AF_INET;
  loopback.sin_port = htons(static_cast<uint16_t>(port_));
  loopback.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address = {};
  std::memcpy(&address.bytes, &loopback, sizeof(loopback));
  address.size = sizeof(loopback);
  return address;
}

void ListeningSockets::Close() {
  for (const int fd : fds_) close(fd);
  fds_.clear();
  if (!unix_path_.empty()) RemoveSocketFile(unix_path_, unix_file_);
  unix_path_.clear();
}

}  // namespace hydrant
