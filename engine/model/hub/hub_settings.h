// The hub's endpoint and its cache on disk, from the environment variables of Python's
// huggingface_hub, so that both share one cache and one login. Plain data.
#ifndef HYDRANT_ENGINE_MODEL_HUB_HUB_SETTINGS_H_
#define HYDRANT_ENGINE_MODEL_HUB_HUB_SETTINGS_H_

#include <cstdlib>
#include <functional>
#include <string>

#include "absl/status/statusor.h"

namespace hydrant::hub {

struct HubSettings {
  std::string endpoint = "https://huggingface.co";  // without a final '/'
  std::string cache;                                // the folder that holds models--ORG--NAME
  std::string token;                                // "": none
  bool offline = false;                             // sends no request
};

using Environment = std::function<const char*(const char* name)>;

// HF_ENDPOINT; HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE, $HF_HOME/hub, $XDG_CACHE_HOME/huggingface/hub
// or
// ~/.cache/huggingface/hub; HF_TOKEN, HUGGING_FACE_HUB_TOKEN or the file HF_TOKEN_PATH, else
// $HF_HOME/token, unless HF_HUB_DISABLE_IMPLICIT_TOKEN; HF_HUB_OFFLINE, TRANSFORMERS_OFFLINE.
// InvalidArgument names the variable.
absl::StatusOr<HubSettings> ReadHubSettings(const Environment& environment = std::getenv);

}  // namespace hydrant::hub

#endif  // HYDRANT_ENGINE_MODEL_HUB_HUB_SETTINGS_H_
