// A snapshot of the daemon's state for gRPC, health and metrics. A copy is valid for the moment
// when it was made.
#ifndef HYDRANT_SERVER_OBSERVE_SERVING_STATE_H_
#define HYDRANT_SERVER_OBSERVE_SERVING_STATE_H_

#include "absl/status/status.h"
#include "hydrant/v1/hydrant.pb.h"
#include "scheduler/context_archive.h"
#include "scheduler/prefix_archive.h"
#include "scheduler/serving_loop.h"
#include "server/wire/served_model.h"

namespace hydrant {

struct ServingState {
  v1::ServerState state = v1::SERVER_STATE_LOADING;
  double load_fraction = 0.0;
  // accepts new requests; in DRAINING true until load balancers had time to react
  bool admits = false;
  absl::Status lost = {};  // the error, in ENGINE_LOST
  // Borrowed; null before READY. They live until all users have shut down.
  const ServedModel* model = nullptr;
  ServingLoop* loop = nullptr;
  ContextArchive* contexts = nullptr;
  PrefixArchive* prefixes = nullptr;  // also null where prefix blocks are not saved
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_OBSERVE_SERVING_STATE_H_
