// Handles SIGBUS, which a read raises past the end of a mapped file that was truncated. The handler
// names the file in one line on stderr and ends the process with exit code 1; the interrupted code
// (perhaps a kernel within a matmul) cannot continue.
//
// The first call installs the handler for the process, unless another one is installed already (a
// sanitizer's); faults elsewhere keep the default action. Thread safe.
#ifndef HYDRANT_ENGINE_MODEL_SIGBUS_HANDLER_H_
#define HYDRANT_ENGINE_MODEL_SIGBUS_HANDLER_H_

#include <cstdint>
#include <span>
#include <string_view>

namespace hydrant {

void RegisterMapping(std::span<const uint8_t> bytes, std::string_view path);
void UnregisterMapping(std::span<const uint8_t> bytes);  // call before munmap

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_MODEL_SIGBUS_HANDLER_H_
