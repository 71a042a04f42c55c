// Text into a file by a thread of its own, so that whoever gives it waits for no disk and no reader
// of a pipe. Thread safe.
#ifndef HYDRANT_SERVER_FILE_WRITER_H_
#define HYDRANT_SERVER_FILE_WRITER_H_

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace hydrant {

class FileWriter {
 public:
  // Makes the file anew; a pipe must have its reader already. An error names it.
  static absl::StatusOr<std::unique_ptr<FileWriter>> Open(const std::string& path,
                                                          size_t max_waiting_bytes);
  // Gives what waits a second to be written, and leaves the rest.
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  // Not OK, from then on: the file takes nothing more, or not as fast as it comes, and the text is
  // not written.
  absl::Status Write(std::string text);
  // Waits until all is written; false: it took longer, or failed.
  bool Flush(std::chrono::milliseconds time);

 private:
  struct State;
  explicit FileWriter(std::shared_ptr<State> state) : state_(std::move(state)) {}

  const std::shared_ptr<State> state_;  // shared with the thread, which a dead disk may hold
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_FILE_WRITER_H_
