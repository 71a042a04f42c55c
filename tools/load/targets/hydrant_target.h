// Streams to one or more daemons over gRPC, round robin. Single threaded: Wait() polls the
// completion queue.
#ifndef HYDRANT_TOOLS_LOAD_TARGETS_HYDRANT_TARGET_H_
#define HYDRANT_TOOLS_LOAD_TARGETS_HYDRANT_TARGET_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/access.h"
#include "hydrant/v1/hydrant.pb.h"
#include "tools/load/targets/mix.h"
#include "tools/load/targets/sampling.h"
#include "tools/load/targets/server_target.h"

namespace hydrant::load {

struct HydrantTargetOptions {
  std::vector<std::string> addresses = {
      "127.0.0.1:50051"};  // of daemons, or of a proxy before them
  int connections = 1;     // per address
  AccessFlags access = {};
  std::vector<MixedArm> mix = {};  // an arm without a cache_salt gets a random one
  Sampling sampling = {};
  bool ignore_eos = true;      // to generate the requested length
  double wait_seconds = 10.0;  // until each address answers
};

class HydrantTarget final : public ServerTarget {
 public:
  // Waits until every address answers, and queries the first for its model. Unavailable names an
  // unreachable address; InvalidArgument an unknown policy.
  static absl::StatusOr<std::unique_ptr<HydrantTarget>> Create(HydrantTargetOptions options);
  ~HydrantTarget() override;

  const TargetInfo& info() const override;
  // Uses the first server's tokenizer.
  absl::StatusOr<std::vector<uint32_t>> Tokenize(const std::string& text) override;
  void Start() override;

  double Now() override;
  uint64_t Send(const PlannedRequest& request) override;
  void Cancel(int64_t index) override;
  // Only for addresses host:port without TLS and token; other streams are cancelled.
  void Disconnect(int64_t index) override;
  bool Wait(double until, StreamEvent* event) override;

 private:
  struct Impl;
  explicit HydrantTarget(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace hydrant::load

#endif  // HYDRANT_TOOLS_LOAD_TARGETS_HYDRANT_TARGET_H_
