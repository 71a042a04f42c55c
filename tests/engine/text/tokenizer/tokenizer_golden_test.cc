// Compares ids and texts with Hugging Face `tokenizers` and SentencePiece, on the project's own
// small tokenizers and, if present, on published ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "engine/model/gguf.h"
#include "engine/text/tokenizer/detokenizer.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "tests/engine/text/tokenizer/gguf_bytes.h"
#include "tests/engine/text/tokenizer/golden_lines.h"

namespace hydrant {
namespace {

using nlohmann::json;
using testing::GoldenHashes;
using testing::GoldenLines;
using testing::kGoldenFolder;
using testing::ReadTestFile;

void ExpectGolden(const Tokenizer& tokenizer, const std::string& name,
                  const EncodeOptions& options) {
  const std::vector<uint32_t> hashes = GoldenHashes(name);
  ASSERT_EQ(hashes.size(), GoldenLines().size()) << name << ".hashes";
  int wrong = 0;
  for (size_t i = 0; i < hashes.size(); ++i) {
    auto ids = tokenizer.Encode(GoldenLines()[i], options);
    ASSERT_TRUE(ids.ok()) << ids.status();
    if (testing::HashIds(*ids) == hashes[i]) continue;
    if (++wrong <= 3) {
      ADD_FAILURE() << name << " line " << i << ": " << json(GoldenLines()[i]).dump(-1, ' ', true)
                    << " gave " << ::testing::PrintToString(*ids);
    }
  }
  EXPECT_EQ(wrong, 0) << "of " << hashes.size() << " lines";
}

std::unique_ptr<Tokenizer> Load(const std::string& path) {
  auto tokenizer = TokenizerFromPath(path);
  EXPECT_TRUE(tokenizer.ok()) << path << ": " << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

TEST(GoldenLines, AreTheScripts) {
  std::vector<uint32_t> code_points;
  for (const std::string& line : GoldenLines()) {
    for (size_t i = 0; i < line.size();) {
      const auto c = static_cast<uint8_t>(line[i]);
      const int length = c < 0x80 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
      uint32_t code_point = length == 1 ? c : c & (0xFF >> (length + 1));
      for (int k = 1; k < length; ++k)
        code_point = code_point << 6 | (static_cast<uint8_t>(line[i + k]) & 63);
      code_points.push_back(code_point);
      i += length;
    }
  }
  EXPECT_EQ(std::to_string(testing::HashIds(code_points)) + "\n",
            ReadTestFile(std::string(kGoldenFolder) + "lines.check"));
}

class OwnTokenizer : public ::testing::TestWithParam<const char*> {};

TEST_P(OwnTokenizer, EncodesAsHuggingFace) {
  const auto tokenizer = Load(std::string(kGoldenFolder) + GetParam() + ".tokenizer.json");
  ASSERT_NE(tokenizer, nullptr);
  ExpectGolden(*tokenizer, GetParam(), {});
}

TEST_P(OwnTokenizer, DecodesAsHuggingFaceAndPieceByPiece) {
  const std::string text = ReadTestFile(std::string(kGoldenFolder) + GetParam() + ".decodes.json");
  if (text.empty()) GTEST_SKIP() << "no decode goldens for " << GetParam();
  const auto tokenizer = Load(std::string(kGoldenFolder) + GetParam() + ".tokenizer.json");
  ASSERT_NE(tokenizer, nullptr);
  for (const json& item : json::parse(text)) {
    const auto ids = item[0].get<std::vector<TokenId>>();
    for (const bool skip : {true, false}) {
      const auto expected = item[skip ? 1 : 2].get<std::string>();
      EXPECT_EQ(Decode(*tokenizer, ids, skip), expected);
      IncrementalDetokenizer pieces(tokenizer.get(), skip, /*continues=*/false);
      std::string joined;
      for (const TokenId id : ids) {
        const std::string piece = pieces.Push(id);
        EXPECT_NO_THROW(json(piece).dump())
            << "a piece is not valid UTF-8";  // the library throws on bad UTF-8
        joined += piece;
      }
      EXPECT_EQ(joined + pieces.Flush(), expected);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, OwnTokenizer,
                         ::testing::Values("gpt2", "llama3", "qwen2", "smollm", "llama2", "neox"),
                         [](const auto& info) { return std::string(info.param); });

// OPT's folders: vocab.json, merges.txt, and a tokenizer_config.json that puts </s> first.
TEST(OptTokenizer, EncodesAsHuggingFace) {
  const auto tokenizer = Load(std::string(kGoldenFolder) + "opt");
  ASSERT_NE(tokenizer, nullptr);
  ExpectGolden(*tokenizer, "opt", {});
  EXPECT_EQ(tokenizer->bos_id(), 2);
  EXPECT_EQ(tokenizer->eog_ids(), std::vector<TokenId>{2});
  EXPECT_EQ(*tokenizer->Encode("", {}), std::vector<TokenId>{2});
  EXPECT_EQ(*tokenizer->Encode("</s>", {}), std::vector<TokenId>{2});
  EXPECT_TRUE(tokenizer->IsSpecial(1));
  EXPECT_FALSE(tokenizer->IsSpecial(0)) << "<s> has no part in tokenizer_config.json";
}

// The published files lack tokenizer_config.json.
TEST(OptTokenizer, PublishedFilesEncodeAsHuggingFace) {
  namespace fs = std::filesystem;
  const fs::path path = testing::DataFolder() + "/tokenizers/opt";
  if (!fs::exists(path)) GTEST_SKIP() << path << " is absent (set HYDRANT_DATA_DIR)";
  const fs::path folder = fs::path(::testing::TempDir()) / "tokenizer_golden_test.opt";
  fs::remove_all(folder);
  fs::create_directories(folder);
  for (const char* file : {"vocab.json", "merges.txt"}) fs::copy(path / file, folder);
  fs::copy(std::string(kGoldenFolder) + "opt/tokenizer_config.json", folder);
  const auto tokenizer = Load(folder.string());
  fs::remove_all(folder);
  ASSERT_NE(tokenizer, nullptr);
  ExpectGolden(*tokenizer, "data_opt", {});
}

// The same vocabulary through GGUF metadata.
class OwnGguf : public ::testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(OwnGguf, EncodesAsHuggingFace) {
  const auto [name, pre] = GetParam();
  const json root =
      json::parse(ReadTestFile(std::string(kGoldenFolder) + name + ".tokenizer.json"));
  const json& vocab = root["model"]["vocab"];
  std::vector<std::string> tokens(vocab.size()), merges;
  std::vector<int32_t> types(vocab.size(), 1);
  for (const auto& [text, id] : vocab.items()) tokens[id.get<size_t>()] = text;
  for (const json& merge : root["model"]["merges"]) {
    merges.push_back(merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  }
  for (const json& added : root["added_tokens"]) types[added["id"].get<size_t>()] = 3;
  const auto bytes = testing::GgufBytes()
                         .Text("tokenizer.ggml.model", "gpt2")
                         .Text("tokenizer.ggml.pre", pre)
                         .Texts("tokenizer.ggml.tokens", tokens)
                         .Numbers("tokenizer.ggml.token_type", types)
                         .Texts("tokenizer.ggml.merges", merges)
                         .Number("tokenizer.ggml.bos_token_id", 0)
                         .Number("tokenizer.ggml.eos_token_id", 2)
                         .Finish();
  auto file = GgufFile::Parse(bytes);
  ASSERT_TRUE(file.ok()) << file.status();
  auto tokenizer = TokenizerFromGguf(**file);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  ExpectGolden(**tokenizer, name, {});
  EXPECT_EQ((*tokenizer)->eos_id(), 2);
  EXPECT_EQ((*tokenizer)->eog_ids(), (std::vector<TokenId>{0, 2}));
}

INSTANTIATE_TEST_SUITE_P(Families, OwnGguf,
                         ::testing::Values(std::pair("llama3", "llama-bpe"),
                                           std::pair("qwen2", "qwen2"),
                                           std::pair("smollm", "smollm")),
                         [](const auto& info) { return std::string(info.param.first); });

const EncodeOptions kPlainText{.add_special_tokens = false, .parse_special_tokens = false};

TEST(SentencePiece, EncodesAsTheLibrary) {
  const auto tokenizer = Load(std::string(kGoldenFolder) + "spm.model");
  ASSERT_NE(tokenizer, nullptr);
  ExpectGolden(*tokenizer, "spm", kPlainText);
}

// Unigram, NFKC by a character map, byte fallback, user-defined symbols.
TEST(SentencePiece, OtherKindsEncodeAndDecodeAsTheLibrary) {
  auto loaded = TokenizerFromPath(std::string(kGoldenFolder) + "unigram.model");
  if (absl::IsFailedPrecondition(loaded.status())) GTEST_SKIP() << loaded.status().message();
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const Tokenizer& tokenizer = **loaded;
  ExpectGolden(tokenizer, "unigram", kPlainText);
  for (const json& item :
       json::parse(ReadTestFile(std::string(kGoldenFolder) + "unigram.texts.json"))) {
    EXPECT_EQ(Decode(tokenizer, item["ids"].get<std::vector<TokenId>>(), true), item["text"]);
  }
}

TEST(SentencePiece, ManyLibraryModelsAndThreads) {
  const std::string path = std::string(kGoldenFolder) + "unigram.model";
  if (absl::IsFailedPrecondition(TokenizerFromPath(path).status()))
    GTEST_SKIP() << TokenizerFromPath(path).status().message();
  // More than libc's number of namespaces.
  for (int round = 0; round < 20; ++round) {
    const auto tokenizer = Load(path);
    ASSERT_NE(tokenizer, nullptr) << "round " << round;
    std::vector<std::thread> threads;
    threads.reserve(3);
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&] {
        for (size_t i = 0; i < 50; ++i) {
          const std::string& line = GoldenLines()[i];
          auto ids = tokenizer->Encode(line, kPlainText);
          ASSERT_TRUE(ids.ok());
          EXPECT_EQ(testing::HashIds(*ids), GoldenHashes("unigram")[i]);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

TEST(SentencePiece, GgufVocabularyEncodesAsTheLibrary) {
  std::vector<std::string> tokens;
  std::vector<float> scores;
  std::vector<int32_t> types;
  for (const json& piece :
       json::parse(ReadTestFile(std::string(kGoldenFolder) + "spm.pieces.json"))) {
    tokens.push_back(piece[0]);
    scores.push_back(piece[1]);
    types.push_back(piece[2]);
  }
  const auto bytes = testing::GgufBytes()
                         .Text("tokenizer.ggml.model", "llama")
                         .Texts("tokenizer.ggml.tokens", tokens)
                         .Floats("tokenizer.ggml.scores", scores)
                         .Numbers("tokenizer.ggml.token_type", types)
                         .Number("tokenizer.ggml.bos_token_id", 1)
                         .Number("tokenizer.ggml.eos_token_id", 2)
                         .Finish();
  auto file = GgufFile::Parse(bytes);
  ASSERT_TRUE(file.ok()) << file.status();
  auto tokenizer = TokenizerFromGguf(**file);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  ExpectGolden(**tokenizer, "spm", kPlainText);
  for (const char* text : {"Größe 世界 👍", " a  b", "x"}) {
    auto ids = (*tokenizer)->Encode(text, {});
    ASSERT_TRUE(ids.ok());
    EXPECT_EQ(ids->front(), 1u);
    EXPECT_EQ(Decode(**tokenizer, {ids->begin() + 1, ids->end()}, true), text);
  }
}

struct Published {
  const char* folder;
  const char* golden;
};
class PublishedTokenizer : public ::testing::TestWithParam<Published> {};

TEST_P(PublishedTokenizer, EncodesAsHuggingFace) {
  const std::string path = testing::DataFolder() + "/tokenizers/" + GetParam().folder;
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is absent (set HYDRANT_DATA_DIR)";
  const auto tokenizer = Load(path);
  ASSERT_NE(tokenizer, nullptr);
  ExpectGolden(*tokenizer, GetParam().golden, {});
}

INSTANTIATE_TEST_SUITE_P(Data, PublishedTokenizer,
                         ::testing::Values(Published{"gpt2", "data_gpt2"},
                                           Published{"qwen2_5", "data_qwen2_5"},
                                           Published{"gpt_neox_20b", "data_gpt_neox_20b"}),
                         [](const auto& info) { return std::string(info.param.folder); });

TEST(SmolLm2, EncodesAsHuggingFace) {
  if (!std::filesystem::exists(testing::SmolLm2Path())) GTEST_SKIP() << "set HYDRANT_SMOLLM2";
  auto file = GgufFile::Open(testing::SmolLm2Path());
  ASSERT_TRUE(file.ok()) << file.status();
  auto tokenizer = TokenizerFromGguf(**file);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  ExpectGolden(**tokenizer, "smollm2_model", {});
  EXPECT_EQ((*tokenizer)->eog_ids(), (std::vector<TokenId>{0, 2}));
  EXPECT_EQ((*tokenizer)->bos_id(), 1);
}

// The published vectors: texts and ids, without BOS.
class Vectors : public ::testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(Vectors, AreMet) {
  const auto [vector, source] = GetParam();
  const std::string folder = testing::DataFolder() + "/tokenizers/";
  const std::string inputs = ReadTestFile(folder + "vectors/ggml-vocab-" + vector + ".gguf.inp");
  if (inputs.empty()) GTEST_SKIP() << folder << " is absent (set HYDRANT_DATA_DIR)";
  std::unique_ptr<Tokenizer> tokenizer;
  if (std::string(source).ends_with(".gguf")) {
    auto file = GgufFile::Open(folder + source);
    ASSERT_TRUE(file.ok()) << file.status();
    auto made = TokenizerFromGguf(**file);
    ASSERT_TRUE(made.ok()) << made.status();
    tokenizer = *std::move(made);
  } else {
    tokenizer = Load(folder + source);
  }
  ASSERT_NE(tokenizer, nullptr);
  const std::string separator = "\n__ggml_vocab_test__\n";
  std::istringstream expected(ReadTestFile(folder + "vectors/ggml-vocab-" + vector + ".gguf.out"));
  size_t begin = 0, count = 0;
  for (std::string line; std::getline(expected, line); ++count) {
    const size_t end = inputs.find(separator, begin);
    ASSERT_LE(begin, inputs.size());
    const std::string text = inputs.substr(begin, end == std::string::npos ? end : end - begin);
    begin = end == std::string::npos ? inputs.size() + 1 : end + separator.size();
    std::istringstream numbers(line);
    const std::vector<TokenId> want{std::istream_iterator<TokenId>(numbers), {}};
    auto ids = tokenizer->Encode(text, {.add_special_tokens = false});
    ASSERT_TRUE(ids.ok());
    EXPECT_EQ(*ids, want) << json(text);
    EXPECT_EQ(Decode(*tokenizer, *ids, false), text);
  }
  EXPECT_GT(count, 30u);
}

INSTANTIATE_TEST_SUITE_P(
    Published, Vectors,
    ::testing::Values(std::pair("gpt-2", "vectors/ggml-vocab-gpt-2.gguf"),
                      std::pair("gpt-2", "gpt2"), std::pair("qwen2", "qwen2_5"),
                      std::pair("llama-spm", "vectors/ggml-vocab-llama-spm.gguf"),
                      std::pair("llama-spm", "llama2_spm/llama2_tokenizer.model")));

TEST(Vectors, LongTextsAreMet) {
  const std::string folder = testing::DataFolder() + "/tokenizers/";
  for (const auto& [vector, source] :
       {std::pair("gpt2_encoded_tokens.json", "gpt2"),
        {"llama_encoded.json", "llama2_spm/llama2_tokenizer.model"}}) {
    const std::string text = ReadTestFile(folder + "vectors/" + vector);
    if (text.empty()) GTEST_SKIP() << folder << " is absent (set HYDRANT_DATA_DIR)";
    const json item = json::parse(text);
    const auto tokenizer = Load(folder + source);
    ASSERT_NE(tokenizer, nullptr);
    std::vector<TokenId> want;
    for (const auto& [key, value] : item.items()) {
      if (value.is_array() && !value.empty() && value[0].is_number())
        want = value.get<std::vector<TokenId>>();
    }
    auto ids = tokenizer->Encode(item["text"].get<std::string>(), {});
    ASSERT_TRUE(ids.ok());
    EXPECT_EQ(*ids, want) << vector;
  }
}

}  // namespace
}  // namespace hydrant
