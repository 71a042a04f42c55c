// A safetensors file, mapped into memory and validated: header length, JSON, data types, shapes
// against byte counts, offsets inside the file and without overlap (holes are allowed). Immutable
// after opening, so any thread may read; views live as long as the object. Format: the safetensors
// project's specification: uint64 header length, JSON header, data.
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

// A tensor of any type, as stored.
struct RawTensor {
  std::string type;  // the format's name: "F32", "I32", "F8_E4M3"
  std::vector<int64_t> shape;
  std::span<const uint8_t> bytes;  // at any alignment
};

// nullopt unless the type is F32, F16 or BF16.
std::optional<DType> FloatTypeOf(const RawTensor& tensor);
// Unimplemented for other types.
absl::StatusOr<std::vector<float>> FloatsOf(const RawTensor& tensor);

class SafetensorsFile {
 public:
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> Open(const std::string& path);
  // The same checks for bytes in memory. The caller keeps them alive (tests, fuzzing).
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> Parse(std::span<const uint8_t> bytes);

  // NotFound if the name is missing, Unimplemented if its data type is not F32, F16 or BF16. The
  // bytes may be unaligned: the format guarantees nothing.
  absl::StatusOr<TensorView> Find(const std::string& name) const;
  absl::StatusOr<RawTensor> FindRaw(const std::string& name) const;
  std::vector<std::string> Names() const;
  // A text of the header's __metadata__; "" if there is none of this name.
  std::string Metadata(const std::string& name) const;
  absl::Status CheckUnchanged() const;  // as MappedFile::CheckUnchanged()
  void ReleasePages() const;            // as MappedFile::ReleasePages()

 private:
  SafetensorsFile() = default;
  absl::Status Load(std::span<const uint8_t> bytes);

  std::unique_ptr<MappedFile> file_;  // null if the caller owns the bytes
  std::map<std::string, RawTensor, std::less<>> tensors_;
  std::map<std::string, std::string, std::less<>> metadata_;
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_MODEL_SAFETENSORS_H_
