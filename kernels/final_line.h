// Writes the last message of a process to stderr before the process ends. The message is lost if
// stderr takes no bytes for a second, as a full pipe without a reader does: it must not delay the
// end. Safe in a signal handler.
#ifndef HYDRANT_KERNELS_FINAL_LINE_H_
#define HYDRANT_KERNELS_FINAL_LINE_H_

#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace hydrant {

inline void WriteFinalLine(std::string_view text) {
  constexpr int kPatienceMs = 1000;
  constexpr size_t kAtOnce = PIPE_BUF;  // a pipe that is ready takes this much without blocking
  pollfd out{STDERR_FILENO, POLLOUT, 0};
  while (!text.empty() && poll(&out, 1, kPatienceMs) > 0) {
    const ssize_t written = write(STDERR_FILENO, text.data(), std::min(text.size(), kAtOnce));
    if (written <= 0) return;
    text.remove_prefix(static_cast<size_t>(written));
  }
}

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_FINAL_LINE_H_
