// The methods of hydrant.v1.Control. Thread safe.
#ifndef HYDRANT_SERVER_APIS_CONTROL_SERVICE_H_
#define HYDRANT_SERVER_APIS_CONTROL_SERVICE_H_

#include <functional>
#include <list>
#include <memory>

#include "hydrant/v1/control.grpc.pb.h"
#include "kernels/mutex.h"

namespace hydrant {

class ControlService final : public v1::Control::CallbackService {
 public:
  // start: asks the daemon to drain; may be called repeatedly. progress: the number of requests
  // left. Both are called on gRPC's threads, and must not block.
  ControlService(std::function<void()> start, std::function<v1::DrainProgress()> progress);
  ~ControlService() override;

  grpc::ServerWriteReactor<v1::DrainProgress>* Drain(grpc::CallbackServerContext* context,
                                                     const v1::DrainRequest* request) override;

  // Called now and then while the daemon drains: sends changes to all calls.
  void Notify();
  // Sends the last progress and ends all calls, also later ones.
  void End();

 private:
  class Watch;
  void NotifyAll(bool last);

  const std::function<void()> start_;
  const std::function<v1::DrainProgress()> progress_;
  Mutex mutex_;
  bool ended_ HYDRANT_GUARDED_BY(mutex_) = false;
  std::list<std::weak_ptr<Watch>> watches_ HYDRANT_GUARDED_BY(mutex_);
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_APIS_CONTROL_SERVICE_H_
