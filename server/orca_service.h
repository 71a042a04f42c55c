// xds.service.orca.v3.OpenRcaService: the daemon's load, told to balancers every so often. Thread
// safe.
#ifndef HYDRANT_SERVER_ORCA_SERVICE_H_
#define HYDRANT_SERVER_ORCA_SERVICE_H_

#include <memory>
#include <mutex>
#include <set>

#include "server/service.h"
#include "server/status_details.h"
#include "xds/service/orca/v3/orca.grpc.pb.h"

namespace hydrant {

class LoadStream;

using RawOrcaService =
    xds::service::orca::v3::OpenRcaService::WithRawCallbackMethod_StreamCoreMetrics<
        xds::service::orca::v3::OpenRcaService::Service>;

class OrcaService final : public RawOrcaService {
 public:
  // Borrowed: `service` outlives it.
  explicit OrcaService(hydrant::Service* service) : service_(service) {}

  // A report at once, then one an interval: the request's, but 100 ms at least and an hour at most;
  // a second where it names none. Ends with the client or EndAll().
  grpc::ServerWriteReactor<grpc::ByteBuffer>* StreamCoreMetrics(
      grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes) override;

  // Streams would last as long as their clients: those that are there are ended, others refused.
  void EndAll();

 private:
  friend class LoadStream;
  // Why there may be no more of them.
  std::optional<Refusal> Add(const std::shared_ptr<LoadStream>& stream);
  void Remove(const std::shared_ptr<LoadStream>& stream);

  hydrant::Service* const service_;

  std::mutex mutex_;
  // Guarded by mutex_.
  std::set<std::shared_ptr<LoadStream>> streams_;
  bool ends_ = false;
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_ORCA_SERVICE_H_
