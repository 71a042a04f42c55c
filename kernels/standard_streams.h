// Output of a program: results on standard output, everything else on standard error. A failed
// write throws nothing. After a result could not be written, later results are dropped, so that the
// output has no gap, and EndOutput() reports the failure. Not thread safe.
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
// errno of the first result that could not be written; 0: all results were written.
inline int& OutputError() {
  static int error = 0;
  return error;
}
}  // namespace internal

// Whether results are lost; the program can then stop making more.
inline bool OutputFailed() { return internal::OutputError() != 0; }

// Writes and flushes, so that the reader of a pipe sees the text at once.
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

// A full or closed standard error does not end the program.
template <typename... Args>
void PrintErr(fmt::format_string<Args...> text, Args&&... args) {
  const std::string line = fmt::format(text, std::forward<Args>(args)...);
  (void)std::fwrite(line.data(), 1, line.size(), stderr);
  (void)std::fflush(stderr);
}

// Call it last. Returns the exit code of `program`: `code`, or 1 instead of 0 if results are lost.
inline int EndOutput(std::string_view program, int code) {
  WriteOutput("");  // flushes what a library has printed, such as --help
  if (!OutputFailed()) return code;
  PrintErr("{}: standard output: cannot be written: {}\n", program,
           std::strerror(internal::OutputError()));
  return code == 0 ? 1 : code;
}

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_STANDARD_STREAMS_H_
