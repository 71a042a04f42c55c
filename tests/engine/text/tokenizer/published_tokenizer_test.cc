// Compares published vocabularies with tiktoken, SentencePiece and Hugging Face `tokenizers`: the
// folder made by tests/goldens/published_tokenizers.py, named by HYDRANT_PUBLISHED_TOKENIZERS.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>

#include "engine/model/gguf.h"
#include "engine/text/tokenizer/detokenizer.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "tests/engine/text/tokenizer/golden_lines.h"

namespace hydrant {
namespace {

using nlohmann::json;

absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const std::string& path) {
  if (!path.ends_with(".gguf")) return TokenizerFromPath(path);
  auto file = GgufFile::Open(path);
  if (!file.ok()) return file.status();
  return TokenizerFromGguf(**file);
}

void ExpectSame(const std::string& folder, const json& entry,
                const std::vector<std::string>& lines) {
  const auto name = entry["name"].get<std::string>();
  SCOPED_TRACE(name);
  auto tokenizer = Load(entry["path"].get<std::string>());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const std::string bytes = testing::ReadTestFile(folder + "/" + name + ".hashes");
  ASSERT_EQ(bytes.size(), lines.size() * sizeof(uint32_t));
  const bool special = entry["special"].get<bool>();
  int wrong = 0;
  for (size_t i = 0; i < lines.size(); ++i) {
    auto ids =
        (*tokenizer)
            ->Encode(lines[i], {.add_special_tokens = false, .parse_special_tokens = special});
    ASSERT_TRUE(ids.ok()) << ids.status();
    uint32_t hash = 0;
    std::memcpy(&hash, bytes.data() + i * sizeof(hash), sizeof(hash));
    if (testing::HashIds(*ids) != hash && ++wrong <= 3) {
      ADD_FAILURE() << json(lines[i]).dump() << " gave " << json(*ids).dump();
    }
  }
  EXPECT_EQ(wrong, 0) << "of " << lines.size() << " lines";
}

// Texts with ids from the family's own tokenizer.
void ExpectVectors(const std::string& folder, const json& entry) {
  SCOPED_TRACE(entry["name"].get<std::string>());
  auto tokenizer = Load(entry["path"].get<std::string>());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const json vectors =
      json::parse(testing::ReadTestFile(folder + "/" + entry["name"].get<std::string>() + ".json"));
  ASSERT_GT(vectors.size(), 30u);
  for (const json& vector : vectors) {
    const auto text = vector[0].get<std::string>();
    auto ids = (*tokenizer)->Encode(text, {.add_special_tokens = false});
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(*ids, vector[1].get<std::vector<TokenId>>()) << json(text).dump();
    EXPECT_EQ(Decode(**tokenizer, *ids, false), text);
  }
}

TEST(PublishedTokenizers, EncodeAsOtherPrograms) {
  const char* folder = std::getenv("HYDRANT_PUBLISHED_TOKENIZERS");
  if (folder == nullptr) GTEST_SKIP() << "set HYDRANT_PUBLISHED_TOKENIZERS";
  const std::string place = folder;
  const auto lines =
      json::parse(testing::ReadTestFile(place + "/lines.json")).get<std::vector<std::string>>();
  const json index = json::parse(testing::ReadTestFile(place + "/index.json"));
  ASSERT_GT(index.size(), 0u);
  for (const json& entry : index) {
    if (entry.contains("special")) {
      ExpectSame(place, entry, lines);
    } else {
      ExpectVectors(place, entry);
    }
  }
}

}  // namespace
}  // namespace hydrant
