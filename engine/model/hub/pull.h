// From "ORG/NAME" to files on this machine: out of the cache, or from the hub into it. Blocks;
// calls are independent, and several processes may pull the same model at once.
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
  int64_t present_bytes = 0;  // already in the cache
};

// Progress of a pull; called on the pulling thread.
class PullListener {
 public:
  virtual ~PullListener() = default;
  virtual void OnPlan(const PullPlan& /*plan*/) {}
  // `file`: being fetched; `bytes`: present bytes of all files.
  virtual void OnProgress(const std::string& /*file*/, int64_t /*bytes*/) {}
  virtual void OnNote(const std::string& /*line*/) {}  // a choice, a retry, a wait
  virtual bool Cancelled() { return false; }           // polled several times a second
};

struct PulledModel {
  std::string path;  // a folder, or a GGUF file in it
  std::string commit;
};

// Looks up a revision in the cache, without a request. NotFound names the missing file.
absl::StatusOr<PulledModel> FindInCache(const ModelReference& reference,
                                        const HubSettings& settings);

// Asks the hub for the revision's commit and fetches its missing files; offline, uses the cache.
// Files fetched before an error stay, and the next call resumes. `wait`: see HubClientOptions.
absl::StatusOr<PulledModel> Pull(const ModelReference& reference, const HubSettings& settings,
                                 PullListener* listener,
                                 std::function<void(std::chrono::seconds)> wait = nullptr);

// The path of a model named by a flag: `path` itself, or the local folder of "hf:ORG/NAME". A model
// that is complete in the cache costs no request.
absl::StatusOr<std::string> ResolveModelPath(const std::string& path, PullListener* listener);

}  // namespace hydrant::hub

#endif  // HYDRANT_ENGINE_MODEL_HUB_PULL_H_
