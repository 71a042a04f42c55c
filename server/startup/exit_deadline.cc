#include "server/startup/exit_deadline.h"

#include <spdlog/spdlog.h>

#include <condition_variable>
#include <cstdlib>
#include <thread>

#include "kernels/mutex.h"

namespace hydrant {
namespace {

// Time for the log's thread to write the line.
constexpr std::chrono::milliseconds kLastLine{200};

}  // namespace

struct ExitDeadline::State {
  Mutex mutex;
  std::condition_variable changed;
  bool over HYDRANT_GUARDED_BY(mutex) = false;
};

ExitDeadline::ExitDeadline() : state_(std::make_shared<State>()) {}

ExitDeadline::~ExitDeadline() {
  const MutexLock lock(state_->mutex);
  state_->over = true;
  state_->changed.notify_all();
}

void ExitDeadline::Set(std::chrono::milliseconds time) {
  std::thread([state = state_, time] {
    MutexLock lock(state->mutex);
    if (state->changed.wait_for(lock.native(), time,
                                [&]() HYDRANT_REQUIRES(state->mutex) { return state->over; }))
      return;
    spdlog::error("still not stopped after {} ms: this process ends now", time.count());
    std::this_thread::sleep_for(kLastLine);
    std::_Exit(EXIT_FAILURE);
  }).detach();
}

}  // namespace hydrant
