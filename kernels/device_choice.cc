#include "kernels/device_choice.h"

#include "kernels/backend.h"

namespace hydrant {

absl::StatusOr<DeviceChoice> ChooseDevice(std::string_view wanted) {
  const bool automatic = wanted == "auto";
  if (!automatic && !IsGpu(wanted)) return DeviceChoice{std::string(wanted), "it was asked for"};
  const absl::StatusOr<std::unique_ptr<Backend>> cuda = CreateBackend("cuda", {});
  if (!cuda.ok() && !automatic) return cuda.status();
  if (!cuda.ok()) return DeviceChoice{"cpu", std::string(cuda.status().message())};
  return DeviceChoice{"cuda", (*cuda)->Description()};
}

}  // namespace hydrant
