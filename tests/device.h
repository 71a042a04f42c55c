// Which devices a test can run on: those of the machine it runs on.
#ifndef HYDRANT_TESTS_DEVICE_H_
#define HYDRANT_TESTS_DEVICE_H_

#include <gtest/gtest.h>

#include <string>

#include "kernels/backend.h"

namespace hydrant {

// Why this machine has no such device; empty where it has one.
inline std::string WhyNoDevice(const std::string& device) {
  const absl::Status status = CreateBackend(device, {}).status();
  return absl::IsUnavailable(status) ? std::string(status.message()) : "";
}

// For the beginning of a test or of its SetUp().
#define HYDRANT_SKIP_WITHOUT_DEVICE(device) \
  if (const std::string why = ::hydrant::WhyNoDevice(device); !why.empty()) GTEST_SKIP() << why

}  // namespace hydrant

#endif  // HYDRANT_TESTS_DEVICE_H_
