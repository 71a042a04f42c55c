// A status line during a load: progress, throughput, latency.
#ifndef HYDRANT_TOOLS_LOAD_COMMANDS_LIVE_VIEW_H_
#define HYDRANT_TOOLS_LOAD_COMMANDS_LIVE_VIEW_H_

#include <cstdint>
#include <cstdio>
#include <vector>

#include "tools/load/run/outcome.h"

namespace hydrant::load {

class LiveView {
 public:
  // `out`: null: no output. A terminal gets one line that is rewritten; other outputs get a line
  // every ten seconds.
  LiveView(int64_t requests, std::FILE* out);

  void Show(double now, const std::vector<Outcome>& outcomes, int64_t in_flight);
  void End();

 private:
  int64_t requests_;
  std::FILE* out_;
  bool terminal_;
  double next_ = 0.0;
};

}  // namespace hydrant::load

#endif  // HYDRANT_TOOLS_LOAD_COMMANDS_LIVE_VIEW_H_
