// Which device an engine runs on.
#ifndef HYDRANT_KERNELS_DEVICE_CHOICE_H_
#define HYDRANT_KERNELS_DEVICE_CHOICE_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace hydrant {

struct DeviceChoice {
  std::string name;    // of a backend (kernels/backend.h)
  std::string reason;  // a clause that follows "because"
};

// `wanted`: a backend's name, or "auto": cuda where it can be used, else cpu. Unavailable, with the
// reason, where a device that was asked for by name cannot be used.
absl::StatusOr<DeviceChoice> ChooseDevice(std::string_view wanted);

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_DEVICE_CHOICE_H_
