// Loading a model folder: tokenizer, chat template and engine together.
#include "server/startup/model_loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/run/engine.h"
#include "engine/run/forward/score_predictor.h"
#include "tests/engine/model/tiny_model.h"
#include "tools/eval/engine_driver.h"

namespace hydrant {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

// A folder with a tokenizer of 769 ids, of which 0 and 2 end generation, and a model of 1000.
class ModelLoaderTest : public testing::Test {
 protected:
  ModelLoaderTest() {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    fs::copy_file("tests/data/tokenizer/qwen2.tokenizer.json", folder_ + "/tokenizer.json");
    Write("config.json", R"({"model_type":"llama","hidden_size":32,"intermediate_size":32,
        "num_hidden_layers":1,"num_attention_heads":2,"vocab_size":1000,
        "max_position_embeddings":256})");
    Configure("<|im_end|>");
    options_.model_path = folder_;
    options_.load_format = LoadFormat::kDummy;
    options_.engine.num_blocks_override = 64;
    options_.engine.max_num_seqs = 4;
  }
  ~ModelLoaderTest() override { fs::remove_all(folder_); }

  void Write(const std::string& file, const std::string& text) {
    std::ofstream(folder_ + "/" + file) << text;
  }
  void Configure(const std::string& eos) {
    std::ifstream file("tests/data/tokenizer/templates/zephyr.jinja");
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    const nlohmann::json config = {{"eos_token", eos}, {"chat_template", text}};
    Write("tokenizer_config.json", config.dump());
  }
  std::unique_ptr<LoadedModel> Load() {
    auto loaded = LoadModel(options_, [](double) {});
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return loaded.ok() ? *std::move(loaded) : nullptr;
  }

  const std::string folder_ = testing::TempDir() + "/model_loader_test." +
                              testing::UnitTest::GetInstance()->current_test_info()->name();
  DaemonOptions options_;
};

TEST_F(ModelLoaderTest, ChatTemplatesWriteTheEndThatTheTokenizerNames) {
  for (const char* eos : {"<|im_end|>", "<|endoftext|>"}) {
    Configure(eos);
    const auto loaded = Load();
    ASSERT_NE(loaded, nullptr);
    ASSERT_NE(loaded->chat_template, nullptr) << loaded->served.no_chat_reason;
    EXPECT_EQ(*loaded->chat_template->Render(
                  {.messages = {{"user", "hi"}}, .add_generation_prompt = false}),
              std::string("<|user|>\nhi") + eos + "\n");
  }
}

TEST_F(ModelLoaderTest, IsServedByTheFoldersNameAndKnowsTheFilesOwn) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"a/b", "a/b"}, {std::string(100'000, 'x'), ""}, {"two\\nlines", ""}};
  for (const auto& [name, own] : cases) {
    Write("config.json", R"({"model_type":"llama","hidden_size":32,"intermediate_size":32,
        "num_hidden_layers":1,"num_attention_heads":2,"vocab_size":1000,
        "max_position_embeddings":256,"_name_or_path":")" +
                             name + "\"}");
    const auto loaded = Load();
    ASSERT_NE(loaded, nullptr);
    EXPECT_EQ(loaded->served.name, fs::path(folder_).filename().string());
    EXPECT_EQ(loaded->served.own_name, own);
  }
  options_.served_model_name = "given";
  const auto loaded = Load();
  ASSERT_NE(loaded, nullptr);
  EXPECT_EQ(loaded->served.name, "given");
  EXPECT_EQ(loaded->served.own_name, "");
}

// The predictor in the model's folder, another one, or none.
TEST_F(ModelLoaderTest, AScorePredictorIsFoundAndChecked) {
  auto loaded = Load();
  ASSERT_NE(loaded, nullptr);
  EXPECT_EQ(loaded->served.limits.score_predictor, 0u);
  const ScorePredictor predictor = ScorePredictor::ShapedLike(loaded->served.config);
  const std::string model = HexOf(loaded->served.fingerprint);
  const std::string path = folder_ + "/scores.safetensors";
  ASSERT_TRUE(WriteScorePredictor(predictor, model, path).ok());
  loaded = Load();
  ASSERT_NE(loaded, nullptr);
  EXPECT_EQ(loaded->served.limits.score_predictor, predictor.Id());
  options_.score_predictor = "none";
  loaded = Load();
  ASSERT_NE(loaded, nullptr);
  EXPECT_EQ(loaded->served.limits.score_predictor, 0u);

  options_.default_cache = {.text = "learned:cache_ratio=0.2", .spec = {}};
  options_.default_cache.spec.policy = "learned";
  EXPECT_THAT(std::string(LoadModel(options_, [](double) {}).status().message()),
              AllOf(HasSubstr("--default-cache-policy learned:cache_ratio=0.2"),
                    HasSubstr("hydrant-eval fit")));
  options_.score_predictor = folder_ + "/nothing";
  EXPECT_THAT(std::string(LoadModel(options_, [](double) {}).status().message()),
              AllOf(HasSubstr("--score-predictor"), HasSubstr("/nothing'")));
  options_.score_predictor = path;
  ASSERT_TRUE(WriteScorePredictor(predictor, "another", path).ok());
  EXPECT_THAT(std::string(LoadModel(options_, [](double) {}).status().message()),
              HasSubstr("made for another model"));
  options_.score_predictor.clear();
  EXPECT_FALSE(LoadModel(options_, [](double) {}).ok()) << "nothing is served in silence";
}

TEST_F(ModelLoaderTest, TheFilesSamplingIsTheDefault) {
  Write("generation_config.json", R"({"temperature": 0.6, "top_k": 20, "do_sample": true})");
  auto loaded = Load();
  ASSERT_NE(loaded, nullptr);
  EXPECT_EQ(loaded->served.sampling, (SamplingDefaults{.temperature = 0.6, .top_k = 20}));
  Write("generation_config.json", R"({"temperature": -1})");
  loaded = Load();
  ASSERT_NE(loaded, nullptr) << "a bad number is no reason not to serve";
  EXPECT_EQ(loaded->served.sampling, SamplingDefaults());
  Write("generation_config.json", R"({"temperature": 0.6})");
  options_.generation_config = false;
  loaded = Load();
  ASSERT_NE(loaded, nullptr);
  EXPECT_EQ(loaded->served.sampling, SamplingDefaults());
}

TEST_F(ModelLoaderTest, ATooSmallPoolIsRefusedWithTheNeededSize) {
  options_.engine.num_blocks_override = 3;  // 20 % of 256 tokens take 4 pages of 16 entries
  const absl::Status status = LoadModel(options_, [](double) {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("--kv-cache-memory-bytes: a KV pool of 3 pages"),
                    HasSubstr("one of 256 tokens takes ")));
}

// At this temperature all ids of the model are about equally likely.
TEST_F(ModelLoaderTest, IdsThatTheTokenizerLacksAreNeverDrawn) {
  const auto loaded = Load();
  ASSERT_NE(loaded, nullptr);
  auto* engine = dynamic_cast<Engine*>(loaded->engine.get());
  ASSERT_NE(engine, nullptr);
  eval::EngineDriver driver(engine, 1);
  const CachePlan plan = *PlanCache(CacheSpec{}, {3});
  const int slot = driver.Add({5, 6, 7}, plan, 200, SamplingRow{.temperature = 1e6f, .seed = 1});
  driver.PrefillAll(slot);
  for (int step = 0; step < 200; ++step) {
    driver.Step();
    ASSERT_LT(driver.last_token(slot), loaded->tokenizer->VocabSize()) << step;
    driver.Decode(slot);
  }
}

// Sizes larger than any machine, refused before anything is allocated.
TEST_F(ModelLoaderTest, APoolThatDoesNotFitIsRefusedByItsOption) {
  options_.engine.block_size = 256;
  options_.engine.num_blocks_override = 1 << 30;
  absl::Status status = LoadModel(options_, [](double) {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("num_gpu_blocks_override: 1073741824"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("the limit is "));
  options_.engine.num_blocks_override.reset();
  options_.engine.kv_cache_memory_bytes = int64_t{16} << 40;
  status = LoadModel(options_, [](double) {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("kv_cache_memory_bytes: 16.0 TiB: "));
}

class TruncatedFileTest : public ModelLoaderTest {
 protected:
  TruncatedFileTest() {
    std::signal(SIGBUS, SIG_DFL);  // a sanitizer may have set it
    options_.model_path =
        WriteTinyLlamaGguf(folder_ + "/m.gguf", TinyLlamaConfig(), DType::kF32, 1);
    options_.load_format = LoadFormat::kAuto;
    options_.engine.dtype = WeightDType::kFloat32;
  }
  // Truncates the file by this many bytes when the first layer has been read.
  absl::Status LoadAndCut(size_t bytes) {
    const size_t size = fs::file_size(options_.model_path);
    return LoadModel(options_, [&](double) { fs::resize_file(options_.model_path, size - bytes); })
        .status();
  }
};

TEST_F(TruncatedFileTest, WithinAPageTheEndReadsAsZerosAndIsFoundOut) {
  const absl::Status status = LoadAndCut(1);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("m.gguf' was written while it was read"));
}

TEST_F(TruncatedFileTest, AReadPastTheEndEndsTheProcessWithOneLine) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT((void)LoadAndCut(fs::file_size(options_.model_path)), testing::ExitedWithCode(1),
              "^model file '.*m.gguf' was cut short, or its disk failed, [^\n]*\n$");
}

}  // namespace
}  // namespace hydrant
