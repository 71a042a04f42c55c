#include "tests/engine/text/tokenizer/gguf_bytes.h"

namespace hydrant::testing {
namespace {

// GGUF value types.
constexpr uint32_t kUint32 = 4, kInt32 = 5, kFloat32 = 6, kBool = 7, kString = 8, kArray = 9;

template <typename T>
void Put(T value, std::string* out) {
  out->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void PutText(const std::string& text, std::string* out) {
  Put<uint64_t>(text.size(), out);
  out->append(text);
}

}  // namespace

void GgufBytes::Key(const std::string& key, uint32_t type) {
  ++count_;
  PutText(key, &body_);
  Put(type, &body_);
}

GgufBytes& GgufBytes::Text(const std::string& key, const std::string& value) {
  Key(key, kString);
  PutText(value, &body_);
  return *this;
}

GgufBytes& GgufBytes::Number(const std::string& key, uint32_t value) {
  Key(key, kUint32);
  Put(value, &body_);
  return *this;
}

GgufBytes& GgufBytes::Flag(const std::string& key, bool value) {
  Key(key, kBool);
  body_.push_back(value ? 1 : 0);
  return *this;
}

GgufBytes& GgufBytes::Texts(const std::string& key, const std::vector<std::string>& values) {
  Key(key, kArray);
  Put(kString, &body_);
  Put<uint64_t>(values.size(), &body_);
  for (const std::string& value : values) PutText(value, &body_);
  return *this;
}

GgufBytes& GgufBytes::Numbers(const std::string& key, const std::vector<int32_t>& values) {
  Key(key, kArray);
  Put(kInt32, &body_);
  Put<uint64_t>(values.size(), &body_);
  for (const int32_t value : values) Put(value, &body_);
  return *this;
}

GgufBytes& GgufBytes::Floats(const std::string& key, const std::vector<float>& values) {
  Key(key, kArray);
  Put(kFloat32, &body_);
  Put<uint64_t>(values.size(), &body_);
  for (const float value : values) Put(value, &body_);
  return *this;
}

std::vector<uint8_t> GgufBytes::Finish() const {
  std::string out = "GGUF";
  Put<uint32_t>(3, &out);
  Put<uint64_t>(0, &out);
  Put(count_, &out);
  out += body_;
  return std::vector<uint8_t>(out.begin(), out.end());
}

}  // namespace hydrant::testing
