#include "tests/fake_redis.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string_view>
#include <utility>

namespace hydrant {
namespace {

using std::chrono::milliseconds;

// Removes one command from the front of the bytes; nullopt: it is not complete yet.
std::optional<FakeRedis::Command> TakeCommand(std::string* bytes) {
  size_t at = 0;
  const auto number = [&](char mark) -> std::optional<size_t> {
    const size_t end = bytes->find("\r\n", at);
    if (end == std::string::npos || (*bytes)[at] != mark) return std::nullopt;
    const size_t value = std::strtoul(bytes->c_str() + at + 1, nullptr, 10);
    at = end + 2;
    return value;
  };
  const std::optional<size_t> count = number('*');
  if (!count.has_value()) return std::nullopt;
  FakeRedis::Command command;
  for (size_t i = 0; i < *count; ++i) {
    const std::optional<size_t> size = number('$');
    if (!size.has_value() || bytes->size() < at + *size + 2) return std::nullopt;
    command.push_back(bytes->substr(at, *size));
    at += *size + 2;
  }
  bytes->erase(0, at);
  return command;
}

std::string Bulk(std::string_view text) {
  return "$" + std::to_string(text.size()) + "\r\n" + std::string(text) + "\r\n";
}

std::string Integer(size_t number) { return ":" + std::to_string(number) + "\r\n"; }

// The prefix that a pattern matches if its only wildcard is the last character.
std::string PrefixOf(const std::string& pattern) {
  std::string prefix;
  for (size_t i = 0; i + 1 < pattern.size(); ++i) {
    if (pattern[i] == '\\') ++i;
    prefix += pattern[i];
  }
  return prefix;
}

}  // namespace

FakeRedis::FakeRedis() {
  std::string folder = std::filesystem::temp_directory_path() / "hydrant_fake_XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) std::abort();
  folder_ = folder;
  socket_ = folder_ + "/socket";
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  socket_.copy(address.sun_path, sizeof(address.sun_path) - 1);
  listener_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
    std::abort();
  listen(listener_, 64);
  thread_ = std::thread([this] { Accept(); });
}

FakeRedis::~FakeRedis() {
  stopping_ = true;
  set_manner(Manner::kSilent);
  thread_.join();
  for (std::thread& peer : peers_) peer.join();
  close(listener_);
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

void FakeRedis::set_manner(Manner manner) {
  const std::lock_guard<std::mutex> lock(mutex_);
  manner_ = manner;
  ++manners_;
  changed_.notify_all();
}

void FakeRedis::CloseAll() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const int fd : open_) shutdown(fd, SHUT_RDWR);
}

int FakeRedis::CountOf(const std::string& name) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = counts_.find(name);
  return found == counts_.end() ? 0 : found->second;
}

bool FakeRedis::Has(const std::string& key) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return values_.contains(key);
}

std::string FakeRedis::OnlyKey() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return values_.size() == 1 ? values_.begin()->first : "";
}

void FakeRedis::Set(const std::string& key, std::string value) {
  const std::lock_guard<std::mutex> lock(mutex_);
  values_[key] = std::move(value);
}

void FakeRedis::Accept() {
  while (!stopping_) {
    pollfd wanted = {listener_, POLLIN, 0};
    if (poll(&wanted, 1, 10) <= 0) continue;
    const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    const std::lock_guard<std::mutex> lock(mutex_);
    open_.insert(fd);
    peers_.emplace_back([this, fd] {
      Serve(fd);
      const std::lock_guard<std::mutex> end(mutex_);
      open_.erase(fd);
      close(fd);
    });
  }
}

void FakeRedis::Serve(int fd) {
  std::string bytes;
  while (!stopping_) {
    pollfd wanted = {fd, POLLIN, 0};
    if (poll(&wanted, 1, 10) <= 0) continue;
    std::array<char, 65536> buffer;
    const ssize_t count = recv(fd, buffer.data(), buffer.size(), 0);
    if (count <= 0) return;
    bytes.append(buffer.data(), static_cast<size_t>(count));
    while (const std::optional<Command> command = TakeCommand(&bytes)) Send(fd, *command);
  }
}

bool FakeRedis::Pause(milliseconds time) {
  std::unique_lock<std::mutex> lock(mutex_);
  return !changed_.wait_for(lock, time, [&, before = manners_] { return manners_ != before; });
}

bool FakeRedis::SendAll(int fd, const std::string& bytes) {
  for (size_t at = 0; at < bytes.size() && !stopping_;) {
    pollfd wanted = {fd, POLLOUT, 0};
    if (poll(&wanted, 1, 10) <= 0) continue;
    const ssize_t sent =
        send(fd, bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent <= 0) return false;
    at += static_cast<size_t>(sent);
  }
  return !stopping_;
}

void FakeRedis::Send(int fd, const Command& command) {
  ++num_commands_;
  Manner manner;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    manner = manner_;
    ++counts_[command.front()];
  }
  if (delay_ms_ > 0) Pause(milliseconds(delay_ms_));
  if (manner == Manner::kSilent) return;
  if (manner == Manner::kNeverEnds) {
    if (command.front() == "SCAN") {
      SendAll(fd, "*2\r\n" + Bulk("7") + "*0\r\n");
      return;
    }
    const std::string chunk = ":1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n";
    std::string many;
    for (int i = 0; i < 4096; ++i) many += chunk;
    if (!SendAll(fd, "*100000000\r\n")) return;
    while (SendAll(fd, many)) continue;
    return;
  }
  const std::string answer = Answer(command);
  if (manner == Manner::kPrompt) {
    SendAll(fd, answer);
    return;
  }
  for (const char byte : answer) {
    if (!SendAll(fd, std::string(1, byte)) || !Pause(milliseconds(500))) return;
  }
}

std::string FakeRedis::Answer(const Command& command) {
  const std::string& name = command[0];
  if (name == "AUTH" || name == "SELECT") return "+OK\r\n";
  const std::lock_guard<std::mutex> lock(mutex_);
  if (name == "SCAN") {
    std::string found;
    size_t count = 0;
    const std::string prefix = PrefixOf(command[3]);
    for (const auto& [key, value] : values_) {
      if (!key.starts_with(prefix)) continue;
      found += Bulk(key);
      ++count;
    }
    return "*2\r\n" + Bulk("0") + "*" + std::to_string(count) + "\r\n" + found;
  }
  if (name == "SET") {
    values_[command[1]] = command[2];
    return "+OK\r\n";
  }
  if (name == "DEL") return Integer(values_.erase(command[1]));
  const auto found = values_.find(command[1]);
  if (name == "EXISTS") return Integer(found != values_.end() ? 1 : 0);
  if (name == "STRLEN") return Integer(found == values_.end() ? 0 : found->second.size());
  return found == values_.end() ? "$-1\r\n" : Bulk(found->second);
}

}  // namespace hydrant
