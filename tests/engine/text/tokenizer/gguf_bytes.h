// Writes GGUF v3 metadata (no tensors) for tests.
#ifndef HYDRANT_TESTS_ENGINE_TEXT_TOKENIZER_GGUF_BYTES_H_
#define HYDRANT_TESTS_ENGINE_TEXT_TOKENIZER_GGUF_BYTES_H_

#include <cstdint>
#include <string>
#include <vector>

namespace hydrant::testing {

class GgufBytes {
 public:
  GgufBytes& Text(const std::string& key, const std::string& value);
  GgufBytes& Number(const std::string& key, uint32_t value);
  GgufBytes& Flag(const std::string& key, bool value);
  GgufBytes& Texts(const std::string& key, const std::vector<std::string>& values);
  GgufBytes& Numbers(const std::string& key, const std::vector<int32_t>& values);
  GgufBytes& Floats(const std::string& key, const std::vector<float>& values);
  std::vector<uint8_t> Finish() const;

 private:
  void Key(const std::string& key, uint32_t type);
  std::string body_;
  uint64_t count_ = 0;
};

}  // namespace hydrant::testing

#endif  // HYDRANT_TESTS_ENGINE_TEXT_TOKENIZER_GGUF_BYTES_H_
