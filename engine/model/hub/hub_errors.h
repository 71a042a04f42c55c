// Explains the hub's refusals and their remedies. Stateless.
#ifndef HYDRANT_ENGINE_MODEL_HUB_HUB_ERRORS_H_
#define HYDRANT_ENGINE_MODEL_HUB_HUB_ERRORS_H_

#include <string>

#include "absl/status/status.h"
#include "engine/model/hub/http_session.h"
#include "engine/model/hub/hub_settings.h"
#include "engine/model/hub/model_reference.h"

namespace hydrant::hub {

struct HubRequest {
  const HubSettings& settings;
  const ModelReference& reference;
  const std::string& path;  // follows the endpoint
};

// `head` has a status other than 2xx. One line, from the status and the hub's X-Error-Code.
absl::Status RefusalOf(const HttpHead& head, const HubRequest& request);

}  // namespace hydrant::hub

#endif  // HYDRANT_ENGINE_MODEL_HUB_HUB_ERRORS_H_
