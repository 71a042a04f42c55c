#include "engine/model/gguf.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/model/byte_reader.h"
#include "engine/model/mapped_file.h"
#include "engine/model/text.h"

namespace hydrant {
namespace {

constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr uint32_t kVersion = 3;
constexpr uint64_t kMaxKeyLength = 65535;  // the specification's limits
constexpr uint64_t kMaxTensorNameLength = 64;
constexpr uint32_t kMaxDims = 4;
constexpr uint64_t kDefaultAlignment = 32;
constexpr uint64_t kMinAlignment =
    8;  // "must be a multiple of 8"; keeps every plain type aligned in the map
constexpr uint64_t kMaxAlignment = uint64_t{1} << 20;
// The smallest key-value pair (key length, one byte of key, type, one byte of value) and the
// smallest tensor entry (name length, one byte of name, dimension count, one dimension, type,
// offset): with them a count is bounded by the file's size before anything is allocated for it.
constexpr uint64_t kMinPairBytes = 8 + 1 + 4 + 1;
constexpr uint64_t kMinTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;

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

// Bytes of a value of the type in the file; the least possible for a string. 0: not an element
// type.
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

// ggml's numbers of the types kept here. The others are old formats without a user or need a
// codebook.
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
    case 12:
      return DType::kQ4_K;
    case 13:
      return DType::kQ5_K;
    case 14:
      return DType::kQ6_K;
    case 30:
      return DType::kBF16;
    default:
      return std::nullopt;
  }
}

// Names of well-known types that are refused, so that the message says more than a number.
std::string GgmlTypeName(uint32_t type) {
  static constexpr std::pair<uint32_t, std::string_view> kNames[] = {
      {9, "q8_1"},    {10, "q2_k"},    {11, "q3_k"},  {15, "q8_k"},   {16, "iq2_xxs"},
      {17, "iq2_xs"}, {18, "iq3_xxs"}, {19, "iq1_s"}, {20, "iq4_nl"}, {21, "iq3_s"},
      {22, "iq2_s"},  {23, "iq4_xs"},  {24, "i8"},    {25, "i16"},    {26, "i32"},
      {27, "i64"},    {28, "f64"},     {29, "iq1_m"}, {34, "tq1_0"},  {35, "tq2_0"},
      {39, "mxfp4"}};
  for (const auto& [number, name] : kNames) {
    if (number == type) return absl::StrCat(std::string(name), " (", type, ")");
  }
  return absl::StrCat(type);
}

template <typename T>
absl::Status ReadInteger(ByteReader& reader, GgufValue* out) {
  T value = 0;
  if (absl::Status s = reader.Read("a value", &value); !s.ok()) return s;
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
  if (absl::Status s = reader.Read("a value", &value); !s.ok()) return s;
  *out = static_cast<double>(value);
  return absl::OkStatus();
}

absl::Status ReadBool(ByteReader& reader, GgufValue* out) {
  uint8_t value = 0;
  if (absl::Status s = reader.Read("a value", &value); !s.ok()) return s;
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
      if (absl::Status s = reader.ReadString("a string", reader.remaining(), &text); !s.ok())
        return s;
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
    if (absl::Status s = ReadScalar(reader, type, &value); !s.ok()) return s;
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
  absl::StatusOr<std::vector<T>> values = ReadElements<T>(reader, type, count);
  if (!values.ok()) return values.status();
  if constexpr (std::is_same_v<T, uint64_t>) {
    constexpr uint64_t kMax = std::numeric_limits<int64_t>::max();
    if (std::all_of(values->begin(), values->end(), [](uint64_t v) { return v <= kMax; })) {
      *out = std::vector<int64_t>(values->begin(), values->end());
      return absl::OkStatus();
    }
  }
  *out = *std::move(values);
  return absl::OkStatus();
}

absl::Status ReadArray(ByteReader& reader, GgufValue* out) {
  uint32_t type = 0;
  uint64_t count = 0;
  if (absl::Status s = reader.Read("an array's element type", &type); !s.ok()) return s;
  if (absl::Status s = reader.Read("an array's length", &count); !s.ok()) return s;
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

std::string_view TypeName(const GgufValue& value) {
  static constexpr std::string_view kNames[] = {
      "bool",           "integer",        "integer above 2^63", "float",
      "string",         "array of bool",  "array of integer",   "array of integer above 2^63",
      "array of float", "array of string"};
  static_assert(std::size(kNames) == std::variant_size_v<GgufValue>);
  return kNames[value.index()];
}

struct Header {
  uint64_t tensor_count = 0;
  uint64_t pair_count = 0;
};

absl::StatusOr<Header> ReadHeader(ByteReader& reader) {
  uint32_t magic = 0;
  uint32_t version = 0;
  Header header;
  if (absl::Status s = reader.Read("the magic number", &magic); !s.ok()) return s;
  if (magic != kMagic) {
    return absl::InvalidArgumentError("not a GGUF file: it does not begin with the bytes GGUF");
  }
  if (absl::Status s = reader.Read("the version", &version); !s.ok()) return s;
  if (version != kVersion) {
    if ((version & 0xffff) == 0 && version != 0) {
      return absl::UnimplementedError(
          "the file is big endian; only little-endian GGUF is supported");
    }
    return absl::UnimplementedError(
        absl::StrCat("GGUF version is ", version, ", only version 3 is supported"));
  }
  if (absl::Status s = reader.Read("the tensor count", &header.tensor_count); !s.ok()) return s;
  if (absl::Status s = reader.Read("the metadata count", &header.pair_count); !s.ok()) return s;
  if (header.pair_count > reader.remaining() / kMinPairBytes) {
    return absl::InvalidArgumentError(absl::StrCat("metadata count ", header.pair_count,
                                                   " does not fit the ", reader.remaining(),
                                                   " bytes left in the file"));
  }
  if (header.tensor_count >
      (reader.remaining() - header.pair_count * kMinPairBytes) / kMinTensorBytes) {
    return absl::InvalidArgumentError(absl::StrCat("tensor count ", header.tensor_count,
                                                   " does not fit the ", reader.remaining(),
                                                   " bytes left in the file"));
  }
  return header;
}

// A tensor entry before its data has been found.
struct TensorEntry {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;  // outermost first
  uint64_t offset = 0;         // from the start of the data section
  uint64_t num_bytes = 0;
};

// The shape, outermost first, from the file's innermost-first dimensions; checks the product.
absl::Status ReadShape(ByteReader& reader, TensorEntry* entry) {
  uint32_t num_dims = 0;
  if (absl::Status s = reader.Read("the number of dimensions", &num_dims); !s.ok()) return s;
  if (num_dims < 1 || num_dims > kMaxDims) {
    return absl::InvalidArgumentError(
        absl::StrCat("number of dimensions is ", num_dims, ", the limit is 1 to ", kMaxDims));
  }
  // 2^48 elements are more than any file holds and leave room to multiply by the bytes of a block.
  constexpr uint64_t kMaxElements = uint64_t{1} << 48;
  uint64_t elements = 1;
  entry->shape.resize(num_dims);
  for (uint32_t i = 0; i < num_dims; ++i) {
    uint64_t dim = 0;
    if (absl::Status s = reader.Read("a dimension", &dim); !s.ok()) return s;
    if (dim < 1 || dim > kMaxElements / elements) {
      return absl::InvalidArgumentError(absl::StrCat(
          "dimension ", i, " is ", dim, ", the limit is 1 to ", kMaxElements / elements));
    }
    elements *= dim;
    entry->shape[num_dims - 1 - i] = static_cast<int64_t>(dim);
  }
  return absl::OkStatus();
}

absl::Status ReadTensorBody(ByteReader& reader, uint64_t alignment, TensorEntry* entry) {
  if (absl::Status s = ReadShape(reader, entry); !s.ok()) return s;
  uint32_t type = 0;
  if (absl::Status s = reader.Read("the type", &type); !s.ok()) return s;
  const std::optional<DType> dtype = DTypeFromGgml(type);
  if (!dtype) {
    return absl::UnimplementedError(absl::StrCat("type ", GgmlTypeName(type),
                                                 " is not supported; f32, f16, bf16, q4_0, q4_1, "
                                                 "q5_0, q5_1, q8_0, q4_k, q5_k and q6_k are"));
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
  if (absl::Status s = reader.Read("the offset", &entry->offset); !s.ok()) return s;
  if (entry->offset % alignment != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("offset ", entry->offset, " is not a multiple of the alignment ", alignment));
  }
  return absl::OkStatus();
}

// No two tensors may share bytes: none do in a sound file, and a damaged offset is most often seen
// here.
absl::Status CheckOverlap(std::vector<TensorEntry>& entries) {
  std::sort(entries.begin(), entries.end(),
            [](const TensorEntry& a, const TensorEntry& b) { return a.offset < b.offset; });
  for (size_t i = 1; i < entries.size(); ++i) {
    const TensorEntry& before = entries[i - 1];
    if (entries[i].offset - before.offset < before.num_bytes) {
      return absl::InvalidArgumentError(absl::StrCat("the data of tensors ", Quoted(before.name),
                                                     " and ", Quoted(entries[i].name),
                                                     " overlap at offset ", entries[i].offset));
    }
  }
  return absl::OkStatus();
}

}  // namespace

struct GgufFile::Impl {
  std::unique_ptr<MappedFile> file;  // null where the caller keeps the bytes
  std::map<std::string, GgufValue, std::less<>> metadata;
  std::map<std::string, TensorView, std::less<>> tensors;

  absl::Status ReadMetadata(ByteReader& reader, uint64_t count);
  absl::StatusOr<uint64_t> Alignment() const;
  absl::Status ReadTensors(std::span<const uint8_t> bytes, ByteReader& reader, uint64_t count);
  absl::Status Load(std::span<const uint8_t> bytes);

  // The value under the key as a T, or why not.
  template <typename T>
  absl::StatusOr<const T*> Find(std::string_view key, std::string_view wanted) const;
};

absl::Status GgufFile::Impl::ReadMetadata(ByteReader& reader, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) {
    std::string key;
    uint32_t type = 0;
    if (absl::Status s = reader.ReadString("a metadata key", kMaxKeyLength, &key); !s.ok())
      return s;
    if (key.empty())
      return absl::InvalidArgumentError(absl::StrCat("metadata key ", i, " is empty"));
    const std::string context = absl::StrCat("metadata key ", Quoted(key));
    if (absl::Status s = reader.Read("the value type", &type); !s.ok())
      return WithContext(s, context);
    GgufValue value;
    const absl::Status read =
        type == kArray ? ReadArray(reader, &value) : ReadScalar(reader, type, &value);
    if (!read.ok()) return WithContext(read, context);
    if (!metadata.emplace(std::move(key), std::move(value)).second) {
      return absl::InvalidArgumentError(absl::StrCat(context, " appears twice"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> GgufFile::Impl::Alignment() const {
  const auto it = metadata.find("general.alignment");
  if (it == metadata.end()) return kDefaultAlignment;
  const int64_t* value = std::get_if<int64_t>(&it->second);
  if (value == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("general.alignment is a value of type ",
                                                   std::string(TypeName(it->second)),
                                                   ", it must be an integer"));
  }
  const uint64_t alignment = static_cast<uint64_t>(*value);
  if (*value < 0 || alignment < kMinAlignment || alignment > kMaxAlignment ||
      (alignment & (alignment - 1)) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("general.alignment is ", *value,
                                                   ", it must be a power of two from ",
                                                   kMinAlignment, " to ", kMaxAlignment));
  }
  return alignment;
}

absl::Status GgufFile::Impl::ReadTensors(std::span<const uint8_t> bytes, ByteReader& reader,
                                         uint64_t count) {
  if (count == 0)
    return absl::OkStatus();  // a vocabulary alone; it may lack the padding before the data
  const absl::StatusOr<uint64_t> alignment = Alignment();
  if (!alignment.ok()) return alignment.status();
  std::vector<TensorEntry> entries(count);
  for (TensorEntry& entry : entries) {
    if (absl::Status s = reader.ReadString("a tensor name", kMaxTensorNameLength, &entry.name);
        !s.ok())
      return s;
    if (entry.name.empty()) return absl::InvalidArgumentError("a tensor name is empty");
    if (absl::Status s = ReadTensorBody(reader, *alignment, &entry); !s.ok()) {
      return WithContext(s, absl::StrCat("tensor ", Quoted(entry.name)));
    }
  }
  const uint64_t padding = (*alignment - reader.position() % *alignment) % *alignment;
  const uint64_t available = reader.remaining() < padding ? 0 : reader.remaining() - padding;
  const uint64_t data_start = reader.position() + padding;
  for (const TensorEntry& entry : entries) {
    if (entry.num_bytes > available || entry.offset > available - entry.num_bytes) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor ", Quoted(entry.name), ": ", entry.num_bytes, " bytes at offset ", entry.offset,
          " are not inside the ", available, " bytes of data (is the file cut short?)"));
    }
    TensorView view{entry.dtype, entry.shape,
                    bytes.subspan(data_start + entry.offset, entry.num_bytes)};
    if (!tensors.emplace(entry.name, std::move(view)).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", Quoted(entry.name), " appears twice"));
    }
  }
  return CheckOverlap(entries);
}

absl::Status GgufFile::Impl::Load(std::span<const uint8_t> bytes) {
  ByteReader reader(bytes);
  const absl::StatusOr<Header> header = ReadHeader(reader);
  if (!header.ok()) return header.status();
  if (absl::Status s = ReadMetadata(reader, header->pair_count); !s.ok()) return s;
  return ReadTensors(bytes, reader, header->tensor_count);
}

template <typename T>
absl::StatusOr<const T*> GgufFile::Impl::Find(std::string_view key, std::string_view wanted) const {
  const auto it = metadata.find(key);
  if (it == metadata.end())
    return absl::NotFoundError(absl::StrCat("metadata key ", Quoted(key), " is missing"));
  if (const T* value = std::get_if<T>(&it->second)) return value;
  return absl::InvalidArgumentError(
      absl::StrCat("metadata key ", Quoted(key), " holds a value of type ",
                   std::string(TypeName(it->second)), ", wanted ", std::string(wanted)));
}

GgufFile::GgufFile(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GgufFile::~GgufFile() = default;

absl::StatusOr<std::unique_ptr<GgufFile>> GgufFile::Open(const std::string& path) {
  absl::StatusOr<std::unique_ptr<MappedFile>> file = MappedFile::Open(path);
  if (!file.ok()) return file.status();
  absl::StatusOr<std::unique_ptr<GgufFile>> gguf = Parse((*file)->bytes());
  if (!gguf.ok()) return WithContext(gguf.status(), Quoted(path));
  (*gguf)->impl_->file = *std::move(file);
  return gguf;
}

absl::StatusOr<std::unique_ptr<GgufFile>> GgufFile::Parse(std::span<const uint8_t> bytes) {
  auto impl = std::make_unique<Impl>();
  if (absl::Status s = impl->Load(bytes); !s.ok()) return s;
  return std::unique_ptr<GgufFile>(new GgufFile(std::move(impl)));
}

const std::map<std::string, GgufValue, std::less<>>& GgufFile::metadata() const {
  return impl_->metadata;
}
const std::map<std::string, TensorView, std::less<>>& GgufFile::tensors() const {
  return impl_->tensors;
}
bool GgufFile::Has(std::string_view key) const {
  return impl_->metadata.find(key) != impl_->metadata.end();
}

absl::StatusOr<int64_t> GgufFile::GetInt(std::string_view key) const {
  const absl::StatusOr<const int64_t*> value = impl_->Find<int64_t>(key, "integer");
  if (!value.ok()) return value.status();
  return **value;
}

absl::StatusOr<double> GgufFile::GetFloat(std::string_view key) const {
  const absl::StatusOr<const double*> value = impl_->Find<double>(key, "float");
  if (!value.ok()) return value.status();
  return **value;
}

absl::StatusOr<std::string> GgufFile::GetString(std::string_view key) const {
  const absl::StatusOr<const std::string*> value = impl_->Find<std::string>(key, "string");
  if (!value.ok()) return value.status();
  return **value;
}

absl::StatusOr<bool> GgufFile::GetBool(std::string_view key) const {
  const absl::StatusOr<const bool*> value = impl_->Find<bool>(key, "bool");
  if (!value.ok()) return value.status();
  return **value;
}

absl::StatusOr<std::vector<std::string>> GgufFile::GetStrings(std::string_view key) const {
  const auto value = impl_->Find<std::vector<std::string>>(key, "array of string");
  if (!value.ok()) return value.status();
  return **value;
}

absl::StatusOr<std::vector<int64_t>> GgufFile::GetInts(std::string_view key) const {
  const auto value = impl_->Find<std::vector<int64_t>>(key, "array of integer");
  if (!value.ok()) return value.status();
  return **value;
}

absl::StatusOr<std::vector<double>> GgufFile::GetFloats(std::string_view key) const {
  const auto value = impl_->Find<std::vector<double>>(key, "array of float");
  if (!value.ok()) return value.status();
  return **value;
}

}  // namespace hydrant
