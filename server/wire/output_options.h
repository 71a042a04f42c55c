// The part of a request that concerns its answer alone: the scheduler does not need it.
#ifndef HYDRANT_SERVER_WIRE_OUTPUT_OPTIONS_H_
#define HYDRANT_SERVER_WIRE_OUTPUT_OPTIONS_H_

#include <cstddef>
#include <cstdint>

namespace hydrant {

struct OutputOptions {
  size_t num_samples = 1;
  uint32_t top_logprobs = 0;  // with each token's logprobs, those of so many of the first in rank
  uint32_t top_prompt_logprobs = 0;  // the same with the prompt's tokens
  uint32_t stream_interval = 1;      // tokens that a delta waits for, but a sample's first and last
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_WIRE_OUTPUT_OPTIONS_H_
