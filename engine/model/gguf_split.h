// A model in several GGUF files, as gguf-split of the llama.cpp project writes them:
// "name-00001-of-00003.gguf" and so on. Each is a whole GGUF file with tensors of its own and the
// keys split.no (from 0), split.count and split.tensors.count (of all); the model's metadata is in
// the first. Stateless; any thread may call.
#ifndef HYDRANT_ENGINE_MODEL_GGUF_SPLIT_H_
#define HYDRANT_ENGINE_MODEL_GGUF_SPLIT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/model/gguf.h"

namespace hydrant {

struct GgufSplit {
  int64_t no = 0;
  int64_t count = 1;  // 1: one file, without these keys perhaps
  int64_t tensors = 0;
};

// What a file says of itself. InvalidArgument names the key.
absl::StatusOr<GgufSplit> ReadGgufSplit(const GgufFile& file);

// The paths of all files, by that of one. InvalidArgument where its name does not end as its keys
// say.
absl::StatusOr<std::vector<std::string>> GgufSplitPaths(const std::string& path,
                                                        const GgufSplit& split);

// Whether `file` can be number `no` of the files that begin with `first`.
absl::Status CheckGgufSplit(const GgufFile& first, const GgufFile& file, int64_t no);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_MODEL_GGUF_SPLIT_H_
