// Device names, and the choice of an engine's device. Pure functions except ChooseDevice, which
// opens the device; thread-safe.
#ifndef HYDRANT_KERNELS_DEVICE_CHOICE_H_
#define HYDRANT_KERNELS_DEVICE_CHOICE_H_

#include <array>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace hydrant {

// Names that ChooseDevice accepts; all but "auto" are names of backends (kernels/backend.h).
inline constexpr std::array kDeviceNames = {"auto", "cuda", "cpu", "reference"};

// Whether the backend's device has its own memory and kernels, apart from the host's.
constexpr bool IsGpu(std::string_view device) { return device == "cuda"; }

struct DeviceChoice {
  std::string name;    // of a backend (kernels/backend.h)
  std::string reason;  // a clause that follows "because"
};

// `wanted`: a backend's name, or "auto": cuda where it is usable, else cpu. Unavailable, with the
// reason, where a device requested by name is not usable.
absl::StatusOr<DeviceChoice> ChooseDevice(std::string_view wanted);

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_DEVICE_CHOICE_H_
