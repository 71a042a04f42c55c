// A timeline of steps and requests for Perfetto (ui.perfetto.dev) and chrome://tracing: one JSON
// event a line, in the Trace Event Format. A truncated file opens as well. Only the loop's thread
// calls it, and it does not wait for a disk: another thread writes (server/observe/file_writer.h).
#ifndef HYDRANT_SERVER_OBSERVE_STEP_TRACE_H_
#define HYDRANT_SERVER_OBSERVE_STEP_TRACE_H_

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "scheduler/request.h"
#include "scheduler/scheduler.h"
#include "server/observe/file_writer.h"

namespace hydrant {

class StepTrace {
 public:
  // Creates the file, or replaces an empty file or an older trace, or opens a character device.
  // FailedPrecondition for other contents and other kinds of file, which are not changed. Errors
  // name the path.
  static absl::StatusOr<std::unique_ptr<StepTrace>> Open(const std::string& path);
  ~StepTrace();

  // Adds a finished step, the scheduler's state after it, and its events. If the disk is full, or
  // slower than the steps, one warning is logged and tracing stops.
  void Add(const StepTaken& step, const ServingStats& stats, const std::vector<Event>& events);

  bool IsWriting() const { return is_writing_; }
  // Waits until all is in the file. False: that took longer than `time`, or a write failed.
  bool Flush(std::chrono::milliseconds time) { return file_->Flush(time); }

 private:
  explicit StepTrace(std::unique_ptr<FileWriter> file);
  void AddStep(const StepTaken& step, const ServingStats& stats);
  void AddEnd(RequestHandle handle, const Usage& usage, const char* how, TimeUs now);
  void Write(const std::string& event);

  void Send();

  const std::unique_ptr<FileWriter> file_;
  std::string text_;  // of the current step
  bool is_writing_ = true;
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_OBSERVE_STEP_TRACE_H_
