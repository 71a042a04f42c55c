// Steps and requests as a timeline that Perfetto (ui.perfetto.dev) and chrome://tracing open: one
// JSON event a line, in the Trace Event Format. A file that breaks off opens as well. Of the loop's
// thread, which waits for no disk: another thread writes (server/file_writer.h).
#ifndef HYDRANT_SERVER_STEP_TRACE_H_
#define HYDRANT_SERVER_STEP_TRACE_H_

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "scheduler/request.h"
#include "scheduler/scheduler.h"
#include "server/file_writer.h"

namespace hydrant {

class StepTrace {
 public:
  // Makes the file anew where there is none, an empty one, or an older trace; anything else is left
  // as it is, and an error names it.
  static absl::StatusOr<std::unique_ptr<StepTrace>> Open(const std::string& path);
  ~StepTrace();

  // A step that has come back, what is there afterwards, and the events that it led to. When the
  // disk is full, or slower than steps are, a warning says so, once, and nothing is written any
  // more.
  void Add(const StepTaken& step, const SchedulerStats& stats, const std::vector<Event>& events);

  bool IsWriting() const { return is_writing_; }
  // Waits until all is in the file; false: it took longer, or failed.
  bool Flush(std::chrono::milliseconds time) { return file_->Flush(time); }

 private:
  explicit StepTrace(std::unique_ptr<FileWriter> file);
  void AddStep(const StepTaken& step, const SchedulerStats& stats);
  void AddEnd(RequestHandle handle, const Usage& usage, const char* how, TimeUs now);
  void Write(const std::string& event);

  void Send();

  const std::unique_ptr<FileWriter> file_;
  std::string text_;  // of this step
  bool is_writing_ = true;
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_STEP_TRACE_H_
