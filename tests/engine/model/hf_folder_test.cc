#include "engine/model/hf_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/model/hf_config.h"
#include "engine/model/model_tensors.h"
#include "kernels/dequantize.h"

namespace hydrant {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

// The rule of tests/goldens/hf_tiny.py.
float Golden(int tensor_number, int64_t i) {
  return static_cast<float>((31 * tensor_number + i) % 257 - 128) / 64;
}

void ExpectGolden(const std::string& name, int number, const TensorView& view) {
  std::vector<float> values(view.NumElements());
  DequantizeRow(view.dtype, view.bytes.data(), view.NumElements(), values.data());
  for (size_t i = 0; i < values.size(); ++i)
    ASSERT_EQ(values[i], Golden(number, i)) << name << " " << i;
}

void ExpectAllGolden(const ModelSource& source) {
  const TensorNames& names = HuggingFaceNames(source.config());
  std::map<std::string, TensorView> views;  // sorted, in the script's order
  views[names.embedding] = *source.Embedding();
  views[names.final_norm] = *source.FinalNorm();
  if (!source.config().tied_embeddings) views[names.output] = *source.Output();
  for (int layer = 0; layer < source.config().num_layers; ++layer) {
    const auto tensors = source.Layer(layer);
    ASSERT_TRUE(tensors.ok());
    for (const ExpectedTensor& tensor : ExpectedLayerTensors(source.config(), names, layer)) {
      views[tensor.name] = (*tensors).*tensor.role;
    }
  }
  int number = 0;
  for (const auto& [name, view] : views) {
    const size_t alignment = view.dtype == DType::kF32 ? 4 : 2;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(view.bytes.data()) % alignment, 0u);
    ExpectGolden(name, number++, view);
  }
}

TEST(HfFolderTest, ReadsOneFile) {
  const auto source = OpenModel("tests/data/model/hf_single", LoadFormat::kAuto);
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ((*source)->Embedding()->dtype, DType::kF32);
  EXPECT_EQ((*source)->folder(), "tests/data/model/hf_single");
  EXPECT_EQ((*source)->gguf(), nullptr);
  ExpectAllGolden(**source);
}

TEST(HfFolderTest, ReadsShards) {
  const auto source = OpenModel("tests/data/model/hf_sharded", LoadFormat::kAuto);
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ((*source)->Embedding()->dtype, DType::kF16);
  EXPECT_EQ((*source)->FinalNorm()->dtype, DType::kF32) << "norms are converted";
  EXPECT_EQ((*source)->Output()->bytes.data(), (*source)->Embedding()->bytes.data());
  ExpectAllGolden(**source);
}

// Bytes of a few tensors, inside the layers and outside.
std::vector<uint8_t> SomeBytes(const ModelSource& source) {
  std::vector<uint8_t> bytes;
  const LayerTensors layer = *source.Layer(1);
  for (const TensorView& view : {*source.Embedding(), *source.Positions(), *source.FinalNormBias(),
                                 layer.wk, layer.bv, layer.down_bias}) {
    bytes.insert(bytes.end(), view.bytes.begin(), view.bytes.end());
  }
  return bytes;
}

// A private copy of a golden folder that a test may modify.
class HfFolderCopyTest : public testing::Test {
 protected:
  void Copy(const std::string& name, const std::string& from = "tests/data/model/") {
    folder_ = testing::TempDir() + "/hf_folder_test." +
              testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(folder_);
    fs::copy(from + name, folder_);
    for (const auto& entry : fs::directory_iterator(folder_)) {
      fs::permissions(entry.path(), fs::perms::owner_write, fs::perm_options::add);
    }
  }
  ~HfFolderCopyTest() override { fs::remove_all(folder_); }

  std::string Read(const std::string& file) {
    std::ifstream in(folder_ + "/" + file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void Write(const std::string& file, const std::string& text) {
    std::ofstream(folder_ + "/" + file, std::ios::binary) << text;
  }
  void Replace(const std::string& file, const std::string& from, const std::string& to) {
    std::string text = Read(file);
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos);
    Write(file, text.replace(at, from.size(), to));
  }
  std::string Message() {
    const absl::Status status = OpenModel(folder_, LoadFormat::kAuto).status();
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(std::string(status.message()).find('\n'), std::string::npos);
    return std::string(status.message());
  }

  std::string folder_;
};

TEST_F(HfFolderCopyTest, DataAtOddAddressesIsMoved) {
  Copy("hf_single");
  // Lengthens the header by one space, which puts every tensor at an odd address.
  std::string text = Read("model.safetensors");
  uint64_t length = 0;
  std::memcpy(&length, text.data(), sizeof length);
  text.insert(8 + length, 1, ' ');
  ++length;
  std::memcpy(text.data(), &length, sizeof length);
  Write("model.safetensors", text);
  const auto source = OpenModel(folder_, LoadFormat::kAuto);
  ASSERT_TRUE(source.ok()) << source.status();
  ExpectAllGolden(**source);
}

TEST_F(HfFolderCopyTest, MissingPiecesAreNamed) {
  Copy("hf_sharded");
  fs::remove(folder_ + "/model-00002-of-00002.safetensors");
  EXPECT_THAT(Message(), HasSubstr("model-00002-of-00002.safetensors': No such file"));
  fs::remove(folder_ + "/model.safetensors.index.json");
  EXPECT_THAT(Message(),
              HasSubstr("has neither model.safetensors nor model.safetensors.index.json"));
  fs::remove(folder_ + "/config.json");
  EXPECT_THAT(Message(), HasSubstr("/config.json'"));
}

TEST_F(HfFolderCopyTest, IndexMayNotLeaveTheFolder) {
  Copy("hf_sharded");
  Replace("model.safetensors.index.json", "model-00001-of-00002.safetensors",
          "../x/model.safetensors");
  EXPECT_THAT(Message(), HasSubstr("wanted the name of a .safetensors file"));
  Write("model.safetensors.index.json", "{}");
  EXPECT_THAT(Message(), HasSubstr("weight_map is missing"));
}

TEST_F(HfFolderCopyTest, ExpertsMustFitTheConfiguration) {
  Copy("tiny_granite_moe", "tests/data/engine/");
  Replace("config.json", R"("intermediate_size": 16)", R"("intermediate_size": 32)");
  EXPECT_THAT(Message(), HasSubstr("block_sparse_moe.input_linear.weight' has shape [4, 32, 32], "
                                   "the configuration wants [4, 64, 32]"));
  Copy("tiny_mixtral", "tests/data/engine/");
  Replace("config.json", R"("num_local_experts": 4)", R"("num_local_experts": 3)");
  EXPECT_THAT(Message(), HasSubstr("block_sparse_moe.experts.3.w1.weight' is not part of"));
  Replace("config.json", R"("num_local_experts": 3)", R"("num_local_experts": 5)");
  EXPECT_THAT(Message(), HasSubstr("block_sparse_moe.gate.weight' has shape [4, 32], the "
                                   "configuration wants [5, 32]"));
}

TEST_F(HfFolderCopyTest, TensorsMustFitTheConfiguration) {
  Copy("hf_single");
  Replace("config.json", "\"vocab_size\": 20", "\"vocab_size\": 21");
  EXPECT_THAT(Message(), HasSubstr("tensor 'model.embed_tokens.weight' has shape [20, 16], the "
                                   "configuration wants [21, 16]"));
  Replace("config.json", "\"vocab_size\": 21", "\"vocab_size\": 20");
  Replace("config.json", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3");
  EXPECT_THAT(Message(), HasSubstr("tensor 'model.layers.2.input_layernorm.weight' is missing"));
  Replace("config.json", "\"num_hidden_layers\": 3", "\"num_hidden_layers\": 1");
  EXPECT_THAT(Message(), HasSubstr("'model.layers.1.input_layernorm.weight' is not part of"));
}

TEST_F(HfFolderCopyTest, ABiasIsRefused) {
  Copy("hf_single");
  // The same length, so that the header stays valid.
  Replace("model.safetensors", "model.layers.0.self_attn.q_proj.weight",
          "model.layers.0.self_attn.q_proj.biases");
  EXPECT_THAT(Message(), HasSubstr("'model.layers.0.self_attn.q_proj.biases' is not part of"));
}

TEST_F(HfFolderCopyTest, UntiedWithoutOutputIsRefused) {
  Copy("hf_sharded");
  Replace("config.json", "\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false");
  EXPECT_THAT(Message(), HasSubstr("tensor 'lm_head.weight' is missing"));
}

// transformers ties them only if they are equal, whatever config.json says.
TEST_F(HfFolderCopyTest, AnOutputOfItsOwnIsUsedThoughTheConfigSaysTied) {
  Copy("hf_single");
  Replace("config.json", "\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true");
  auto source = OpenModel(folder_, LoadFormat::kAuto);
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_FALSE((*source)->config().tied_embeddings);
  const TensorView embedding = *(*source)->Embedding(), output = *(*source)->Output();
  ASSERT_EQ(embedding.bytes.size(), output.bytes.size());
  EXPECT_NE(std::memcmp(embedding.bytes.data(), output.bytes.data(), output.bytes.size()), 0);
  ExpectAllGolden(**source);
  // Makes the file's output matrix a copy of its embedding.
  std::string text = Read("model.safetensors");
  const char* begin = reinterpret_cast<const char*>((*source)->Embedding()->bytes.data());
  const std::string wanted(begin, embedding.bytes.size());
  const std::string old(reinterpret_cast<const char*>(output.bytes.data()), output.bytes.size());
  const size_t at = text.find(old);
  ASSERT_NE(at, std::string::npos);
  source->reset();
  Write("model.safetensors", text.replace(at, old.size(), wanted));
  source = OpenModel(folder_, LoadFormat::kAuto);
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_TRUE((*source)->config().tied_embeddings);
}

TEST_F(HfFolderCopyTest, CutFilesAreRefused) {
  Copy("hf_single");
  const std::string text = Read("model.safetensors");
  for (const size_t size : {size_t{0}, size_t{4}, size_t{100}, text.size() - 1}) {
    Write("model.safetensors", text.substr(0, size));
    EXPECT_THAT(Message(), HasSubstr("model.safetensors'"));
  }
}

// Position 0 has the third row of the table in the file.
TEST(HfFolderTest, OptsPositionsBeginAtTheirThirdRow) {
  const auto source = OpenModel("tests/data/engine/tiny_opt", LoadFormat::kAuto);
  ASSERT_TRUE(source.ok()) << source.status();
  const TensorView positions = *(*source)->Positions();
  EXPECT_EQ(positions.shape, (std::vector<int64_t>{320, 64}));
  ASSERT_EQ(positions.bytes.size(), 320u * 64 * 2);
  std::ifstream file("tests/data/engine/tiny_opt/model.safetensors", std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  uint64_t header = 0;
  std::memcpy(&header, text.data(), sizeof header);
  const nlohmann::json entry =
      nlohmann::json::parse(text.substr(8, header))["model.decoder.embed_positions.weight"];
  EXPECT_EQ(entry["shape"], nlohmann::json({322, 64}));
  const size_t begin = 8 + header + entry["data_offsets"][0].get<size_t>() + 2 * 64 * 2;
  EXPECT_EQ(std::memcmp(positions.bytes.data(), &text[begin], positions.bytes.size()), 0);
  EXPECT_FALSE((*source)->Layer(0)->gate.Exists());
  EXPECT_FALSE((*source)->Layer(0)->wqkv.Exists());
}

// Like some of OPT's published files.
TEST_F(HfFolderCopyTest, OptsNamesMayLackTheirOuterModule) {
  Copy("tiny_opt", "tests/data/engine/");
  const auto source = OpenModel(folder_, LoadFormat::kAuto);
  ASSERT_TRUE(source.ok()) << source.status();
  const std::vector<uint8_t> expected = SomeBytes(**source);  // before the file changes
  EXPECT_FALSE(expected.empty());
  const std::string text = Read("model.safetensors");
  uint64_t length = 0;
  std::memcpy(&length, text.data(), sizeof length);
  std::string header = text.substr(8, length);
  for (size_t at; (at = header.find("\"model.decoder.")) != std::string::npos;)
    header.erase(at + 1, std::strlen("model."));
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const uint64_t new_length = header.size();
  Write("model.safetensors", std::string(reinterpret_cast<const char*>(&new_length), 8) + header +
                                 text.substr(8 + length));
  const auto bare = OpenModel(folder_, LoadFormat::kAuto);
  ASSERT_TRUE(bare.ok()) << bare.status();
  EXPECT_EQ(SomeBytes(**bare), expected);
}

TEST_F(HfFolderCopyTest, OptsTensorsMustFitTheConfiguration) {
  Copy("tiny_opt", "tests/data/engine/");
  Replace("config.json", "\"max_position_embeddings\": 320", "\"max_position_embeddings\": 321");
  EXPECT_THAT(Message(),
              HasSubstr("'model.decoder.embed_positions.weight' has shape [322, 64], the "
                        "configuration wants [323, 64]"));
  Copy("tiny_opt", "tests/data/engine/");
  Replace("config.json", "\"ffn_dim\": 96", "\"ffn_dim\": 64");
  EXPECT_THAT(Message(),
              HasSubstr("fc1.weight' has shape [96, 64], the configuration wants [64, "));
  Copy("tiny_opt", "tests/data/engine/");
  Replace("model.safetensors", "layers.1.self_attn.k_proj.bias", "layers.1.self_attn.k_proj.bibs");
  EXPECT_THAT(Message(), HasSubstr("'model.decoder.layers.1.self_attn.k_proj.bibs' is not part of "
                                   "the opt model of 2 layers"));
  Copy("tiny_opt", "tests/data/engine/");
  Replace("config.json", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3");
  EXPECT_THAT(Message(),
              HasSubstr("'model.decoder.layers.2.self_attn_layer_norm.weight' is missing"));
}

TEST_F(HfFolderCopyTest, GptNeoxTensorsMustFitTheConfiguration) {
  Copy("tiny_neox_serial", "tests/data/engine/");
  Replace("config.json", "\"vocab_size\": 300", "\"vocab_size\": 299");
  EXPECT_THAT(Message(), HasSubstr("tensor 'gpt_neox.embed_in.weight' has shape [300, 36]"));
  Copy("tiny_neox_serial", "tests/data/engine/");
  Replace("model.safetensors", "gpt_neox.final_layer_norm.bias", "gpt_neox.rotary_emb.inv_freq__");
  EXPECT_THAT(Message(), HasSubstr("'gpt_neox.rotary_emb.inv_freq__' is not part of the gpt_neox"));
}

}  // namespace
}  // namespace hydrant
