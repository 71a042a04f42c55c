// A GGUF v3 file, or all files of a split model, mapped into memory. Open() validates every count,
// length, offset, alignment and type of the header against the file's size. Metadata is copied out;
// tensor data stays in the map and lives as long as the GgufFile. Immutable after Open(), so any
// thread may read. Format: the GGUF specification of the ggml project (version 3, little endian).
#ifndef HYDRANT_ENGINE_MODEL_GGUF_H_
#define HYDRANT_ENGINE_MODEL_GGUF_H_

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/tensor.h"

namespace hydrant {

// One metadata value. Integers of every width arrive as int64_t or, above its range, uint64_t;
// floats as double.
using GgufValue = std::variant<bool, int64_t, uint64_t, double, std::string, std::vector<bool>,
                               std::vector<int64_t>, std::vector<uint64_t>, std::vector<double>,
                               std::vector<std::string>>;

class GgufFile {
 public:
  // `path` may be any file of a split model (gguf_split.h); all its files are opened.
  static absl::StatusOr<std::unique_ptr<GgufFile>> Open(const std::string& path);
  // The same checks for one file in memory. The caller keeps the bytes alive (tests, fuzzing).
  static absl::StatusOr<std::unique_ptr<GgufFile>> Parse(std::span<const uint8_t> bytes);
  // Joins the files of a split model, in order. InvalidArgument names file and key, or tensor.
  static absl::StatusOr<std::unique_ptr<GgufFile>> Join(
      std::vector<std::unique_ptr<GgufFile>> files);
  ~GgufFile();

  const std::map<std::string, GgufValue, std::less<>>& metadata() const;
  const std::map<std::string, TensorView, std::less<>>& tensors() const;

  // Typed look-ups. NotFound names the key; InvalidArgument says the type that was found.
  absl::StatusOr<int64_t> GetInt(std::string_view key) const;
  absl::StatusOr<double> GetFloat(std::string_view key) const;
  absl::StatusOr<std::string> GetString(std::string_view key) const;
  absl::StatusOr<bool> GetBool(std::string_view key) const;
  absl::StatusOr<std::vector<std::string>> GetStrings(std::string_view key) const;
  absl::StatusOr<std::vector<int64_t>> GetInts(std::string_view key) const;
  absl::StatusOr<std::vector<double>> GetFloats(std::string_view key) const;
  bool Has(std::string_view key) const;
  absl::Status CheckUnchanged() const;  // as MappedFile::CheckUnchanged()
  void ReleasePages() const;            // as MappedFile::ReleasePages()
  const std::string& path() const;      // of the first file; empty after Parse()

 private:
  struct Impl;
  static absl::StatusOr<std::unique_ptr<GgufFile>> OpenOne(const std::string& path);
  explicit GgufFile(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_MODEL_GGUF_H_
