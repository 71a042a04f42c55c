#include "client/interrupt.h"

#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <utility>

namespace hydrant {
namespace {

constexpr uint64_t kInterrupted = 1, kOver = uint64_t{1} << 32;

// The eventfd lives as long as the process: a handler may still run after its OnInterrupt ends.
int Events() {
  static const int events = eventfd(0, EFD_CLOEXEC);
  return events;
}

void Add(uint64_t event) {
  const int error = errno;
  (void)!write(Events(), &event, sizeof event);
  errno = error;
}

void SetHandler(void (*handler)(int), int flags) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = flags;
  sigaction(SIGINT, &action, nullptr);
}

}  // namespace

OnInterrupt::OnInterrupt(std::function<void()> then) {
  // Creates the eventfd before a handler uses it. Without one Ctrl-C ends the process.
  if (Events() < 0) return;
  thread_ = std::thread([then = std::move(then)] {
    for (uint64_t events = 0; events < kOver;) {
      if (read(Events(), &events, sizeof events) != sizeof events) continue;
      if (events % kOver >= kInterrupted) then();
    }
  });
  SetHandler([](int) { Add(kInterrupted); }, static_cast<int>(SA_RESETHAND) | SA_RESTART);
}

OnInterrupt::~OnInterrupt() {
  if (!thread_.joinable()) return;
  SetHandler(SIG_DFL, 0);
  Add(kOver);
  thread_.join();
}

}  // namespace hydrant
