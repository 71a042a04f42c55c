// Errors, special tokens, limits and the parts of the tokenizer, on tokenizers defined here.
#include "engine/text/tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "engine/model/gguf.h"
#include "engine/text/tokenizer/detokenizer.h"
#include "engine/text/tokenizer/pipeline_tokenizer.h"
#include "engine/text/tokenizer/regex.h"
#include "engine/text/tokenizer/tokenizer_json.h"
#include "engine/text/tokenizer/unicode.h"
#include "engine/text/unicode/utf8.h"
#include "tests/engine/text/tokenizer/gguf_bytes.h"
#include "tests/engine/text/tokenizer/golden_lines.h"

namespace hydrant {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

std::unique_ptr<Tokenizer> Own(const std::string& name) {
  auto tokenizer = TokenizerFromPath(testing::kGoldenFolder + name);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

std::string JsonError(const std::string& text) {
  auto spec = ParseTokenizerJson(text);
  if (!spec.ok()) return std::string(spec.status().message());
  return std::string(MakePipelineTokenizer(*spec).status().message());
}

// Maximum bytes of text per token, by the parts of a tokenizer.
TEST(MaxBytesPerToken, IsTheLongestTokenTimesTheNormalizersBound) {
  const auto most = [](const std::string& model, const std::string& rest = "") {
    auto spec = ParseTokenizerJson(R"({"model":{"type":"BPE",)" + model + "}" + rest + "}");
    EXPECT_TRUE(spec.ok()) << spec.status();
    auto tokenizer = MakePipelineTokenizer(*spec);
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    return (*tokenizer)->MaxBytesPerToken();
  };
  const std::string vocab = R"("vocab":{"a":0,"b":1,"abbab":2,"?":3},"merges":[],)";
  const std::string unknown = vocab + R"("unk_token":"?")";
  EXPECT_EQ(most(unknown), 5);
  EXPECT_EQ(most(R"("vocab":{"a":0,"?":1},"merges":[],"unk_token":"?")"), 4)
      << "an unknown character";
  EXPECT_EQ(most(unknown, R"(,"added_tokens":[{"id":4,"content":"<seven>","special":true}])"), 7);
  EXPECT_EQ(most(unknown, R"(,"normalizer":{"type":"NFC"})"), 4 * 5);
  EXPECT_EQ(most(unknown, R"(,"normalizer":{"type":"Prepend","prepend":"_"})"), 5);
  EXPECT_EQ(most(unknown, R"(,"normalizer":{"type":"Replace","pattern":{"String":"cde"},)"
                          R"("content":"a"})"),
            3 * 5);
  // Text that can vanish has no bound.
  EXPECT_EQ(most(vocab + R"("fuse_unk":false)"), std::nullopt) << "unknown characters are dropped";
  EXPECT_EQ(most(unknown + R"(,"fuse_unk":true)"), std::nullopt);
  EXPECT_EQ(most(unknown, R"(,"normalizer":{"type":"Replace","pattern":{"String":"c"},)"
                          R"("content":""})"),
            std::nullopt);
  EXPECT_EQ(most(unknown, R"(,"normalizer":{"type":"Replace","pattern":{"Regex":"c+"},)"
                          R"("content":"a"})"),
            std::nullopt);
  EXPECT_EQ(most(unknown, R"(,"added_tokens":[{"id":4,"content":"<x>","special":true,)"
                          R"("rstrip":true}])"),
            std::nullopt);
  EXPECT_EQ(most(unknown, R"(,"pre_tokenizer":{"type":"Split","pattern":{"String":"c"},)"
                          R"("behavior":"Removed"})"),
            std::nullopt);
}

// For each tokenizer with a bound, on texts of the characters that normal forms shorten most, and
// of white space.
TEST(MaxBytesPerToken, HoldsForTheTokenizersThatThereAre) {
  constexpr unsigned kSeed = 20251123;
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  std::mt19937 random(kSeed);
  const std::string pieces[] = {" ",
                                "    ",
                                "\n",
                                "the ",
                                "\xE1\xBE\xBE\xCC\x88\xCC\x81",
                                "\xE2\x84\xAA",
                                "\xE1\xBF\xAF",
                                "\xF0\x9D\x90\x80",
                                "<s>",
                                "</s>",
                                "<|endoftext|>",
                                "\xE2\x96\x81",
                                "0",
                                "zz",
                                "=====",
                                "\xEC\x9E\xA5"};
  int bounded = 0;
  for (const auto& entry : std::filesystem::directory_iterator(testing::kGoldenFolder)) {
    auto tokenizer = TokenizerFromPath(entry.path().string());
    if (!tokenizer.ok()) continue;
    const std::optional<int64_t> most = (*tokenizer)->MaxBytesPerToken();
    if (!most.has_value()) continue;
    ++bounded;
    for (int i = 0; i < 200; ++i) {
      std::string text;
      const std::string& often = pieces[random() % std::size(pieces)];
      for (int j = 0; j < 40; ++j)
        text += random() % 4 == 0 ? pieces[random() % std::size(pieces)] : often;
      const auto ids = (*tokenizer)->Encode(text, {.add_special_tokens = false});
      ASSERT_TRUE(ids.ok()) << ids.status();
      EXPECT_LE(text.size(), ids->size() * *most) << entry.path() << ": " << text;
    }
  }
  EXPECT_GT(bounded, 2);
}

TEST(TokenizerJson, ErrorsNameTheField) {
  const auto with = [](const std::string& model, const std::string& rest = "") {
    return JsonError(R"({"model":{"type":"BPE",)" + model + "}" + rest + "}");
  };
  const std::string ok = R"("vocab":{"a":0,"b":1,"ab":2},"merges":["a b"])";
  EXPECT_EQ(with(ok), "");
  EXPECT_THAT(JsonError("{"), HasSubstr("not valid JSON"));
  EXPECT_THAT(JsonError("[]"), HasSubstr("not a JSON object"));
  EXPECT_THAT(JsonError("{}"), HasSubstr("model"));
  EXPECT_THAT(JsonError(R"({"model":{"type":"Unigram"}})"), HasSubstr("'Unigram'"));
  EXPECT_THAT(with(R"("vocab":{"a":0,"b":0},"merges":[])"), HasSubstr("same id 0"));
  EXPECT_THAT(with(R"("vocab":{"a":0,"a":1},"merges":[])"), HasSubstr("'a' is listed twice"));
  EXPECT_THAT(with(R"("vocab":{"a":-1},"merges":[])"), HasSubstr("ids are 0 to"));
  EXPECT_THAT(with(R"("vocab":{"a":4294967295},"merges":[])"), HasSubstr("ids are 0 to"));
  EXPECT_THAT(with(R"("vocab":{},"merges":[])"), HasSubstr("empty"));
  EXPECT_THAT(with(R"("vocab":{"a":0},"merges":["a b"])"), HasSubstr("needs 'b'"));
  EXPECT_THAT(with(R"("vocab":{"a":0},"merges":["ab"])"), HasSubstr("entry 0"));
  EXPECT_THAT(with(R"("vocab":{"a":0},"merges":[3])"), HasSubstr("entry 0"));
  EXPECT_THAT(with(ok, R"(,"pre_tokenizer":{"type":"UnicodeScripts"})"),
              HasSubstr("'UnicodeScripts'"));
  EXPECT_THAT(with(ok, R"(,"normalizer":{"type":"Nmt"})"), HasSubstr("'Nmt'"));
  EXPECT_THAT(with(ok, R"(,"decoder":{"type":"CTC"})"), HasSubstr("'CTC'"));
  EXPECT_THAT(with(ok, R"(,"post_processor":{"type":"Odd"})"), HasSubstr("'Odd'"));
  EXPECT_THAT(with(ok, R"(,"added_tokens":[{"id":7}, {"id":-2,"content":"x"}])"),
              HasSubstr("added_tokens[1].id"));
  EXPECT_THAT(with(ok, R"(,"added_tokens":[{"id":1,"content":"x"}])"),
              HasSubstr("has the id of 'b'"));
  EXPECT_THAT(
      with(ok,
           R"(,"pre_tokenizer":{"type":"Split","pattern":{"Regex":"(a"},"behavior":"Isolated"})"),
      HasSubstr("(a"));
}

// No byte is unknown if every byte is a token.
TEST(TokenizerJson, AnUnknownTokenBesideBytesIsIdle) {
  json root = json::parse(
      testing::ReadTestFile(std::string(testing::kGoldenFolder) + "qwen2.tokenizer.json"));
  root["model"]["unk_token"] = "<|endoftext|>";
  EXPECT_EQ(JsonError(root.dump()), "");
  root["model"]["vocab"].erase("!");
  EXPECT_THAT(JsonError(root.dump()), HasSubstr("where bytes have no token"));
}

// File contents may be long and arbitrary; the message still is a line.
TEST(TokenizerErrors, AreOneShortLine) {
  const std::string text = std::string("x\n\x1b[2J") + std::string(1 << 20, 'y');
  std::vector<std::string> errors;
  for (const auto& bytes : {testing::GgufBytes().Text("tokenizer.ggml.model", text),
                            testing::GgufBytes()
                                .Text("tokenizer.ggml.model", "gpt2")
                                .Texts("tokenizer.ggml.tokens", {"a"})
                                .Text("tokenizer.ggml.pre", text),
                            testing::GgufBytes()
                                .Text("tokenizer.ggml.model", "gpt2")
                                .Texts("tokenizer.ggml.tokens", {"a"})
                                .Texts("tokenizer.ggml.merges", {text}),
                            testing::GgufBytes()
                                .Text("tokenizer.ggml.model", "gpt2")
                                .Texts("tokenizer.ggml.tokens", {text, text})
                                .Texts("tokenizer.ggml.merges", {})}) {
    const auto data = bytes.Finish();
    errors.emplace_back(TokenizerFromGguf(**GgufFile::Parse(data)).status().message());
  }
  for (const json& root :
       {json{{"model", {{"type", text}}}},
        json{{"model", {{"type", "BPE"}, {"vocab", {{"a", 0}}}, {"merges", {text}}}}},
        json{{"model", {{"type", "BPE"}, {"vocab", {{text, 0}, {"b", 0}}}, {"merges", {}}}}}}) {
    errors.push_back(JsonError(root.dump()));
  }
  for (const std::string& error : errors) {
    EXPECT_FALSE(error.empty());
    EXPECT_LT(error.size(), 600u);
    for (const char c : error) ASSERT_GE(c, ' ') << error.substr(0, 100);
  }
}

// A tokenizer like Llama 2's: its normalizer puts a space before the text and writes spaces as
// "\u2581". Ids and texts are those of Hugging Face's tokenizers 0.23.3.
std::unique_ptr<Tokenizer> LikeLlama2() {
  auto spec = ParseTokenizerJson(R"({
    "added_tokens": [
      {"id": 9, "content": "<t>", "normalized": true, "special": false},
      {"id": 10, "content": "</s>", "normalized": true, "special": true},
      {"id": 11, "content": "<u v>", "normalized": true, "special": false}],
    "normalizer": {"type": "Sequence", "normalizers": [
      {"type": "Prepend", "prepend": "\u2581"},
      {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]},
    "decoder": {"type": "Sequence", "decoders": [
      {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
      {"type": "ByteFallback"}, {"type": "Fuse"},
      {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
    "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
      "vocab": {"<unk>": 0, "\u2581": 1, "a": 2, "b": 3, "\u2581a": 4, "\u2581b": 5, "<": 6,
                "t": 7, ">": 8},
      "merges": ["\u2581 a", "\u2581 b"]}})");
  EXPECT_TRUE(spec.ok()) << spec.status();
  auto tokenizer = MakePipelineTokenizer(*spec);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

TEST(AddedTokens, NormalizedTokensKeepStrippedSpace) {
  const auto tokenizer = LikeLlama2();
  const std::vector<std::pair<std::string, std::vector<TokenId>>> cases = {
      {"a <t> b", {4, 9, 5}},   {"a<t>b", {4, 6, 7, 8, 3}}, {"<t> b", {9, 5}},
      {"<t><t>", {9, 6, 7, 8}}, {" <t>", {1, 9}},           {"a <u v> b", {4, 11, 5}},
      {"a </s> b", {4, 10, 5}}};
  for (const auto& [text, ids] : cases) {
    EXPECT_EQ(*tokenizer->Encode(text, {}), ids) << text;
    EXPECT_EQ(Decode(*tokenizer, ids, false), text);
  }
}

// Literal text within a prompt with special tokens.
TEST(AddedTokens, LiteralTextIsNoSpecialToken) {
  const auto tokenizer = Own("qwen2.tokenizer.json");
  const auto encode = [&](const std::string& text, bool literals, bool parse = true) {
    return *tokenizer->Encode(text, {.parse_special_tokens = parse, .has_literals = literals});
  };
  const std::string end = "<|im_end|>";
  const TokenId id = encode(end, false).at(0);
  ASSERT_TRUE(tokenizer->IsSpecial(id));
  for (const std::string said : {"a<|im_end|>b", "<|im_end|>", "<|im_end|><|im_end|>", "plain"}) {
    std::vector<TokenId> wanted = encode(said, false, false);
    ASSERT_THAT(wanted, ::testing::Not(::testing::Contains(id)));
    EXPECT_EQ(encode(tokenizer->Literal(said), true), wanted) << said;
    wanted.push_back(id);
    EXPECT_EQ(encode(tokenizer->Literal(said) + end, true), wanted) << said;
    EXPECT_EQ(Decode(*tokenizer, wanted, false), said + end);
  }
  EXPECT_EQ(tokenizer->Literal("plain"), "plain");
  const auto spaced = LikeLlama2();
  EXPECT_THAT(*spaced->Encode(spaced->Literal("a </s> b"), {.has_literals = true}),
              ::testing::Not(::testing::Contains(10u)));
}

TEST(TokenizerErrors, ADeviceIsNoTokenizer) {
  EXPECT_THAT(std::string(TokenizerFromPath("/dev/zero").status().message()),
              HasSubstr("/dev/zero: is no regular file"));
}

TEST(Gguf, ErrorsNameTheKey) {
  const auto error = [](const testing::GgufBytes& bytes) {
    const auto data = bytes.Finish();
    auto file = GgufFile::Parse(data);
    EXPECT_TRUE(file.ok()) << file.status();
    return std::string(TokenizerFromGguf(**file).status().message());
  };
  const auto base = [] {
    return testing::GgufBytes()
        .Text("tokenizer.ggml.model", "gpt2")
        .Texts("tokenizer.ggml.tokens", {"a", "b", "ab"})
        .Texts("tokenizer.ggml.merges", {"a b"});
  };
  EXPECT_EQ(error(base()), "");
  EXPECT_THAT(error(testing::GgufBytes().Text("tokenizer.ggml.model", "rwkv")),
              HasSubstr("'rwkv'"));
  EXPECT_THAT(error(base().Text("tokenizer.ggml.pre", "chameleon")), HasSubstr("'chameleon'"));
  EXPECT_THAT(error(base().Number("tokenizer.ggml.eos_token_id", 3)),
              HasSubstr("eos_token_id is 3"));
  EXPECT_THAT(error(base().Numbers("tokenizer.ggml.token_type", {1})), HasSubstr("1 token types"));
  EXPECT_THAT(error(base().Flag("tokenizer.ggml.add_bos_token", true)), HasSubstr("to be added"));
  EXPECT_THAT(error(testing::GgufBytes()
                        .Text("tokenizer.ggml.model", "gpt2")
                        .Texts("tokenizer.ggml.tokens", {"a", "a"})
                        .Texts("tokenizer.ggml.merges", {})),
              HasSubstr("two ids, 0 and 1"));
}

TEST(Encode, RefusesBadUtf8WithItsOffset) {
  const auto tokenizer = Own("gpt2.tokenizer.json");
  for (const auto& [text, offset] :
       {std::pair("ab\xFF", "byte 2"), {"\xC3", "byte 0"}, {"a\xED\xA0\x80", "byte 1"}}) {
    const auto ids = tokenizer->Encode(text, {});
    EXPECT_EQ(ids.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(ids.status().message()), HasSubstr(offset));
  }
}

TEST(Encode, BosIsNeverDoubled) {
  const auto tokenizer = Own("llama3.tokenizer.json");  // its template adds <|endoftext|>, id 0
  EXPECT_EQ(tokenizer->bos_id(), 0);
  const auto plain = *tokenizer->Encode("page", {.add_special_tokens = false});
  auto with_bos = plain;
  with_bos.insert(with_bos.begin(), 0);
  EXPECT_EQ(*tokenizer->Encode("page", {}), with_bos);
  EXPECT_EQ(*tokenizer->Encode("<|endoftext|>page", {}), with_bos);
  EXPECT_EQ(*tokenizer->Encode("", {}), std::vector<TokenId>{0});
}

TEST(Encode, SpecialTextMayBePlain) {
  const auto tokenizer = Own("qwen2.tokenizer.json");
  const auto parsed = *tokenizer->Encode("<|im_end|>", {});
  ASSERT_EQ(parsed.size(), 1u);
  EXPECT_TRUE(tokenizer->IsSpecial(parsed[0]));
  EXPECT_EQ(tokenizer->TokenText(parsed[0]), "<|im_end|>");
  const auto plain = *tokenizer->Encode("<|im_end|>", {.parse_special_tokens = false});
  EXPECT_GT(plain.size(), 1u);
  EXPECT_EQ(Decode(*tokenizer, plain, true), "<|im_end|>");
  EXPECT_EQ(Decode(*tokenizer, parsed, true), "");
  EXPECT_EQ(Decode(*tokenizer, parsed, false), "<|im_end|>");
}

// Quadratic time would take hours here; the test's time limit is the bound.
TEST(Encode, LongRunsAreNotQuadratic) {
  std::string marks;
  for (int i = 0; i < 100000; ++i) marks += i % 2 == 0 ? "\u0301" : "\u0323";
  for (const char* name : {"gpt2.tokenizer.json", "qwen2.tokenizer.json", "smollm.tokenizer.json",
                           "llama2.tokenizer.json", "spm.model"}) {
    const auto tokenizer = Own(name);
    for (const std::string& text :
         {std::string(1 << 20, 'a'), std::string(1 << 20, ' '), std::string(1 << 18, '\n'),
          "a" + marks, std::string(1 << 18, '!')}) {
      auto ids = tokenizer->Encode(text, {.add_special_tokens = false});
      ASSERT_TRUE(ids.ok()) << ids.status();
      if (text.size() < 2 * marks.size() && text[0] == 'a') continue;  // NFC reorders the marks
      EXPECT_EQ(Decode(*tokenizer, *ids, false), text) << name;
    }
  }
}

TEST(Regex, GivesUpLoudly) {
  auto regex = Regex::Compile("(a+)+$b");
  ASSERT_TRUE(regex.ok());
  std::vector<Regex::Match> matches;
  const absl::Status status = (*regex)->FindAll(std::string(64, 'a') + "c", &matches);
  EXPECT_TRUE(status.ok() || absl::IsResourceExhausted(status)) << status;
  auto hard = Regex::Compile("(a|aa|aaa)+[bc]x");
  ASSERT_TRUE(hard.ok());
  EXPECT_TRUE(absl::IsResourceExhausted((*hard)->FindAll(std::string(200, 'a') + "cbx", &matches)));
}

TEST(Regex, RefusesPatternsThatEnginesReadDifferently) {
  for (const char* pattern :
       {"\\w+", "\\bx", "\\h", "[a[bc]]", "[a&&b]", "a{1,2}+", "(?m:a.)", "\\K"}) {
    EXPECT_EQ(Regex::Compile(pattern).status().code(), absl::StatusCode::kUnimplemented) << pattern;
  }
  for (const char* pattern : {"(", "[a", "a\\", "\\p{L", "\\p{Nonsense}"}) {
    EXPECT_EQ(Regex::Compile(pattern).status().code(), absl::StatusCode::kInvalidArgument)
        << pattern;
  }
}

// The cases of Unicode 15, table 3-8 and Python's "replace".
TEST(Utf8, ReplacesMaximalSubparts) {
  const std::string r = "\xEF\xBF\xBD";
  for (const auto& [bytes, text] :
       {std::pair<std::string, std::string>{"\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41",
                                            r + r + r + r + r + r + r + r + "A"},
        {"\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41", r + r + r + r + r + r + r + r + "A"},
        {"\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42", r + r + r + r + r + "A" + r + r + "B"},
        {"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41", r + r + r + r + "A"},
        {"\xF0\x9F\x91", r}}) {
    std::string pending = bytes, whole, piecewise, open;
    DrainUtf8(true, &pending, &whole);
    EXPECT_EQ(whole, text);
    for (const char c : bytes) {
      open += c;
      DrainUtf8(false, &open, &piecewise);
      EXPECT_LE(open.size(), 3u);
    }
    DrainUtf8(true, &open, &piecewise);
    EXPECT_EQ(piecewise, text);
  }
}

TEST(Detokenizer, HoldsBackAnOpenCharacter) {
  const auto tokenizer = Own("llama2.tokenizer.json");
  const auto ids = *tokenizer->Encode("🦒", {});  // bytes, as the vocabulary lacks it
  ASSERT_EQ(ids.size(), 5u);
  IncrementalDetokenizer pieces(tokenizer.get(), true, false);
  for (size_t i = 0; i + 1 < ids.size(); ++i) EXPECT_EQ(pieces.Push(ids[i]), "");
  EXPECT_EQ(pieces.Push(ids.back()), "🦒");
  IncrementalDetokenizer after_prompt(tokenizer.get(), true, /*continues=*/true);
  EXPECT_EQ(after_prompt.Push(tokenizer->Encode("page", {})->front())[0], ' ');
}

TEST(Folder, ReadsTheConfigurationBeside) {
  const std::string folder = ::testing::TempDir() + "hydrant_tokenizer_folder";
  std::filesystem::create_directories(folder);
  const auto write = [&](const char* name, const std::string& text) {
    std::ofstream(folder + "/" + name) << text;
  };
  write("tokenizer.json",
        testing::ReadTestFile(std::string(testing::kGoldenFolder) + "qwen2.tokenizer.json"));
  write("tokenizer_config.json", R"({"bos_token":{"content":"<|im_start|>"},"chat_template":"T"})");
  write("config.json", R"({"eos_token_id":[2,0]})");
  EXPECT_EQ((*TokenizerFromPath(folder))->eos_id(), 2) << "where no token is named";
  write("tokenizer_config.json", R"({"bos_token":{"content":"<|im_start|>"},
                                     "eos_token":"<|im_end|>","chat_template":"T"})");
  write("generation_config.json", R"({"eos_token_id":[2,5]})");
  write("config.json", R"({"eos_token_id":6})");
  auto tokenizer = TokenizerFromPath(folder);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->bos_id(), 1);
  EXPECT_EQ((*tokenizer)->eos_id(), 2) << "not the lowest end of generation";
  EXPECT_EQ((*tokenizer)->eog_ids(), (std::vector<TokenId>{0, 2, 5, 6}));
  write("config.json", R"({"text_config":{"eos_token_id":[7]}})");
  EXPECT_EQ((*TokenizerFromPath(folder))->eog_ids(), (std::vector<TokenId>{0, 2, 5, 7}))
      << "of a model that sees pictures";
  write("generation_config.json", R"({"eos_token_id":99999})");
  EXPECT_THAT(std::string(TokenizerFromPath(folder).status().message()),
              HasSubstr("id 99999 is outside"));
  std::filesystem::remove_all(folder);
  EXPECT_EQ(TokenizerFromPath(folder).status().code(), absl::StatusCode::kNotFound);
}

// A map that loads must also encode safely (checked by the sanitizers).
TEST(SentencePiece, CorruptCharacterMapsAreHarmless) {
  const std::string good =
      testing::ReadTestFile(std::string(testing::kGoldenFolder) + "unigram.model");
  const std::string path = ::testing::TempDir() + "hydrant_map.model";
  int refused = 0;
  const uint32_t seed = std::random_device{}();
  std::mt19937 random(seed);
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  for (int i = 0; i < 200; ++i) {
    std::string bad = good;
    for (int changes = 1 + i % 50; changes > 0; --changes) {
      const size_t at =
          good.size() / 4 + random() % (good.size() / 2);  // the map is the larger part
      bad[at] = static_cast<char>(random());
    }
    std::ofstream(path, std::ios::binary) << bad;
    auto tokenizer = TokenizerFromPath(path);
    if (!tokenizer.ok()) {
      refused += absl::IsInvalidArgument(tokenizer.status());
      continue;
    }
    for (size_t line = 0; line < 20; ++line)
      EXPECT_TRUE((*tokenizer)->Encode(testing::GoldenLines()[line], {}).ok());
  }
  std::filesystem::remove(path);
  EXPECT_GT(refused, 0);
}

TEST(SentencePiece, TheConfigurationMayNameOtherTokens) {
  const std::string folder = ::testing::TempDir() + "hydrant_spm_folder";
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/tokenizer.model", std::ios::binary)
      << testing::ReadTestFile(std::string(testing::kGoldenFolder) + "spm.model");
  EXPECT_EQ((*TokenizerFromPath(folder))->bos_id(), 1);
  EXPECT_EQ((*TokenizerFromPath(folder))->eos_id(), 2);
  std::ofstream(folder + "/tokenizer_config.json")
      << R"({"bos_token":"</s>","eos_token":{"content":"<s>"}})";
  const auto tokenizer = TokenizerFromPath(folder);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->bos_id(), 2);
  EXPECT_EQ((*tokenizer)->eos_id(), 1);
  EXPECT_EQ(*(*tokenizer)->Encode("", {}), std::vector<TokenId>{2});
  std::filesystem::remove_all(folder);
}

TEST(SentencePiece, CorruptModelIsRefused) {
  const std::string path = ::testing::TempDir() + "hydrant_corrupt.model";
  std::ofstream(path, std::ios::binary) << std::string("\x0A\xFF\xFF\xFFgarbage", 11);
  EXPECT_EQ(TokenizerFromPath(path).status().code(), absl::StatusCode::kInvalidArgument);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace hydrant
