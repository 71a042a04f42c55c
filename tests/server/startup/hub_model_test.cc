// Models of the hub with the programs: hydrant downloads one, hydrantd serves it, from a fake hub
// on loopback.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <latch>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "tests/engine/model/hub/hub_stand_in.h"
#include "tests/server/test_server.h"
#include "tests/subprocess.h"

namespace hydrant {
namespace {

namespace fs = std::filesystem;
using hub::HubStandIn;
using testing::AllOf;
using testing::HasSubstr;

constexpr char kFolder[] = "tests/data/engine/tiny_mha";
constexpr char kGguf[] = "models/hydrant-tiny.gguf";
const std::string kModel = HubStandIn::kRepo;

std::string ReadAll(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return std::move(text).str();
}

class HubModelTest : public testing::Test {
 protected:
  HubModelTest()
      : home_(fs::temp_directory_path() /
              ("hydrant-hub-model-" + std::to_string(getpid()) + "-" +
               testing::UnitTest::GetInstance()->current_test_info()->name())) {
    fs::remove_all(home_);
    for (const char* name : {"HF_HUB_CACHE", "HF_TOKEN", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"})
      unsetenv(name);
    setenv("HF_HOME", home_.c_str(), 1);
    hub_.emplace();
    setenv("HF_ENDPOINT", hub_->endpoint().c_str(), 1);
  }
  ~HubModelTest() override { fs::remove_all(home_); }

  void AddFolder() {
    for (const auto& entry : fs::directory_iterator(kFolder)) {
      const std::string name = entry.path().filename();
      hub_->Add(name, ReadAll(entry.path()), name.ends_with(".safetensors"));
    }
  }
  fs::path Repo() const { return home_ / "hub/models--some-org--tiny"; }
  static std::vector<std::string> DaemonOf(const std::string& model) {
    return {HYDRANTD_PATH, "--model",   model,       "--listen", "127.0.0.1:0",
            "--device",    "reference", "--threads", "1"};
  }

  const fs::path home_;
  std::optional<HubStandIn> hub_;
};

TEST_F(HubModelTest, PullPrintsThePathAndHowToServeIt) {
  AddFolder();
  Subprocess pull({HYDRANT_PATH, "pull", kModel});
  EXPECT_EQ(pull.Wait(), 0) << pull.err();
  const std::string path = pull.out().substr(0, pull.out().find('\n'));
  EXPECT_TRUE(fs::exists(fs::path(path) / "model.safetensors")) << pull.out();
  EXPECT_THAT(pull.err(), HasSubstr("hydrantd --model hf:some-org/tiny\n"));
  Subprocess json({HYDRANT_PATH, "pull", "--json", "--quiet", "hf:" + kModel});
  EXPECT_EQ(json.Wait(), 0) << json.err();
  const auto object = nlohmann::json::parse(json.out());
  EXPECT_EQ(object["path"], path);
  EXPECT_EQ(object["commit"], HubStandIn::kCommit);
  EXPECT_EQ(json.err(), "");
}

TEST_F(HubModelTest, TheDaemonFetchesAModelOnceAndThenNeedsNoHub) {
  AddFolder();
  {
    Subprocess daemon(DaemonOf("hf:" + kModel));
    EXPECT_THAT(daemon.WaitForErrorLine("ready after"), HasSubstr("\"some-org/tiny\""));
    daemon.Signal(SIGTERM);
    EXPECT_EQ(daemon.Wait(), 0) << daemon.err();
    EXPECT_THAT(daemon.err(), HasSubstr("hf:some-org/tiny: "));
  }
  hub_.reset();
  Subprocess daemon(DaemonOf(kModel));  // no file or folder of that name exists
  EXPECT_THAT(daemon.WaitForErrorLine("ready after"), HasSubstr("\"some-org/tiny\""));
  daemon.Signal(SIGTERM);
  EXPECT_EQ(daemon.Wait(), 0) << daemon.err();
}

TEST_F(HubModelTest, TheDaemonServesAGgufByItsQuantisation) {
  hub_->Add("tiny-Q8_0.gguf", ReadAll(kGguf), /*large=*/true);
  hub_->Add("tiny-Q4_K_M.gguf", "not this one", /*large=*/true);
  Subprocess daemon(DaemonOf("hf:" + kModel + ":q8_0"));
  EXPECT_NE(daemon.WaitForErrorLine("ready after"), "") << daemon.err();
  daemon.Signal(SIGTERM);
  EXPECT_EQ(daemon.Wait(), 0) << daemon.err();
}

TEST_F(HubModelTest, WithoutAHubTheDaemonNamesTheFilesToCopy) {
  hub_.reset();
  for (const char* offline : {"0", "1"}) {
    setenv("HF_HUB_OFFLINE", offline, 1);
    Subprocess daemon(DaemonOf("hf:" + kModel));
    EXPECT_EQ(daemon.Wait(), 1);
    const size_t line = daemon.err().find("hydrantd: --model hf:some-org/tiny: ");
    ASSERT_NE(line, std::string::npos) << daemon.err();
    EXPECT_THAT(daemon.err().substr(line),
                AllOf(HasSubstr("copy " + Repo().string()), HasSubstr("HF_ENDPOINT")));
    EXPECT_EQ(daemon.err().find('\n', line), daemon.err().size() - 1) << daemon.err();
  }
}

TEST_F(HubModelTest, ExitCodesTellANameFromAHubThatIsAway) {
  Subprocess bad_name({HYDRANT_PATH, "pull", "../etc/passwd"});
  EXPECT_EQ(bad_name.Wait(), 2);
  Subprocess unknown({HYDRANT_PATH, "pull", "some-org/other"});
  EXPECT_EQ(unknown.Wait(), 1);
  EXPECT_THAT(unknown.err(), HasSubstr("has no model some-org/other"));
  hub_.reset();
  Subprocess away({HYDRANT_PATH, "pull", kModel});
  EXPECT_EQ(away.Wait(), 3);
  EXPECT_THAT(away.err(), HasSubstr("cannot reach"));
}

TEST_F(HubModelTest, CtrlCKeepsPartsForTheNextPull) {
  const std::string bytes = ReadAll(kGguf);
  const size_t half = bytes.size() / 2;
  hub_->Add("tiny.gguf", bytes, /*large=*/true);
  std::latch interrupted(1);
  hub_->cdn_hook = [&](const httplib::Request&, httplib::Response* response) {
    response->set_content_provider(bytes.size(), "application/octet-stream",
                                   [&](size_t offset, size_t, httplib::DataSink& sink) {
                                     if (offset == 0) return sink.write(bytes.data(), half);
                                     interrupted.wait();
                                     return false;
                                   });
    return true;
  };
  const fs::path part = Repo() / "blobs" / (hub_->BlobName("tiny.gguf") + ".incomplete");
  Subprocess pull({HYDRANT_PATH, "pull", kModel});
  EXPECT_TRUE(WaitFor([&] {
    std::error_code error;
    return fs::file_size(part, error) == half && !error;
  }));
  pull.Signal(SIGINT);
  EXPECT_EQ(pull.Wait(), 130);
  interrupted.count_down();
  EXPECT_THAT(pull.err(), HasSubstr("goes on where it was"));
  EXPECT_EQ(fs::file_size(part), half);

  hub_->cdn_hook = nullptr;
  Subprocess again({HYDRANT_PATH, "pull", kModel});
  EXPECT_EQ(again.Wait(), 0) << again.err();
  EXPECT_EQ(hub_->seen().back().range, "bytes=" + std::to_string(half) + "-");
  EXPECT_EQ(ReadAll(again.out().substr(0, again.out().size() - 1)), bytes);
}

}  // namespace
}  // namespace hydrant
