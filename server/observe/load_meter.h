// How busy the daemon is, as balancers ask for it (ORCA): rates of late, and the moment's use of
// what limits a model. Thread safe; a report takes microseconds and waits for no step.
#ifndef HYDRANT_SERVER_OBSERVE_LOAD_METER_H_
#define HYDRANT_SERVER_OBSERVE_LOAD_METER_H_

#include <grpcpp/support/status.h>

#include <chrono>
#include <mutex>

#include "server/observe/recent_rate.h"
#include "server/observe/serving_state.h"
#include "xds/data/orca/v3/orca_load_report.pb.h"

namespace hydrant {

class LoadMeter {
 public:
  using Report = xds::data::orca::v3::OrcaLoadReport;

  // `cpus`: that the process may use, as CPU time per time; 0: unknown, and not told.
  explicit LoadMeter(double cpus);

  // A call has ended, in whatever way.
  void CountCall(grpc::StatusCode code);
  // `ending`: sequences of a call that ends with this report. They count as running: a balancer
  // takes a utilization of 0 for none given, and asks the processor's instead.
  Report Measure(const ServingState& serving, int ending);

 private:
  using Time = std::chrono::steady_clock::time_point;

  double CpuUtilization(Time now);

  const double cpus_;

  std::mutex mutex_;
  // Guarded by mutex_.
  RecentRate calls_, faults_;
  Time cpu_at_;  // when the two were taken
  double cpu_seconds_;
  double cpu_utilization_ = 0;
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_OBSERVE_LOAD_METER_H_
