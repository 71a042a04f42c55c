// The file of --config, and --check-config: equivalent to flags, with file, line and key in
// every error.
#include "server/startup/config_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <regex>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/startup/daemon_options.h"
#include "tests/server/test_certificates.h"

namespace hydrant {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr char kModel[] = "models/hydrant-tiny.gguf";

CommandLine Parse(const std::vector<std::string>& arguments) {
  std::vector<const char*> argv{"hydrantd"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  return ParseCommandLine(static_cast<int>(argv.size()), argv.data());
}

std::vector<std::string> Lines(const CommandLine& line) { return absl::StrSplit(line.text, '\n'); }

class Config : public testing::Test {
 protected:
  CommandLine Run(const std::string& yaml, std::vector<std::string> more = {}) {
    more.insert(more.begin(), {"--config", folder_.Write("hydrantd.yaml", yaml)});
    return Parse(more);
  }

  TemporaryFolder folder_;
};

TEST_F(Config, EqualsTheFlags) {
  const CommandLine file = Run(R"(# A comment.
model: m.gguf
kv-cache-memory-bytes: 1G
listen-as: ["127.0.0.1:50052=h2o:cache_ratio=0.2", "127.0.0.1:50053=full"]
enforce-eager: true
batch-invariant: false
enable-prefix-caching: false
async-scheduling: on
"port": 0
served-model-name: "true"
shutdown-timeout: 1.5
tenant-weights: gold=3,iron=0.5
max-metadata-bytes: 2048
)");
  ASSERT_TRUE(file.options.has_value()) << file.text;
  const CommandLine flags = Parse({"--model",
                                   "m.gguf",
                                   "--kv-cache-memory-bytes",
                                   "1G",
                                   "--listen-as",
                                   "127.0.0.1:50052=h2o:cache_ratio=0.2",
                                   "--listen-as",
                                   "127.0.0.1:50053=full",
                                   "--enforce-eager",
                                   "--batch-invariant=false",
                                   "--no-enable-prefix-caching",
                                   "--async-scheduling",
                                   "on",
                                   "--port",
                                   "0",
                                   "--served-model-name",
                                   "true",
                                   "--shutdown-timeout",
                                   "1.5",
                                   "--tenant-weights",
                                   "gold=3,iron=0.5",
                                   "--max-metadata-bytes",
                                   "2048"});
  ASSERT_TRUE(flags.options.has_value()) << flags.text;
  EXPECT_EQ(file.options->flags, flags.options->flags);
  EXPECT_EQ(file.options->model_path, "m.gguf");
  EXPECT_EQ(file.options->engine.kv_cache_memory_bytes, int64_t{1} << 30);
  ASSERT_EQ(file.options->listen_as.size(), 2u);
  EXPECT_EQ(file.options->listen_as[1].address, "127.0.0.1:50053");
  EXPECT_TRUE(file.options->engine.enforce_eager);
  EXPECT_FALSE(file.options->engine.batch_invariant);
  EXPECT_EQ(file.options->prefix_cache_memory_bytes, 0);
  EXPECT_EQ(file.options->engine.async_scheduling, true);
  EXPECT_EQ(file.options->listen, "127.0.0.1:0");
  EXPECT_EQ(file.options->served_model_name, "true");
  EXPECT_EQ(file.options->shutdown_timeout.count(), 1500);
  EXPECT_EQ(file.options->security.max_metadata_bytes, 2048);
}

TEST_F(Config, AListMayBeOneText) {
  const CommandLine line = Run("model: m\nlisten-as: 127.0.0.1:50052=full\n");
  ASSERT_TRUE(line.options.has_value()) << line.text;
  EXPECT_EQ(line.options->listen_as.size(), 1u);
}

TEST_F(Config, TheCommandLineWins) {
  const std::string yaml =
      "model: theirs\nthreads: 3\nenable-prefix-caching: false\nhost: 127.0.0.2\nport: 7\n"
      "listen-as: [\"127.0.0.1:1=full\", \"127.0.0.1:2=full\"]\n";
  const CommandLine line =
      Run(yaml, {"--model", "mine", "--enable-prefix-caching", "--listen-as", "127.0.0.1:3=full"});
  ASSERT_TRUE(line.options.has_value()) << line.text;
  EXPECT_EQ(line.options->model_path, "mine");
  EXPECT_EQ(line.options->engine.num_threads, 3);
  EXPECT_FALSE(line.options->prefix_cache_memory_bytes.has_value());
  EXPECT_EQ(line.options->listen, "127.0.0.2:7");
  ASSERT_EQ(line.options->listen_as.size(), 1u);
  EXPECT_EQ(line.options->listen_as[0].address, "127.0.0.1:3");
  const CommandLine address = Run(yaml, {"--listen", "127.0.0.1:8"});
  ASSERT_TRUE(address.options.has_value()) << address.text;
  EXPECT_EQ(address.options->listen, "127.0.0.1:8") << "neither the file's host nor its port";
}

TEST_F(Config, TheEnvironmentWinsToo) {
  ASSERT_EQ(setenv("HYDRANT_CONTEXT_STORE", "dir:/environment", 1), 0);
  const CommandLine line = Run("model: m\ncontext-store: dir:/file\n");
  unsetenv("HYDRANT_CONTEXT_STORE");
  ASSERT_TRUE(line.options.has_value()) << line.text;
  EXPECT_EQ(line.options->context_store, "dir:/environment");
  EXPECT_EQ(Run("model: m\ncontext-store: dir:/file\n").options->context_store, "dir:/file");
}

// Compares with the names in the help. A map is not a valid value of any flag, so each key causes
// an error other than "not known".
TEST_F(Config, EveryFlagIsAKey) {
  const std::string help = Parse({"--help-all"}).text;
  std::set<std::string> names;
  const std::regex flag("\n +--([a-z-]+)");
  for (std::sregex_iterator at(help.begin(), help.end(), flag), end; at != end; ++at)
    names.insert((*at)[1]);
  for (const char* no_setting : {"help-all", "version", "config", "check-config", "new-token"}) {
    EXPECT_EQ(names.erase(no_setting), 1u) << no_setting << " is in the help";
    EXPECT_THAT(Run(absl::StrCat("model: m\n", no_setting, ": a\n")).text,
                HasSubstr(absl::StrCat(":2: ", no_setting, ": is not known")));
  }
  EXPECT_GT(names.size(), 45u);
  for (const std::string& name : names) {
    const CommandLine line = Run(absl::StrCat(name, ": {a: b}\n"));
    EXPECT_THAT(line.text,
                AllOf(HasSubstr(absl::StrCat(":1: ", name, ": ")), Not(HasSubstr("is not known"))));
  }
}

struct Mistake {
  const char* yaml;
  const char* problem;  // after file and colon
};

TEST_F(Config, AMistakeIsOneLineWithFileLineAndKey) {
  const std::vector<Mistake> mistakes = {
      {"model: m\nthread: 3\n", "2: thread: is not known; the nearest key is threads"},
      {"--model: m\n", "1: --model: is not known; the nearest key is model"},
      {"model: m\nmax_num_seqs: 3\n", "2: max_num_seqs: is not known; the nearest key is max-num-"},
      {"model: m\nhelp: true\n", "2: help: is not known"},
      {"model: m\nmodel: n\n", "2: model: is there a second time"},
      {"model: [m]\n", "1: model: is not one text or number"},
      {"model: {m: n}\n", "1: model: is not one text or number"},
      {"model:\n", "1: model: has no value"},
      {"model: ''\n", "1: model: has no value"},
      {"model: ~\n", "1: model: has no value"},
      {"model: m\nenforce-eager: 3\n", "2: enforce-eager: is neither true nor false"},
      {"model: m\nenforce-eager: [true]\n", "2: enforce-eager: is neither true nor false"},
      {"model: m\nenforce-eager:\n", "2: enforce-eager: is neither true nor false"},
      {"model: m\nlisten-as: []\n", "2: listen-as: is an empty list"},
      {"model: m\nlisten-as: [a: b]\n", "2: listen-as: is not a list of texts"},
      {"model: m\nlisten-as: {a: b}\n", "2: listen-as: is neither a text nor a list of texts"},
      {"model: m\n\nthreads: 0\n", "3: threads: "},
      {"model: m\nthreads: many\n", "2: threads: "},
      {"model: m\ndtype: int3\n", "2: dtype: int3"},
      {"model: m\nwatermark: nan\n", "2: watermark: nan is not a number from 0"},
      {"model: m\nport: 70000\n", "2: port: "},
      {"- model\n", "1: the file is not one map"},
      {"model\n", "1: the file is not one map"},
      {"model: m\n---\nthreads: 3\n", "2: the file is not one map"},
      {",m0", "1: "},  // endless in the library's YAML::LoadAll
      {"? [model]\n: m\n", "1: a key is not a text"},
      {"model: m\nlisten: [\n", "3: the file ends in a value"},
      {"model: m\nlisten: \"a\nthreads: 3\n", "4: the file ends in a value"},
      {"model: m\nlisten: 'a\nthreads: 3", "4: the file ends in a value"},
      {"model: m\n\tlisten: a\n", "2: "},
      {"model: *m\n", "1: "},
      {"a: &a [x]\nmodel: &b [*a, *a]\ntokenizer: [*b, *b]\n",
       "1: a: is not known"},  // and two more
  };
  for (const Mistake& mistake : mistakes) {
    const CommandLine line = Run(mistake.yaml);
    EXPECT_FALSE(line.options.has_value()) << mistake.yaml;
    EXPECT_EQ(line.exit_code, 1) << mistake.yaml;
    EXPECT_THAT(line.text, StartsWith(absl::StrCat("hydrantd: ", folder_.Path("hydrantd.yaml"), ":",
                                                   mistake.problem)));
  }
}

TEST_F(Config, AllMistakesAreThere) {
  const CommandLine line = Run("thread: 3\nthreads: 0\nmodel: []\n");
  const std::string path = absl::StrCat("hydrantd: ", folder_.Path("hydrantd.yaml"), ":");
  EXPECT_THAT(Lines(line), testing::UnorderedElementsAre(StartsWith(path + "1: thread: "),
                                                         StartsWith(path + "2: threads: "),
                                                         StartsWith(path + "3: model: "), ""));
}

TEST_F(Config, OversizedFilesAreRefused) {
  EXPECT_THAT(Run("model: m\n" + std::string(1 << 20, '#')).text,
              HasSubstr("hydrantd.yaml: has more than the 1048576 bytes that are read"));
  EXPECT_TRUE(Run("model: m\n" + std::string((1 << 20) - 9, '#')).options.has_value());
  EXPECT_THAT(Run("model: " + std::string(100'000, '[')).text, HasSubstr("hydrantd.yaml:"));
  // Each doubles the previous one: 2^64 texts if expanded.
  std::string bomb = "a0: &a0 [x, x]\n";
  for (int i = 1; i < 64; ++i)
    absl::StrAppend(&bomb, "a", i, ": &a", i, " [*a", i - 1, ", *a", i - 1, "]\n");
  EXPECT_THAT(Run(bomb + "listen-as: *a63\n").text, HasSubstr("listen-as: is not a list of texts"));
  const std::string key(100'000, 'k');
  EXPECT_LT(Run(key + ": 1\n").text.size(), 1000u) << "a long key is cut";
}

TEST_F(Config, AFileThatCannotBeRead) {
  EXPECT_THAT(Parse({"--config", folder_.Path("absent")}).text,
              HasSubstr("absent: cannot be read: No such file"));
  EXPECT_THAT(Parse({"--config", folder_.Path("")}).text, HasSubstr("cannot be read"));
  EXPECT_THAT(Run("# nothing\n").text, HasSubstr("no model is given"));
  EXPECT_THAT(Run("").text, HasSubstr("no model is given"));
}

// The output parses to the same settings.
TEST_F(Config, TheCheckPrintsSettingsThenDefaults) {
  const CommandLine line = Run(
      absl::StrCat("model: ", kModel, "\nserved-model-name: 'a: #b'\nenforce-eager: true\n",
                   "listen-as: ['127.0.0.1:50052=h2o:cache_ratio=0.2', '127.0.0.1:50053=full']\n"),
      {"--check-config", "--no-enable-prefix-caching"});
  EXPECT_EQ(line.exit_code, 0) << line.text;
  EXPECT_FALSE(line.options.has_value());
  const std::vector<std::string> halves = absl::StrSplit(line.text, "\n# By default:\n");
  ASSERT_EQ(halves.size(), 2u) << line.text;
  EXPECT_THAT(halves[0],
              AllOf(HasSubstr(absl::StrCat("model: ", kModel, "\n")),
                    HasSubstr("enforce-eager: true\n"), HasSubstr("enable-prefix-caching: false\n"),
                    Not(HasSubstr("block-size")), Not(HasSubstr("config"))));
  EXPECT_THAT(halves[1], AllOf(HasSubstr("# block-size: 16\n"), HasSubstr("# insecure: false\n"),
                               HasSubstr("# metrics-listen:\n"), Not(HasSubstr("model: "))));
  const CommandLine again = Run(line.text, {"--check-config"});
  EXPECT_EQ(again.exit_code, 0) << again.text;
  EXPECT_EQ(again.text, line.text);
}

TEST_F(Config, TheCheckHidesSecrets) {
  const std::string tokens = folder_.Write(
      "tokens.yaml", absl::StrCat("tokens: [{tenant: t, sha256: ", std::string(64, 'a'), "}]\n"));
  const CommandLine line =
      Run(absl::StrCat("model: ", kModel,
                       "\ncontext-store: redis://:s3cret@h/1\nauth-tokens: ", tokens, "\n"),
          {"--check-config", "--prefix-cache-store", "redis://me:s3cret@h"});
  EXPECT_EQ(line.exit_code, 0) << line.text;
  EXPECT_THAT(line.text, AllOf(HasSubstr("redis://...@h/1"), HasSubstr(tokens),
                               Not(HasSubstr("s3cret")), Not(HasSubstr("aaaa"))));
}

TEST_F(Config, TheCheckLooksAtTheFiles) {
  TestAuthority authority("ca");
  const KeyAndCertificate one = authority.Sign("one"), two = authority.Sign("two");
  const std::string certificate = folder_.Write("tls.crt", one.certificate);
  const std::string tokens = folder_.Write("tokens.yaml", "tokens: [{tenant: t}]\n");
  const CommandLine line =
      Run(absl::StrCat("model: ", folder_.Path("absent.gguf"),
                       "\ntokenizer: ", folder_.Path("absent"), "\ntls-certificate: ", certificate,
                       "\ntls-key: ", folder_.Write("tls.key", two.key), "\nauth-tokens: ", tokens,
                       "\nlisten: host.invalid:1\n"),
          {"--check-config"});
  EXPECT_EQ(line.exit_code, 1);
  EXPECT_THAT(Lines(line),
              ElementsAre(HasSubstr("--model: " + folder_.Path("absent.gguf") + ": cannot be read"),
                          HasSubstr("--tokenizer: "), HasSubstr("--tls-key "),
                          AllOf(HasSubstr("--auth-tokens: "), HasSubstr("sha256: is missing")),
                          HasSubstr("--listen: "), ""));
  const CommandLine good = Run(
      absl::StrCat("model: ", kModel, "\ntls-certificate: ", certificate,
                   "\ntls-key: ", folder_.Write("tls.key", one.key), "\nlisten: 0.0.0.0:50051\n"),
      {"--check-config"});
  EXPECT_EQ(good.exit_code, 0) << good.text;
}

TEST_F(Config, TheCheckWantsTlsWhereOthersCanConnect) {
  const std::string yaml = absl::StrCat("model: ", kModel, "\nlisten: 0.0.0.0:50051\n");
  const CommandLine open = Run(yaml, {"--check-config"});
  EXPECT_EQ(open.exit_code, 1);
  EXPECT_THAT(open.text, HasSubstr("--listen: 0.0.0.0:50051: other machines can connect there"));
  EXPECT_EQ(Run(yaml + "insecure: true\n", {"--check-config"}).exit_code, 0);
  EXPECT_EQ(Run(absl::StrCat("model: ", kModel, "\nlisten: '[::1]:0'\ncontrol-listen: '0'\n"),
                {"--check-config"})
                .exit_code,
            0);
}

TEST_F(Config, TheCheckFetchesNothing) {
  EXPECT_EQ(Parse({"--check-config", "--model", "hf:org/name"}).exit_code, 0);
  EXPECT_THAT(Parse({"--check-config", "--model", "hf:a/b/c"}).text, HasSubstr("--model: "));
}

}  // namespace
}  // namespace hydrant
