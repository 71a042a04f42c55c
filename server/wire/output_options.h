// The part of a request that concerns only its output; the scheduler does not need it.
#ifndef HYDRANT_SERVER_WIRE_OUTPUT_OPTIONS_H_
#define HYDRANT_SERVER_WIRE_OUTPUT_OPTIONS_H_

#include <cstddef>
#include <cstdint>

namespace hydrant {

struct OutputOptions {
  size_t num_samples = 1;
  uint32_t top_logprobs = 0;  // number of top-ranked tokens reported with each token's logprobs
  uint32_t top_prompt_logprobs = 0;  // the same for the prompt's tokens
  uint32_t stream_interval = 1;      // tokens per delta, except a sample's first and last delta
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_WIRE_OUTPUT_OPTIONS_H_
