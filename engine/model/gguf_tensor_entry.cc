#include "engine/model/gguf_tensor_entry.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/model/text.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

constexpr uint64_t kMaxNameLength = 64;  // the specification's limit
constexpr uint32_t kMaxDims = 4;

// ggml type numbers of the supported types. The others are obsolete, are not stored in files, or
// need a codebook of vectors.
std::optional<DType> DTypeFromGgml(uint32_t type) {
  switch (type) {
    case 0:
      return DType::kF32;
    case 1:
      return DType::kF16;
    case 2:
      return DType::kQ4_0;
    case 3:
      return DType::kQ4_1;
    case 6:
      return DType::kQ5_0;
    case 7:
      return DType::kQ5_1;
    case 8:
      return DType::kQ8_0;
    case 10:
      return DType::kQ2_K;
    case 11:
      return DType::kQ3_K;
    case 12:
      return DType::kQ4_K;
    case 13:
      return DType::kQ5_K;
    case 14:
      return DType::kQ6_K;
    case 20:
      return DType::kIQ4_NL;
    case 23:
      return DType::kIQ4_XS;
    case 30:
      return DType::kBF16;
    case 39:
      return DType::kMXFP4;
    default:
      return std::nullopt;
  }
}

// Names of well-known refused types, for error messages.
std::string GgmlTypeName(uint32_t type) {
  static constexpr std::pair<uint32_t, std::string_view> kNames[] = {
      {9, "q8_1"},   {15, "q8_k"},  {16, "iq2_xxs"}, {17, "iq2_xs"}, {18, "iq3_xxs"}, {19, "iq1_s"},
      {21, "iq3_s"}, {22, "iq2_s"}, {24, "i8"},      {25, "i16"},    {26, "i32"},     {27, "i64"},
      {28, "f64"},   {29, "iq1_m"}, {34, "tq1_0"},   {35, "tq2_0"},  {40, "nvfp4"}};
  for (const auto& [number, name] : kNames) {
    if (number == type) return absl::StrCat(std::string(name), " (", type, ")");
  }
  return absl::StrCat(type);
}

absl::Status ReadShape(ByteReader& reader, GgufTensorEntry* entry) {
  uint32_t num_dims = 0;
  HYDRANT_RETURN_IF_ERROR(reader.Read("the number of dimensions", &num_dims));
  if (num_dims < 1 || num_dims > kMaxDims) {
    return absl::InvalidArgumentError(
        absl::StrCat("number of dimensions is ", num_dims, ", the limit is 1 to ", kMaxDims));
  }
  // 2^48 elements exceed any file and leave room to multiply by the bytes of a block.
  constexpr uint64_t kMaxElements = uint64_t{1} << 48;
  uint64_t elements = 1;
  entry->shape.resize(num_dims);
  for (uint32_t i = 0; i < num_dims; ++i) {
    uint64_t dim = 0;
    HYDRANT_RETURN_IF_ERROR(reader.Read("a dimension", &dim));
    if (dim < 1 || dim > kMaxElements / elements) {
      return absl::InvalidArgumentError(absl::StrCat(
          "dimension ", i, " is ", dim, ", the limit is 1 to ", kMaxElements / elements));
    }
    elements *= dim;
    entry->shape[num_dims - 1 - i] = static_cast<int64_t>(dim);
  }
  return absl::OkStatus();
}

absl::Status ReadTensorBody(ByteReader& reader, uint64_t alignment, GgufTensorEntry* entry) {
  HYDRANT_RETURN_IF_ERROR(ReadShape(reader, entry));
  uint32_t type = 0;
  HYDRANT_RETURN_IF_ERROR(reader.Read("the type", &type));
  const std::optional<DType> dtype = DTypeFromGgml(type);
  if (!dtype) {
    return absl::UnimplementedError(absl::StrCat("type ", GgmlTypeName(type),
                                                 " is not supported; f32, f16, bf16, q4_0, q4_1, "
                                                 "q5_0, q5_1, q8_0, q2_k, q3_k, q4_k, q5_k, q6_k, "
                                                 "iq4_nl, iq4_xs and mxfp4 are"));
  }
  entry->dtype = *dtype;
  const int block = BlockElements(*dtype);
  if (entry->shape.back() % block != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("row length ", entry->shape.back(), " is not a multiple of the ", block,
                     " values of a ", std::string(DTypeName(*dtype)), " block"));
  }
  uint64_t elements = 1;
  for (int64_t dim : entry->shape) elements *= static_cast<uint64_t>(dim);
  entry->num_bytes = BytesOf(*dtype, elements);
  HYDRANT_RETURN_IF_ERROR(reader.Read("the offset", &entry->offset));
  if (entry->offset % alignment != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("offset ", entry->offset, " is not a multiple of the alignment ", alignment));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadGgufTensorEntry(ByteReader& reader, uint64_t alignment, GgufTensorEntry* entry) {
  HYDRANT_RETURN_IF_ERROR(reader.ReadString("a tensor name", kMaxNameLength, &entry->name));
  if (entry->name.empty()) return absl::InvalidArgumentError("a tensor name is empty");
  return WithContext(ReadTensorBody(reader, alignment, entry),
                     absl::StrCat("tensor ", Quoted(entry->name)));
}

absl::Status CheckNoOverlap(std::vector<GgufTensorEntry> entries) {
  std::sort(entries.begin(), entries.end(),
            [](const GgufTensorEntry& a, const GgufTensorEntry& b) { return a.offset < b.offset; });
  for (size_t i = 1; i < entries.size(); ++i) {
    const GgufTensorEntry& before = entries[i - 1];
    if (entries[i].offset - before.offset < before.num_bytes) {
      return absl::InvalidArgumentError(absl::StrCat("the data of tensors ", Quoted(before.name),
                                                     " and ", Quoted(entries[i].name),
                                                     " overlap at offset ", entries[i].offset));
    }
  }
  return absl::OkStatus();
}

}  // namespace hydrant
