// From "ORG/NAME" to files on this machine: out of the cache, or from the hub into it. Blocks; each
// call is by itself, and several processes may pull the same model at once.
#ifndef HYDRANT_ENGINE_MODEL_HUB_PULL_H_
#define HYDRANT_ENGINE_MODEL_HUB_PULL_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "engine/model/hub/hub_settings.h"
#include "engine/model/hub/model_reference.h"

namespace hydrant::hub {

struct PullPlan {
  std::string commit;
  size_t num_files = 0;
  int64_t total_bytes = 0;
  int64_t present_bytes = 0;  // that need not be fetched
};

// Hears how a pull goes, on the thread that pulls.
class PullListener {
 public:
  virtual ~PullListener() = default;
  virtual void OnPlan(const PullPlan& /*plan*/) {}
  // `file`: which is being fetched; `bytes`: of all files that are there.
  virtual void OnProgress(const std::string& /*file*/, int64_t /*bytes*/) {}
  virtual void OnNote(const std::string& /*line*/) {}  // a choice, a try again, a wait
  virtual bool Cancelled() { return false; }           // polled several times a second
};

struct PulledModel {
  std::string path;  // a folder, or a GGUF file in it
  std::string commit;
};

// What is in the cache of a revision, without a request. NotFound says what is missing.
absl::StatusOr<PulledModel> FindInCache(const ModelReference& reference,
                                        const HubSettings& settings);

// Asks the hub which commit the revision is and fetches what is missing of it; offline, what is in
// the cache. What was fetched before an error stays, and the next call goes on there. `wait`: see
// HubClientOptions.
absl::StatusOr<PulledModel> Pull(const ModelReference& reference, const HubSettings& settings,
                                 PullListener* listener,
                                 std::function<void(std::chrono::seconds)> wait = nullptr);

// The path of a model that a flag names: `path` itself, or the place of "hf:ORG/NAME". A model that
// is whole in the cache costs no request.
absl::StatusOr<std::string> ResolveModelPath(const std::string& path, PullListener* listener);

}  // namespace hydrant::hub

#endif  // HYDRANT_ENGINE_MODEL_HUB_PULL_H_
