#include "server/observe/file_writer.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/mutex.h"

namespace hydrant {
namespace {

constexpr std::chrono::milliseconds kLastGrace{1'000};
constexpr int kPollMs = 50;  // between two checks of `stopping`

}  // namespace

struct FileWriter::State {
  State(std::string name, int descriptor, size_t most)
      : path(std::move(name)), fd(descriptor), max_waiting_bytes(most) {}
  ~State() { close(fd); }

  bool IsIdle() const HYDRANT_REQUIRES(mutex) { return waiting.empty() && !writing; }
  void Fail(absl::Status why) HYDRANT_REQUIRES(mutex) {
    if (status.ok()) status = std::move(why);
    waiting.clear();
    changed.notify_all();
  }

  void Run();
  int WriteAll(std::string_view text) HYDRANT_EXCLUDES(mutex);
  bool IsRunning() HYDRANT_EXCLUDES(mutex) {
    const MutexLock lock(mutex);
    return !stopping;
  }

  const std::string path;
  const int fd;
  const size_t max_waiting_bytes;

  Mutex mutex;
  std::condition_variable changed;
  std::string waiting HYDRANT_GUARDED_BY(mutex);
  // The thread writes text that it took from `waiting`.
  bool writing HYDRANT_GUARDED_BY(mutex) = false;
  bool leaving HYDRANT_GUARDED_BY(mutex) = false;   // no more text comes
  bool stopping HYDRANT_GUARDED_BY(mutex) = false;  // the thread drops text that is not written yet
  absl::Status status HYDRANT_GUARDED_BY(mutex);
};

// Returns an errno; 0: all is written, or `stopping` is set.
int FileWriter::State::WriteAll(std::string_view text) {
  while (!text.empty() && IsRunning()) {
    const ssize_t written = write(fd, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<size_t>(written));
    } else if (errno == EAGAIN) {
      pollfd wanted = {fd, POLLOUT, 0};
      poll(&wanted, 1, kPollMs);
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

void FileWriter::State::Run() {
  MutexLock lock(mutex);
  while (true) {
    changed.wait(lock.native(),
                 [this]() HYDRANT_REQUIRES(mutex) { return !waiting.empty() || leaving; });
    if (waiting.empty()) return;
    const std::string text = std::exchange(waiting, {});
    writing = true;
    lock.Unlock();
    const int error = WriteAll(text);
    lock.Lock();
    writing = false;
    if (error != 0) Fail(absl::ErrnoToStatus(error, absl::StrCat("cannot write ", path)));
    changed.notify_all();
  }
}

absl::StatusOr<std::unique_ptr<FileWriter>> FileWriter::Open(const std::string& path,
                                                             size_t max_waiting_bytes) {
  const int fd =
      open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NONBLOCK | O_CLOEXEC | O_NOCTTY, 0644);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path));
  auto state = std::make_shared<State>(path, fd, max_waiting_bytes);
  std::thread([state] { state->Run(); }).detach();
  return std::unique_ptr<FileWriter>(new FileWriter(std::move(state)));
}

FileWriter::~FileWriter() {
  Flush(kLastGrace);
  const MutexLock lock(state_->mutex);
  state_->leaving = state_->stopping = true;
  state_->waiting.clear();
  state_->changed.notify_all();
}

absl::Status FileWriter::Write(std::string_view text) {
  const MutexLock lock(state_->mutex);
  if (!state_->status.ok()) return state_->status;
  if (state_->waiting.size() + text.size() > state_->max_waiting_bytes) {
    state_->Fail(absl::ResourceExhaustedError(
        absl::StrCat(state_->path, " does not take it as fast as it comes")));
    return state_->status;
  }
  state_->waiting += text;
  state_->changed.notify_all();
  return absl::OkStatus();
}

bool FileWriter::Flush(std::chrono::milliseconds time) {
  MutexLock lock(state_->mutex);
  const auto is_idle = [this]() HYDRANT_REQUIRES(state_->mutex) { return state_->IsIdle(); };
  return state_->changed.wait_for(lock.native(), time, is_idle) && state_->status.ok();
}

}  // namespace hydrant
