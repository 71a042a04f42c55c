// What a program prints: results on standard output, all else on standard error. A write that fails
// throws nothing. Of results it is remembered: what follows is dropped, so that nobody reads a text
// with a gap, and EndOutput() says so at the end. Not thread safe.
#ifndef HYDRANT_KERNELS_STANDARD_STREAMS_H_
#define HYDRANT_KERNELS_STANDARD_STREAMS_H_

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "fmt/format.h"

namespace hydrant {

namespace internal {
// errno of the first result that could not be written; 0: all could.
inline int& OutputError() {
  static int error = 0;
  return error;
}
}  // namespace internal

// Whether results are lost: what makes more of them can stop.
inline bool OutputFailed() { return internal::OutputError() != 0; }

// Writes and flushes: whoever reads a pipe sees it at once.
inline void WriteOutput(std::string_view text) {
  if (OutputFailed()) return;
  errno = 0;
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() &&
                       std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (!written) internal::OutputError() = errno != 0 ? errno : EIO;
}

template <typename... Args>
void PrintOut(fmt::format_string<Args...> text, Args&&... args) {
  WriteOutput(fmt::format(text, std::forward<Args>(args)...));
}

// A full or closed standard error is no reason to end.
template <typename... Args>
void PrintErr(fmt::format_string<Args...> text, Args&&... args) {
  const std::string line = fmt::format(text, std::forward<Args>(args)...);
  (void)std::fwrite(line.data(), 1, line.size(), stderr);
  (void)std::fflush(stderr);
}

// To be called last: the exit code of `program`, 1 in place of 0 where results are lost.
inline int EndOutput(std::string_view program, int code) {
  WriteOutput("");  // and what a library has printed, as --help
  if (!OutputFailed()) return code;
  PrintErr("{}: standard output: cannot be written: {}\n", program,
           std::strerror(internal::OutputError()));
  return code == 0 ? 1 : code;
}

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_STANDARD_STREAMS_H_
