// The files chosen from published repositories.
#include "engine/model/hub/file_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/model/hub/gguf_names.h"
#include "engine/model/hub/repo_listing.h"

namespace hydrant::hub {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

std::vector<RepoFile> Listing(const std::vector<std::string>& names) {
  std::vector<RepoFile> files;
  for (const std::string& name : names) files.emplace_back().name = name;
  return files;
}

std::vector<std::string> NamesOf(const FileChoice& choice) {
  std::vector<std::string> names;
  for (const RepoFile& file : choice.files) names.push_back(file.name);
  return names;
}

// meta-llama/Llama-3.2-1B has one file, Llama-3.1-8B several; both also contain Meta's own format.
TEST(FileChoice, SafetensorsWithTheirConfigs) {
  const auto choice = ChooseFiles(Listing({".gitattributes",
                                           "LICENSE.txt",
                                           "README.md",
                                           "config.json",
                                           "generation_config.json",
                                           "model.safetensors",
                                           "consolidated.safetensors",
                                           "original/consolidated.00.pth",
                                           "original/params.json",
                                           "original/tokenizer.model",
                                           "pytorch_model.bin",
                                           "onnx/model.onnx",
                                           "special_tokens_map.json",
                                           "tokenizer.json",
                                           "tokenizer_config.json",
                                           "tokenizer.model",
                                           "chat_template.jinja",
                                           "vocab.json",
                                           "merges.txt",
                                           "openvino/tokenizer.json"}),
                                  "");
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->served, "");
  EXPECT_THAT(
      NamesOf(*choice),
      UnorderedElementsAre("config.json", "generation_config.json", "model.safetensors",
                           "special_tokens_map.json", "tokenizer.json", "tokenizer_config.json",
                           "tokenizer.model", "chat_template.jinja", "vocab.json", "merges.txt"));
}

TEST(FileChoice, ShardsAndTheirIndex) {
  const auto choice =
      ChooseFiles(Listing({"config.json", "model-00001-of-00002.safetensors",
                           "model-00002-of-00002.safetensors", "model.safetensors.index.json",
                           "consolidated-00001-of-00002.safetensors", "adapter_model.safetensors",
                           "some.gguf"}),
                  "");
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_THAT(
      NamesOf(*choice),
      UnorderedElementsAre("config.json", "model-00001-of-00002.safetensors",
                           "model-00002-of-00002.safetensors", "model.safetensors.index.json"));
}

TEST(FileChoice, PrefersTheFilesThatTheLoaderOpens) {
  const auto choice =
      ChooseFiles(Listing({"config.json", "model.safetensors", "model-00001-of-00001.safetensors",
                           "model.safetensors.index.json"}),
                  "");
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_THAT(NamesOf(*choice), UnorderedElementsAre("config.json", "model.safetensors"));
}

TEST(FileChoice, TheOnlyGguf) {
  const auto choice =
      ChooseFiles(Listing({"README.md", "config.json", "m.IQ2_XXS.gguf", "mmproj-m-f16.gguf"}), "");
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_THAT(NamesOf(*choice), ElementsAre("m.IQ2_XXS.gguf"));
  EXPECT_EQ(choice->served, "m.IQ2_XXS.gguf");
  EXPECT_EQ(choice->note, "");
}

TEST(FileChoice, OfManyGgufsThePreferredOneAndANoteOfIt) {
  const auto choice =
      ChooseFiles(Listing({"m-Q8_0.gguf", "m-Q4_K_M.gguf", "m-Q4_K_S.gguf", "m-IQ4_K_M.gguf"}), "");
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_THAT(NamesOf(*choice), ElementsAre("m-Q4_K_M.gguf"));
  EXPECT_THAT(choice->note, AllOf(HasSubstr("'m-Q4_K_M.gguf'"), HasSubstr("of 4")));
  const auto next = ChooseFiles(Listing({"m-Q8_0.gguf", "m-Q4_K_S.gguf"}), "");
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_THAT(NamesOf(*next), ElementsAre("m-Q8_0.gguf"));
}

TEST(FileChoice, NoPreferredGgufListsThem) {
  const auto choice = ChooseFiles(Listing({"a-Q2_K.gguf", "a-IQ3_M.gguf"}), "");
  EXPECT_EQ(choice.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(choice.status().message()),
              AllOf(HasSubstr("'a-Q2_K.gguf'"), HasSubstr("'a-IQ3_M.gguf'")));
}

TEST(FileChoice, AQuantisationInAnyCase) {
  const auto listing = Listing({"x-Q4_K_M.gguf", "x-Q8_0.gguf", "x-BF16-00001-of-00002.gguf",
                                "x-BF16-00002-of-00002.gguf", "Q6_K/x-00001-of-00001.gguf"});
  EXPECT_THAT(NamesOf(*ChooseFiles(listing, "q4_k_m")), ElementsAre("x-Q4_K_M.gguf"));
  EXPECT_THAT(NamesOf(*ChooseFiles(listing, "x-Q8_0.gguf")), ElementsAre("x-Q8_0.gguf"));
  EXPECT_THAT(NamesOf(*ChooseFiles(listing, "Q6_K")), ElementsAre("Q6_K/x-00001-of-00001.gguf"));
  const auto split = ChooseFiles(listing, "BF16");
  ASSERT_TRUE(split.ok()) << split.status();
  EXPECT_THAT(NamesOf(*split),
              ElementsAre("x-BF16-00001-of-00002.gguf", "x-BF16-00002-of-00002.gguf"));
  EXPECT_EQ(split->served, "x-BF16-00001-of-00002.gguf");
  EXPECT_EQ(ChooseFiles(listing, "x-BF16-00002-of-00002.gguf")->files.size(), 2u);
}

TEST(FileChoice, AMissingPartIsSaid) {
  const auto listing = Listing({"x-BF16-00001-of-00003.gguf", "x-BF16-00003-of-00003.gguf"});
  EXPECT_THAT(std::string(ChooseFiles(listing, "").status().message()), HasSubstr("2 of the 3"));
}

TEST(FileChoice, AnUnknownNameListsTheNearestFirst) {
  std::vector<std::string> names;
  names.reserve(31);
  for (int i = 0; i < 30; ++i) names.push_back("far-away-" + std::to_string(i) + "-IQ1_S.gguf");
  names.push_back("tiny-Q5_K_S.gguf");
  const auto listing = Listing(names);
  EXPECT_THAT(std::string(ChooseFiles(listing, "Q5_K_M").status().message()),
              AllOf(HasSubstr("there is 'tiny-Q5_K_S.gguf', "), HasSubstr("and 19 more")));
  EXPECT_THAT(std::string(ChooseFiles(listing, "tiny-q5_k_x.gguf").status().message()),
              HasSubstr("there is 'tiny-Q5_K_S.gguf', "));
}

TEST(FileChoice, TwoModelsOfOneQuantisationAreNotGuessed) {
  const auto listing = Listing({"a-Q8_0.gguf", "b-Q8_0.gguf"});
  EXPECT_THAT(std::string(ChooseFiles(listing, "Q8_0").status().message()),
              AllOf(HasSubstr("2 files"), HasSubstr("'b-Q8_0.gguf'")));
}

TEST(FileChoice, PickledWeightsAloneAreNoModelToServe) {
  EXPECT_THAT(
      std::string(
          ChooseFiles(Listing({"config.json", "pytorch_model.bin"}), "").status().message()),
      AllOf(HasSubstr("neither"), HasSubstr("'pytorch_model.bin'")));
  EXPECT_FALSE(ChooseFiles({}, "").ok());
  EXPECT_FALSE(ChooseFiles({}, "x").ok());
}

TEST(FileChoice, AnIndexTellsWhichShardsAreMissing) {
  const auto choice = ChooseFiles(
      Listing({"config.json", "model.safetensors.index.json", "model-00001-of-00002.safetensors"}),
      "");
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_TRUE(
      CheckNothingMissing(*choice, R"({"weight_map": {"a": "model-00001-of-00002.safetensors"}})")
          .ok());
  const absl::Status missing =
      CheckNothingMissing(*choice, R"({"weight_map": {"a": "model-00001-of-00002.safetensors",
                                                      "b": "model-00002-of-00002.safetensors"}})");
  EXPECT_THAT(std::string(missing.message()), HasSubstr("model-00002-of-00002"));
  EXPECT_FALSE(CheckNothingMissing(*choice, "").ok());
}

const std::string kSha1(40, 'a'), kSha256(64, 'b');

TEST(RepoListing, ReadsThePagesOfTheApi) {
  std::vector<RepoFile> files;
  ASSERT_TRUE(AppendTreePage(R"([{"type": "directory", "path": "d", "size": 0, "oid": "x"},
      {"type": "file", "path": "d/a.json", "size": 12, "oid": ")" +
                                 kSha1 + R"("},
      {"type": "file", "path": "m.gguf", "size": 99, "oid": ")" +
                                 kSha1 + R"(", "xetHash": ")" + kSha256 + R"(",
       "lfs": {"oid": ")" + kSha256 +
                                 R"(", "size": 99, "pointerSize": 134}}])",
                             &files)
                  .ok());
  ASSERT_EQ(files.size(), 2u);
  EXPECT_EQ(files[0].BlobName(), kSha1);
  EXPECT_EQ(files[1].BlobName(), kSha256);
  EXPECT_EQ(files[1].size, 99);
  const auto again = ParseTreeCache(ToTreeCache(files));
  ASSERT_TRUE(again.ok()) << again.status();
  ASSERT_EQ(again->size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ((*again)[i].name, files[i].name);
    EXPECT_EQ((*again)[i].size, files[i].size);
    EXPECT_EQ((*again)[i].git_sha1, files[i].git_sha1);
    EXPECT_EQ((*again)[i].sha256, files[i].sha256);
    EXPECT_EQ((*again)[i].xet_hash, files[i].xet_hash);
  }
}

TEST(RepoListing, RefusesOtherJson) {
  const auto entry = [](const std::string& path, const std::string& size, const std::string& oid) {
    return R"([{"type": "file", "path": ")" + path + R"(", "size": )" + size + R"(, "oid": ")" +
           oid + R"("}])";
  };
  for (const std::string& bad :
       {std::string(), std::string("{}"), std::string("[1]"), std::string("[[[["),
        std::string(100, '['), entry("../x", "1", kSha1), entry("/x", "1", kSha1),
        entry("a//b", "1", kSha1), entry("a/./b", "1", kSha1), entry("", "1", kSha1),
        entry("x\\u0000y", "1", kSha1), entry("x\\\\y", "1", kSha1), entry("x", "-1", kSha1),
        entry("x", "1e300", kSha1), entry("x", "18446744073709551615", kSha1),
        entry("x", "\"1\"", kSha1), entry("x", "1", "../../etc/passwd"), entry("x", "1", ""),
        entry(std::string(2000, 'n'), "1", kSha1)}) {
    std::vector<RepoFile> files;
    const absl::Status status = AppendTreePage(bad, &files);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad.substr(0, 80);
    EXPECT_THAT(files, IsEmpty());
  }
}

TEST(RepoListing, AHashThatLeavesTheCacheIsRefused) {
  std::vector<RepoFile> files;
  EXPECT_FALSE(AppendTreePage(R"([{"type": "file", "path": "x", "size": 1, "oid": ")" + kSha1 +
                                  R"(", "lfs": {"oid": "../../x", "size": 1}}])",
                              &files)
                   .ok());
}

TEST(RepoListing, TheCommitIsAHash) {
  EXPECT_EQ(*ParseCommit(R"({"sha": ")" + kSha1 + R"("})"), kSha1);
  for (const char* bad : {"{}", "[]", R"({"sha": 1})", R"({"sha": "../../../../x"})"})
    EXPECT_FALSE(ParseCommit(bad).ok()) << bad;
}

TEST(RepoListing, TooManyFilesAreRefused) {
  std::vector<RepoFile> files(kMaxListedFiles);
  EXPECT_FALSE(
      AppendTreePage(R"([{"type": "file", "path": "x", "size": 1, "oid": ")" + kSha1 + R"("}])",
                     &files)
          .ok());
}

}  // namespace
}  // namespace hydrant::hub
