// The metadata keys of a GGUF file's architecture ("qwen2.block_count"), with errors that name
// them. If a key is missing, readers leave *out unchanged.
#ifndef HYDRANT_ENGINE_MODEL_GGUF_FIELDS_H_
#define HYDRANT_ENGINE_MODEL_GGUF_FIELDS_H_

#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "engine/model/gguf.h"

namespace hydrant {

// A key, without the architecture, that is not read and does not change the forward pass: with any
// value, or only with the value `only`.
struct IdleKey {
  std::string_view key;
  std::optional<double> only = {};
};

// Remembers which keys were read, so that an unknown key is refused rather than ignored. Borrows
// the file; for one thread.
class GgufFields {
 public:
  // `architecture`: the value of general.architecture.
  GgufFields(const GgufFile& file, std::string architecture)
      : file_(file), prefix_(std::move(architecture) + ".") {}

  const GgufFile& file() const { return file_; }
  std::string Name(std::string_view key) const { return prefix_ + std::string(key); }
  bool Has(std::string_view key);

  // NotFound if the key is required and missing.
  absl::Status ReadInt(std::string_view key, bool required, int* out);
  absl::Status ReadFloat(std::string_view key, bool required, double* out);
  absl::Status ReadString(std::string_view key, std::string* out);

  // Unimplemented, with name and value, if a key of the architecture is neither read nor idle.
  absl::Status RefuseUnread(std::span<const IdleKey> idle) const;

 private:
  const GgufFile& file_;
  const std::string prefix_;
  std::set<std::string, std::less<>> read_;
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_MODEL_GGUF_FIELDS_H_
