// Compares pre-tokenizers of the families, character classes, and vocabularies like Gemma's and
// Mistral's with Hugging Face `tokenizers` and SentencePiece (tests/goldens/splits.py).
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "engine/model/gguf.h"
#include "engine/text/tokenizer/detokenizer.h"
#include "engine/text/tokenizer/gguf_pretokenizers.h"
#include "engine/text/tokenizer/normalizer.h"
#include "engine/text/tokenizer/pipeline_tokenizer.h"
#include "engine/text/tokenizer/pretokenizer.h"
#include "engine/text/tokenizer/regex.h"
#include "engine/text/tokenizer/tokenizer_json.h"
#include "engine/text/unicode/utf8.h"
#include "tests/engine/text/tokenizer/gguf_bytes.h"
#include "tests/engine/text/tokenizer/golden_lines.h"

namespace hydrant {
namespace {

using nlohmann::json;
using testing::kGoldenFolder;
using testing::ReadTestFile;

const json& Golden() {
  static const json golden = json::parse(ReadTestFile(std::string(kGoldenFolder) + "splits.json"));
  return golden;
}

const std::vector<std::string>& Lines() {
  static const std::vector<std::string> lines =
      testing::LinesOf(Golden()["fragments"].get<std::vector<std::string>>());
  return lines;
}

std::vector<uint32_t> CodePoints(std::string_view text) {
  std::vector<uint32_t> code_points;
  while (!text.empty()) {
    const Utf8Front front = ReadUtf8(text);
    code_points.push_back(front.code_point);
    text.remove_prefix(front.length);
  }
  return code_points;
}

// Compares `encode`'s result for every line with the hashes, one per block of lines.
template <typename Encode>
void ExpectBlocks(const json& expected, const Encode& encode) {
  const size_t block = Golden()["block"].get<size_t>();
  ASSERT_EQ(expected.size() * block, Lines().size());
  for (size_t i = 0; i < expected.size(); ++i) {
    std::vector<uint32_t> numbers;
    for (size_t line = i * block; line < (i + 1) * block; ++line) {
      const std::vector<uint32_t> one = encode(Lines()[line]);
      numbers.push_back(static_cast<uint32_t>(one.size()));
      numbers.insert(numbers.end(), one.begin(), one.end());
    }
    ASSERT_EQ(testing::HashIds(numbers), expected[i].get<uint32_t>())
        << "lines " << i * block << " to " << (i + 1) * block - 1;
  }
}

void ExpectIds(const json& expected, const Tokenizer& tokenizer, bool special) {
  ExpectBlocks(expected, [&](const std::string& line) {
    auto ids =
        tokenizer.Encode(line, {.add_special_tokens = false, .parse_special_tokens = special});
    EXPECT_TRUE(ids.ok()) << ids.status();
    return ids.ok() ? *ids : std::vector<TokenId>();
  });
}

// The steps of one name, constructed as in a tokenizer.
struct Rule {
  Normalizer normalizer;
  PreTokenizer splits;

  PieceList Split(const std::string& text) const {
    auto pieces = splits.Apply(*normalizer.Apply(text), true);
    EXPECT_TRUE(pieces.ok()) << pieces.status();
    return pieces.ok() ? *std::move(pieces) : PieceList();
  }
};

Rule MakeRule(const std::string& name) {
  TokenizerSpec spec;
  bool add_bos = false;
  EXPECT_TRUE(ApplyGgufPreTokenizer(name, &spec, &add_bos).ok()) << name;
  auto normalizer = Normalizer::Create(spec.normalizers);
  auto splits = PreTokenizer::Create(spec.pre_tokenizers);
  EXPECT_TRUE(normalizer.ok() && splits.ok()) << normalizer.status() << splits.status();
  return {*std::move(normalizer), *std::move(splits)};
}

TEST(SplitRules, LinesAreTheScripts) {
  std::vector<uint32_t> code_points;
  for (const std::string& line : Lines()) {
    for (const uint32_t code_point : CodePoints(line)) code_points.push_back(code_point);
  }
  EXPECT_EQ(testing::HashIds(code_points), Golden()["lines"].get<uint32_t>());
}

TEST(SplitRules, SplitAsHuggingFace) {
  for (const auto& [name, expected] : Golden()["rules"].items()) {
    SCOPED_TRACE(name);
    const Rule rule = MakeRule(name);
    ExpectBlocks(expected, [&rule](const std::string& line) {
      const PieceList list = rule.Split(line);
      std::vector<uint32_t> lengths;
      lengths.reserve(list.pieces.size());
      for (const PieceList::Piece& piece : list.pieces)
        lengths.push_back(static_cast<uint32_t>(piece.end - piece.begin));
      return lengths;
    });
  }
}

// Quadratic time would take hours here; the test's time limit is the bound.
TEST(SplitRules, LongRunsAreNotQuadratic) {
  std::string marks, han, mixed;
  for (int i = 0; i < 100000; ++i) marks += "\u0301", han += "漢", mixed += i % 2 ? "a" : "A";
  for (const auto& [name, unused] : Golden()["rules"].items()) {
    const Rule rule = MakeRule(name);
    for (const std::string& text :
         {std::string(1 << 18, 'a'), std::string(1 << 18, 'A'), std::string(1 << 18, ' '),
          std::string(1 << 18, '\n'), std::string(1 << 18, '!'), std::string(1 << 18, '1'), marks,
          han, mixed}) {
      EXPECT_FALSE(rule.Split(text).pieces.empty()) << name;
    }
  }
}

TEST(SplitRules, AnUnknownNameIsRefusedWithTheKnown) {
  TokenizerSpec spec;
  bool add_bos = false;
  const absl::Status status = ApplyGgufPreTokenizer("nobody", &spec, &add_bos);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_NE(status.message().find("'nobody'"), std::string_view::npos);
  for (const auto& [name, unused] : Golden()["rules"].items())
    EXPECT_NE(status.message().find(name), std::string_view::npos) << name;
}

TEST(Regex, ClassesAreOnigurumas) {
  for (const auto& [name, expected] : Golden()["classes"].items()) {
    auto regex = Regex::Compile("\\p{" + name + "}");
    ASSERT_TRUE(regex.ok()) << regex.status();
    std::string everything;
    std::vector<uint32_t> members;
    for (uint32_t c = 0; c < 0x110000; ++c) {
      if (c < 0xD800 || c > 0xDFFF) AppendUtf8(c, &everything);
    }
    std::vector<Regex::Match> matches;
    ASSERT_TRUE((*regex)->FindAll(everything, &matches).ok());
    members.reserve(matches.size());
    for (const auto& [begin, end] : matches)
      members.push_back(ReadUtf8(std::string_view(everything).substr(begin)).code_point);
    EXPECT_EQ(members.size(), expected[0].get<size_t>()) << name;
    EXPECT_EQ(testing::HashIds(members), expected[1].get<uint32_t>()) << name;
  }
}

testing::GgufBytes PieceGguf(const std::string& file, const std::vector<json>& more) {
  std::vector<std::string> tokens;
  std::vector<float> scores;
  std::vector<int32_t> types;
  json pieces = json::parse(ReadTestFile(std::string(kGoldenFolder) + file));
  for (const json& piece : more) pieces.push_back(piece);
  for (const json& piece : pieces) {
    tokens.push_back(piece[0]);
    scores.push_back(piece[1]);
    types.push_back(piece[2]);
  }
  return testing::GgufBytes()
      .Text("tokenizer.ggml.model", "llama")
      .Texts("tokenizer.ggml.tokens", tokens)
      .Floats("tokenizer.ggml.scores", scores)
      .Numbers("tokenizer.ggml.token_type", types)
      .Number("tokenizer.ggml.bos_token_id", 1)
      .Number("tokenizer.ggml.eos_token_id", 2);
}

std::unique_ptr<Tokenizer> FromGguf(const testing::GgufBytes& bytes) {
  const auto data = bytes.Finish();
  auto file = GgufFile::Parse(data);
  EXPECT_TRUE(file.ok()) << file.status();
  auto tokenizer = TokenizerFromGguf(**file);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

// Runs of spaces are user-defined symbols, and no space is added in front.
TEST(Gemma, ModelFileEncodesAsSentencePiece) {
  auto tokenizer = TokenizerFromPath(std::string(kGoldenFolder) + "gemma.model");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  ExpectIds(Golden()["gemma_library"], **tokenizer, /*special=*/true);
}

TEST(Gemma, GgufEncodesAsSentencePiece) {
  const auto tokenizer =
      FromGguf(PieceGguf("gemma.pieces.json", {}).Flag("tokenizer.ggml.add_space_prefix", false));
  ExpectIds(Golden()["gemma_library"], *tokenizer, /*special=*/true);
  const auto ids = *tokenizer->Encode("a     b", {.add_special_tokens = false});
  EXPECT_EQ(Decode(*tokenizer, ids, true), "a     b");
}

TEST(Gemma, JsonEncodesAsHuggingFace) {
  auto tokenizer = TokenizerFromPath(std::string(kGoldenFolder) + "gemma.tokenizer.json");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  ExpectIds(Golden()["gemma_json"], **tokenizer, /*special=*/true);
  const auto ids = *(*tokenizer)->Encode("<end_of_turn>", {});
  EXPECT_EQ((*tokenizer)->eog_ids(), ids) << "and not at </s>, which is a tag of HTML";
}

TEST(Mistral, SpaceStandsOnlyBeforeTheWholeText) {
  json root = json::parse(ReadTestFile(std::string(kGoldenFolder) + "llama2.tokenizer.json"));
  const size_t size = root["model"]["vocab"].size();
  root["normalizer"] = nullptr;
  root["pre_tokenizer"] = {
      {"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", "first"}, {"split", false}};
  root["added_tokens"].push_back({{"id", size}, {"content", "[INST]"}, {"special", true}});
  auto spec = ParseTokenizerJson(root.dump());
  ASSERT_TRUE(spec.ok()) << spec.status();
  auto from_json = MakePipelineTokenizer(*spec);
  ASSERT_TRUE(from_json.ok()) << from_json.status();
  ExpectIds(Golden()["mistral"], **from_json, /*special=*/true);
  const auto from_gguf = FromGguf(PieceGguf("spm.pieces.json", {json{"[INST]", 0, 3}}));
  ExpectIds(Golden()["mistral"], *from_gguf, /*special=*/true);
}

}  // namespace
}  // namespace hydrant
