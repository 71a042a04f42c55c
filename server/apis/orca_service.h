// xds.service.orca.v3.OpenRcaService: periodic load reports for load balancers. Thread safe.
#ifndef HYDRANT_SERVER_APIS_ORCA_SERVICE_H_
#define HYDRANT_SERVER_APIS_ORCA_SERVICE_H_

#include "server/requests/long_lived_streams.h"
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

  // A report immediately, then one per interval: the request's, clamped to 100 ms and one hour; a
  // second if unset. Ends with the client or EndAll().
  grpc::ServerWriteReactor<grpc::ByteBuffer>* StreamCoreMetrics(
      grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes) override;

  // Ends all streams and refuses new ones.
  void EndAll() { streams_.EndAll(); }

 private:
  hydrant::Service* const service_;
  LongLivedStreams streams_;
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_APIS_ORCA_SERVICE_H_
