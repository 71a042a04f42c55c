// Reads recorded loads in the formats of two public data sets:
//
//   Azure      CSV with the header TIMESTAMP,ContextTokens,GeneratedTokens; a timestamp is
//              "2023-11-16 18:15:46.6805900"
//   Mooncake   JSON lines
//              {"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [..]};
//              a hash id stands for 512 tokens, equal ids for equal tokens
#ifndef HYDRANT_TOOLS_LOAD_RUN_TRACE_H_
#define HYDRANT_TOOLS_LOAD_RUN_TRACE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace hydrant::load {

inline constexpr int kTokensPerHash = 512;

struct TracedRequest {
  double at = 0.0;  // seconds after the first
  int64_t input_tokens = 0;
  int64_t output_tokens = 0;
  std::vector<int64_t> hashes = {};  // of the input's first tokens; empty: nothing is shared
};

// Ascending in time. InvalidArgument names the line and the field, NotFound the file.
absl::StatusOr<std::vector<TracedRequest>> ReadTrace(const std::string& path);
// `name` denotes the file in errors.
absl::StatusOr<std::vector<TracedRequest>> ParseTrace(std::string_view text,
                                                      const std::string& name);

}  // namespace hydrant::load

#endif  // HYDRANT_TOOLS_LOAD_RUN_TRACE_H_
