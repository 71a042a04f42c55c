// A fake Redis that a test can make slow, silent or hostile, on a socket in its own folder. It
// supports GET, SET, DEL, STRLEN, EXISTS, SCAN, AUTH and SELECT, and ignores expiry. Thread safe.
#ifndef HYDRANT_TESTS_FAKE_REDIS_H_
#define HYDRANT_TESTS_FAKE_REDIS_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace hydrant {

class FakeRedis {
 public:
  using Command = std::vector<std::string>;
  enum class Manner {
    kPrompt,     // answers at once
    kSilent,     // reads commands and never answers
    kDrips,      // sends a byte of an answer every 500 ms
    kNeverEnds,  // sends an answer without end; SCAN returns a cursor that never ends
  };

  FakeRedis();
  ~FakeRedis();
  FakeRedis(const FakeRedis&) = delete;
  FakeRedis& operator=(const FakeRedis&) = delete;

  std::string uri() const { return "unix:" + socket_; }
  void set_manner(Manner manner);
  // The delay before each answer; a change of manner or the destructor ends the delay.
  void set_delay(std::chrono::milliseconds delay) { delay_ms_ = delay.count(); }

  // Closes all connections.
  void CloseAll();

  int num_commands() const { return num_commands_; }
  int CountOf(const std::string& name) const;  // commands of this name
  bool Has(const std::string& key) const;
  std::string OnlyKey() const;  // "" unless there is exactly one key
  void Set(const std::string& key, std::string value);

 private:
  void Accept();
  void Serve(int fd);
  std::string Answer(const Command& command);
  void Send(int fd, const Command& command);
  bool SendAll(int fd, const std::string& bytes);
  bool Pause(std::chrono::milliseconds time);  // false: the manner has changed

  std::string folder_, socket_;
  int listener_ = -1;
  std::atomic<int64_t> delay_ms_{0};
  std::atomic<int> num_commands_{0};
  std::atomic<bool> stopping_{false};

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  Manner manner_ = Manner::kPrompt;
  uint64_t manners_ = 0;  // how often manner_ has changed
  std::map<std::string, std::string> values_;
  std::map<std::string, int> counts_;
  std::vector<std::thread> peers_;
  std::set<int> open_;  // sockets of open connections

  std::thread thread_;
};

}  // namespace hydrant

#endif  // HYDRANT_TESTS_FAKE_REDIS_H_
