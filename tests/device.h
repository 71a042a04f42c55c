// Devices that a test can run on: the devices of this machine.
#ifndef HYDRANT_TESTS_DEVICE_H_
#define HYDRANT_TESTS_DEVICE_H_

#include <gtest/gtest.h>

#include <string>

#include "kernels/backend.h"

namespace hydrant {

// Returns why this machine lacks the device; empty if it has one.
inline std::string NoDeviceReason(const std::string& device) {
  const absl::Status status = CreateBackend(device, {}).status();
  return absl::IsUnavailable(status) ? std::string(status.message()) : "";
}

// For the beginning of a test or of its SetUp().
#define HYDRANT_SKIP_WITHOUT_DEVICE(device) \
  if (const std::string why = ::hydrant::NoDeviceReason(device); !why.empty()) GTEST_SKIP() << why

}  // namespace hydrant

#endif  // HYDRANT_TESTS_DEVICE_H_
