// Reads little-endian fields one after another from untrusted bytes, never past their end. Borrows
// the bytes. Not thread-safe. Errors say which field was being read, where, and how many bytes were
// left.
#ifndef HYDRANT_ENGINE_MODEL_BYTE_READER_H_
#define HYDRANT_ENGINE_MODEL_BYTE_READER_H_

#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"

namespace hydrant {

static_assert(std::endian::native == std::endian::little, "model files are read in place");

class ByteReader {
 public:
  explicit ByteReader(std::span<const uint8_t> bytes) : bytes_(bytes) {}

  size_t position() const { return position_; }
  size_t remaining() const { return bytes_.size() - position_; }

  template <typename T>
  absl::Status Read(std::string_view field, T* out) {
    static_assert(std::is_arithmetic_v<T> && !std::is_same_v<T, bool>);
    if (remaining() < sizeof(T)) return Truncated(field, sizeof(T));
    std::memcpy(out, bytes_.data() + position_, sizeof(T));
    position_ += sizeof(T);
    return absl::OkStatus();
  }

  // A uint64 length and that many bytes.
  absl::Status ReadString(std::string_view field, uint64_t max_length, std::string* out) {
    uint64_t length = 0;
    HYDRANT_RETURN_IF_ERROR(Read(field, &length));
    if (length > max_length) {
      return absl::InvalidArgumentError(absl::StrCat("length of ", std::string(field), " is ",
                                                     length, " bytes, the limit is ", max_length));
    }
    if (length > remaining()) return Truncated(field, length);
    out->assign(reinterpret_cast<const char*>(bytes_.data() + position_), length);
    position_ += length;
    return absl::OkStatus();
  }

 private:
  absl::Status Truncated(std::string_view field, uint64_t wanted) const {
    return absl::InvalidArgumentError(absl::StrCat("the file ends inside ", std::string(field),
                                                   ": ", wanted, " bytes wanted at byte ",
                                                   position_, ", ", remaining(), " left"));
  }

  std::span<const uint8_t> bytes_;
  size_t position_ = 0;  // <= bytes_.size()
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_MODEL_BYTE_READER_H_
