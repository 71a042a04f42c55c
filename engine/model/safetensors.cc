#include "engine/model/safetensors.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/model/byte_reader.h"
#include "engine/model/json_text.h"
#include "engine/model/text.h"
#include "kernels/dequantize.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of the reference reader
constexpr size_t kMaxShapeDims = 8;
constexpr uint64_t kMaxElements = uint64_t{1} << 48;

// Size of an element; nullopt: unknown type.
std::optional<int> ElementBytes(std::string_view type) {
  static constexpr std::pair<std::string_view, int> kTypes[] = {
      {"F32", 4}, {"F16", 2}, {"BF16", 2}, {"F64", 8},     {"I64", 8},
      {"U64", 8}, {"I32", 4}, {"U32", 4},  {"I16", 2},     {"U16", 2},
      {"I8", 1},  {"U8", 1},  {"BOOL", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1}};
  for (const auto& [known, bytes] : kTypes) {
    if (type == known) return bytes;
  }
  return std::nullopt;
}

struct Entry {
  std::string name;
  std::string type;
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // in the data section
  uint64_t end = 0;
};

absl::Status ParseShape(const json& value, Entry* entry, uint64_t* elements) {
  if (!value.is_array() || value.size() > kMaxShapeDims) {
    return absl::InvalidArgumentError(
        absl::StrCat("shape must be an array of at most ", kMaxShapeDims, " numbers"));
  }
  *elements = 1;
  for (const json& dim : value) {
    if (!dim.is_number_unsigned()) {
      return absl::InvalidArgumentError("shape holds something that is not a non-negative integer");
    }
    const uint64_t size = dim.get<uint64_t>();
    if (size > kMaxElements || (size > 0 && *elements > kMaxElements / size)) {
      return absl::InvalidArgumentError(absl::StrCat("dimension ", entry->shape.size(), " is ",
                                                     size, ", the limit is ", kMaxElements,
                                                     " elements in all"));
    }
    *elements *= size;
    entry->shape.push_back(static_cast<int64_t>(size));
  }
  return absl::OkStatus();
}

absl::Status ParseOffsets(const json& value, uint64_t data_bytes, Entry* entry) {
  if (!value.is_array() || value.size() != 2 || !value[0].is_number_unsigned() ||
      !value[1].is_number_unsigned()) {
    return absl::InvalidArgumentError("data_offsets must be an array of two non-negative integers");
  }
  entry->begin = value[0].get<uint64_t>();
  entry->end = value[1].get<uint64_t>();
  if (entry->begin > entry->end || entry->end > data_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("data_offsets are ", entry->begin, " to ",
                                                   entry->end, ", the file has ", data_bytes,
                                                   " bytes of data"));
  }
  return absl::OkStatus();
}

absl::Status ParseEntry(const json& value, uint64_t data_bytes, Entry* entry) {
  if (!value.is_object()) return absl::InvalidArgumentError("the entry is not an object");
  for (const char* field : {"dtype", "shape", "data_offsets"}) {
    if (!value.contains(field))
      return absl::InvalidArgumentError(absl::StrCat(field, " is missing"));
  }
  if (!value["dtype"].is_string()) return absl::InvalidArgumentError("dtype is not a string");
  entry->type = value["dtype"].get<std::string>();
  const std::optional<int> element_bytes = ElementBytes(entry->type);
  if (!element_bytes)
    return absl::UnimplementedError(absl::StrCat("dtype ", Quoted(entry->type), " is unknown"));
  uint64_t elements = 0;
  HYDRANT_RETURN_IF_ERROR(ParseShape(value["shape"], entry, &elements));
  HYDRANT_RETURN_IF_ERROR(ParseOffsets(value["data_offsets"], data_bytes, entry));
  const uint64_t wanted = elements * static_cast<uint64_t>(*element_bytes);
  if (entry->end - entry->begin != wanted) {
    return absl::InvalidArgumentError(absl::StrCat("data_offsets span ", entry->end - entry->begin,
                                                   " bytes, ", entry->type, " of shape ",
                                                   ShapeText(entry->shape), " needs ", wanted));
  }
  return absl::OkStatus();
}

struct Header {
  std::vector<Entry> entries;
  std::map<std::string, std::string, std::less<>> metadata;
};

// Values that are no text are left out.
void ParseMetadata(const json& value, Header* header) {
  if (!value.is_object()) return;
  for (const auto& [name, text] : value.items()) {
    if (text.is_string()) header->metadata[name] = text.get<std::string>();
  }
}

absl::StatusOr<Header> ParseHeader(std::string_view text, uint64_t data_bytes) {
  const absl::StatusOr<json> parsed = ParseJsonObject(text);
  if (!parsed.ok()) return WithContext(parsed.status(), "header");
  Header header;
  for (const auto& [name, value] : parsed->items()) {
    if (name == "__metadata__") {
      ParseMetadata(value, &header);
      continue;
    }
    Entry entry;
    entry.name = name;
    if (absl::Status s = ParseEntry(value, data_bytes, &entry); !s.ok()) {
      return WithContext(s, absl::StrCat("tensor ", Quoted(name)));
    }
    header.entries.push_back(std::move(entry));
  }
  return header;
}

// Tensors without elements may lie anywhere; they share no bytes.
absl::Status CheckNoOverlap(const std::vector<Entry>& entries) {
  std::vector<const Entry*> sorted;
  for (const Entry& entry : entries) {
    if (entry.begin != entry.end) sorted.push_back(&entry);
  }
  std::sort(sorted.begin(), sorted.end(),
            [](const Entry* a, const Entry* b) { return a->begin < b->begin; });
  for (size_t i = 1; i < sorted.size(); ++i) {
    if (sorted[i]->begin < sorted[i - 1]->end) {
      return absl::InvalidArgumentError(
          absl::StrCat("the data of tensors ", Quoted(sorted[i - 1]->name), " and ",
                       Quoted(sorted[i]->name), " overlap at offset ", sorted[i]->begin));
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::optional<DType> FloatTypeOf(const RawTensor& tensor) {
  if (tensor.type == "F32") return DType::kF32;
  if (tensor.type == "F16") return DType::kF16;
  if (tensor.type == "BF16") return DType::kBF16;
  return std::nullopt;
}

absl::StatusOr<std::vector<float>> FloatsOf(const RawTensor& tensor) {
  const std::optional<DType> dtype = FloatTypeOf(tensor);
  if (!dtype.has_value()) {
    return absl::UnimplementedError(
        absl::StrCat("dtype ", tensor.type, "; F32, F16 and BF16 are supported"));
  }
  std::vector<float> values(tensor.bytes.size() / TraitsOf(*dtype).block_bytes);
  DequantizeRow(*dtype, tensor.bytes.data(), static_cast<int64_t>(values.size()), values.data());
  return values;
}

absl::StatusOr<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Open(const std::string& path) {
  HYDRANT_ASSIGN_OR_RETURN(std::unique_ptr<MappedFile> file, MappedFile::Open(path));
  absl::StatusOr<std::unique_ptr<SafetensorsFile>> parsed = Parse(file->bytes());
  if (!parsed.ok()) return WithContext(parsed.status(), Quoted(path));
  (*parsed)->file_ = std::move(file);
  return parsed;
}

absl::StatusOr<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Parse(
    std::span<const uint8_t> bytes) {
  auto file = std::unique_ptr<SafetensorsFile>(new SafetensorsFile());
  HYDRANT_RETURN_IF_ERROR(file->Load(bytes));
  return file;
}

absl::Status SafetensorsFile::Load(std::span<const uint8_t> bytes) {
  ByteReader reader(bytes);
  std::string text;
  HYDRANT_RETURN_IF_ERROR(reader.ReadString("the header", kMaxHeaderBytes, &text));
  const std::span<const uint8_t> data = bytes.subspan(reader.position());
  HYDRANT_ASSIGN_OR_RETURN(Header header, ParseHeader(text, data.size()));
  HYDRANT_RETURN_IF_ERROR(CheckNoOverlap(header.entries));
  metadata_ = std::move(header.metadata);
  for (const Entry& entry : header.entries) {
    tensors_[entry.name] = {entry.type, entry.shape,
                            data.subspan(entry.begin, entry.end - entry.begin)};
  }
  return absl::OkStatus();
}

absl::StatusOr<RawTensor> SafetensorsFile::FindRaw(const std::string& name) const {
  if (const auto it = tensors_.find(name); it != tensors_.end()) return it->second;
  return absl::NotFoundError(absl::StrCat("tensor ", Quoted(name), " is missing"));
}

absl::StatusOr<TensorView> SafetensorsFile::Find(const std::string& name) const {
  HYDRANT_ASSIGN_OR_RETURN(const RawTensor tensor, FindRaw(name));
  const std::optional<DType> dtype = FloatTypeOf(tensor);
  if (dtype.has_value()) return TensorView{*dtype, tensor.shape, tensor.bytes};
  return absl::UnimplementedError(absl::StrCat("tensor ", Quoted(name), " has dtype ", tensor.type,
                                               "; F32, F16 and BF16 are supported"));
}

void SafetensorsFile::ReleasePages() const {
  if (file_ != nullptr) file_->ReleasePages();
}

absl::Status SafetensorsFile::CheckUnchanged() const {
  return file_ == nullptr ? absl::OkStatus() : file_->CheckUnchanged();
}

std::string SafetensorsFile::Metadata(const std::string& name) const {
  const auto found = metadata_.find(name);
  return found == metadata_.end() ? std::string() : found->second;
}

std::vector<std::string> SafetensorsFile::Names() const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors_) names.push_back(name);
  return names;
}

}  // namespace hydrant
