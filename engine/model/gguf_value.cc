#include "engine/model/gguf_value.h"

#include <algorithm>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

// A string is bounded by the remaining bytes alone.
constexpr uint64_t kNoLimit = std::numeric_limits<uint64_t>::max();

enum ValueType : uint32_t {
  kUint8,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kFloat32,
  kBool,
  kString,
  kArray,
  kUint64,
  kInt64,
  kFloat64
};

// Bytes of a value of the type in the file; the minimum for a string. 0: not an element type.
uint64_t MinValueBytes(uint32_t type) {
  switch (type) {
    case kUint8:
    case kInt8:
    case kBool:
      return 1;
    case kUint16:
    case kInt16:
      return 2;
    case kUint32:
    case kInt32:
    case kFloat32:
      return 4;
    case kUint64:
    case kInt64:
    case kFloat64:
    case kString:
      return 8;
    default:
      return 0;
  }
}

template <typename T>
absl::Status ReadInteger(ByteReader& reader, GgufValue* out) {
  T value = 0;
  HYDRANT_RETURN_IF_ERROR(reader.Read("a value", &value));
  if constexpr (std::is_same_v<T, uint64_t>) {
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      *out = value;
      return absl::OkStatus();
    }
  }
  *out = static_cast<int64_t>(value);
  return absl::OkStatus();
}

template <typename T>
absl::Status ReadReal(ByteReader& reader, GgufValue* out) {
  T value = 0;
  HYDRANT_RETURN_IF_ERROR(reader.Read("a value", &value));
  *out = static_cast<double>(value);
  return absl::OkStatus();
}

absl::Status ReadBool(ByteReader& reader, GgufValue* out) {
  uint8_t value = 0;
  HYDRANT_RETURN_IF_ERROR(reader.Read("a value", &value));
  if (value > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("a bool is ", int{value}, ", it must be 0 or 1"));
  }
  *out = value == 1;
  return absl::OkStatus();
}

absl::Status ReadScalar(ByteReader& reader, uint32_t type, GgufValue* out) {
  switch (type) {
    case kUint8:
      return ReadInteger<uint8_t>(reader, out);
    case kInt8:
      return ReadInteger<int8_t>(reader, out);
    case kUint16:
      return ReadInteger<uint16_t>(reader, out);
    case kInt16:
      return ReadInteger<int16_t>(reader, out);
    case kUint32:
      return ReadInteger<uint32_t>(reader, out);
    case kInt32:
      return ReadInteger<int32_t>(reader, out);
    case kUint64:
      return ReadInteger<uint64_t>(reader, out);
    case kInt64:
      return ReadInteger<int64_t>(reader, out);
    case kFloat32:
      return ReadReal<float>(reader, out);
    case kFloat64:
      return ReadReal<double>(reader, out);
    case kBool:
      return ReadBool(reader, out);
    case kString: {
      std::string text;
      HYDRANT_RETURN_IF_ERROR(reader.ReadString("a string", kNoLimit, &text));
      *out = std::move(text);
      return absl::OkStatus();
    }
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("value type ", type, " is unknown, the limit is 12"));
  }
}

// Reads `count` scalars of one type into a vector<T>. uint64 elements are read into a
// vector<uint64_t> first.
template <typename T>
absl::StatusOr<std::vector<T>> ReadElements(ByteReader& reader, uint32_t type, uint64_t count) {
  std::vector<T> values;
  values.reserve(count);
  GgufValue value;
  for (uint64_t i = 0; i < count; ++i) {
    HYDRANT_RETURN_IF_ERROR(ReadScalar(reader, type, &value));
    if constexpr (std::is_same_v<T, uint64_t>) {
      const int64_t* small = std::get_if<int64_t>(&value);
      values.push_back(small ? static_cast<uint64_t>(*small) : std::get<uint64_t>(value));
    } else {
      values.push_back(std::move(std::get<T>(value)));
    }
  }
  return values;
}

template <typename T>
absl::Status ReadElementsInto(ByteReader& reader, uint32_t type, uint64_t count, GgufValue* out) {
  HYDRANT_ASSIGN_OR_RETURN(std::vector<T> values, ReadElements<T>(reader, type, count));
  if constexpr (std::is_same_v<T, uint64_t>) {
    constexpr uint64_t kMax = std::numeric_limits<int64_t>::max();
    if (std::all_of(values.begin(), values.end(), [](uint64_t v) { return v <= kMax; })) {
      *out = std::vector<int64_t>(values.begin(), values.end());
      return absl::OkStatus();
    }
  }
  *out = std::move(values);
  return absl::OkStatus();
}

absl::Status ReadArray(ByteReader& reader, GgufValue* out) {
  uint32_t type = 0;
  uint64_t count = 0;
  HYDRANT_RETURN_IF_ERROR(reader.Read("an array's element type", &type));
  HYDRANT_RETURN_IF_ERROR(reader.Read("an array's length", &count));
  if (type == kArray) return absl::UnimplementedError("arrays of arrays are not supported");
  const uint64_t element_bytes = MinValueBytes(type);
  if (element_bytes == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("array element type ", type, " is unknown, the limit is 12"));
  }
  if (count > reader.remaining() / element_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("array length ", count, " does not fit the ",
                                                   reader.remaining(), " bytes left in the file"));
  }
  switch (type) {
    case kFloat32:
    case kFloat64:
      return ReadElementsInto<double>(reader, type, count, out);
    case kBool:
      return ReadElementsInto<bool>(reader, type, count, out);
    case kString:
      return ReadElementsInto<std::string>(reader, type, count, out);
    case kUint64:
      return ReadElementsInto<uint64_t>(reader, type, count, out);
    default:
      return ReadElementsInto<int64_t>(reader, type, count, out);
  }
}

}  // namespace

absl::Status ReadGgufValue(ByteReader& reader, GgufValue* out) {
  uint32_t type = 0;
  HYDRANT_RETURN_IF_ERROR(reader.Read("the value type", &type));
  return type == kArray ? ReadArray(reader, out) : ReadScalar(reader, type, out);
}

std::string_view GgufTypeName(const GgufValue& value) {
  static constexpr std::string_view kNames[] = {
      "bool",           "integer",        "integer above 2^63", "float",
      "string",         "array of bool",  "array of integer",   "array of integer above 2^63",
      "array of float", "array of string"};
  static_assert(std::size(kNames) == std::variant_size_v<GgufValue>);
  return kNames[value.index()];
}

}  // namespace hydrant
