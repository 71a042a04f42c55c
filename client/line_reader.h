// Reads lines of standard input. At a terminal it prints a prompt on standard error, and lines can
// be edited and recalled (if the build has libedit). No history file is written. Not thread safe.
#ifndef HYDRANT_CLIENT_LINE_READER_H_
#define HYDRANT_CLIENT_LINE_READER_H_

#include <optional>
#include <string>

namespace hydrant {

class LineReader {
 public:
  LineReader();

  // Whether standard input and standard error are terminals.
  bool IsTyped() const { return is_typed_; }
  // The next line; nullopt at the end of the input.
  std::optional<std::string> Next();

 private:
  const bool is_typed_;
};

}  // namespace hydrant

#endif  // HYDRANT_CLIENT_LINE_READER_H_
