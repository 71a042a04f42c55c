#include "tests/subprocess.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <thread>

extern char** environ;

namespace hydrant {
namespace {

// Appends the available bytes; false at the end.
bool ReadSome(int fd, std::string* text) {
  std::array<char, 4096> buffer;
  const ssize_t count = read(fd, buffer.data(), buffer.size());
  if (count > 0) text->append(buffer.data(), static_cast<size_t>(count));
  return count > 0;
}

// Exit code for a status of waitpid().
int CodeOf(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status); }

}  // namespace

Subprocess::Subprocess(const std::vector<std::string>& arguments) {
  std::array<int, 2> out, err;
  if (pipe2(out.data(), O_CLOEXEC) != 0 || pipe2(err.data(), O_CLOEXEC) != 0) std::abort();
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, err[1], STDERR_FILENO);
  std::vector<char*> argv;
  argv.reserve(arguments.size() + 1);
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  if (posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ) != 0) std::abort();
  posix_spawn_file_actions_destroy(&actions);
  close(out[1]);
  close(err[1]);
  out_fd_ = out[0];
  err_fd_ = err[0];
}

Subprocess::~Subprocess() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  close(out_fd_);
  close(err_fd_);
}

std::string Subprocess::WaitForErrorLine(const std::string& text) {
  while (true) {
    const size_t found = err_.find(text);
    const size_t end = found == std::string::npos ? found : err_.find('\n', found);
    if (end != std::string::npos) {
      const size_t begin = err_.rfind('\n', found) + 1;  // npos + 1 is 0
      return err_.substr(begin, end - begin);
    }
    if (!ReadSome(err_fd_, &err_)) return {};
  }
}

bool Subprocess::WaitForOutput(size_t bytes) {
  while (out_.size() < bytes) {
    if (!ReadSome(out_fd_, &out_)) return false;
  }
  return true;
}

void Subprocess::Signal(int signal) {
  if (pid_ > 0) kill(pid_, signal);  // else it has ended, and -1 would signal all processes
}

int Subprocess::Wait() { return *WaitFor(std::chrono::hours(24 * 365)); }

std::optional<int> Subprocess::WaitFor(std::chrono::milliseconds time) {
  const auto deadline = std::chrono::steady_clock::now() + time;
  bool out_open = true, err_open = true;
  while (out_open || err_open) {
    if (std::chrono::steady_clock::now() > deadline) return std::nullopt;
    std::array<pollfd, 2> fds{pollfd{out_open ? out_fd_ : -1, POLLIN, 0},
                              pollfd{err_open ? err_fd_ : -1, POLLIN, 0}};
    if (poll(fds.data(), fds.size(), 1000) < 0) break;
    if (fds[0].revents != 0) out_open = ReadSome(out_fd_, &out_);
    if (fds[1].revents != 0) err_open = ReadSome(err_fd_, &err_);
  }
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  return CodeOf(status);
}

std::optional<int> Subprocess::WaitUnread(std::chrono::seconds time) {
  const auto until = std::chrono::steady_clock::now() + time;
  int status = 0;
  while (waitpid(pid_, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > until) return std::nullopt;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  pid_ = -1;
  return CodeOf(status);
}

}  // namespace hydrant
