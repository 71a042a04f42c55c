// A safetensors file, mapped into memory and checked before anything is believed: header length,
// JSON, data types, shapes against byte counts, offsets inside the file and without overlap (holes
// are allowed). Immutable after opening, so any thread may read; views live as long as the object.
// Format: the safetensors project's specification: uint64 header length, JSON header, data.
#ifndef HYDRANT_ENGINE_MODEL_SAFETENSORS_H_
#define HYDRANT_ENGINE_MODEL_SAFETENSORS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/mapped_file.h"
#include "engine/model/tensor.h"

namespace hydrant {

// A tensor as it lies in a file, of any type.
struct RawTensor {
  std::string type;  // the format's name: "F32", "I32", "F8_E4M3"
  std::vector<int64_t> shape;
  std::span<const uint8_t> bytes;  // of any alignment
};

// None unless the type is F32, F16 or BF16.
std::optional<DType> FloatTypeOf(const RawTensor& tensor);
// Unimplemented unless it is one of these.
absl::StatusOr<std::vector<float>> FloatsOf(const RawTensor& tensor);

class SafetensorsFile {
 public:
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> Open(const std::string& path);
  // The same checks over bytes the caller keeps alive (tests, fuzzing).
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> Parse(std::span<const uint8_t> bytes);

  // NotFound where the name is missing, Unimplemented where its data type is not F32, F16 or BF16.
  // The bytes need not be aligned: the format promises nothing.
  absl::StatusOr<TensorView> Find(const std::string& name) const;
  absl::StatusOr<RawTensor> FindRaw(const std::string& name) const;
  std::vector<std::string> Names() const;
  absl::Status CheckUnchanged() const;  // as MappedFile's
  void ReleasePages() const;            // the same

 private:
  SafetensorsFile() = default;
  absl::Status Load(std::span<const uint8_t> bytes);

  std::unique_ptr<MappedFile> file_;  // null where the caller keeps the bytes
  std::map<std::string, RawTensor, std::less<>> tensors_;
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_MODEL_SAFETENSORS_H_
