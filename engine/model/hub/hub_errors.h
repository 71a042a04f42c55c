// What the hub's refusals mean, and what to do about them. Stateless.
#ifndef HYDRANT_ENGINE_MODEL_HUB_HUB_ERRORS_H_
#define HYDRANT_ENGINE_MODEL_HUB_HUB_ERRORS_H_

#include <string>

#include "absl/status/status.h"
#include "engine/model/hub/http_session.h"
#include "engine/model/hub/hub_settings.h"
#include "engine/model/hub/model_reference.h"

namespace hydrant::hub {

struct AskedFor {
  const HubSettings& settings;
  const ModelReference& reference;
  const std::string& path;  // that follows the endpoint
};

// `head` is no 2xx. One line, by its status and by X-Error-Code, the hub's word for it.
absl::Status RefusalOf(const HttpHead& head, const AskedFor& asked);

}  // namespace hydrant::hub

#endif  // HYDRANT_ENGINE_MODEL_HUB_HUB_ERRORS_H_
