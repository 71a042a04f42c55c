// Builds GGUF v3 files in memory, valid ones and, through its setters, invalid ones. For tests
// only; checks nothing.
#ifndef HYDRANT_TESTS_ENGINE_MODEL_GGUF_WRITER_H_
#define HYDRANT_TESTS_ENGINE_MODEL_GGUF_WRITER_H_

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/dtype.h"

namespace hydrant {

// ggml's type numbers.
inline uint32_t GgmlType(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return 0;
    case DType::kF16:
      return 1;
    case DType::kQ4_0:
      return 2;
    case DType::kQ4_1:
      return 3;
    case DType::kQ5_0:
      return 6;
    case DType::kQ5_1:
      return 7;
    case DType::kQ8_0:
      return 8;
    case DType::kQ4_K:
      return 12;
    case DType::kQ5_K:
      return 13;
    case DType::kQ6_K:
      return 14;
    case DType::kQ2_K:
      return 10;
    case DType::kQ3_K:
      return 11;
    case DType::kIQ4_NL:
      return 20;
    case DType::kIQ4_XS:
      return 23;
    case DType::kBF16:
      return 30;
    case DType::kMXFP4:
      return 39;
    case DType::kF8_E4M3:
    case DType::kE4M3:
      break;  // not stored in files
  }
  return ~0u;
}

class ByteWriter {
 public:
  template <typename T>
  void Put(T value) {
    const size_t at = bytes_.size();
    bytes_.resize(at + sizeof value);
    std::memcpy(bytes_.data() + at, &value, sizeof value);
  }
  void PutBytes(std::span<const uint8_t> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  void PutString(std::string_view text) {
    Put<uint64_t>(text.size());
    bytes_.insert(bytes_.end(), text.begin(), text.end());
  }
  void PadTo(size_t alignment) {
    bytes_.resize((bytes_.size() + alignment - 1) / alignment * alignment);
  }
  size_t size() const { return bytes_.size(); }
  std::vector<uint8_t>& bytes() { return bytes_; }
  const std::vector<uint8_t>& bytes() const { return bytes_; }

 private:
  std::vector<uint8_t> bytes_;
};

class GgufWriter {
 public:
  enum Type : uint32_t {
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

  uint32_t version = 3;
  uint64_t alignment =
      32;  // of the data; for other values also call AddUint32("general.alignment")

  // A value from raw bytes, with any type number.
  void AddRaw(std::string_view key, uint32_t type, std::span<const uint8_t> value) {
    ++num_pairs_;
    pairs_.PutString(key);
    pairs_.Put(type);
    pairs_.PutBytes(value);
  }
  template <typename T>
  void AddValue(std::string_view key, uint32_t type, T value) {
    ByteWriter bytes;
    bytes.Put(value);
    AddRaw(key, type, bytes.bytes());
  }
  void AddUint32(std::string_view key, uint32_t value) { AddValue(key, kUint32, value); }
  void AddFloat(std::string_view key, double value) {
    AddValue(key, kFloat32, static_cast<float>(value));
  }
  void AddBool(std::string_view key, bool value) { AddValue<uint8_t>(key, kBool, value ? 1 : 0); }
  void AddString(std::string_view key, std::string_view value) {
    ByteWriter bytes;
    bytes.PutString(value);
    AddRaw(key, kString, bytes.bytes());
  }
  void AddStrings(std::string_view key, const std::vector<std::string>& values) {
    ByteWriter bytes = ArrayHead(kString, values.size());
    for (const std::string& value : values) bytes.PutString(value);
    AddRaw(key, kArray, bytes.bytes());
  }
  template <typename T>
  void AddArray(std::string_view key, uint32_t element_type, const std::vector<T>& values) {
    ByteWriter bytes = ArrayHead(element_type, values.size());
    for (const T& value : values) bytes.Put(value);
    AddRaw(key, kArray, bytes.bytes());
  }

  // shape: outermost first. The data follows the previous tensor's, aligned.
  void AddTensor(std::string_view name, const std::vector<int64_t>& shape, uint32_t type,
                 std::span<const uint8_t> data) {
    data_.PadTo(alignment);
    AddTensorAt(name, shape, type, data_.size());
    data_.PutBytes(data);
  }
  void AddTensor(std::string_view name, const std::vector<int64_t>& shape, DType dtype,
                 std::span<const uint8_t> data) {
    AddTensor(name, shape, GgmlType(dtype), data);
  }
  // An entry with any offset and no data of its own.
  void AddTensorAt(std::string_view name, const std::vector<int64_t>& shape, uint32_t type,
                   uint64_t offset) {
    ++num_tensors_;
    entries_.PutString(name);
    entries_.Put<uint32_t>(shape.size());
    for (size_t i = shape.size(); i-- > 0;) entries_.Put<uint64_t>(shape[i]);
    entries_.Put(type);
    entries_.Put(offset);
  }

  // The whole file. It ends with the last tensor's last byte, so that every shorter file is
  // invalid.
  std::vector<uint8_t> Build() const {
    ByteWriter file;
    file.PutBytes(std::span(reinterpret_cast<const uint8_t*>("GGUF"), 4));
    file.Put(version);
    file.Put<uint64_t>(num_tensors_);
    file.Put<uint64_t>(num_pairs_);
    file.PutBytes(pairs_.bytes());
    file.PutBytes(entries_.bytes());
    if (num_tensors_ > 0) file.PadTo(alignment);
    file.PutBytes(data_.bytes());
    return file.bytes();
  }

 private:
  static ByteWriter ArrayHead(uint32_t type, uint64_t count) {
    ByteWriter bytes;
    bytes.Put(type);
    bytes.Put(count);
    return bytes;
  }

  uint64_t num_pairs_ = 0;
  uint64_t num_tensors_ = 0;
  ByteWriter pairs_, entries_, data_;
};

}  // namespace hydrant

#endif  // HYDRANT_TESTS_ENGINE_MODEL_GGUF_WRITER_H_
