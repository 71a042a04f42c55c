#include "server/observe/http_server.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <list>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"
#include "server/net/listening_sockets.h"

namespace hydrant {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMaxConnections = 64;
constexpr size_t kMaxRequestBytes = 8192;
constexpr int kAcceptPauseMs = 100;  // after accept() failed: waits for free descriptors

const char* ReasonPhrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 503:
      return "Service Unavailable";
    default:
      return "Bad Request";
  }
}

// The status line and the headers: the same for GET and HEAD.
std::string HeadOf(const HttpAnswer& answer) {
  return absl::StrCat("HTTP/1.1 ", answer.status, " ", ReasonPhrase(answer.status),
                      answer.status == 405 ? "\r\nAllow: GET, HEAD" : "",
                      "\r\nContent-Type: ", answer.content_type,
                      "\r\nContent-Length: ", answer.body.size(), "\r\nConnection: close\r\n\r\n");
}

// Whether the text is a token of RFC 9110, the syntax of a method.
bool IsMethod(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return absl::ascii_isalnum(c) || absl::StrContains("!#$%&'*+-.^_`|~", c);
  });
}

// One request and its answer, with non-blocking reads and writes.
class Connection {
 public:
  Connection(int fd, Clock::time_point deadline) : fd_(fd), deadline_(deadline) {}
  ~Connection() { close(fd_); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  int fd() const { return fd_; }
  Clock::time_point deadline() const { return deadline_; }
  pollfd Waits() const { return {fd_, static_cast<short>(unsent_.empty() ? POLLIN : POLLOUT), 0}; }

  // False: the connection is over. `answer_to` makes the answer to a request's head.
  template <typename AnswerTo>
  bool Advance(const AnswerTo& answer_to) {
    if (unsent_.empty()) {
      if (!Read()) return false;
      if (request_.find("\r\n\r\n") == request_.npos) return request_.size() < kMaxRequestBytes;
      unsent_ = answer_to(std::string_view(request_));
    }
    return Write();
  }

 private:
  bool Read() {
    std::array<char, 4096> buffer;
    const ssize_t count = recv(fd_, buffer.data(), buffer.size(), 0);
    if (count < 0) return errno == EAGAIN || errno == EINTR;
    request_.append(buffer.data(), static_cast<size_t>(count));
    return count > 0;
  }
  bool Write() {
    const ssize_t count = send(fd_, unsent_.data(), unsent_.size(), MSG_NOSIGNAL);
    if (count < 0) return errno == EAGAIN || errno == EINTR;
    unsent_.erase(0, static_cast<size_t>(count));
    return !unsent_.empty();
  }

  const int fd_;
  const Clock::time_point deadline_;
  std::string request_, unsent_;
};

}  // namespace

class HttpServer::Impl {
 public:
  Impl(ListeningSockets sockets, std::string address, Pages pages, std::chrono::milliseconds time)
      : sockets_(std::move(sockets)),
        address_(std::move(address)),
        pages_(std::move(pages)),
        time_(time),
        stop_fd_(eventfd(0, EFD_CLOEXEC)),
        thread_([this] { Run(); }) {}
  ~Impl() {
    const uint64_t one = 1;
    (void)!write(stop_fd_, &one, sizeof(one));
    thread_.join();
    close(stop_fd_);
  }

  const std::string& address() const { return address_; }

 private:
  void Run() {
    std::vector<pollfd> polled;
    while (true) {
      polled.assign({{stop_fd_, POLLIN, 0}});
      for (const int fd : sockets_.fds()) polled.push_back({fd, POLLIN, 0});
      for (const Connection& one : connections_) polled.push_back(one.Waits());
      if (poll(polled.data(), polled.size(), MillisToDeadline()) < 0) continue;
      if (polled[0].revents != 0) return;
      Serve(polled.data() + 1 + sockets_.fds().size());
      EndOverdue();
      bool can_accept = true;
      for (size_t i = 0; i < sockets_.fds().size(); ++i) {
        if (polled[1 + i].revents != 0) can_accept = Accept(sockets_.fds()[i]) && can_accept;
      }
      if (!can_accept && poll(polled.data(), 1, kAcceptPauseMs) > 0) return;
    }
  }

  // Timeout for poll(): -1 without connections. All have the same limit, so the first
  // expires first.
  int MillisToDeadline() const {
    if (connections_.empty()) return -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(connections_.front().deadline() -
                                                                   Clock::now());
    return static_cast<int>(std::max<int64_t>(left.count(), 0));
  }

  // `polled`: one entry per connection, in the order of connections_.
  void Serve(const pollfd* polled) {
    const auto answer_to = [this](std::string_view head) { return AnswerTo(head); };
    for (auto it = connections_.begin(); it != connections_.end(); ++polled) {
      const bool goes_on = polled->revents == 0 || it->Advance(answer_to);
      it = goes_on ? std::next(it) : connections_.erase(it);
    }
  }

  void EndOverdue() {
    const auto now = Clock::now();
    while (!connections_.empty() && connections_.front().deadline() <= now)
      connections_.pop_front();
  }

  // False: nothing can be accepted for now. The oldest connection is closed for a new one: clients
  // that send their request promptly are not affected.
  bool Accept(int listening) {
    const int fd = accept4(listening, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
      const bool no_descriptor = errno == EMFILE || errno == ENFILE;
      if (no_descriptor && !connections_.empty()) connections_.pop_front();
      return errno == EAGAIN || errno == EINTR || errno == ECONNABORTED;
    }
    if (connections_.size() == kMaxConnections) connections_.pop_front();
    connections_.emplace_back(fd, Clock::now() + time_);
    return true;
  }

  std::string AnswerTo(std::string_view head) const {
    const std::string_view line = head.substr(0, head.find("\r\n"));
    const size_t begin = line.find(' '), end = line.rfind(' ');
    const std::string_view method = line.substr(0, begin);
    const bool is_request = begin != line.npos && end > begin + 1 && IsMethod(method) &&
                            line.substr(end + 1).starts_with("HTTP/");
    const HttpAnswer answer =
        !is_request ? HttpAnswer{.status = 400, .body = "this is no request of HTTP/1.1\n"}
        : method != "GET" && method != "HEAD"
            ? HttpAnswer{.status = 405, .body = "GET and HEAD are served here\n"}
            : PageOf(line.substr(begin + 1, end - begin - 1));
    return method == "HEAD" ? HeadOf(answer) : HeadOf(answer) + answer.body;
  }

  HttpAnswer PageOf(std::string_view target) const {
    const auto page = pages_.find(std::string(target.substr(0, target.find('?'))));
    if (page == pages_.end()) return {.status = 404, .body = PageList()};
    return page->second();
  }

  std::string PageList() const {
    std::string list = "there is:";
    for (const auto& [path, answer] : pages_) list += " " + path;
    return list + "\n";
  }

  const ListeningSockets sockets_;
  const std::string address_;
  const Pages pages_;
  const std::chrono::milliseconds time_;
  std::list<Connection> connections_;  // the oldest first; used by the thread
  int stop_fd_ = -1;
  std::thread thread_;
};

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const std::string& listen,
                                                              Pages pages,
                                                              std::chrono::milliseconds time) {
  // TCP only: probes come over the network.
  HYDRANT_RETURN_IF_ERROR(ParseHostPort(listen).status());
  HYDRANT_ASSIGN_OR_RETURN(ListeningSockets sockets, ListeningSockets::Open(listen));
  std::string address =
      absl::StrCat(listen.substr(0, listen.find_last_of(':') + 1), sockets.port());
  return std::unique_ptr<HttpServer>(new HttpServer(
      std::make_unique<Impl>(std::move(sockets), std::move(address), std::move(pages), time)));
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() = default;
const std::string& HttpServer::address() const { return impl_->address(); }

}  // namespace hydrant
