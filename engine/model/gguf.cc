#include "engine/model/gguf.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/model/byte_reader.h"
#include "engine/model/gguf_split.h"
#include "engine/model/gguf_tensor_entry.h"
#include "engine/model/gguf_value.h"
#include "engine/model/mapped_file.h"
#include "engine/model/text.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr uint32_t kVersion = 3;
constexpr uint64_t kMaxKeyLength = 65535;  // the specification's limit
constexpr uint64_t kDefaultAlignment = 32;
// The specification requires a multiple of 8; it keeps every plain type aligned in the map.
constexpr uint64_t kMinAlignment = 8;
constexpr uint64_t kMaxAlignment = uint64_t{1} << 20;
// The smallest pair: key length, one byte of key, type, one byte of value. With it, and with the
// smallest tensor entry, a count is bounded by the file's size before anything is allocated for it.
constexpr uint64_t kMinPairBytes = 8 + 1 + 4 + 1;

struct Header {
  uint64_t tensor_count = 0;
  uint64_t pair_count = 0;
};

absl::StatusOr<Header> ReadHeader(ByteReader& reader) {
  uint32_t magic = 0;
  uint32_t version = 0;
  Header header;
  HYDRANT_RETURN_IF_ERROR(reader.Read("the magic number", &magic));
  if (magic != kMagic) {
    return absl::InvalidArgumentError("not a GGUF file: it does not begin with the bytes GGUF");
  }
  HYDRANT_RETURN_IF_ERROR(reader.Read("the version", &version));
  if (version != kVersion) {
    if ((version & 0xffff) == 0 && version != 0) {
      return absl::UnimplementedError(
          "the file is big endian; only little-endian GGUF is supported");
    }
    return absl::UnimplementedError(
        absl::StrCat("GGUF version is ", version, ", only version 3 is supported"));
  }
  HYDRANT_RETURN_IF_ERROR(reader.Read("the tensor count", &header.tensor_count));
  HYDRANT_RETURN_IF_ERROR(reader.Read("the metadata count", &header.pair_count));
  if (header.pair_count > reader.remaining() / kMinPairBytes) {
    return absl::InvalidArgumentError(absl::StrCat("metadata count ", header.pair_count,
                                                   " does not fit the ", reader.remaining(),
                                                   " bytes left in the file"));
  }
  if (header.tensor_count >
      (reader.remaining() - header.pair_count * kMinPairBytes) / kMinGgufTensorEntryBytes) {
    return absl::InvalidArgumentError(absl::StrCat("tensor count ", header.tensor_count,
                                                   " does not fit the ", reader.remaining(),
                                                   " bytes left in the file"));
  }
  return header;
}

}  // namespace

struct GgufFile::Impl {
  std::string path;
  std::unique_ptr<MappedFile> file;             // null if the caller owns the bytes
  std::vector<std::unique_ptr<GgufFile>> rest;  // the other files of a split model
  std::map<std::string, GgufValue, std::less<>> metadata;
  std::map<std::string, TensorView, std::less<>> tensors;

  absl::Status ReadMetadata(ByteReader& reader, uint64_t count);
  absl::StatusOr<uint64_t> Alignment() const;
  absl::Status ReadTensors(std::span<const uint8_t> bytes, ByteReader& reader, uint64_t count);
  absl::Status Load(std::span<const uint8_t> bytes);

  // The value under the key as a T, or an error.
  template <typename T>
  absl::StatusOr<const T*> Find(std::string_view key, std::string_view wanted) const;
};

absl::Status GgufFile::Impl::ReadMetadata(ByteReader& reader, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) {
    std::string key;
    HYDRANT_RETURN_IF_ERROR(reader.ReadString("a metadata key", kMaxKeyLength, &key));
    if (key.empty())
      return absl::InvalidArgumentError(absl::StrCat("metadata key ", i, " is empty"));
    const std::string context = absl::StrCat("metadata key ", Quoted(key));
    GgufValue value;
    if (absl::Status s = ReadGgufValue(reader, &value); !s.ok()) return WithContext(s, context);
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
                                                   std::string(GgufTypeName(it->second)),
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
    return absl::OkStatus();  // vocabulary only; the padding before the data may be missing
  HYDRANT_ASSIGN_OR_RETURN(const uint64_t alignment, Alignment());
  std::vector<GgufTensorEntry> entries(count);
  for (GgufTensorEntry& entry : entries) {
    HYDRANT_RETURN_IF_ERROR(ReadGgufTensorEntry(reader, alignment, &entry));
  }
  const uint64_t padding = (alignment - reader.position() % alignment) % alignment;
  const uint64_t available = reader.remaining() < padding ? 0 : reader.remaining() - padding;
  const uint64_t data_start = reader.position() + padding;
  for (const GgufTensorEntry& entry : entries) {
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
  return CheckNoOverlap(std::move(entries));
}

absl::Status GgufFile::Impl::Load(std::span<const uint8_t> bytes) {
  ByteReader reader(bytes);
  HYDRANT_ASSIGN_OR_RETURN(const Header header, ReadHeader(reader));
  HYDRANT_RETURN_IF_ERROR(ReadMetadata(reader, header.pair_count));
  return ReadTensors(bytes, reader, header.tensor_count);
}

template <typename T>
absl::StatusOr<const T*> GgufFile::Impl::Find(std::string_view key, std::string_view wanted) const {
  const auto it = metadata.find(key);
  if (it == metadata.end())
    return absl::NotFoundError(absl::StrCat("metadata key ", Quoted(key), " is missing"));
  if (const T* value = std::get_if<T>(&it->second)) return value;
  return absl::InvalidArgumentError(
      absl::StrCat("metadata key ", Quoted(key), " holds a value of type ",
                   std::string(GgufTypeName(it->second)), ", wanted ", std::string(wanted)));
}

GgufFile::GgufFile(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GgufFile::~GgufFile() = default;

absl::StatusOr<std::unique_ptr<GgufFile>> GgufFile::OpenOne(const std::string& path) {
  HYDRANT_ASSIGN_OR_RETURN(std::unique_ptr<MappedFile> file, MappedFile::Open(path));
  absl::StatusOr<std::unique_ptr<GgufFile>> gguf = Parse(file->bytes());
  if (!gguf.ok()) return WithContext(gguf.status(), Quoted(path));
  (*gguf)->impl_->path = path;
  (*gguf)->impl_->file = std::move(file);
  return gguf;
}

absl::StatusOr<std::unique_ptr<GgufFile>> GgufFile::Open(const std::string& path) {
  HYDRANT_ASSIGN_OR_RETURN(std::unique_ptr<GgufFile> named, OpenOne(path));
  const absl::StatusOr<GgufSplit> split = ReadGgufSplit(*named);
  if (!split.ok()) return WithContext(split.status(), Quoted(path));
  if (split->count == 1) return named;
  HYDRANT_ASSIGN_OR_RETURN(const std::vector<std::string> paths, GgufSplitPaths(path, *split));
  std::vector<std::unique_ptr<GgufFile>> files;
  for (int64_t no = 0; no < split->count; ++no) {
    if (no == split->no) {
      files.push_back(std::move(named));
      continue;
    }
    absl::StatusOr<std::unique_ptr<GgufFile>> file = OpenOne(paths[no]);
    if (!file.ok()) {
      return WithContext(file.status(),
                         absl::StrCat("file ", no + 1, " of the ", split->count, " of the model"));
    }
    files.push_back(*std::move(file));
  }
  return Join(std::move(files));
}

absl::StatusOr<std::unique_ptr<GgufFile>> GgufFile::Join(
    std::vector<std::unique_ptr<GgufFile>> files) {
  if (files.empty()) return absl::InvalidArgumentError("there are no files to join");
  GgufFile& first = *files.front();
  HYDRANT_ASSIGN_OR_RETURN(const GgufSplit split, ReadGgufSplit(first));
  if (static_cast<size_t>(split.count) != files.size()) {
    return absl::InvalidArgumentError(absl::StrCat("metadata key 'split.count' is ", split.count,
                                                   ", there are ", files.size(), " files"));
  }
  for (size_t no = 0; no < files.size(); ++no) {
    if (absl::Status s = CheckGgufSplit(first, *files[no], static_cast<int64_t>(no)); !s.ok())
      return WithContext(s, Quoted(files[no]->path()));
    if (no == 0) continue;
    for (const auto& [name, view] : files[no]->tensors()) {
      if (first.impl_->tensors.emplace(name, view).second) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          Quoted(files[no]->path()), ": tensor ", Quoted(name), " appears in a file before, too"));
    }
  }
  if (static_cast<size_t>(split.tensors) != first.tensors().size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(Quoted(first.path()), ": metadata key 'split.tensors.count' is ",
                     split.tensors, ", the ", split.count, " files have ", first.tensors().size()));
  }
  std::unique_ptr<GgufFile> joined = std::move(files.front());
  files.erase(files.begin());
  joined->impl_->rest = std::move(files);
  return joined;
}

absl::StatusOr<std::unique_ptr<GgufFile>> GgufFile::Parse(std::span<const uint8_t> bytes) {
  auto impl = std::make_unique<Impl>();
  HYDRANT_RETURN_IF_ERROR(impl->Load(bytes));
  return std::unique_ptr<GgufFile>(new GgufFile(std::move(impl)));
}

const std::map<std::string, GgufValue, std::less<>>& GgufFile::metadata() const {
  return impl_->metadata;
}
const std::map<std::string, TensorView, std::less<>>& GgufFile::tensors() const {
  return impl_->tensors;
}
void GgufFile::ReleasePages() const {
  if (impl_->file != nullptr) impl_->file->ReleasePages();
  for (const std::unique_ptr<GgufFile>& file : impl_->rest) file->ReleasePages();
}

absl::Status GgufFile::CheckUnchanged() const {
  absl::Status status = impl_->file == nullptr ? absl::OkStatus() : impl_->file->CheckUnchanged();
  for (const std::unique_ptr<GgufFile>& file : impl_->rest) status.Update(file->CheckUnchanged());
  return status;
}
const std::string& GgufFile::path() const { return impl_->path; }
bool GgufFile::Has(std::string_view key) const {
  return impl_->metadata.find(key) != impl_->metadata.end();
}

absl::StatusOr<int64_t> GgufFile::GetInt(std::string_view key) const {
  HYDRANT_ASSIGN_OR_RETURN(const int64_t* value, impl_->Find<int64_t>(key, "integer"));
  return *value;
}

absl::StatusOr<double> GgufFile::GetFloat(std::string_view key) const {
  HYDRANT_ASSIGN_OR_RETURN(const double* value, impl_->Find<double>(key, "float"));
  return *value;
}

absl::StatusOr<std::string> GgufFile::GetString(std::string_view key) const {
  HYDRANT_ASSIGN_OR_RETURN(const std::string* value, impl_->Find<std::string>(key, "string"));
  return *value;
}

absl::StatusOr<bool> GgufFile::GetBool(std::string_view key) const {
  HYDRANT_ASSIGN_OR_RETURN(const bool* value, impl_->Find<bool>(key, "bool"));
  return *value;
}

absl::StatusOr<std::vector<std::string>> GgufFile::GetStrings(std::string_view key) const {
  HYDRANT_ASSIGN_OR_RETURN(const auto value,
                           impl_->Find<std::vector<std::string>>(key, "array of string"));
  return *value;
}

absl::StatusOr<std::vector<int64_t>> GgufFile::GetInts(std::string_view key) const {
  HYDRANT_ASSIGN_OR_RETURN(const auto value,
                           impl_->Find<std::vector<int64_t>>(key, "array of integer"));
  return *value;
}

absl::StatusOr<std::vector<double>> GgufFile::GetFloats(std::string_view key) const {
  HYDRANT_ASSIGN_OR_RETURN(const auto value,
                           impl_->Find<std::vector<double>>(key, "array of float"));
  return *value;
}

}  // namespace hydrant
