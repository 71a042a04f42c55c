#include "server/net/port_probe.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace hydrant {
namespace {

// A client's preface and an empty SETTINGS frame (RFC 9113, section 3.4).
constexpr std::string_view kHello("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 33);

// A TLS client's first message.
std::string TlsHello() {
  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context(SSL_CTX_new(TLS_client_method()),
                                                                  &SSL_CTX_free);
  const std::unique_ptr<SSL, decltype(&SSL_free)> tls(SSL_new(context.get()), &SSL_free);
  BIO* const written = BIO_new(BIO_s_mem());
  SSL_set_bio(tls.get(), BIO_new(BIO_s_mem()), written);  // takes ownership of both
  constexpr unsigned char kHttp2[] = {2, 'h', '2'};
  SSL_set_alpn_protos(tls.get(), kHttp2, sizeof(kHttp2));
  SSL_connect(tls.get());  // waits for an answer; the hello is already written
  ERR_clear_error();
  char* bytes = nullptr;
  const long size = BIO_get_mem_data(written, &bytes);
  return {bytes, static_cast<size_t>(size)};
}

class Socket {
 public:
  explicit Socket(int family)
      : fd_(socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)) {}
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int fd() const { return fd_; }

 private:
  const int fd_;
};

}  // namespace

PortProbe::PortProbe(const ListeningSockets::Address& address, const Options& options)
    : address_(address),
      options_(options),
      hello_(options.tls ? TlsHello() : std::string(kHello)),
      stop_fd_(eventfd(0, EFD_CLOEXEC)),
      thread_([this] { Run(); }) {}

void PortProbe::Stop() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  (void)!write(stop_fd_, &one, sizeof(one));
  thread_.join();
  close(stop_fd_);
}

void PortProbe::Run() {
  pollfd stop{stop_fd_, POLLIN, 0};
  int silent = 0;
  while (poll(&stop, 1, static_cast<int>(options_.interval.count())) <= 0) {
    const PortState now = Try();
    if (poll(&stop, 1, 0) > 0) return;
    silent = now == PortState::kSilent ? silent + 1 : 0;
    if (silent > 0 && silent < options_.silent_after) {
      spdlog::warn("the gRPC port did not answer within {} ms", options_.timeout.count());
    } else {
      state_ = now;
    }
  }
}

PortState PortProbe::Try() const {
  const Socket socket(address_.bytes.ss_family);
  // Without a free descriptor the port's state is unknown.
  if (socket.fd() < 0) return state_;
  const auto until = std::chrono::steady_clock::now() + options_.timeout;
  const auto wait = [&](short events) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        until - std::chrono::steady_clock::now());
    std::array<pollfd, 2> fds{pollfd{socket.fd(), events, 0}, pollfd{stop_fd_, POLLIN, 0}};
    const int ready = left.count() > 0 ? poll(fds.data(), fds.size(), left.count()) : 0;
    return ready > 0 && fds[0].revents != 0;
  };
  const auto* to = reinterpret_cast<const sockaddr*>(&address_.bytes);
  if (connect(socket.fd(), to, address_.size) != 0 && (errno != EINPROGRESS || !wait(POLLOUT)))
    return PortState::kSilent;
  // If the other side has closed already, the read reports it.
  (void)!send(socket.fd(), hello_.data(), hello_.size(), MSG_NOSIGNAL);
  if (!wait(POLLIN)) return PortState::kSilent;
  std::array<uint8_t, 9> header{};
  const ssize_t count = recv(socket.fd(), header.data(), header.size(), 0);
  constexpr uint8_t kSettings = 4;    // HTTP/2 frame type
  constexpr uint8_t kHandshake = 22;  // TLS record type
  const bool answered =
      options_.tls ? count > 0 && header[0] == kHandshake
                   : count == static_cast<ssize_t>(header.size()) && header[3] == kSettings;
  return answered ? PortState::kAnswers : PortState::kRefuses;
}

}  // namespace hydrant
