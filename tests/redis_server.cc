#include "tests/redis_server.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <thread>
#include <utility>

namespace hydrant {
namespace {

constexpr char kProgram[] = "/usr/bin/redis-server";

bool Accepts(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool accepts =
      connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  close(fd);
  return accepts;
}

}  // namespace

bool RedisServer::IsInstalled() { return access(kProgram, X_OK) == 0; }

RedisServer::RedisServer(std::vector<std::string> flags) : flags_(std::move(flags)) {
  std::string folder = std::filesystem::temp_directory_path() / "hydrant_redis_XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) std::abort();
  folder_ = folder;
  socket_ = folder_ + "/socket";
  Start();
}

RedisServer::~RedisServer() {
  Stop();
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

void RedisServer::Start() {
  std::vector<std::string> command = {
      kProgram, "--port", "0",     "--unixsocket", socket_,   "--save",      "",  "--appendonly",
      "no",     "--dir",  folder_, "--loglevel",   "warning", "--daemonize", "no"};
  command.insert(command.end(), flags_.begin(), flags_.end());
  unlink(socket_.c_str());
  process_ = std::make_unique<Subprocess>(command);
  for (int tries = 0; tries < 3000 && !Accepts(socket_); ++tries)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

}  // namespace hydrant
