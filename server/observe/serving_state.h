// What the daemon is at a moment, as its faces (gRPC, health, metrics) see it. A copy is true for
// the moment it was made.
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
  bool admits = false;     // new requests; in DRAINING for the time that balancers get to notice
  absl::Status lost = {};  // why, in ENGINE_LOST
  // Borrowed; null before READY. They live until every face has shut down.
  const ServedModel* model = nullptr;
  ServingLoop* loop = nullptr;
  ContextArchive* contexts = nullptr;
  PrefixArchive* prefixes = nullptr;  // null too where prefix blocks are not saved
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_OBSERVE_SERVING_STATE_H_
