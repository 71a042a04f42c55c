// Writes text to a file on a thread of its own, so that the caller never waits for a disk or for
// the reader of a pipe. Thread safe.
#ifndef HYDRANT_SERVER_OBSERVE_FILE_WRITER_H_
#define HYDRANT_SERVER_OBSERVE_FILE_WRITER_H_

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace hydrant {

class FileWriter {
 public:
  // Creates the file, or truncates it. A pipe must already have a reader. At most
  // `max_waiting_bytes` wait to be written. An error names the path.
  static absl::StatusOr<std::unique_ptr<FileWriter>> Open(const std::string& path,
                                                          size_t max_waiting_bytes);
  // Waits up to a second for the text to be written, and drops the rest.
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  // Queues the text; does not block. ResourceExhausted if too much text waits, else the error of an
  // earlier write. After an error all waiting text is dropped, and all later calls fail.
  absl::Status Write(std::string_view text);
  // Waits until all text is written. False: that took longer than `time`, or a write failed.
  bool Flush(std::chrono::milliseconds time);

 private:
  struct State;
  explicit FileWriter(std::shared_ptr<State> state) : state_(std::move(state)) {}

  const std::shared_ptr<State> state_;  // shared with the thread, which may hang in write()
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_OBSERVE_FILE_WRITER_H_
