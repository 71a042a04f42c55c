// The daemon's load for load balancers (ORCA): recent rates, and the current use of pages and
// sequences. Thread safe; a report takes microseconds and does not wait for a step.
#ifndef HYDRANT_SERVER_OBSERVE_LOAD_METER_H_
#define HYDRANT_SERVER_OBSERVE_LOAD_METER_H_

#include <grpcpp/support/status.h>

#include <chrono>

#include "kernels/mutex.h"
#include "server/observe/recent_rate.h"
#include "server/observe/serving_state.h"
#include "xds/data/orca/v3/orca_load_report.pb.h"

namespace hydrant {

class LoadMeter {
 public:
  using Report = xds::data::orca::v3::OrcaLoadReport;

  // `cpus`: CPUs available to the process; 0: unknown, and not reported.
  explicit LoadMeter(double cpus);

  // Counts an ended call, whatever its status.
  void CountCall(grpc::StatusCode code);
  // `ending`: sequences of a call that ends with this report. They count as running, because a load
  // balancer takes a utilization of 0 as absent and uses the CPU's instead.
  Report Measure(const ServingState& serving, int ending);

 private:
  using Time = std::chrono::steady_clock::time_point;

  double CpuUtilization(Time now) HYDRANT_REQUIRES(mutex_);

  const double cpus_;

  Mutex mutex_;
  RecentRate calls_ HYDRANT_GUARDED_BY(mutex_), faults_ HYDRANT_GUARDED_BY(mutex_);
  Time cpu_at_ HYDRANT_GUARDED_BY(mutex_);  // time of the two values below
  double cpu_seconds_ HYDRANT_GUARDED_BY(mutex_);
  double cpu_utilization_ HYDRANT_GUARDED_BY(mutex_) = 0;
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_OBSERVE_LOAD_METER_H_
