#include "server/http_server.h"

#include <fmt/format.h>
#include <httplib.h>
#include <sys/socket.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <thread>
#include <utility>

namespace hydrant {
namespace {

constexpr int kThreads = 8;
constexpr time_t kPatienceSeconds = 1;  // with a client that does not send, or does not read

struct HostPort {
  std::string host;  // without the brackets of IPv6
  int port = 0;
};

absl::StatusOr<HostPort> ParseListen(const std::string& listen) {
  const size_t colon = listen.find_last_of(':');
  HostPort parsed;
  const char* const end = listen.data() + listen.size();
  const char* const begin = colon == listen.npos ? end : listen.data() + colon + 1;
  const auto [stop, error] = std::from_chars(begin, end, parsed.port);
  if (begin == end || error != std::errc() || stop != end || parsed.port < 0 || parsed.port > 65535)
    return absl::InvalidArgumentError(
        fmt::format("'{}' is not host:port with a port from 0 to 65535", listen));
  parsed.host = listen.substr(0, colon);
  if (parsed.host.starts_with('[') && parsed.host.ends_with(']'))
    parsed.host = parsed.host.substr(1, parsed.host.size() - 2);
  if (parsed.host.empty()) parsed.host = "0.0.0.0";
  return parsed;
}

}  // namespace

class HttpServer::Impl {
 public:
  explicit Impl(Pages pages) : pages_(std::move(pages)) {
    server_.new_task_queue = [] { return new httplib::ThreadPool(kThreads); };
    server_.set_keep_alive_max_count(1);
    server_.set_keep_alive_timeout(kPatienceSeconds);
    server_.set_read_timeout(kPatienceSeconds);
    server_.set_write_timeout(kPatienceSeconds);
    server_.set_payload_max_length(1024);
    // The library would share the port with whoever has it.
    server_.set_socket_options([](socket_t socket) {
      const int yes = 1;
      setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    });
    for (const auto& page : pages_) {
      server_.Get(page.first, [&page](const httplib::Request&, httplib::Response& response) {
        const HttpAnswer answer = page.second();
        response.status = answer.status;
        response.set_content(answer.body, answer.content_type);
      });
    }
    server_.set_error_handler([this](const httplib::Request&, httplib::Response& response) {
      if (response.status == 404) response.set_content(PageList(), "text/plain; charset=utf-8");
    });
  }
  ~Impl() {
    if (!thread_.joinable()) return;
    server_.stop();
    thread_.join();
  }

  absl::Status Listen(const std::string& listen) {
    const absl::StatusOr<HostPort> to = ParseListen(listen);
    if (!to.ok()) return to.status();
    errno = 0;
    const int port = to->port == 0                              ? server_.bind_to_any_port(to->host)
                     : server_.bind_to_port(to->host, to->port) ? to->port
                                                                : -1;
    if (port < 0)
      return absl::UnavailableError(
          fmt::format("cannot listen on {}: {}", listen,
                      errno == 0 ? "the host is not known" : std::strerror(errno)));
    address_ = listen.substr(0, listen.find_last_of(':') + 1) + std::to_string(port);
    thread_ = std::thread([this] { server_.listen_after_bind(); });
    // stop() before that would be forgotten.
    while (!server_.is_running()) std::this_thread::yield();
    return absl::OkStatus();
  }

  const std::string& address() const { return address_; }

 private:
  std::string PageList() const {
    std::string list = "there is:";
    for (const auto& [path, answer] : pages_) list += " " + path;
    return list + "\n";
  }

  const Pages pages_;
  httplib::Server server_;
  std::string address_;
  std::thread thread_;
};

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const std::string& listen,
                                                              Pages pages) {
  auto impl = std::make_unique<Impl>(std::move(pages));
  if (const absl::Status status = impl->Listen(listen); !status.ok()) return status;
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() = default;
const std::string& HttpServer::address() const { return impl_->address(); }

}  // namespace hydrant
