#include "tests/server/http2_streams.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <nghttp2/nghttp2.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

namespace hydrant {
namespace {

constexpr size_t kPrefixBytes = 5;  // of a gRPC message: compression flag, length
constexpr int32_t kWindowBytes = 1 << 30;

int64_t NowUs() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void Require(bool holds, const char* what) {
  if (holds) return;
  std::perror(what);
  std::abort();
}

int Connect(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  Require(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0, "connect");
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  return fd;
}

std::string Framed(const std::string& message) {
  std::string framed(kPrefixBytes, '\0');
  const uint32_t length = htonl(static_cast<uint32_t>(message.size()));
  std::memcpy(&framed[1], &length, sizeof(length));
  return framed + message;
}

nghttp2_nv Header(std::string_view name, std::string_view value) {
  return {reinterpret_cast<uint8_t*>(const_cast<char*>(name.data())),
          reinterpret_cast<uint8_t*>(const_cast<char*>(value.data())), name.size(), value.size(),
          NGHTTP2_NV_FLAG_NONE};
}

}  // namespace

class Http2Streams::Connection {
 public:
  Connection(int port, const OnMessage& on_message)
      : fd_(Connect(port)),
        authority_("127.0.0.1:" + std::to_string(port)),
        on_message_(on_message) {
    nghttp2_session_callbacks* callbacks = nullptr;
    nghttp2_session_callbacks_new(&callbacks);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, OnData);
    nghttp2_session_callbacks_set_on_header_callback(callbacks, OnHeader);
    nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, OnClose);
    nghttp2_session_client_new(&session_, callbacks, this);
    nghttp2_session_callbacks_del(callbacks);
    const nghttp2_settings_entry settings[] = {
        {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, kWindowBytes}};
    nghttp2_submit_settings(session_, NGHTTP2_FLAG_NONE, settings, 1);
    nghttp2_session_set_local_window_size(session_, NGHTTP2_FLAG_NONE, 0, kWindowBytes);
    Send();
    Receive();  // the server's settings; before them at most 100 streams are allowed
  }
  ~Connection() {
    nghttp2_session_del(session_);
    close(fd_);
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  void Call(int stream, const std::string& method, const std::string& message) {
    const nghttp2_nv headers[] = {
        Header(":method", "POST"), Header(":scheme", "http"),
        Header(":path", method),   Header(":authority", authority_),
        Header("te", "trailers"),  Header("content-type", "application/grpc")};
    auto state = std::make_unique<Stream>();
    state->number = stream;
    state->request = Framed(message);
    nghttp2_data_provider body = {};
    body.source.ptr = state.get();
    body.read_callback = ReadRequest;
    const int32_t id =
        nghttp2_submit_request(session_, nullptr, headers, std::size(headers), &body, state.get());
    Require(id > 0, "nghttp2_submit_request");
    streams_.emplace(id, std::move(state));
    Send();
  }

  // Reads available bytes; blocks if there are none.
  void Receive() {
    char buffer[1 << 16];
    const ssize_t got = recv(fd_, buffer, sizeof(buffer), 0);
    now_us_ = NowUs();
    Require(got > 0, "the server closed the connection");
    Require(nghttp2_session_mem_recv(session_, reinterpret_cast<uint8_t*>(buffer),
                                     static_cast<size_t>(got)) == got,
            "nghttp2_session_mem_recv");
    Send();
  }

  int fd() const { return fd_; }
  bool busy() const { return !streams_.empty(); }
  int failed() const { return failed_; }

 private:
  struct Stream {
    int number = 0;
    std::string request;  // not sent yet
    std::string unread;   // an incomplete message
    bool ok = false;
  };

  void Send() {
    const uint8_t* bytes = nullptr;
    for (ssize_t n; (n = nghttp2_session_mem_send(session_, &bytes)) > 0;) {
      Require(send(fd_, bytes, static_cast<size_t>(n), MSG_NOSIGNAL) == n, "send");
    }
  }

  static ssize_t ReadRequest(nghttp2_session*, int32_t, uint8_t* out, size_t size, uint32_t* flags,
                             nghttp2_data_source* source, void*) {
    std::string& request = static_cast<Stream*>(source->ptr)->request;
    const size_t n = std::min(size, request.size());
    std::copy_n(request.data(), n, out);
    request.erase(0, n);
    if (request.empty()) *flags |= NGHTTP2_DATA_FLAG_EOF;
    return static_cast<ssize_t>(n);
  }

  static int OnData(nghttp2_session* session, uint8_t, int32_t id, const uint8_t* data, size_t size,
                    void* self) {
    auto* connection = static_cast<Connection*>(self);
    auto* stream = static_cast<Stream*>(nghttp2_session_get_stream_user_data(session, id));
    stream->unread.append(reinterpret_cast<const char*>(data), size);
    std::string_view left = stream->unread;
    while (left.size() >= kPrefixBytes) {
      uint32_t length = 0;
      std::memcpy(&length, left.data() + 1, sizeof(length));
      length = ntohl(length);
      if (left.size() < kPrefixBytes + length) break;
      connection->on_message_(stream->number, left.substr(kPrefixBytes, length),
                              connection->now_us_);
      left.remove_prefix(kPrefixBytes + length);
    }
    stream->unread.erase(0, stream->unread.size() - left.size());
    return 0;
  }

  static int OnHeader(nghttp2_session* session, const nghttp2_frame* frame, const uint8_t* name,
                      size_t name_size, const uint8_t* value, size_t value_size, uint8_t, void*) {
    const std::string_view header(reinterpret_cast<const char*>(name), name_size);
    const std::string_view text(reinterpret_cast<const char*>(value), value_size);
    if (header == "grpc-status") {
      auto* stream =
          static_cast<Stream*>(nghttp2_session_get_stream_user_data(session, frame->hd.stream_id));
      stream->ok = text == "0";
    }
    return 0;
  }

  static int OnClose(nghttp2_session*, int32_t id, uint32_t, void* self) {
    auto* connection = static_cast<Connection*>(self);
    connection->failed_ += !connection->streams_.at(id)->ok;
    connection->streams_.erase(id);
    return 0;
  }

  const int fd_;
  const std::string authority_;
  const OnMessage& on_message_;  // owned by the caller
  nghttp2_session* session_ = nullptr;
  std::map<int32_t, std::unique_ptr<Stream>> streams_;
  int64_t now_us_ = 0;
  int failed_ = 0;
};

Http2Streams::Http2Streams(int port, int num_connections, OnMessage on_message)
    : on_message_(std::move(on_message)) {
  for (int i = 0; i < num_connections; ++i) {
    connections_.push_back(std::make_unique<Connection>(port, on_message_));
  }
}

Http2Streams::~Http2Streams() = default;

int Http2Streams::Call(const std::string& method, const std::string& message) {
  connections_[num_streams_ % connections_.size()]->Call(num_streams_, method, message);
  return num_streams_++;
}

int Http2Streams::ReadAll() {
  std::vector<pollfd> polled;
  while (true) {
    polled.clear();
    for (const auto& connection : connections_) {
      polled.push_back({connection->busy() ? connection->fd() : -1, POLLIN, 0});
    }
    if (std::all_of(polled.begin(), polled.end(), [](const pollfd& p) { return p.fd < 0; })) break;
    Require(poll(polled.data(), polled.size(), -1) > 0, "poll");
    for (size_t i = 0; i < polled.size(); ++i) {
      if (polled[i].revents != 0) connections_[i]->Receive();
    }
  }
  int failed = 0;
  for (const auto& connection : connections_) failed += connection->failed();
  return failed;
}

}  // namespace hydrant
