// What becomes of the process when a mapped file is cut short under it: the next read past its new
// end raises SIGBUS, which would end the process without a word. The guard says which file it was,
// in one line on stderr, and ends it with exit code 1. Nothing better is to be had: whoever was
// reading, a kernel in the middle of a product perhaps, cannot go on.
//
// The first call takes over SIGBUS for the process, unless somebody has it already (a sanitizer);
// faults elsewhere keep the default action. Thread safe.
#ifndef HYDRANT_ENGINE_MODEL_MAP_GUARD_H_
#define HYDRANT_ENGINE_MODEL_MAP_GUARD_H_

#include <cstdint>
#include <span>
#include <string_view>

namespace hydrant {

void GuardMap(std::span<const uint8_t> bytes, std::string_view path);
void UnguardMap(std::span<const uint8_t> bytes);  // before they are unmapped

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_MODEL_MAP_GUARD_H_
