// A model in several GGUF files, as gguf-split of the llama.cpp project writes them:
// "name-00001-of-00003.gguf" and so on. Each is a whole GGUF file with tensors of its own and the
// keys split.no (from 0), split.count and split.tensors.count (of all files); the model's metadata
// is in the first. Stateless; any thread may call.
#ifndef HYDRANT_ENGINE_MODEL_GGUF_SPLIT_H_
#define HYDRANT_ENGINE_MODEL_GGUF_SPLIT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/model/gguf.h"

namespace hydrant {

struct GgufSplit {
  int64_t no = 0;
  int64_t count = 1;  // 1: a single file, possibly without these keys
  int64_t tensors = 0;
};

// The split keys of a file. InvalidArgument names the key.
absl::StatusOr<GgufSplit> ReadGgufSplit(const GgufFile& file);

// The paths of all files, derived from the path of one. InvalidArgument if its name contradicts its
// keys.
absl::StatusOr<std::vector<std::string>> GgufSplitPaths(const std::string& path,
                                                        const GgufSplit& split);

// The length of the part of a file name that tells the split's files apart, "-00002-of-00003"
// before ".gguf"; 0: it has none.
size_t GgufPartLength(std::string_view name);

// Checks that `file` can be number `no` of the split model that begins with the file `first`.
absl::Status CheckGgufSplit(const GgufFile& first, const GgufFile& file, int64_t no);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_MODEL_GGUF_SPLIT_H_
