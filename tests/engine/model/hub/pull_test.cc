// Pulls from a stand-in of the hub: requests to each server, and the resulting files.
#include "engine/model/hub/pull.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <latch>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "engine/model/hub/http_session.h"
#include "tests/engine/model/hub/hub_stand_in.h"

namespace hydrant::hub {
namespace {

namespace fs = std::filesystem;
using std::chrono::seconds;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

std::string Noise(size_t bytes, unsigned seed) {
  std::string text(bytes, '\0');
  for (char& c : text) {
    seed = seed * 1664525u + 1013904223u;
    c = static_cast<char>(seed >> 24);
  }
  return text;
}

std::string ReadAll(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return std::move(text).str();
}

class Listener : public PullListener {
 public:
  void OnPlan(const PullPlan& plan) override {
    plans.push_back(plan);
    if (on_plan) on_plan();
  }
  void OnProgress(const std::string&, int64_t bytes) override { progress.push_back(bytes); }
  void OnNote(const std::string& line) override { notes.push_back(line); }
  bool Cancelled() override {
    return cancel_after >= 0 && !progress.empty() && progress.back() >= cancel_after;
  }

  std::function<void()> on_plan;
  int64_t cancel_after = -1;  // bytes; below 0: never
  std::vector<PullPlan> plans;
  std::vector<int64_t> progress;
  std::vector<std::string> notes;
};

class PullTest : public testing::Test {
 protected:
  PullTest()
      : folder_(fs::temp_directory_path() /
                ("hydrant-pull-" + std::to_string(getpid()) + "-" +
                 testing::UnitTest::GetInstance()->current_test_info()->name())) {
    fs::remove_all(folder_);
    hub_.Add("config.json", R"({"model_type": "llama"})");
    hub_.Add("tokenizer.json", "{}");
    hub_.Add("README.md", "about it");
    hub_.Add("model.safetensors", Noise(3'000'000, 7), /*large=*/true);
    hub_.Add("pytorch_model.bin", Noise(1000, 8), /*large=*/true);
    settings_.endpoint = hub_.endpoint();
    settings_.cache = folder_.string();
    settings_.token = "hf_secret";
  }
  ~PullTest() override { fs::remove_all(folder_); }

  absl::StatusOr<PulledModel> Run(const std::string& model = HubStandIn::kRepo) {
    const auto reference = ParseModelReference(model);
    EXPECT_TRUE(reference.ok()) << reference.status();
    return Pull(*reference, settings_, &listener_,
                [this](seconds time) { waits_.push_back(time); });
  }
  fs::path Repo() const { return folder_ / "models--some-org--tiny"; }
  fs::path Snapshot() const { return Repo() / "snapshots" / HubStandIn::kCommit; }
  fs::path PartOf(const std::string& name) const {
    return Repo() / "blobs" / (hub_.BlobName(name) + ".incomplete");
  }

  const fs::path folder_;
  HubStandIn hub_;
  HubSettings settings_;
  Listener listener_;
  std::vector<seconds> waits_;
};

TEST_F(PullTest, FetchesTheNeededFilesIntoHuggingFacesLayout) {
  const auto pulled = Run();
  ASSERT_TRUE(pulled.ok()) << pulled.status();
  EXPECT_EQ(pulled->path, Snapshot().string());
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(Snapshot())) {
    const std::string name = entry.path().filename();
    names.push_back(name);
    EXPECT_EQ(ReadAll(entry.path()), hub_.bytes(name));
    EXPECT_EQ(fs::read_symlink(entry.path()), fs::path("../../blobs") / hub_.BlobName(name));
  }
  EXPECT_THAT(names,
              testing::UnorderedElementsAre("config.json", "tokenizer.json", "model.safetensors"));
  EXPECT_EQ(ReadAll(Repo() / "refs/main"), HubStandIn::kCommit);
  ASSERT_EQ(listener_.plans.size(), 1u);
  EXPECT_EQ(listener_.plans[0].total_bytes, 3'000'000 + 23 + 2);
  EXPECT_EQ(listener_.progress.back(), listener_.plans[0].total_bytes);
  EXPECT_TRUE(fs::exists(folder_ / "CACHEDIR.TAG"));
}

TEST_F(PullTest, TheTokenGoesToTheHubAlone) {
  ASSERT_TRUE(Run().ok());
  size_t at_cdn = 0;
  for (const HubStandIn::Seen& seen : hub_.seen()) {
    EXPECT_EQ(seen.authorization, seen.at_cdn ? "" : "Bearer hf_secret") << seen.path;
    at_cdn += seen.at_cdn ? 1 : 0;
  }
  EXPECT_EQ(at_cdn, 1u);
}

// For example from a repository's old name to its new one.
TEST_F(PullTest, ARedirectWithinTheHubKeepsTheToken) {
  hub_.hub_hook = [](const httplib::Request& request, httplib::Response* response) {
    const std::string old = "/api/models/old-org/tiny/revision/main";
    if (request.path != old) return false;
    response->set_redirect("/api/models/some-org/tiny/revision/main", 307);
    return true;
  };
  const auto pulled = Run("old-org/tiny");
  EXPECT_EQ(pulled.status().code(), absl::StatusCode::kNotFound);  // not in the stand-in
  ASSERT_GE(hub_.seen().size(), 2u);
  EXPECT_EQ(hub_.seen()[1].path, "/api/models/some-org/tiny/revision/main");
  EXPECT_EQ(hub_.seen()[1].authorization, "Bearer hf_secret");
}

TEST_F(PullTest, ARedirectInACircleEnds) {
  hub_.hub_hook = [](const httplib::Request& request, httplib::Response* response) {
    response->set_redirect(request.path);
    return true;
  };
  EXPECT_THAT(std::string(Run().status().message()), HasSubstr("more than 8 times"));
  EXPECT_EQ(hub_.seen().size(), 9u);
}

// The environment's proxy does not apply to this machine; nothing listens at its port.
TEST_F(PullTest, AHubOnThisMachineIsReachedWithoutAProxy) {
  setenv("http_proxy", "http://127.0.0.1:9", 1);
  const auto pulled = Run();
  unsetenv("http_proxy");
  EXPECT_TRUE(pulled.ok()) << pulled.status();
}

TEST_F(PullTest, ASecondPullFetchesNothing) {
  ASSERT_TRUE(Run().ok());
  const size_t before = hub_.seen().size();
  ASSERT_TRUE(Run().ok());
  EXPECT_EQ(hub_.seen().size(), before + 1);  // the request for the commit
  EXPECT_EQ(listener_.plans[1].present_bytes, listener_.plans[1].total_bytes);
}

TEST_F(PullTest, GoesOnWhereTheConnectionBroke) {
  std::atomic<int> calls{0};
  const std::string& bytes = hub_.bytes("model.safetensors");
  hub_.cdn_hook = [&](const httplib::Request&, httplib::Response* response) {
    if (calls++ > 0) return false;
    CompactionAfter(bytes, 1'000'000, response);
    return true;
  };
  const auto pulled = Run();
  ASSERT_TRUE(pulled.ok()) << pulled.status();
  EXPECT_EQ(ReadAll(Snapshot() / "model.safetensors"), bytes);
  std::vector<std::string> ranges;
  for (const HubStandIn::Seen& seen : hub_.seen()) {
    if (seen.at_cdn) ranges.push_back(seen.range);
  }
  EXPECT_THAT(ranges, ElementsAre("", "bytes=1000000-"));
  EXPECT_THAT(waits_, ElementsAre(seconds(1)));
  ASSERT_EQ(listener_.notes.size(), 1u);
  EXPECT_THAT(listener_.notes[0], AllOf(HasSubstr("lost"), HasSubstr("trying again in 1 s")));
}

TEST_F(PullTest, BeginsAnewWhereTheServerKnowsNoRanges) {
  std::atomic<int> calls{0};
  const std::string& bytes = hub_.bytes("model.safetensors");
  hub_.cdn_hook = [&](const httplib::Request& request, httplib::Response* response) {
    if (calls++ == 0) {
      CompactionAfter(bytes, 1'000'000, response);
    } else {
      const_cast<httplib::Request&>(request).ranges.clear();
      response->status = 200;
      response->set_content(bytes, "application/octet-stream");
    }
    return true;
  };
  const auto pulled = Run();
  ASSERT_TRUE(pulled.ok()) << pulled.status();
  EXPECT_EQ(ReadAll(Snapshot() / "model.safetensors"), bytes);
}

TEST_F(PullTest, RefusesARangeThatBeginsElsewhere) {
  std::atomic<int> calls{0};
  hub_.cdn_hook = [&](const httplib::Request& request, httplib::Response* response) {
    if (calls++ == 0) {
      CompactionAfter(hub_.bytes("model.safetensors"), 1'000'000, response);
    } else {
      const_cast<httplib::Request&>(request).ranges.clear();
      response->status = 206;
      response->set_header("Content-Range", "bytes 5-2999999/3000000");
      response->set_content("other bytes", "application/octet-stream");
    }
    return true;
  };
  const auto pulled = Run();
  EXPECT_EQ(pulled.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(pulled.status().message()), HasSubstr("from 1000000 on"));
}

// An unused body is read only up to a limit.
TEST_F(PullTest, ARefusalsPageWithoutEndIsNotReadToIt) {
  std::atomic<size_t> sent = 0;
  constexpr size_t kLimit = size_t{256} << 20;
  hub_.hub_hook = [&](const httplib::Request&, httplib::Response* response) {
    response->status = 404;
    response->set_chunked_content_provider("text/html", [&](size_t, httplib::DataSink& sink) {
      const std::string page(1 << 16, 'x');
      if (sent >= kLimit) return false;
      sent += page.size();
      return sink.write(page.data(), page.size());
    });
    return true;
  };
  const auto pulled = Run();
  EXPECT_EQ(pulled.status().code(), absl::StatusCode::kNotFound) << pulled.status();
  EXPECT_LT(sent, kLimit / 2);
}

TEST_F(PullTest, AnInterruptedPullLeavesAPartThatTheNextOneGoesOnWith) {
  listener_.cancel_after = 500'000;
  const auto stopped = Run();
  EXPECT_EQ(stopped.status().code(), absl::StatusCode::kCancelled) << stopped.status();
  const uintmax_t part = fs::file_size(PartOf("model.safetensors"));
  EXPECT_GE(part, 500'000u - 100);
  EXPECT_LT(part, 3'000'000u);
  EXPECT_FALSE(fs::exists(Repo() / "refs/main"));
  listener_.cancel_after = -1;
  const auto pulled = Run();
  ASSERT_TRUE(pulled.ok()) << pulled.status();
  EXPECT_EQ(ReadAll(Snapshot() / "model.safetensors"), hub_.bytes("model.safetensors"));
  EXPECT_EQ(hub_.seen().back().range, "");  // tokenizer.json
  EXPECT_EQ(hub_.CountSeen("/blobs/"), 2u);
  EXPECT_GT(listener_.plans[1].present_bytes, 500'000 - 100);
}

TEST_F(PullTest, AWrongHashDeletesThePartAndSaysSo) {
  hub_.cdn_hook = [](const httplib::Request&, httplib::Response* response) {
    response->set_content(Noise(3'000'000, 99), "application/octet-stream");
    return true;
  };
  const auto pulled = Run();
  EXPECT_EQ(pulled.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(pulled.status().message()),
              AllOf(HasSubstr("model.safetensors"), HasSubstr("SHA-256"), HasSubstr("deleted")));
  EXPECT_FALSE(fs::exists(PartOf("model.safetensors")));
  EXPECT_FALSE(fs::exists(Snapshot() / "model.safetensors"));
}

TEST_F(PullTest, SmallFilesAreCheckedByGitsHash) {
  hub_.hub_hook = [](const httplib::Request& request, httplib::Response* response) {
    if (!request.path.ends_with("/config.json")) return false;
    response->set_content(R"({"model_type": "gemma"})", "application/json");
    return true;
  };
  EXPECT_THAT(std::string(Run().status().message()), HasSubstr("git SHA-1"));
}

TEST_F(PullTest, MoreBytesThanListedAreRefused) {
  hub_.cdn_hook = [](const httplib::Request&, httplib::Response* response) {
    response->set_content(Noise(3'000'001, 7), "application/octet-stream");
    return true;
  };
  EXPECT_THAT(std::string(Run().status().message()), HasSubstr("more than the 3000000 bytes"));
}

TEST_F(PullTest, FewerBytesThanListedAreKept) {
  hub_.cdn_hook = [&](const httplib::Request&, httplib::Response* response) {
    response->set_content(hub_.bytes("model.safetensors").substr(0, 1000), "text/plain");
    return true;
  };
  EXPECT_THAT(std::string(Run().status().message()), HasSubstr("1000 of 3000000 bytes"));
  EXPECT_EQ(fs::file_size(PartOf("model.safetensors")), 1000u);
  hub_.cdn_hook = nullptr;
  const auto pulled = Run();
  ASSERT_TRUE(pulled.ok()) << pulled.status();
}

TEST_F(PullTest, WaitsAsLongAsTheHubSays) {
  std::atomic<int> calls{0};
  hub_.hub_hook = [&](const httplib::Request&, httplib::Response* response) {
    if (calls++ > 1) return false;
    response->status = 429;
    response->set_header("Retry-After", "17");
    return true;
  };
  ASSERT_TRUE(Run().ok());
  EXPECT_THAT(waits_, ElementsAre(seconds(17), seconds(17)));
}

TEST_F(PullTest, WaitsLongerFromOneErrorToTheNextAndThenGivesUp) {
  hub_.hub_hook = [](const httplib::Request&, httplib::Response* response) {
    response->status = 503;
    return true;
  };
  const auto pulled = Run();
  EXPECT_EQ(pulled.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(pulled.status().message()),
              AllOf(HasSubstr("HTTP 503"), HasSubstr("HF_ENDPOINT"), HasSubstr(Repo().string())));
  EXPECT_THAT(waits_, ElementsAre(seconds(1), seconds(2), seconds(4), seconds(8)));
}

TEST_F(PullTest, DoesNotWaitForHours) {
  hub_.hub_hook = [](const httplib::Request&, httplib::Response* response) {
    response->status = 429;
    response->set_header("Retry-After", "3600");
    return true;
  };
  const auto pulled = Run();
  EXPECT_EQ(pulled.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(pulled.status().message()), HasSubstr("for 3600 s"));
  EXPECT_THAT(waits_, IsEmpty());
}

struct Refusal {
  int status;
  std::string code;
  bool token;
  absl::StatusCode wanted;
  std::string says;
};

class RefusalTest : public PullTest, public testing::WithParamInterface<Refusal> {};

TEST_P(RefusalTest, NamesTheRemedyInOneLine) {
  const Refusal& refusal = GetParam();
  hub_.hub_hook = [&](const httplib::Request&, httplib::Response* response) {
    response->status = refusal.status;
    if (!refusal.code.empty()) response->set_header("X-Error-Code", refusal.code);
    return true;
  };
  if (!refusal.token) settings_.token = "";
  const auto pulled = Run();
  EXPECT_EQ(pulled.status().code(), refusal.wanted);
  EXPECT_THAT(std::string(pulled.status().message()),
              AllOf(HasSubstr(refusal.says), Not(HasSubstr("\n")), Not(HasSubstr("hf_secret"))));
  EXPECT_THAT(waits_, IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(
    All, RefusalTest,
    testing::Values(
        Refusal{403, "GatedRepo", true, absl::StatusCode::kPermissionDenied, "ask for it at http"},
        Refusal{401, "GatedRepo", false, absl::StatusCode::kPermissionDenied, "then set HF_TOKEN"},
        Refusal{401, "RepoNotFound", false, absl::StatusCode::kNotFound, "or set HF_TOKEN"},
        Refusal{404, "RepoNotFound", true, absl::StatusCode::kNotFound, "may not read"},
        Refusal{401, "", true, absl::StatusCode::kPermissionDenied, "does not accept the token"},
        Refusal{404, "RevisionNotFound", true, absl::StatusCode::kNotFound, "revision 'main'"},
        Refusal{403, "", false, absl::StatusCode::kPermissionDenied, "set HF_TOKEN"},
        Refusal{404, "", true, absl::StatusCode::kNotFound, "is HF_ENDPOINT a hub?"}));

TEST_F(PullTest, AnUnknownRevisionIsNamed) {
  const auto pulled = Run(std::string(HubStandIn::kRepo) + "@v9");
  EXPECT_EQ(pulled.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(pulled.status().message()), HasSubstr("no revision 'v9'"));
}

TEST_F(PullTest, ACommitNeedsNoRef) {
  const auto pulled = Run(std::string(HubStandIn::kRepo) + "@" + HubStandIn::kCommit);
  ASSERT_TRUE(pulled.ok()) << pulled.status();
  EXPECT_FALSE(fs::exists(Repo() / "refs"));
}

TEST_F(PullTest, AFileByItsNameWhereverItIs) {
  hub_.Add("gguf/tiny-Q8_0.gguf", Noise(5000, 3), /*large=*/true);
  const auto pulled = Run(std::string(HubStandIn::kRepo) + ":gguf/tiny-Q8_0.gguf");
  ASSERT_TRUE(pulled.ok()) << pulled.status();
  EXPECT_EQ(fs::path(pulled->path), Snapshot() / "gguf/tiny-Q8_0.gguf");
  EXPECT_EQ(ReadAll(pulled->path), hub_.bytes("gguf/tiny-Q8_0.gguf"));
  EXPECT_EQ(fs::read_symlink(pulled->path),
            fs::path("../../../blobs") / hub_.BlobName("gguf/tiny-Q8_0.gguf"));
}

TEST_F(PullTest, AListOfManyPages) {
  for (int i = 0; i < 20; ++i) hub_.Add("extra/" + std::to_string(i), "x");
  hub_.set_page_size(7);
  ASSERT_TRUE(Run().ok());
  EXPECT_EQ(hub_.CountSeen("/tree/"), 4u);
}

TEST_F(PullTest, AListWithoutEndIsRefused) {
  hub_.hub_hook = [](const httplib::Request& request, httplib::Response* response) {
    if (request.path.find("/tree/") == std::string::npos) return false;
    response->set_header("Link", "<https://x/y?cursor=1>; rel=\"next\"");
    response->set_content("[]", "application/json");
    return true;
  };
  EXPECT_THAT(std::string(Run().status().message()), HasSubstr("more than 200 pages"));
}

TEST_F(PullTest, AnotherServerIsReportedAsNoHub) {
  hub_.hub_hook = [](const httplib::Request&, httplib::Response* response) {
    response->set_content("<html>Please log in</html>", "text/html");
    return true;
  };
  EXPECT_THAT(std::string(Run().status().message()),
              AllOf(HasSubstr("does not answer as a hub does"), HasSubstr("not valid JSON")));
}

TEST_F(PullTest, AnAnswerWithoutEndIsRefused) {
  hub_.hub_hook = [](const httplib::Request&, httplib::Response* response) {
    response->set_chunked_content_provider("text/plain", [](size_t, httplib::DataSink& sink) {
      const std::string block(1 << 20, ' ');
      return sink.write(block.data(), block.size());
    });
    return true;
  };
  EXPECT_THAT(std::string(Run().status().message()), HasSubstr("longer than"));
}

// A hub that sends a little in each attempt is given up, as one that sends nothing.
TEST_F(PullTest, AHubThatSendsALittleEachTimeIsLeft) {
  const std::string& bytes = hub_.bytes("model.safetensors");
  std::atomic<int> calls{0};
  hub_.cdn_hook = [&](const httplib::Request& request, httplib::Response* response) {
    if (++calls > 50) return false;  // otherwise the pull would never end
    const_cast<httplib::Request&>(request).ranges.clear();
    CompactionAfter(bytes, 1000, response);
    return true;
  };
  EXPECT_TRUE(absl::IsUnavailable(Run().status()));
  EXPECT_EQ(calls, 5);
}

TEST_F(PullTest, AnAnswerThatDripsEndsAtItsTime) {
  hub_.hub_hook = [](const httplib::Request&, httplib::Response* response) {
    response->set_chunked_content_provider("text/plain", [](size_t, httplib::DataSink& sink) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      return sink.write(" ", 1);
    });
    return true;
  };
  const auto session = NewHttpSession({});
  ASSERT_TRUE(session.ok());
  const absl::Status status =
      (*session)
          ->Get({.url = hub_.endpoint() + "/x",
                 .bearer = "",
                 .timeout = std::chrono::milliseconds(200)},
                [](const HttpHead&, std::string_view) { return absl::OkStatus(); })
          .status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
}

TEST_F(PullTest, ANameThatLeavesItsFolderIsRefused) {
  const std::string page = R"([{"type": "file", "path": "../../evil", "size": 1, "oid": ")" +
                           std::string(40, 'a') + R"("}])";
  hub_.hub_hook = [&](const httplib::Request& request, httplib::Response* response) {
    if (request.path.find("/tree/") == std::string::npos) return false;
    response->set_content(page, "application/json");
    return true;
  };
  EXPECT_THAT(std::string(Run().status().message()),
              AllOf(HasSubstr("'../../evil'"), HasSubstr("inside of its folder")));
  EXPECT_FALSE(fs::exists(folder_));
}

TEST_F(PullTest, MoreThanTheDiskHoldsIsRefusedBeforeTheFirstByte) {
  const std::string page =
      R"([{"type": "file", "path": "a.gguf", "size": 1, "oid": ")" + std::string(40, 'a') +
      R"(", "lfs": {"size": 1125899906842624, "oid": ")" + std::string(64, 'b') + R"("}}])";
  hub_.hub_hook = [&](const httplib::Request& request, httplib::Response* response) {
    if (request.path.find("/tree/") == std::string::npos) return false;
    response->set_content(page, "application/json");
    return true;
  };
  const auto pulled = Run();
  EXPECT_EQ(pulled.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(pulled.status().message()), AllOf(HasSubstr("free"), HasSubstr("TB")));
  EXPECT_EQ(hub_.CountSeen("/resolve/"), 0u);
}

TEST_F(PullTest, TwoPullsAtOnceFetchEachFileOnce) {
  std::latch both_planned(2);
  Listener other;
  other.on_plan = listener_.on_plan = [&] { both_planned.arrive_and_wait(); };
  absl::StatusOr<PulledModel> second;
  std::thread thread(
      [&] { second = Pull(*ParseModelReference(HubStandIn::kRepo), settings_, &other); });
  const auto first = Run();
  thread.join();
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(first->path, second->path);
  EXPECT_EQ(ReadAll(Snapshot() / "model.safetensors"), hub_.bytes("model.safetensors"));
  EXPECT_EQ(hub_.CountSeen("/blobs/"), 1u);
}

TEST_F(PullTest, OfflineUsesTheCacheOnly) {
  settings_.offline = true;
  const auto nothing = Run();
  EXPECT_EQ(nothing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(nothing.status().message()),
              AllOf(HasSubstr("HF_HUB_OFFLINE"), HasSubstr("copy " + Repo().string())));
  EXPECT_THAT(hub_.seen(), IsEmpty());

  settings_.offline = false;
  const auto pulled = Run();
  ASSERT_TRUE(pulled.ok()) << pulled.status();
  const size_t before = hub_.seen().size();
  settings_.offline = true;
  const auto again = Run();
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->path, pulled->path);
  EXPECT_EQ(hub_.seen().size(), before);
}

TEST_F(PullTest, AFileOfAnotherLengthIsNotInTheCache) {
  ASSERT_TRUE(Run().ok());
  const ModelReference reference{.repo = HubStandIn::kRepo, .revision = "main", .file = ""};
  EXPECT_TRUE(FindInCache(reference, settings_).ok());
  fs::resize_file(Repo() / "blobs" / hub_.BlobName("model.safetensors"), 100);
  EXPECT_THAT(std::string(FindInCache(reference, settings_).status().message()),
              HasSubstr("'model.safetensors' is missing"));
}

// Root may write anywhere, so the test checks the files instead.
TEST_F(PullTest, AWholeModelIsNotWrittenAgain) {
  ASSERT_TRUE(Run().ok());
  const auto times = [&] {
    std::map<fs::path, fs::file_time_type> found;
    for (const auto& entry : fs::recursive_directory_iterator(folder_))
      found[entry.path()] = fs::last_write_time(entry.path());
    return found;
  };
  const auto before = times();
  ASSERT_TRUE(Run().ok());
  EXPECT_EQ(times(), before);
}

TEST_F(PullTest, AnUnreachableHubIsReportedAtOnce) {
  settings_.endpoint = "http://127.0.0.1:1";
  const auto pulled = Run();
  EXPECT_EQ(pulled.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(pulled.status().message()),
              AllOf(HasSubstr("cannot reach http://127.0.0.1:1"),
                    HasSubstr("copy " + Repo().string()), HasSubstr("HF_ENDPOINT")));
  EXPECT_THAT(waits_, IsEmpty());
}

TEST_F(PullTest, APartThatIsLongerThanTheFileIsDropped) {
  fs::create_directories(Repo() / "blobs");
  std::ofstream(PartOf("model.safetensors"), std::ios::binary) << Noise(3'000'500, 1);
  const auto pulled = Run();
  ASSERT_TRUE(pulled.ok()) << pulled.status();
  EXPECT_EQ(ReadAll(Snapshot() / "model.safetensors"), hub_.bytes("model.safetensors"));
}

TEST_F(PullTest, AWholePartOnlyWantsItsName) {
  fs::create_directories(Repo() / "blobs");
  std::ofstream(PartOf("model.safetensors"), std::ios::binary) << hub_.bytes("model.safetensors");
  ASSERT_TRUE(Run().ok());
  EXPECT_EQ(hub_.CountSeen("/blobs/"), 0u);
}

TEST_F(PullTest, ABlobOfAnotherLengthIsFetchedAgain) {
  fs::create_directories(Repo() / "blobs");
  std::ofstream(Repo() / "blobs" / hub_.BlobName("model.safetensors")) << "cut short";
  ASSERT_TRUE(Run().ok());
  EXPECT_EQ(ReadAll(Snapshot() / "model.safetensors"), hub_.bytes("model.safetensors"));
}

}  // namespace
}  // namespace hydrant::hub
