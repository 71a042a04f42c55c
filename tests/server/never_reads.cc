#include "tests/server/never_reads.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "tests/server/http_get.h"

namespace hydrant {
namespace {

// RFC 9113, section 6.
constexpr char kData = 0, kHeaders = 1, kSettings = 4, kWindowUpdate = 8;
constexpr char kEndStream = 1, kEndHeaders = 4;
constexpr uint32_t kLargestWindow = 0x7fffffff;

std::string BigEndian(uint32_t value, int bytes) {
  std::string text;
  for (int i = bytes - 1; i >= 0; --i) text += static_cast<char>(value >> (8 * i));
  return text;
}

std::string Frame(char type, char flags, uint32_t stream, const std::string& payload) {
  return BigEndian(static_cast<uint32_t>(payload.size()), 3) + type + flags + BigEndian(stream, 4) +
         payload;
}

// HPACK's simplest form: literal, not indexed, no Huffman code.
std::string Header(std::string_view name, std::string_view value) {
  std::string text(1, '\0');
  for (const std::string_view part : {name, value}) {
    text += static_cast<char>(part.size());  // none here is longer than 126
    text += part;
  }
  return text;
}

}  // namespace

NeverReads::NeverReads(const std::string& address, const std::string& method,
                       const std::string& message, int receive_buffer)
    : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof(receive_buffer));
  if (!Connect(fd_, address)) std::abort();
  const std::string initial_window = BigEndian(4, 2) + BigEndian(kLargestWindow, 4);
  const std::string headers = Header(":method", "POST") + Header(":scheme", "http") +
                              Header(":path", method) + Header(":authority", address) +
                              Header("te", "trailers") + Header("content-type", "application/grpc");
  const std::string body =
      '\0' + BigEndian(static_cast<uint32_t>(message.size()), 4) + message;  // not compressed
  const std::string all =
      "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + Frame(kSettings, 0, 0, initial_window) +
      Frame(kWindowUpdate, 0, 0, BigEndian(kLargestWindow - 65535, 4)) +
      Frame(kHeaders, kEndHeaders, 1, headers) + Frame(kData, kEndStream, 1, body);
  (void)!send(fd_, all.data(), all.size(), MSG_NOSIGNAL);
}

NeverReads::~NeverReads() { close(fd_); }

}  // namespace hydrant
