#include "tests/server/loopback_floor.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>

namespace hydrant {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMessageBytes = 48;  // a delta of one token with its HTTP/2 frame
using Message = std::array<int64_t, kMessageBytes / sizeof(int64_t)>;  // [0]: end of its step

int64_t NowUs() {
  return std::chrono::duration_cast<std::chrono::microseconds>(Clock::now().time_since_epoch())
      .count();
}

void Need(bool ok) {
  if (ok) return;
  std::perror("loopback_floor");
  std::abort();
}

// Two ends of one TCP connection without Nagle's algorithm.
class Connection {
 public:
  explicit Connection(int listener) {
    sockaddr_in address = {};
    socklen_t size = sizeof(address);
    Need(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) == 0);
    writer_ = socket(AF_INET, SOCK_STREAM, 0);
    Need(connect(writer_, reinterpret_cast<const sockaddr*>(&address), size) == 0);
    reader_ = accept(listener, nullptr, nullptr);
    const int on = 1;
    Need(reader_ >= 0 && setsockopt(writer_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) == 0);
  }
  Connection(const Connection&) = delete;
  ~Connection() {
    close(writer_);
    close(reader_);
  }
  int reader() const { return reader_; }
  void Send(const Message& message) const {
    Need(send(writer_, message.data(), kMessageBytes, MSG_NOSIGNAL) ==
         static_cast<ssize_t>(kMessageBytes));
  }
  // Appends the latencies of available messages.
  void Receive(std::vector<int64_t>* latencies) {
    std::array<Message, 64> messages;
    auto* bytes = reinterpret_cast<char*>(messages.data());
    std::copy(part_.begin(), part_.end(), bytes);
    const ssize_t got = recv(reader_, bytes + part_.size(), sizeof(messages) - part_.size(), 0);
    Need(got > 0);
    const int64_t now = NowUs();
    const size_t size = part_.size() + static_cast<size_t>(got), whole = size / kMessageBytes;
    for (size_t i = 0; i < whole; ++i) latencies->push_back(now - messages[i][0]);
    part_.assign(bytes + whole * kMessageBytes, bytes + size);
  }

 private:
  int writer_ = -1, reader_ = -1;
  std::vector<char> part_;  // of an incomplete message
};

// Hands the end of a step from the stepping thread to the writing one.
class Handover {
 public:
  void Give(int64_t end_us) {
    {
      const std::lock_guard lock(mutex_);
      ends_.push_back(end_us);
    }
    given_.notify_one();
  }
  int64_t Take() {
    std::unique_lock lock(mutex_);
    given_.wait(lock, [this] { return next_ < ends_.size(); });
    return ends_[next_++];
  }

 private:
  std::mutex mutex_;
  std::condition_variable given_;
  std::vector<int64_t> ends_;
  size_t next_ = 0;
};

int Listen() {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  Need(bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
  Need(listen(listener, SOMAXCONN) == 0);
  return listener;
}

void Read(std::vector<std::unique_ptr<Connection>>& connections, size_t count,
          std::vector<int64_t>* latencies) {
  std::vector<pollfd> polls;
  polls.reserve(connections.size());
  for (const auto& connection : connections) polls.push_back({connection->reader(), POLLIN, 0});
  while (latencies->size() < count) {
    Need(poll(polls.data(), polls.size(), -1) > 0);
    for (size_t i = 0; i < polls.size(); ++i) {
      if (polls[i].revents != 0) connections[i]->Receive(latencies);
    }
  }
}

}  // namespace

std::vector<int64_t> MeasureLoopbackFloor(int streams, int connections, int steps, int64_t step_us,
                                          const std::function<void()>& before_reading) {
  const int listener = Listen();
  std::vector<std::unique_ptr<Connection>> open;
  open.reserve(connections);
  for (int i = 0; i < connections; ++i) open.push_back(std::make_unique<Connection>(listener));
  close(listener);
  Handover handover;
  std::thread stepper([&] {
    for (int64_t next_us = NowUs(), step = 0; step < steps; ++step) {
      next_us += step_us;
      std::this_thread::sleep_until(Clock::time_point(std::chrono::microseconds(next_us)));
      handover.Give(NowUs());
    }
  });
  std::thread writer([&] {
    for (int step = 0; step < steps; ++step) {
      const Message message = {handover.Take()};
      for (int i = 0; i < streams; ++i) open[i % connections]->Send(message);
    }
  });
  before_reading();
  std::vector<int64_t> latencies;
  Read(open, static_cast<size_t>(streams) * static_cast<size_t>(steps), &latencies);
  stepper.join();
  writer.join();
  return latencies;
}

}  // namespace hydrant
