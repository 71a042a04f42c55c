#include "tests/server/http2_watch.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>

namespace hydrant {
namespace {

// RFC 9113, section 6.
constexpr uint8_t kSettings = 4, kPing = 6, kGoaway = 7;
constexpr uint8_t kAck = 1;

// A frame's header: length (24 bits), type, flags, stream 0.
std::string Frame(uint8_t type, uint8_t flags, const std::string& payload) {
  const auto length = static_cast<char>(payload.size());  // none here is longer than 127
  const char header[] = {0, 0, length, static_cast<char>(type), static_cast<char>(flags), 0,
                         0, 0, 0};
  return std::string(header, sizeof(header)) + payload;
}

}  // namespace

Http2Watch::Http2Watch(const std::string& address)
    : fd_(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  const std::string path = address.substr(std::string("unix:").size());
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  std::copy(path.begin(), path.end(), to.sun_path);
  if (connect(fd_, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) != 0) std::abort();
  Write("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + Frame(kSettings, 0, ""));
  if (NextFrame() != kSettings) std::abort();
}

Http2Watch::~Http2Watch() { close(fd_); }

bool Http2Watch::Read(void* to, size_t bytes) {
  return recv(fd_, to, bytes, MSG_WAITALL) == static_cast<ssize_t>(bytes);
}

void Http2Watch::Write(const std::string& bytes) {
  (void)!send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

int Http2Watch::NextFrame() {
  std::array<uint8_t, 9> header;
  if (!Read(header.data(), header.size())) return -1;
  std::string payload((header[0] << 16) + (header[1] << 8) + header[2], '\0');
  if (!payload.empty() && !Read(payload.data(), payload.size())) return -1;
  const uint8_t type = header[3];
  const bool is_ack = (header[4] & kAck) != 0;
  if (type == kSettings && !is_ack) Write(Frame(kSettings, kAck, ""));
  if (type == kPing && !is_ack) Write(Frame(kPing, kAck, payload));
  return type;
}

bool Http2Watch::WaitForGoaway() {
  int type = 0;
  while (type != kGoaway && type >= 0) type = NextFrame();
  return type == kGoaway;
}

}  // namespace hydrant
