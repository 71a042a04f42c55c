// Text to ids and back gives the text (or its normal form), with every pre-tokenizer and for the
// kinds of SentencePiece vocabularies, on random text; and a GGUF tokenizer stays the same after a
// round trip through tokenizer.json.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "engine/model/gguf.h"
#include "engine/text/tokenizer/detokenizer.h"
#include "engine/text/tokenizer/gguf_pretokenizers.h"
#include "engine/text/tokenizer/pipeline_tokenizer.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "engine/text/tokenizer/tokenizer_json.h"
#include "engine/text/tokenizer/unicode.h"
#include "engine/text/unicode/utf8.h"
#include "tests/engine/text/tokenizer/gguf_bytes.h"
#include "tests/engine/text/tokenizer/golden_lines.h"

namespace hydrant {
namespace {

using nlohmann::json;

constexpr EncodeOptions kPlainText{.add_special_tokens = false, .parse_special_tokens = false};

json ReadJson(const std::string& name) {
  return json::parse(testing::ReadTestFile(testing::kGoldenFolder + name));
}

std::unique_ptr<Tokenizer> Make(const testing::GgufBytes& bytes) {
  const auto data = bytes.Finish();
  auto file = GgufFile::Parse(data);
  EXPECT_TRUE(file.ok()) << file.status();
  auto tokenizer = TokenizerFromGguf(**file);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

// The same through a tokenizer.json.
std::unique_ptr<Tokenizer> MakeByJson(const testing::GgufBytes& bytes) {
  const auto data = bytes.Finish();
  auto file = GgufFile::Parse(data);
  EXPECT_TRUE(file.ok()) << file.status();
  const auto text = TokenizerJsonFromGguf(**file);
  EXPECT_TRUE(text.ok()) << text.status();
  const auto spec = ParseTokenizerJson(*text);
  EXPECT_TRUE(spec.ok()) << spec.status();
  auto tokenizer = MakePipelineTokenizer(*spec);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

// A trained byte-level vocabulary with every byte, with the pre-tokenizer of `pre`.
testing::GgufBytes ByteLevel(const std::string& pre) {
  const json model = ReadJson("llama3.tokenizer.json")["model"];
  std::vector<std::string> tokens(model["vocab"].size()), merges;
  for (const auto& [text, id] : model["vocab"].items()) tokens[id.get<size_t>()] = text;
  for (const json& merge : model["merges"])
    merges.push_back(merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  return testing::GgufBytes()
      .Text("tokenizer.ggml.model", "gpt2")
      .Text("tokenizer.ggml.pre", pre)
      .Texts("tokenizer.ggml.tokens", tokens)
      .Texts("tokenizer.ggml.merges", merges);
}

testing::GgufBytes Pieces(const std::string& file, bool prefix) {
  std::vector<std::string> tokens;
  std::vector<float> scores;
  std::vector<int32_t> types;
  for (const json& piece : ReadJson(file)) {
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
      .Flag("tokenizer.ggml.add_space_prefix", prefix);
}

// Runs of letters, digits, spaces and line ends, and random code points.
std::string RandomText(std::mt19937* random) {
  static const std::string kOften = "aA z'sS01 \n\r\t./!_-";
  std::string text;
  for (size_t runs = 1 + (*random)() % 20; runs > 0; --runs) {
    const bool anywhere = (*random)() % 3 == 0;
    const uint32_t bits = 7 + (*random)() % 14;
    uint32_t c = anywhere ? (*random)() % (1u << bits)
                          : static_cast<uint8_t>(kOften[(*random)() % kOften.size()]);
    // Excludes surrogates, values out of range, and SentencePiece's U+2581.
    if ((c >= 0xD800 && c < 0xE000) || c > 0x10FFFF || c == 0x2581) c = 'x';
    for (size_t count = 1 + (*random)() % 5; count > 0; --count) AppendUtf8(c, &text);
  }
  return text;
}

void ExpectRoundTrip(const Tokenizer& tokenizer, const std::string& text,
                     const std::string& expected) {
  auto ids = tokenizer.Encode(text, kPlainText);
  ASSERT_TRUE(ids.ok()) << ids.status();
  ASSERT_EQ(Decode(tokenizer, *ids, /*skip_special=*/false), expected) << json(text).dump();
}

TEST(RoundTrip, GivesTheTextAgain) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const json golden = ReadJson("splits.json");
  for (const auto& [name, unused] : golden["rules"].items()) {
    SCOPED_TRACE(name);
    TokenizerSpec spec;
    bool add_bos = false;
    ASSERT_TRUE(ApplyGgufPreTokenizer(name, &spec, &add_bos).ok());
    const auto tokenizer = Make(ByteLevel(name));
    for (int i = 0; i < 300; ++i) {
      const std::string text = RandomText(&random);
      ExpectRoundTrip(*tokenizer, text,
                      spec.normalizers.empty() ? text : Normalize(NormalForm::kNfc, text));
    }
  }
  for (const auto& bytes : {Pieces("spm.pieces.json", true), Pieces("gemma.pieces.json", false)}) {
    const auto tokenizer = Make(bytes);
    for (int i = 0; i < 1000; ++i) {
      const std::string text = RandomText(&random);
      ExpectRoundTrip(*tokenizer, text, text);
    }
  }
}

void ExpectSame(const Tokenizer& a, const Tokenizer& b, const std::string& text) {
  for (const bool special : {false, true}) {
    const EncodeOptions options{.add_special_tokens = special, .parse_special_tokens = special};
    const auto ids = a.Encode(text, options);
    ASSERT_TRUE(ids.ok()) << ids.status();
    ASSERT_EQ(*ids, *b.Encode(text, options)) << json(text).dump();
    ASSERT_EQ(Decode(a, *ids, special), Decode(b, *ids, special)) << json(text).dump();
  }
}

TEST(TokenizerJson, IsTheTokenizerOfTheGgufFile) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  std::vector<std::pair<std::string, testing::GgufBytes>> files;
  const json golden = ReadJson("splits.json");
  for (const auto& [name, unused] : golden["rules"].items())
    files.emplace_back(name, ByteLevel(name));
  files.emplace_back("pieces", Pieces("spm.pieces.json", true));
  for (const auto& [name, bytes] : files) {
    SCOPED_TRACE(name);
    const auto direct = Make(bytes), by_json = MakeByJson(bytes);
    for (int i = 0; i < 300; ++i) ExpectSame(*direct, *by_json, RandomText(&random));
    for (size_t i = 0; i < testing::GoldenLines().size(); i += 50)
      ExpectSame(*direct, *by_json, testing::GoldenLines()[i]);
  }
}

}  // namespace
}  // namespace hydrant
