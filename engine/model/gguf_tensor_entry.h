// Reading one tensor entry of a GGUF header from untrusted bytes. Stateless; any thread may call.
#ifndef HYDRANT_ENGINE_MODEL_GGUF_TENSOR_ENTRY_H_
#define HYDRANT_ENGINE_MODEL_GGUF_TENSOR_ENTRY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/model/byte_reader.h"
#include "kernels/dtype.h"

namespace hydrant {

// A tensor before its data has been located.
struct GgufTensorEntry {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;  // outermost first, the reverse of the file's order
  uint64_t offset = 0;         // from the start of the data section, a multiple of the alignment
  uint64_t num_bytes = 0;
};

// The smallest entry: name length, one byte of name, dimension count, one dimension, type, offset.
inline constexpr uint64_t kMinGgufTensorEntryBytes = 8 + 1 + 4 + 8 + 4 + 8;

// Checks name, dimensions and their product, type, row length and alignment; messages name the
// tensor.
absl::Status ReadGgufTensorEntry(ByteReader& reader, uint64_t alignment, GgufTensorEntry* entry);

// Refuses tensors that share bytes; most damaged offsets are detected here. REQUIRES: offset +
// num_bytes of each entry does not overflow.
absl::Status CheckNoOverlap(std::vector<GgufTensorEntry> entries);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_MODEL_GGUF_TENSOR_ENTRY_H_
