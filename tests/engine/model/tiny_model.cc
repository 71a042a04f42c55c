#include "tests/engine/model/tiny_model.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>

#include "engine/model/dummy_source.h"
#include "engine/model/gguf_config.h"
#include "engine/model/model_tensors.h"
#include "tests/engine/model/gguf_writer.h"
#include "tests/engine/model/quantize.h"

namespace hydrant {
namespace {

constexpr char kChatMl[] =
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>' + "
    "'\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

std::string Utf8(uint32_t code) {
  if (code < 0x80) return {static_cast<char>(code)};
  return {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 0x3f))};
}

// GPT-2's byte alphabet: printable Latin-1 maps to itself, the rest to U+0100 onwards in order.
std::vector<std::string> ByteTokens() {
  std::vector<std::string> tokens;
  uint32_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool printable =
        (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    tokens.push_back(Utf8(printable ? byte : next++));
  }
  return tokens;
}

void AddTokenizer(const ModelConfig& config, GgufWriter* writer) {
  constexpr int32_t kNormal = 1, kControl = 3, kUnused = 5;
  std::vector<std::string> tokens = ByteTokens();
  std::vector<int32_t> types(tokens.size(), kNormal);
  for (const char* special : {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}) {
    tokens.push_back(special);
    types.push_back(kControl);
  }
  std::vector<std::string> merges;
  if (config.vocab_size >= 280) {
    // \u0120 represents the space.
    for (const auto& [left, right] :
         std::vector<std::pair<std::string, std::string>>{{"t", "h"},
                                                          {"th", "e"},
                                                          {"\u0120", "the"},
                                                          {"i", "n"},
                                                          {"e", "r"},
                                                          {"\u0120", "a"},
                                                          {"h", "e"},
                                                          {"l", "l"}}) {
      merges.push_back(left + " " + right);
      tokens.push_back(left + right);
      types.push_back(kNormal);
    }
  }
  while (tokens.size() < static_cast<size_t>(config.vocab_size)) {
    tokens.push_back("<|unused_" + std::to_string(tokens.size()) + "|>");
    types.push_back(kUnused);
  }
  writer->AddString("tokenizer.ggml.model", "gpt2");
  writer->AddString("tokenizer.ggml.pre", "gpt-2");
  writer->AddStrings("tokenizer.ggml.tokens", tokens);
  writer->AddArray("tokenizer.ggml.token_type", GgufWriter::kInt32, types);
  writer->AddStrings("tokenizer.ggml.merges", merges);
  writer->AddUint32("tokenizer.ggml.bos_token_id", kTinyImStart);
  writer->AddUint32("tokenizer.ggml.eos_token_id", kTinyImEnd);
  writer->AddBool("tokenizer.ggml.add_bos_token", false);
  writer->AddString("tokenizer.chat_template", kChatMl);
}

void AddConfig(const ModelConfig& c, GgufWriter* writer) {
  writer->AddString("general.architecture", "llama");
  writer->AddString("general.name", c.name);
  writer->AddUint32("llama.block_count", c.num_layers);
  writer->AddUint32("llama.embedding_length", c.hidden_size);
  writer->AddUint32("llama.feed_forward_length", c.intermediate_size);
  writer->AddUint32("llama.attention.head_count", c.num_heads);
  writer->AddUint32("llama.attention.head_count_kv", c.num_kv_heads);
  writer->AddUint32("llama.attention.key_length", c.head_dim);
  writer->AddUint32("llama.attention.value_length", c.head_dim);
  writer->AddUint32("llama.rope.dimension_count", c.head_dim);
  writer->AddUint32("llama.context_length", c.max_context);
  writer->AddFloat("llama.attention.layer_norm_rms_epsilon", c.norm_eps);
  writer->AddFloat("llama.rope.freq_base", c.rope.theta);
  if (c.rope.linear_factor != 1.0) {
    writer->AddString("llama.rope.scaling.type", "linear");
    writer->AddFloat("llama.rope.scaling.factor", c.rope.linear_factor);
  }
  if (!c.experts.has_value()) return;
  writer->AddUint32("llama.expert_count", c.experts->count);
  writer->AddUint32("llama.expert_used_count", c.experts->per_token);
  writer->AddUint32("llama.expert_feed_forward_length", c.experts->intermediate_size);
}

// The whole stored tensor.
void AddTensor(const ExpectedTensor& tensor, bool is_embedding, DType dtype, uint64_t seed,
               GgufWriter* writer) {
  const std::vector<int64_t> shape = tensor.StoredShape();
  int64_t count = 1;
  for (const int64_t dim : shape) count *= dim;
  const bool is_norm = tensor.shape.size() == 1;
  const int64_t inputs = tensor.shape.back();
  const DType stored = is_norm || inputs % BlockElements(dtype) != 0 ? DType::kF32 : dtype;
  const float std_dev = is_embedding ? 1.0f : 1.0f / std::sqrt(static_cast<float>(inputs));
  if (CanQuantize(stored)) {
    std::vector<float> values(count);
    DummyNormals(seed, tensor.name, 0, values);
    for (float& v : values) v = is_norm ? 1.0f + 0.1f * v : std_dev * v;
    writer->AddTensor(tensor.name, shape, stored, Quantize(stored, values));
  } else {
    const uint64_t tensor_seed = seed ^ std::hash<std::string>()(tensor.name);
    writer->AddTensor(tensor.name, shape, stored,
                      RandomBlocks(stored, count, std_dev, tensor_seed));
  }
}

}  // namespace

ModelConfig TinyLlamaConfig() {
  ModelConfig config;
  config.architecture = "llama";
  config.name = "tiny";
  config.num_layers = 2;
  config.hidden_size = 64;
  config.intermediate_size = 128;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 16;
  config.vocab_size = 320;
  config.max_context = 512;
  config.rope_pairing = RopePairing::kInterleaved;
  config.tied_embeddings = true;
  return config;
}

std::vector<uint8_t> BuildTinyLlamaGguf(const ModelConfig& config, DType dtype, uint64_t seed) {
  GgufWriter writer;
  AddConfig(config, &writer);
  AddTokenizer(config, &writer);
  const TensorNames& names = GgufNames();
  for (const ExpectedTensor& tensor : ExpectedOuterTensors(config, names)) {
    AddTensor(tensor, tensor.name == names.embedding, dtype, seed, &writer);
  }
  if (!config.rope.freq_factors.empty()) {
    writer.AddTensor("rope_freqs.weight", {static_cast<int64_t>(config.rope.freq_factors.size())},
                     DType::kF32, Quantize(DType::kF32, config.rope.freq_factors));
  }
  for (int layer = 0; layer < config.num_layers; ++layer) {
    for (const ExpectedTensor& tensor : ExpectedLayerTensors(config, names, layer)) {
      if (tensor.first_row == 0) AddTensor(tensor, false, dtype, seed, &writer);
    }
  }
  return writer.Build();
}

std::string WriteTinyLlamaGguf(const std::string& path, const ModelConfig& config, DType dtype,
                               uint64_t seed) {
  const std::vector<uint8_t> bytes = BuildTinyLlamaGguf(config, dtype, seed);
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (!file) {
    std::fprintf(stderr, "cannot write %s\n", path.c_str());
    std::abort();
  }
  return path;
}

}  // namespace hydrant
