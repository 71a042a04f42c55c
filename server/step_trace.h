// Steps and requests as a timeline that Perfetto (ui.perfetto.dev) and chrome://tracing open: one
// JSON event a line, in the Trace Event Format. A file that breaks off opens as well. The loop's
// thread alone writes.
#ifndef HYDRANT_SERVER_STEP_TRACE_H_
#define HYDRANT_SERVER_STEP_TRACE_H_

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "scheduler/request.h"
#include "scheduler/scheduler.h"

namespace hydrant {

class StepTrace {
 public:
  // Makes the file anew where there is none, an empty one, or an older trace; anything else is left
  // as it is, and an error names it.
  static absl::StatusOr<std::unique_ptr<StepTrace>> Open(const std::string& path);
  ~StepTrace();

  // A step that has come back, what is there afterwards, and the events that it led to. When the
  // disk is full a warning says so, once, and nothing is written any more.
  void Add(const StepTaken& step, const SchedulerStats& stats, const std::vector<Event>& events);

  bool IsWriting() const { return file_.is_open(); }

 private:
  explicit StepTrace(const std::string& path);
  void AddStep(const StepTaken& step, const SchedulerStats& stats);
  void AddEnd(RequestHandle handle, const Usage& usage, const char* how, TimeUs now);
  void Write(const std::string& event);

  std::string path_;
  std::ofstream file_;
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_STEP_TRACE_H_
