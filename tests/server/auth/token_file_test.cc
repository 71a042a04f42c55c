// Parsing of token files, and their errors.
#include "server/auth/token_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "absl/strings/str_cat.h"
#include "tests/server/test_certificates.h"

namespace hydrant {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// SHA-256 of "abc" and of the empty text, from FIPS 180-2.
constexpr char kAbc[] = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
constexpr char kEmpty[] = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

std::string Entry(const std::string& tenant, const std::string& sha256,
                  const std::string& more = "") {
  return absl::StrCat("  - tenant: ", tenant, "\n    sha256: ", sha256, "\n", more);
}

TEST(TokenFile, MapsTokensToTenants) {
  const auto file = ParseTokenFile(absl::StrCat(
      "tokens:\n",
      Entry("acme", kAbc,
            "    expires: 2030-01-02T03:04:05Z\n"
            "    quotas: {requests_per_minute: 60, tokens_per_minute: 1000, contexts: 3,\n"
            "             page_seconds_per_minute: 0.5, concurrent_requests: 2}\n"),
      Entry("operator", kEmpty, "    admin: true\n")));
  ASSERT_TRUE(file.ok()) << file.status();
  const TokenEntry* acme = file->Find("abc");
  ASSERT_NE(acme, nullptr);
  EXPECT_EQ(acme->tenant, "acme");
  EXPECT_FALSE(acme->admin);
  EXPECT_EQ(absl::ToUnixSeconds(acme->expires), 1893553445);  // date -d 2030-01-02T03:04:05Z +%s
  const Quotas expected{.requests_per_minute = 60,
                        .tokens_per_minute = 1000,
                        .page_seconds_per_minute = 0.5,
                        .concurrent_requests = 2,
                        .contexts = 3};
  EXPECT_TRUE(file->tenants.at("acme") == expected);
  EXPECT_TRUE(file->tenants.at("operator") == Quotas());
  ASSERT_NE(file->Find(""), nullptr);
  EXPECT_TRUE(file->Find("")->admin);
  EXPECT_EQ(file->Find("")->expires, absl::InfiniteFuture());
  EXPECT_EQ(file->Find("abcd"), nullptr);
  EXPECT_EQ(file->Find("ab"), nullptr);
  EXPECT_EQ(file->Find(kAbc), nullptr) << "the hash is no token";
}

TEST(TokenFile, ATenantMayHaveSeveralTokens) {
  const auto file = ParseTokenFile(absl::StrCat(
      "tokens:\n", Entry("acme", kAbc, "    quotas: {contexts: 3}\n"), Entry("acme", kEmpty)));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->Find("")->tenant, "acme");
  EXPECT_EQ(file->tenants.at("acme").contexts, 3);
}

TEST(TokenFile, AnEmptyListIsValid) {
  const auto file = ParseTokenFile("tokens: []\n");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->Find(""), nullptr);
}

TEST(TokenFile, ErrorsNameLineAndField) {
  const std::string ok = Entry("a", kAbc);
  const struct {
    std::string yaml;
    std::vector<std::string> mentions;
  } cases[] = {
      {"", {"tokens: is missing"}},
      {"- a\n", {"tokens: is missing"}},
      {"tokens: 3\n", {"line 1: tokens: is not a list"}},
      {"tokens:\n  - 3\n", {"line 2: tokens: an entry is not a map"}},
      {"tokens: [\n", {"line "}},
      {"tokens: []\nmore: 1\n", {"line 2: more: is not known here; one of tokens"}},
      {"tokens:\n" + Entry("a", kAbc, "    tennant: b\n"), {"line 4: tennant: is not known here"}},
      {"tokens:\n" + Entry("a", kAbc, "    tenant: b\n"), {"line 4: tenant: is there a second"}},
      {"tokens:\n  - sha256: " + std::string(kAbc) + "\n", {"line 2: tenant: is missing"}},
      {"tokens:\n  - tenant: a\n", {"line 2: sha256: is missing"}},
      {"tokens:\n" + Entry("''", kAbc), {"line 2: tenant: is no text"}},
      {"tokens:\n" + Entry("a b", kAbc), {"line 2: tenant: holds what is not printable"}},
      {"tokens:\n" + Entry(std::string(129, 'a'), kAbc), {"line 2: tenant: has 129 bytes"}},
      {"tokens:\n" + Entry("a", "abc"), {"line 3: sha256: is not the 64 hexadecimal digits"}},
      {"tokens:\n" + Entry("a", std::string(64, 'g')), {"line 3: sha256: is not the 64"}},
      {"tokens:\n" + ok + Entry("b", kAbc), {"line 5: sha256: is that of another entry"}},
      {"tokens:\n" + Entry("a", kAbc, "    expires: tomorrow\n"),
       {"line 4: expires: 'tomorrow' is not a time"}},
      {"tokens:\n" + Entry("a", kAbc, "    admin: perhaps\n"), {"line 4: admin: is neither"}},
      {"tokens:\n" + Entry("a", kAbc, "    quotas: 3\n"), {"line 4: quotas: is not a map"}},
      {"tokens:\n" + Entry("a", kAbc, "    quotas:\n      contexts: 0\n"),
       {"line 5: contexts: is not a whole number above 0"}},
      {"tokens:\n" + Entry("a", kAbc, "    quotas:\n      contexts: 1.5\n"),
       {"line 5: contexts: is not a whole number"}},
      {"tokens:\n" + Entry("a", kAbc, "    quotas:\n      page_seconds_per_minute: nan\n"),
       {"line 5: page_seconds_per_minute: is not a number above 0"}},
      {"tokens:\n" + Entry("a", kAbc, "    quotas:\n      tokens: 1\n"),
       {"line 5: tokens: is not known here; one of requests_per_minute, "}},
      {"tokens:\n" + Entry("a", kAbc, "    quotas: {contexts: 1}\n") +
           Entry("a", kEmpty, "    quotas: {contexts: 1}\n"),
       {"line 7: quotas: another entry of tenant a has some"}},
  };
  for (const auto& c : cases) {
    const auto file = ParseTokenFile(c.yaml);
    ASSERT_FALSE(file.ok()) << c.yaml;
    EXPECT_TRUE(absl::IsInvalidArgument(file.status()));
    for (const std::string& mention : c.mentions)
      EXPECT_THAT(std::string(file.status().message()), HasSubstr(mention)) << c.yaml;
  }
}

// A token in the place of its hash must not be logged.
TEST(TokenFile, AnErrorRepeatsNoToken) {
  const auto file = ParseTokenFile("tokens:\n" + Entry("a", "hyd_secret"));
  ASSERT_FALSE(file.ok());
  EXPECT_THAT(std::string(file.status().message()), Not(HasSubstr("hyd_secret")));
}

TEST(TokenFile, AFileThatIsNotThereIsNamed) {
  const auto file = ReadTokenFile("/no/such/file");
  ASSERT_FALSE(file.ok());
  EXPECT_THAT(std::string(file.status().message()),
              AllOf(HasSubstr("/no/such/file"), HasSubstr("No such file")));
  EXPECT_THAT(std::string(ReadTokenFile("/tmp").status().message()), HasSubstr("directory"));
}

// The token is the line without '#'; the rest is an entry.
TEST(TokenFile, ANewTokenIsGoodWithItsEntry) {
  std::set<std::string> tokens;
  for (const char* tenant : {"acme", "a\"b", "-:x", "yes"}) {
    const auto text = DescribeNewToken(tenant);
    ASSERT_TRUE(text.ok()) << text.status();
    const size_t begin = text->find('\n') + 1;
    const std::string token = text->substr(begin, text->find('\n', begin) - begin);
    EXPECT_EQ(token.size(), 4 + 43u) << "32 random bytes in base 64";
    EXPECT_TRUE(tokens.insert(token).second);
    const auto file = ParseTokenFile("tokens:\n" + text->substr(text->find("  - tenant")));
    ASSERT_TRUE(file.ok()) << file.status() << *text;
    ASSERT_NE(file->Find(token), nullptr) << *text;
    EXPECT_EQ(file->Find(token)->tenant, tenant);
  }
  EXPECT_FALSE(DescribeNewToken("").ok());
  EXPECT_FALSE(DescribeNewToken("a b").ok());
}

}  // namespace
}  // namespace hydrant
