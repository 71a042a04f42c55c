#include "tests/server/http_get.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdlib>

namespace hydrant {

bool Connect(int socket, const std::string& address) {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(std::atoi(address.c_str() + address.rfind(':') + 1)));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return connect(socket, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0;
}

int ConnectTo(const std::string& address) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (Connect(fd, address)) return fd;
  close(fd);
  return -1;
}

HttpReply HttpGet(const std::string& address, const std::string& path) {
  const int fd = ConnectTo(address);
  if (fd < 0) return {};
  const std::string request = "GET " + path + " HTTP/1.1\r\nHost: " + address + "\r\n\r\n";
  (void)!send(fd, request.data(), request.size(), MSG_NOSIGNAL);
  std::string text;
  std::array<char, 4096> buffer;
  for (ssize_t count; (count = recv(fd, buffer.data(), buffer.size(), 0)) > 0;)
    text.append(buffer.data(), static_cast<size_t>(count));
  close(fd);
  const size_t blank = text.find("\r\n\r\n");
  if (blank == text.npos || text.size() < 12) return {};
  return {.status = std::atoi(text.c_str() + 9),
          .headers = text.substr(0, blank),
          .body = text.substr(blank + 4)};
}

}  // namespace hydrant
