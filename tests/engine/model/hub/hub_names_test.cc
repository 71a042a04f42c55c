// Parsing before any request: names, environment variables, and the display of numbers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "engine/model/hub/blob_digest.h"
#include "engine/model/hub/byte_text.h"
#include "engine/model/hub/http_session.h"
#include "engine/model/hub/hub_settings.h"
#include "engine/model/hub/model_reference.h"

namespace hydrant::hub {
namespace {

using testing::HasSubstr;

TEST(ModelReference, ReadsRepositoryRevisionAndFile) {
  for (const char* prefix : {"", "hf:"}) {
    const auto plain = ParseModelReference(std::string(prefix) + "org/name");
    ASSERT_TRUE(plain.ok()) << plain.status();
    EXPECT_EQ(plain->repo, "org/name");
    EXPECT_EQ(plain->revision, "main");
    EXPECT_EQ(plain->file, "");
    const auto whole =
        ParseModelReference(std::string(prefix) + "org/na.me_1@refs/pr/3:dir/m-Q8_0.gguf");
    ASSERT_TRUE(whole.ok()) << whole.status();
    EXPECT_EQ(whole->repo, "org/na.me_1");
    EXPECT_EQ(whole->revision, "refs/pr/3");
    EXPECT_EQ(whole->file, "dir/m-Q8_0.gguf");
    EXPECT_EQ(ToText(*whole), "org/na.me_1@refs/pr/3:dir/m-Q8_0.gguf");
  }
  EXPECT_EQ(ParseModelReference("gpt2")->repo, "gpt2");
}

// The examples of huggingface_hub's validate_repo_id, and names that would leave the cache.
TEST(ModelReference, RefusesInvalidHubNames) {
  for (const std::string& bad : {std::string(),
                                 std::string("datasets/foo/bar"),
                                 std::string(".repo_id"),
                                 std::string("foo--bar"),
                                 std::string("foo.git"),
                                 std::string("a/../b"),
                                 std::string("../b"),
                                 std::string("/a/b"),
                                 std::string("a/"),
                                 std::string("a b/c"),
                                 std::string("a/b-"),
                                 std::string("a/b."),
                                 std::string("org/") + std::string(97, 'x'),
                                 std::string("caf\xc3\xa9/x"),
                                 std::string("a/b@"),
                                 std::string("a/b:"),
                                 std::string("a/b@../../x"),
                                 std::string("a/b@/x"),
                                 std::string("a/b:../x"),
                                 std::string("a/b:/etc/passwd"),
                                 std::string("a/b:x\\y"),
                                 std::string("a/b:x\ny"),
                                 std::string("https://huggingface.co/a/b")}) {
    const auto parsed = ParseModelReference(bad);
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_EQ(std::string(parsed.status().message()).find('\n'), std::string::npos);
  }
}

absl::StatusOr<HubSettings> Read(const std::map<std::string, std::string>& variables) {
  return ReadHubSettings([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

TEST(HubSettings, TheCacheIsWhereHuggingFaceHasIt) {
  EXPECT_EQ(Read({{"HOME", "/h"}})->cache, "/h/.cache/huggingface/hub");
  EXPECT_EQ(Read({{"HOME", "/h"}, {"XDG_CACHE_HOME", "/x"}})->cache, "/x/huggingface/hub");
  EXPECT_EQ(Read({{"HOME", "/h"}, {"HF_HOME", "~/hf"}})->cache, "/h/hf/hub");
  EXPECT_EQ(Read({{"HF_HOME", "/hf"}, {"HUGGINGFACE_HUB_CACHE", "/old"}})->cache, "/old");
  EXPECT_EQ(Read({{"HUGGINGFACE_HUB_CACHE", "/old"}, {"HF_HUB_CACHE", "/new/"}})->cache, "/new/");
  const auto nowhere = Read({});
  EXPECT_THAT(std::string(nowhere.status().message()), HasSubstr("HF_HOME"));
}

TEST(HubSettings, EndpointAndOffline) {
  EXPECT_EQ(Read({{"HOME", "/h"}})->endpoint, "https://huggingface.co");
  EXPECT_EQ(Read({{"HOME", "/h"}, {"HF_ENDPOINT", "http://mirror:80/hub//"}})->endpoint,
            "http://mirror:80/hub");
  EXPECT_FALSE(Read({{"HOME", "/h"}, {"HF_ENDPOINT", "mirror"}}).ok());
  EXPECT_FALSE(Read({{"HOME", "/h"}})->offline);
  EXPECT_FALSE(Read({{"HOME", "/h"}, {"HF_HUB_OFFLINE", "0"}})->offline);
  EXPECT_TRUE(Read({{"HOME", "/h"}, {"HF_HUB_OFFLINE", "1"}})->offline);
  EXPECT_TRUE(Read({{"HOME", "/h"}, {"TRANSFORMERS_OFFLINE", "yes"}})->offline);
}

TEST(HubSettings, TheTokenOfTheEnvironmentOrOfTheLogin) {
  const std::string file =
      (std::filesystem::temp_directory_path() / ("hydrant-token-" + std::to_string(getpid())))
          .string();
  std::ofstream(file) << "hf_file\n";
  EXPECT_EQ(Read({{"HOME", "/none"}})->token, "");
  EXPECT_EQ(Read({{"HOME", "/none"}, {"HF_TOKEN_PATH", file}})->token, "hf_file");
  EXPECT_EQ(Read({{"HOME", "/none"}, {"HF_TOKEN_PATH", file}, {"HF_TOKEN", " hf_x\n"}})->token,
            "hf_x");
  EXPECT_EQ(Read({{"HOME", "/none"}, {"HF_TOKEN", "hf_x"}, {"HF_HUB_DISABLE_IMPLICIT_TOKEN", "1"}})
                ->token,
            "");
  const auto two_lines = Read({{"HOME", "/none"}, {"HF_TOKEN", "hf_x\r\nX-Evil: 1"}});
  EXPECT_EQ(two_lines.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(two_lines.status().message()).find("Evil"), std::string::npos);
  std::filesystem::remove(file);
}

TEST(Urls, AnOriginIsSchemeHostAndPort) {
  EXPECT_EQ(OriginOf("https://Huggingface.co/a/b?c"), "https://huggingface.co:443");
  EXPECT_EQ(OriginOf("http://127.0.0.1:8080/x"), "http://127.0.0.1:8080");
  EXPECT_NE(OriginOf("http://huggingface.co/"), OriginOf("https://huggingface.co/"));
  // The host follows the '@'.
  EXPECT_EQ(OriginOf("https://huggingface.co@evil.example/"), "https://evil.example:443");
  EXPECT_EQ(OriginOf("nonsense"), "");
  EXPECT_EQ(OriginOf(""), "");
}

TEST(Urls, EncodesReservedCharacters) {
  EXPECT_EQ(UrlEncoded("refs/pr/1", false), "refs%2Fpr%2F1");
  EXPECT_EQ(UrlEncoded("a b/c?#%.gguf", true), "a%20b/c%3F%23%25.gguf");
}

// `printf hello | git hash-object --stdin`, `printf hello | sha256sum`, and the hash of git's empty
// blob.
TEST(BlobDigest, IsGitsOrSha256) {
  RepoFile small;
  small.size = 5;
  BlobDigest git(small);
  git.Add("hel");
  git.Add("lo");
  EXPECT_EQ(git.Finish(), "b6fc4c620b67d95f953a5c1c1230aaab5db5a1b0");
  EXPECT_EQ(BlobDigest(RepoFile()).Finish(), "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
  RepoFile large;
  large.sha256 = "to be";
  BlobDigest sha256(large);
  sha256.Add("hello");
  EXPECT_EQ(sha256.Finish(), "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824");
}

TEST(ByteText, ThreeDigitsAndAUnit) {
  EXPECT_EQ(ByteText(0), "0 B");
  EXPECT_EQ(ByteText(999), "999 B");
  EXPECT_EQ(ByteText(1000), "1 kB");
  EXPECT_EQ(ByteText(999'600), "1 MB");
  EXPECT_EQ(ByteText(4'976'698'672), "4.98 GB");
  EXPECT_EQ(ByteText(int64_t{1} << 50), "1.13e+03 TB");
}

TEST(TransferMeter, TellsTheSpeedOfTheLastSeconds) {
  const auto at = [](int ms) { return TransferMeter::Time(std::chrono::milliseconds(ms)); };
  TransferMeter meter(4'000'000, 1'000'000, at(0));
  EXPECT_EQ(meter.Text(), "1 MB of 4 MB");
  for (int i = 1; i <= 10; ++i) meter.Update(1'000'000 + i * 100'000, at(i * 1000));
  EXPECT_EQ(meter.Text(), "2 MB of 4 MB, 100 kB/s, 20 s left");
  for (int i = 11; i <= 40; ++i) meter.Update(2'000'000 + (i - 10) * 10'000, at(i * 1000));
  EXPECT_EQ(meter.Text(), "2.3 MB of 4 MB, 10 kB/s, 3 min left");
  meter.Update(1'000'000, at(41'000));
  EXPECT_EQ(meter.Text(), "1 MB of 4 MB");
}

}  // namespace
}  // namespace hydrant::hub
