// The devices by name, and which one an engine runs on. Pure functions but for ChooseDevice, which
// opens the device; thread-safe.
#ifndef HYDRANT_KERNELS_DEVICE_CHOICE_H_
#define HYDRANT_KERNELS_DEVICE_CHOICE_H_

#include <array>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace hydrant {

// What ChooseDevice takes; all but "auto" are names of backends (kernels/backend.h).
inline constexpr std::array kDeviceNames = {"auto", "cuda", "cpu", "reference"};

// Whether the device of this name, of a backend, has memory and kernels of its own, apart from the
// host's.
constexpr bool IsGpu(std::string_view device) { return device == "cuda"; }

struct DeviceChoice {
  std::string name;    // of a backend (kernels/backend.h)
  std::string reason;  // a clause that follows "because"
};

// `wanted`: a backend's name, or "auto": cuda where it can be used, else cpu. Unavailable, with the
// reason, where a device that was asked for by name cannot be used.
absl::StatusOr<DeviceChoice> ChooseDevice(std::string_view wanted);

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_DEVICE_CHOICE_H_
