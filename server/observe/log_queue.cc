#include "server/observe/log_queue.h"

#include <fmt/format.h>
#include <spdlog/details/log_msg_buffer.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <utility>

#include "kernels/mutex.h"

namespace hydrant {
namespace {

using Line = spdlog::details::log_msg_buffer;

// False: the sink failed, and the line is lost.
bool Write(spdlog::sinks::sink* out, const spdlog::details::log_msg& line) {
  try {
    out->log(line);
    out->flush();
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

// False: this warning is lost too.
bool LogLost(spdlog::sinks::sink* out, uint64_t lost) {
  if (lost == 0) return true;
  const std::string text =
      fmt::format("{} lines of the log are lost: it was not taken as fast as it came", lost);
  return Write(out, spdlog::details::log_msg("hydrantd", spdlog::level::warn, text));
}

}  // namespace

struct LogQueue::State {
  explicit State(spdlog::sink_ptr sink) : out(std::move(sink)) {}

  void DropOldest() HYDRANT_REQUIRES(mutex) {
    bytes -= lines.front().payload.size();
    lines.pop_front();
    ++lost;
  }
  bool IsEmpty() const HYDRANT_REQUIRES(mutex) { return lines.empty() && !is_writing; }

  const spdlog::sink_ptr out;
  mutable Mutex mutex;
  std::condition_variable changed, written;
  std::deque<Line> lines HYDRANT_GUARDED_BY(mutex);
  size_t bytes HYDRANT_GUARDED_BY(mutex) = 0;
  uint64_t lost HYDRANT_GUARDED_BY(mutex) = 0;  // since the last warning with this number
  bool is_writing HYDRANT_GUARDED_BY(mutex) = false;
  bool has_ended HYDRANT_GUARDED_BY(mutex) = false;
};

LogQueue::LogQueue(spdlog::sink_ptr out, const Options& options)
    : options_(options),
      state_(std::make_shared<State>(std::move(out))),
      thread_([state = state_] { Run(state); }) {}

LogQueue::~LogQueue() {
  flush();
  bool is_empty;
  {
    const MutexLock lock(state_->mutex);
    is_empty = state_->IsEmpty();
    state_->lines.clear();
    state_->has_ended = true;
  }
  state_->changed.notify_all();
  is_empty ? thread_.join() : thread_.detach();
}

void LogQueue::Run(const std::shared_ptr<State>& state) {
  MutexLock lock(state->mutex);
  while (true) {
    state->changed.wait(lock.native(), [&]() HYDRANT_REQUIRES(state->mutex) {
      return !state->lines.empty() || state->has_ended;
    });
    if (state->lines.empty()) return;
    const Line line = std::move(state->lines.front());
    state->lines.pop_front();
    state->bytes -= line.payload.size();
    const uint64_t lost = std::exchange(state->lost, 0);
    state->is_writing = true;
    lock.Unlock();
    const bool is_logged = LogLost(state->out.get(), lost);
    const bool is_written = Write(state->out.get(), line);
    lock.Lock();
    state->is_writing = false;
    if (!is_logged) state->lost += lost;
    if (!is_written) ++state->lost;
    if (state->IsEmpty()) state->written.notify_all();
  }
}

void LogQueue::log(const spdlog::details::log_msg& message) {
  Line line(message);
  {
    const MutexLock lock(state_->mutex);
    state_->bytes += line.payload.size();
    state_->lines.push_back(std::move(line));
    while (state_->lines.size() > options_.max_lines || state_->bytes > options_.max_bytes)
      state_->DropOldest();
  }
  state_->changed.notify_one();
}

void LogQueue::flush() {
  MutexLock lock(state_->mutex);
  state_->written.wait_for(lock.native(), options_.patience,
                           [this]() HYDRANT_REQUIRES(state_->mutex) { return state_->IsEmpty(); });
}

bool LogQueue::IsEmpty() const {
  const MutexLock lock(state_->mutex);
  return state_->IsEmpty();
}

void LogQueue::set_pattern(const std::string& pattern) { state_->out->set_pattern(pattern); }

void LogQueue::set_formatter(std::unique_ptr<spdlog::formatter> formatter) {
  state_->out->set_formatter(std::move(formatter));
}

}  // namespace hydrant
