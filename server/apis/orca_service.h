// xds.service.orca.v3.OpenRcaService: the daemon's load, told to balancers every so often. Thread
// safe.
#ifndef HYDRANT_SERVER_APIS_ORCA_SERVICE_H_
#define HYDRANT_SERVER_APIS_ORCA_SERVICE_H_

#include "server/requests/lasting_streams.h"
#include "server/requests/service.h"
#include "xds/service/orca/v3/orca.grpc.pb.h"

namespace hydrant {

using RawOrcaService =
    xds::service::orca::v3::OpenRcaService::WithRawCallbackMethod_StreamCoreMetrics<
        xds::service::orca::v3::OpenRcaService::Service>;

class OrcaService final : public RawOrcaService {
 public:
  // Borrowed: `service` outlives it.
  explicit OrcaService(hydrant::Service* service);

  // A report at once, then one an interval: the request's, but 100 ms at least and an hour at most;
  // a second where it names none. Ends with the client or EndAll().
  grpc::ServerWriteReactor<grpc::ByteBuffer>* StreamCoreMetrics(
      grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes) override;

  // Those that are there are ended, others refused.
  void EndAll() { streams_.EndAll(); }

 private:
  hydrant::Service* const service_;
  LastingStreams streams_;
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_APIS_ORCA_SERVICE_H_
