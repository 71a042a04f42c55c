// A TCP relay on a loopback port: clients connect to it and reach a server through it. After
// Vanish() it carries no bytes and closes no connection, like an unplugged cable. Runs its
// own thread.
#ifndef HYDRANT_TESTS_SERVER_RELAY_H_
#define HYDRANT_TESTS_SERVER_RELAY_H_

#include <atomic>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace hydrant {

class Relay {
 public:
  explicit Relay(int server_port);
  ~Relay();  // closes its connections
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  void Vanish();
  // Closes every connection, like a proxy after its server died; new ones are carried.
  void Cut();
  // Chunks carried from clients to the server so far.
  int pieces_from_clients() const { return pieces_from_clients_; }

 private:
  void Run();
  void Accept();
  void Carry(size_t from);
  void CloseAll();
  void Wake();

  const int server_port_;
  int port_ = 0;
  int listen_fd_ = -1;
  int wake_fd_ = -1;
  std::vector<int> sockets_;  // in pairs, client and server; used by the thread only
  std::atomic<bool> vanished_{false};
  std::atomic<bool> cut_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<int> pieces_from_clients_{0};
  std::thread thread_;
};

}  // namespace hydrant

#endif  // HYDRANT_TESTS_SERVER_RELAY_H_
