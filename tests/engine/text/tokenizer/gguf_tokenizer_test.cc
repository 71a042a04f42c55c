// Tokenizers from GGUF metadata, facts that the metadata omits (ends of generation, tokens that
// strip space, BOS), and refusals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/model/gguf.h"
#include "engine/text/tokenizer/detokenizer.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "engine/text/unicode/utf8.h"
#include "tests/engine/text/tokenizer/gguf_bytes.h"

namespace hydrant {
namespace {

using testing::GgufBytes;
using ::testing::HasSubstr;

constexpr int32_t kNormal = 1, kControl = 3, kUserDefined = 4, kByte = 6;

struct Token {
  std::string text;
  int32_t type;
};

// GPT-2's character for a byte: itself if printable, else the next from U+0100 on.
std::string CharacterOf(int byte) {
  const auto printable = [](int b) { return (b > 0x20 && b < 0x7F) || (b > 0xA0 && b != 0xAD); };
  int others = 0;
  for (int b = 0; b < byte; ++b) others += !printable(b);
  std::string character;
  AppendUtf8(static_cast<char32_t>(printable(byte) ? byte : 256 + others), &character);
  return character;
}

// A vocabulary of the 256 bytes, followed by `added`.
GgufBytes ByteGguf(const std::string& pre, const std::vector<Token>& added) {
  std::vector<std::string> tokens;
  std::vector<int32_t> types;
  for (int byte = 0; byte < 256; ++byte) {
    tokens.push_back(CharacterOf(byte));
    types.push_back(kNormal);
  }
  for (const Token& token : added) {
    tokens.push_back(token.text);
    types.push_back(token.type);
  }
  return GgufBytes()
      .Text("tokenizer.ggml.model", "gpt2")
      .Text("tokenizer.ggml.pre", pre)
      .Texts("tokenizer.ggml.tokens", tokens)
      .Numbers("tokenizer.ggml.token_type", types)
      .Texts("tokenizer.ggml.merges", {});
}

// <unk>, <s>, </s>, the 256 bytes, U+2581 (259), then `added` (260).
GgufBytes PieceGguf(const std::vector<Token>& added) {
  std::vector<std::string> tokens = {"<unk>", "<s>", "</s>"};
  std::vector<int32_t> types = {2, kControl, kControl};
  for (int byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof(name), "<0x%02X>", static_cast<unsigned>(byte));
    tokens.emplace_back(name);
    types.push_back(kByte);
  }
  tokens.emplace_back("▁");
  types.push_back(kNormal);
  for (const Token& token : added) {
    tokens.push_back(token.text);
    types.push_back(token.type);
  }
  return GgufBytes()
      .Text("tokenizer.ggml.model", "llama")
      .Texts("tokenizer.ggml.tokens", tokens)
      .Floats("tokenizer.ggml.scores", std::vector<float>(tokens.size(), 0))
      .Numbers("tokenizer.ggml.token_type", types)
      .Number("tokenizer.ggml.bos_token_id", 1)
      .Number("tokenizer.ggml.eos_token_id", 2);
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const GgufBytes& bytes) {
  const auto data = bytes.Finish();
  auto file = GgufFile::Parse(data);
  if (!file.ok()) return file.status();
  return TokenizerFromGguf(**file);
}

std::unique_ptr<Tokenizer> Make(const GgufBytes& bytes) {
  auto tokenizer = Load(bytes);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

std::string Error(const GgufBytes& bytes) { return std::string(Load(bytes).status().message()); }

std::vector<TokenId> Ids(const Tokenizer& tokenizer, const std::string& text) {
  return *tokenizer.Encode(text, {.add_special_tokens = false});
}

TEST(EndOfGeneration, IsWhereTheFamilyEndsATurn) {
  using Ends = std::vector<TokenId>;
  const auto ends = [](const std::vector<Token>& added) {
    return Make(ByteGguf("gpt-4o", added))->eog_ids();
  };
  EXPECT_EQ(ends({{"<|endoftext|>", kControl}, {"<|im_end|>", kUserDefined}}), (Ends{256, 257}));
  EXPECT_EQ(ends({{"<|eot|>", kControl}, {"<|eom|>", kControl}}), (Ends{256, 257}));
  EXPECT_EQ(ends({{"<|end|>", kControl}, {"<|user|>", kControl}}), Ends{256}) << "Phi-4-mini";
  EXPECT_EQ(ends({{"<|end|>", kControl}, {"<|return|>", kControl}, {"<|call|>", kControl}}),
            (Ends{257, 258}))
      << "gpt-oss goes on after <|end|>";
  EXPECT_EQ(ends({{"</s>", kUserDefined}, {"<end_of_turn>", kControl}}), Ends{257})
      << "Gemma's </s> is a tag of HTML";
  EXPECT_EQ(Make(ByteGguf("gpt-4o", {{"<a>", kControl}, {"<b>", kControl}})
                     .Number("tokenizer.ggml.eos_token_id", 256)
                     .Number("tokenizer.ggml.eot_token_id", 257))
                ->eog_ids(),
            (Ends{256, 257}));
}

// The flags of microsoft's published tokenizer.json files.
TEST(Stripping, IsThePhiFamilys) {
  const auto phi3 = Make(PieceGguf({{"<|user|>", kControl}, {"<|endoftext|>", kControl}})
                             .Text("general.architecture", "phi3"));
  EXPECT_EQ(Ids(*phi3, "<|user|>\n \n"), std::vector<TokenId>{260});
  EXPECT_EQ(Ids(*phi3, "<|endoftext|>\n"), (std::vector<TokenId>{261, 259, 3 + '\n'}));
  const auto mini = Make(ByteGguf("gpt-4o", {{"<|end|>", kControl}, {"<|endoftext|>", kControl}})
                             .Text("general.architecture", "phi3"));
  EXPECT_EQ(Ids(*mini, " <|end|>\n"), (std::vector<TokenId>{' ', 256}));
  EXPECT_EQ(Ids(*mini, "<|endoftext|>\n"), (std::vector<TokenId>{257, '\n'}));
  const auto phi4 =
      Make(ByteGguf("dbrx", {{"<|im_end|>", kControl}}).Text("general.architecture", "phi3"));
  EXPECT_EQ(Ids(*phi4, "a <|im_end|>\n"), (std::vector<TokenId>{'a', 256}));
  const auto olmo =
      Make(ByteGguf("dbrx", {{"<|im_end|>", kControl}}).Text("general.architecture", "olmo2"));
  EXPECT_EQ(Ids(*olmo, "a <|im_end|>\n"), (std::vector<TokenId>{'a', ' ', 256, '\n'}));
}

TEST(Bos, IsAddedWhereTheFamilyDoes) {
  const auto adds = [](const GgufBytes& bytes) {
    return Make(bytes)->Encode("a", {})->size() == 2;
  };
  const auto with_bos = [](const std::string& pre) {
    return ByteGguf(pre, {{"<bos>", kControl}}).Number("tokenizer.ggml.bos_token_id", 256);
  };
  for (const char* pre : {"llama-bpe", "llama4", "tekken"}) EXPECT_TRUE(adds(with_bos(pre))) << pre;
  for (const char* pre : {"smaug-bpe", "qwen2", "dbrx", "gpt-4o", "refact", "deepseek-v3"})
    EXPECT_FALSE(adds(with_bos(pre))) << pre;
  EXPECT_TRUE(adds(with_bos("qwen2").Flag("tokenizer.ggml.add_bos_token", true)));
  EXPECT_FALSE(adds(with_bos("tekken").Flag("tokenizer.ggml.add_bos_token", false)));
}

TEST(SentencePiece, MarksMayBeWrittenEitherWay) {
  for (const char* two : {"▁▁", "  "}) {
    const auto tokenizer =
        Make(PieceGguf({{two, kUserDefined}}).Flag("tokenizer.ggml.add_space_prefix", false));
    EXPECT_EQ(Ids(*tokenizer, "a  b "), (std::vector<TokenId>{3 + 'a', 260, 3 + 'b', 259}));
    EXPECT_EQ(Decode(*tokenizer, {260}, true), "  ");
  }
}

TEST(Merges, MayMakeAUsersOwnToken) {
  std::vector<std::string> tokens = {"a", "b", "ab"};
  const auto tokenizer = Make(GgufBytes()
                                  .Text("tokenizer.ggml.model", "gpt2")
                                  .Texts("tokenizer.ggml.tokens", tokens)
                                  .Numbers("tokenizer.ggml.token_type", {1, 1, kUserDefined})
                                  .Texts("tokenizer.ggml.merges", {"a b"}));
  EXPECT_EQ(Ids(*tokenizer, "ab"), std::vector<TokenId>{2});
}

TEST(Refusals, NameTheKey) {
  EXPECT_THAT(Error(PieceGguf({}).Flag("tokenizer.ggml.remove_extra_whitespaces", true)),
              HasSubstr("tokenizer.ggml.remove_extra_whitespaces is not supported"));
  EXPECT_THAT(Error(ByteGguf("gpt-2", {}).Flag("tokenizer.ggml.add_sep_token", true)),
              HasSubstr("tokenizer.ggml.add_sep_token is not supported"));
  EXPECT_EQ(Error(PieceGguf({}).Flag("tokenizer.ggml.remove_extra_whitespaces", false)), "");
  EXPECT_THAT(Error(PieceGguf({}).Numbers("tokenizer.ggml.precompiled_charsmap", {1})),
              HasSubstr("precompiled_charsmap"));
  EXPECT_THAT(Error(ByteGguf("falcon", {})), HasSubstr("'falcon' is not supported; known: "));
  EXPECT_THAT(Error(GgufBytes().Text("tokenizer.ggml.model", "gemma4")),
              HasSubstr("'gemma4' is not supported; known: gpt2, llama"));
}

}  // namespace
}  // namespace hydrant
