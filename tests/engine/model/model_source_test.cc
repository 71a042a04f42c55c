#include "engine/model/model_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "engine/model/dummy_source.h"
#include "engine/model/gguf.h"
#include "kernels/dequantize.h"
#include "tests/engine/model/gguf_writer.h"
#include "tests/engine/model/quantize.h"
#include "tests/engine/model/tiny_model.h"

namespace hydrant {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string TempPath(const std::string& name) {
  const auto* info = testing::UnitTest::GetInstance()->current_test_info();
  std::string test = std::string(info->test_suite_name()) + "." + info->name();
  for (char& c : test) c = c == '/' ? '_' : c;
  return testing::TempDir() + "/" + test + "." + name;
}

void WriteFile(const std::string& path, const std::vector<uint8_t>& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  ASSERT_TRUE(file.good());
}

std::vector<float> Floats(const TensorView& view) {
  std::vector<float> values(view.NumElements());
  const int64_t cols = view.shape.back();
  for (int64_t row = 0; row < view.NumElements() / cols; ++row) {
    DequantizeRow(view.dtype, view.bytes.data() + row * BytesOf(view.dtype, cols), cols,
                  values.data() + row * cols);
  }
  return values;
}

double StandardDeviation(const std::vector<float>& values) {
  double sum = 0, squares = 0;
  for (const float v : values) {
    sum += v;
    squares += double{v} * v;
  }
  const double mean = sum / values.size();
  return std::sqrt(squares / values.size() - mean * mean);
}

std::string OpenMessage(const std::vector<uint8_t>& bytes) {
  const std::string path = TempPath("gguf");
  WriteFile(path, bytes);
  const auto source = OpenModel(path, LoadFormat::kAuto);
  EXPECT_FALSE(source.ok());
  const std::string message(source.status().message());
  EXPECT_THAT(message, HasSubstr(path.substr(path.rfind('/'))));
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  return message;
}

class TinyModelTest : public testing::TestWithParam<DType> {};

TEST_P(TinyModelTest, LoadsThroughOpenModel) {
  ModelConfig config = TinyLlamaConfig();
  config.hidden_size = 256;  // a whole number of blocks of every type
  config.intermediate_size = 512;
  config.head_dim = 64;
  const std::string path = WriteTinyLlamaGguf(TempPath("gguf"), config, GetParam(), /*seed=*/7);
  const auto source = OpenModel(path, LoadFormat::kAuto);
  ASSERT_TRUE(source.ok()) << source.status();
  const ModelConfig& read = (*source)->config();
  EXPECT_EQ(read.architecture, "llama");
  EXPECT_EQ(read.name, "tiny");
  EXPECT_EQ(read.num_layers, 2);
  EXPECT_EQ(read.hidden_size, 256);
  EXPECT_EQ(read.intermediate_size, 512);
  EXPECT_EQ(read.num_heads, 4);
  EXPECT_EQ(read.num_kv_heads, 2);
  EXPECT_EQ(read.head_dim, 64);
  EXPECT_EQ(read.vocab_size, 320);
  EXPECT_EQ(read.max_context, 512);
  EXPECT_FLOAT_EQ(read.norm_eps, 1e-5);
  EXPECT_EQ(read.rope_pairing, RopePairing::kInterleaved);
  EXPECT_TRUE(read.tied_embeddings);
  EXPECT_NE((*source)->gguf(), nullptr);
  EXPECT_EQ((*source)->Embedding()->bytes.data(), (*source)->Output()->bytes.data());

  const auto layer = (*source)->Layer(1);
  ASSERT_TRUE(layer.ok()) << layer.status();
  EXPECT_EQ(layer->wk.dtype, GetParam());
  EXPECT_EQ(layer->attn_norm.dtype, DType::kF32);
  EXPECT_THAT(layer->wk.shape, ElementsAre(128, 256));
  EXPECT_THAT(layer->down.shape, ElementsAre(256, 512));
  // The builder's deviation is 1/sqrt(inputs); a wrong block layout in builder or reader would show
  // here.
  EXPECT_NEAR(StandardDeviation(Floats(layer->wk)), 1 / std::sqrt(256.0), 0.15 / std::sqrt(256.0));
  EXPECT_NEAR(StandardDeviation(Floats(layer->down)), 1 / std::sqrt(512.0),
              0.15 / std::sqrt(512.0));
  EXPECT_FALSE((*source)->Layer(2).ok());
  EXPECT_FALSE((*source)->Layer(-1).ok());
}

INSTANTIATE_TEST_SUITE_P(AllTypes, TinyModelTest,
                         testing::Values(DType::kF32, DType::kF16, DType::kBF16, DType::kQ4_0,
                                         DType::kQ4_1, DType::kQ5_0, DType::kQ5_1, DType::kQ8_0,
                                         DType::kQ4_K, DType::kQ5_K, DType::kQ6_K, DType::kQ2_K,
                                         DType::kQ3_K, DType::kIQ4_NL, DType::kIQ4_XS,
                                         DType::kMXFP4),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

TEST(QuantizeTest, ErrorIsAtMostHalfAStep) {
  std::vector<float> values(32 * 64);
  DummyNormals(11, "quantize", 0, values);
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0, DType::kQ4_1}) {
    const std::vector<uint8_t> bytes = Quantize(dtype, values);
    ASSERT_EQ(bytes.size(), BytesOf(dtype, values.size()));
    std::vector<float> back(values.size());
    DequantizeRow(dtype, bytes.data(), values.size(), back.data());
    for (size_t block = 0; block < values.size(); block += 32) {
      float largest = 0, low = 1e9, high = -1e9;
      for (size_t i = block; i < block + 32; ++i) {
        largest = std::max(largest, std::fabs(values[i]));
        low = std::min(low, values[i]);
        high = std::max(high, values[i]);
      }
      // Half a quant, plus the error of rounding the scale (and the minimum) to half precision at
      // the range's end.
      const float step = dtype == DType::kQ8_0   ? largest / 127
                         : dtype == DType::kQ4_0 ? largest / 7
                         : dtype == DType::kQ4_1 ? (high - low) / 15
                         : dtype == DType::kF16  ? largest / 1024
                                                 : largest / 128;
      for (size_t i = block; i < block + 32; ++i) {
        ASSERT_LE(std::fabs(back[i] - values[i]), 0.5f * step + 2e-3f * largest)
            << DTypeName(dtype) << " " << i;
      }
    }
  }
}

TEST(GgufLlamaTest, ReadsUntiedOutputAndRopeVariants) {
  ModelConfig config = TinyLlamaConfig();
  config.tied_embeddings = false;
  config.rope.theta = 500000;
  config.rope.linear_factor = 4;
  config.rope.freq_factors = {1, 1, 2, 2, 4, 4, 8, 8};
  const auto source =
      OpenModel(WriteTinyLlamaGguf(TempPath("gguf"), config, DType::kQ8_0, 3), LoadFormat::kAuto);
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_FALSE((*source)->config().tied_embeddings);
  EXPECT_NE((*source)->Embedding()->bytes.data(), (*source)->Output()->bytes.data());
  EXPECT_THAT((*source)->Output()->shape, ElementsAre(320, 64));
  EXPECT_EQ((*source)->config().rope.theta, 500000);
  EXPECT_EQ((*source)->config().rope.linear_factor, 4);
  EXPECT_THAT((*source)->config().rope.freq_factors, ElementsAre(1, 1, 2, 2, 4, 4, 8, 8));
}

TEST(GgufLlamaTest, TinyTokenizerIsAsDocumented) {
  const auto file =
      GgufFile::Open(WriteTinyLlamaGguf(TempPath("gguf"), TinyLlamaConfig(), DType::kF32, 3));
  ASSERT_TRUE(file.ok()) << file.status();
  const auto tokens = (*file)->GetStrings("tokenizer.ggml.tokens");
  ASSERT_TRUE(tokens.ok());
  ASSERT_EQ(tokens->size(), 320u);
  EXPECT_EQ((*tokens)['A'], "A");
  EXPECT_EQ((*tokens)[' '], "\u0120");
  EXPECT_EQ((*tokens)['\n'], "\u010a");
  EXPECT_EQ((*tokens)[kTinyEndOfText], "<|endoftext|>");
  EXPECT_EQ((*tokens)[kTinyImEnd], "<|im_end|>");
  EXPECT_EQ((*file)->GetInt("tokenizer.ggml.eos_token_id").value(), kTinyImEnd);
  EXPECT_EQ((*file)->GetInts("tokenizer.ggml.token_type")->size(), 320u);
}

TEST(GgufLlamaTest, MetadataMistakesAreNamed) {
  const std::vector<uint8_t> good = BuildTinyLlamaGguf(TinyLlamaConfig(), DType::kF32, 1);
  // The integer after a key: key bytes, then uint32 type, then the value.
  const auto patched = [&](const std::string& key, uint32_t value) {
    std::vector<uint8_t> bytes = good;
    const auto at = std::search(bytes.begin(), bytes.end(), key.begin(), key.end());
    EXPECT_NE(at, bytes.end()) << key;
    std::memcpy(&*at + key.size() + 4, &value, sizeof value);
    return bytes;
  };
  EXPECT_THAT(OpenMessage(patched("llama.block_count", 0)),
              HasSubstr("num_layers is 0, the limit is 1 to 1024"));
  EXPECT_THAT(OpenMessage(patched("llama.block_count", 1)),
              HasSubstr("tensor 'blk.1.attn_k.weight' is not part of the llama model of 1 layers"));
  EXPECT_THAT(OpenMessage(patched("llama.block_count", 3)),
              HasSubstr("tensor 'blk.2.attn_norm.weight' is missing"));
  EXPECT_THAT(OpenMessage(patched("llama.block_count", 100000)),
              HasSubstr("num_layers is 100000, the limit is 1 to 1024"));
  EXPECT_THAT(OpenMessage(patched("llama.block_count", 0x80000000)),
              HasSubstr("'llama.block_count' is 2147483648"));
  EXPECT_THAT(OpenMessage(patched("llama.attention.head_count_kv", 3)),
              HasSubstr("multiple of num_kv_heads, which is 3"));
  EXPECT_THAT(OpenMessage(patched("llama.attention.head_count_kv", 0)),
              HasSubstr("num_kv_heads is 0, the limit is 1 to 4"));
  EXPECT_THAT(
      OpenMessage(patched("llama.attention.head_count_kv", 4)),
      HasSubstr(
          "tensor 'blk.0.attn_k.weight' has shape [32, 64], the configuration wants [64, 64]"));
  EXPECT_THAT(
      OpenMessage(patched("llama.rope.dimension_count", 8)),
      HasSubstr("llama.rope.dimension_count is 8, it must equal the head dimension, which is 16"));
  EXPECT_THAT(OpenMessage(patched("llama.attention.value_length", 8)),
              HasSubstr("llama.attention.value_length is 8"));
  EXPECT_THAT(OpenMessage(patched("llama.context_length", 0)), HasSubstr("max_context is 0"));
  EXPECT_THAT(OpenMessage(patched("llama.rope.freq_base", 0x7fc00000)),
              HasSubstr("rope_theta is nan"));
  EXPECT_THAT(OpenMessage(patched("llama.attention.layer_norm_rms_epsilon", 0)),
              HasSubstr("norm_eps is 0"));
}

// Minimal metadata of a llama file, for files that the builder would not write.
void AddMinimalConfig(GgufWriter& writer) {
  writer.AddString("general.architecture", "llama");
  writer.AddUint32("llama.block_count", 1);
  writer.AddUint32("llama.embedding_length", 8);
  writer.AddUint32("llama.feed_forward_length", 8);
  writer.AddUint32("llama.attention.head_count", 2);
  writer.AddUint32("llama.context_length", 16);
  writer.AddFloat("llama.attention.layer_norm_rms_epsilon", 1e-5);
}

void AddF32(GgufWriter& writer, const std::string& name, const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t dim : shape) count *= dim;
  writer.AddTensor(name, shape, DType::kF32, std::vector<uint8_t>(count * 4));
}

TEST(GgufLlamaTest, OtherModelsAreRefusedByName) {
  const auto with = [](const std::function<void(GgufWriter&)>& change) {
    GgufWriter writer;
    AddMinimalConfig(writer);
    AddF32(writer, "token_embd.weight", {10, 8});
    change(writer);
    return writer.Build();
  };
  GgufWriter other;
  other.AddString("general.architecture", "gemma\n3");
  EXPECT_THAT(OpenMessage(other.Build()),
              HasSubstr("general.architecture is 'gemma\\n3'; supported are llama, qwen2"));
  EXPECT_THAT(OpenMessage(GgufWriter().Build()), HasSubstr("'general.architecture' is missing"));
  EXPECT_THAT(OpenMessage(with([](GgufWriter& w) { AddF32(w, "blk.0.attn_norm.bias", {8}); })),
              HasSubstr("tensor 'blk.0.attn_norm.bias' is not part of"));
  EXPECT_THAT(OpenMessage(with([](GgufWriter& w) { w.AddUint32("llama.expert_count", 8); })),
              HasSubstr("'llama.expert_used_count' is missing"));
  EXPECT_THAT(OpenMessage(with([](GgufWriter& w) {
                w.AddUint32("llama.expert_count", 8);
                w.AddUint32("llama.expert_used_count", 9);
              })),
              HasSubstr("num_experts_per_tok is 9, the limit is 1 to 8"));
  EXPECT_THAT(OpenMessage(with([](GgufWriter& w) { w.AddUint32("llama.expert_gating_func", 2); })),
              HasSubstr("'llama.expert_gating_func' is 2"));
  EXPECT_THAT(OpenMessage(with([](GgufWriter& w) { w.AddBool("llama.attention.causal", false); })),
              HasSubstr("'llama.attention.causal' is 0"));
  EXPECT_THAT(OpenMessage(with([](GgufWriter& w) { w.AddFloat("llama.rope.new\n", 2.5); })),
              HasSubstr("'llama.rope.new\\n' is 2.5; this is not supported"));
  EXPECT_THAT(
      OpenMessage(with([](GgufWriter& w) { w.AddString("llama.rope.scaling.type", "ntk"); })),
      HasSubstr("llama.rope.scaling.type is 'ntk'"));
  EXPECT_THAT(
      OpenMessage(with([](GgufWriter& w) { w.AddString("llama.rope.scaling.type", "yarn"); })),
      HasSubstr("'llama.rope.scaling.factor' is missing"));
  EXPECT_THAT(
      OpenMessage(with([](GgufWriter& w) { w.AddString("llama.rope.scaling.type", "longrope"); })),
      HasSubstr("tensor 'rope_factors_long.weight' is missing"));
  EXPECT_THAT(
      OpenMessage(with([](GgufWriter& w) { w.AddString("llama.rope.scaling.type", "linear"); })),
      HasSubstr("'llama.rope.scaling.factor' is missing"));
  EXPECT_THAT(OpenMessage(with([](GgufWriter& w) { AddF32(w, "rope_freqs.weight", {3}); })),
              HasSubstr("'rope_freqs.weight' has shape [3], half of 4 rotated elements is 2"));
  EXPECT_THAT(OpenMessage(with([](GgufWriter& w) { AddF32(w, "rope_freqs.weight", {2}); })),
              HasSubstr("rope_freq_factors[0] is 0"));
  EXPECT_THAT(OpenMessage(with([](GgufWriter&) {})),
              HasSubstr("tensor 'output_norm.weight' is missing"));
  GgufWriter bare;
  AddMinimalConfig(bare);
  EXPECT_THAT(OpenMessage(bare.Build()), HasSubstr("tensor 'token_embd.weight' is missing"));
}

void AddLayerMatrices(GgufWriter& writer) {
  for (const char* name :
       {"attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"}) {
    AddF32(writer, std::string("blk.0.") + name + ".weight", {8, 8});
  }
}

// Interpreted as in llama.cpp.
TEST(GgufLlamaTest, KeysOfRopeScaling) {
  const auto factor = [](const std::function<void(GgufWriter&)>& change) {
    GgufWriter writer;
    AddMinimalConfig(writer);
    change(writer);
    AddF32(writer, "token_embd.weight", {10, 8});
    for (const char* name : {"output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"})
      AddF32(writer, std::string(name) + ".weight", {8});
    AddLayerMatrices(writer);
    const std::string path = TempPath("gguf");
    WriteFile(path, writer.Build());
    const auto source = OpenModel(path, LoadFormat::kAuto);
    EXPECT_TRUE(source.ok()) << source.status();
    return source.ok() ? (*source)->config().rope.linear_factor : 0.0;
  };
  EXPECT_EQ(factor([](GgufWriter&) {}), 1);
  EXPECT_EQ(factor([](GgufWriter& w) { w.AddFloat("llama.rope.scale_linear", 2); }), 2);
  EXPECT_EQ(factor([](GgufWriter& w) { w.AddFloat("llama.rope.scaling.factor", 4); }), 4);
  EXPECT_EQ(factor([](GgufWriter& w) {
              w.AddString("llama.rope.scaling.type", "none");
              w.AddFloat("llama.rope.scaling.factor", 4);
            }),
            1);
  EXPECT_EQ(factor([](GgufWriter& w) {
              w.AddFloat("llama.rope.scale_linear", 2);
              w.AddFloat("llama.rope.scaling.factor", 4);
              w.AddUint32("llama.rope.scaling.original_context_length", 8);
              w.AddFloat("llama.rope.scaling.attn_factor", 1);
              w.AddUint32("llama.expert_count", 0);
              w.AddBool("llama.attention.causal", true);
            }),
            4);
}

TEST(GgufLlamaTest, NormsAreConvertedToFloat) {
  GgufWriter writer;
  AddMinimalConfig(writer);
  AddF32(writer, "token_embd.weight", {10, 8});
  const std::vector<float> norm = {1, 2, 3, 4, 0.5, -1, 0, 7};
  writer.AddTensor("output_norm.weight", {8}, DType::kF16, Quantize(DType::kF16, norm));
  for (const char* name : {"attn_norm", "ffn_norm"}) {
    writer.AddTensor(std::string("blk.0.") + name + ".weight", {8}, DType::kBF16,
                     Quantize(DType::kBF16, norm));
  }
  AddLayerMatrices(writer);
  const std::string path = TempPath("gguf");
  WriteFile(path, writer.Build());
  const auto source = OpenModel(path, LoadFormat::kAuto);
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ((*source)->FinalNorm()->dtype, DType::kF32);
  EXPECT_EQ(Floats(*(*source)->FinalNorm()), norm);
  EXPECT_EQ(Floats((*source)->Layer(0)->ffn_norm), norm);
  EXPECT_EQ((*source)->config().num_kv_heads, 2)
      << "head_count_kv is head_count where it is missing";
}

TEST(OpenModelTest, MissingPathsAreNamed) {
  EXPECT_EQ(OpenModel("/nonexistent", LoadFormat::kAuto).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(OpenModel("/nonexistent", LoadFormat::kDummy).status().code(),
            absl::StatusCode::kNotFound);
  const std::string folder = TempPath("folder");
  std::filesystem::create_directories(folder);
  EXPECT_THAT(std::string(OpenModel(folder, LoadFormat::kAuto).status().message()),
              HasSubstr("/config.json'"));
}

TEST(OpenModelTest, AFolderWithOneGgufFileIsThatFile) {
  const std::string folder = TempPath("folder");
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  const std::string file =
      WriteTinyLlamaGguf(folder + "/m.gguf", TinyLlamaConfig(), DType::kF32, 1);
  EXPECT_EQ(ModelFileOf(folder), file);
  EXPECT_TRUE(OpenModel(folder, LoadFormat::kAuto).ok());
  std::ofstream(folder + "/m-00002-of-00002.gguf") << "x";
  EXPECT_EQ(ModelFileOf(folder), file) << "a later part is no model of its own";
  std::ofstream(folder + "/n.gguf") << "x";
  EXPECT_EQ(ModelFileOf(folder), folder);
  EXPECT_THAT(std::string(OpenModel(folder, LoadFormat::kAuto).status().message()),
              HasSubstr("holds 2 GGUF files; name one of them"));
  std::ofstream(folder + "/config.json") << "{}";
  EXPECT_EQ(ModelFileOf(folder), folder);
}

TEST(OpenModelTest, APointerOfGitLfsIsNamed) {
  constexpr char kPointer[] =
      "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5368709120\n";
  const std::string file = TempPath("m.gguf"), folder = TempPath("folder");
  std::ofstream(file) << kPointer;
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/config.json") << R"({"model_type":"llama","hidden_size":32,
      "intermediate_size":32,"num_hidden_layers":1,"num_attention_heads":2,"vocab_size":1000,
      "max_position_embeddings":256})";
  std::ofstream(folder + "/model.safetensors") << kPointer;
  for (const std::string& path : {file, folder})
    EXPECT_THAT(std::string(OpenModel(path, LoadFormat::kAuto).status().message()),
                HasSubstr("is a pointer of Git LFS, not the file itself; run `git lfs pull`"));
}

TEST(OpenModelTest, ConvertedStoriesModel) {
  const char* env = std::getenv("HYDRANT_DATA_DIR");
  const std::string folder =
      std::string(env != nullptr ? env : "../shared/data") + "/models/stories260K/";
  std::ifstream file(folder + "stories260K.bin", std::ios::binary);
  if (!file) GTEST_SKIP() << folder << " is not there; set HYDRANT_DATA_DIR to the data folder";
  const std::vector<char> original((std::istreambuf_iterator<char>(file)), {});
  const std::string path = TempPath("gguf");
  const std::string command = "python3 tools/models/convert_llama2c.py " + folder +
                              "stories260K.bin " + folder + "tok512.bin " + path + " > /dev/null";
  ASSERT_EQ(std::system(command.c_str()), 0);
  const auto source = OpenModel(path, LoadFormat::kAuto);
  ASSERT_TRUE(source.ok()) << source.status();
  const ModelConfig& c = (*source)->config();
  EXPECT_EQ(c.num_layers, 5);
  EXPECT_EQ(c.num_heads, 8);
  EXPECT_EQ(c.num_kv_heads, 4);
  EXPECT_EQ(c.head_dim, 8);
  EXPECT_EQ(c.vocab_size, 512);
  EXPECT_TRUE(c.tied_embeddings);
  // In llama2.c's order: embedding, attention norms, wq, wk, ... Compares wk of layer 3 and the
  // final norm.
  const size_t floats_before_wk = 512 * 64 + 5 * 64 + 5 * 64 * 64;
  const auto wk = (*source)->Layer(3)->wk;
  ASSERT_EQ(wk.bytes.size(), 32u * 64 * 4);
  EXPECT_EQ(
      std::memcmp(wk.bytes.data(), original.data() + 28 + 4 * (floats_before_wk + 3 * 32 * 64),
                  wk.bytes.size()),
      0);
  const size_t tables = 2 * 512 * 4;  // two RoPE tables of context x head_dim/2 at the end
  const auto norm = *(*source)->FinalNorm();
  EXPECT_EQ(
      std::memcmp(norm.bytes.data(), original.data() + original.size() - 4 * (tables + 64), 4 * 64),
      0);
  EXPECT_EQ((*source)->gguf()->GetStrings("tokenizer.ggml.tokens")->size(), 512u);
  EXPECT_EQ((*source)->gguf()->GetStrings("tokenizer.ggml.tokens")->at(259), "\u2581t");
}

TEST(OpenModelTest, DemonstrationModel) {
  const std::string path = ".cache/models/SmolLM2-135M-Instruct.Q4_1.gguf";
  if (!std::filesystem::exists(path))
    GTEST_SKIP() << path << " is not there; run scripts/fetch-model";
  const auto source = OpenModel(path, LoadFormat::kAuto);
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ((*source)->config().num_layers, 30);
  EXPECT_EQ((*source)->config().vocab_size, 49152);
  EXPECT_EQ((*source)->config().rope.theta, 100000);
  EXPECT_EQ((*source)->Embedding()->dtype, DType::kQ8_0);
  EXPECT_EQ((*source)->Layer(29)->down.dtype, DType::kQ4_1);
}

}  // namespace
}  // namespace hydrant
