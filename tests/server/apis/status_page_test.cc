// The JSON polled by the status page: valid with any client names, and without a view older than
// the last poll.
#include "server/apis/status_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <regex>

#include "tests/server/test_server.h"

namespace hydrant {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

TEST(StatusJson, BeforeTheModelThereIsHealth) {
  const json status =
      json::parse(StatusJson({}, {.why = "loading: 40 % of the model"}, nullptr, 7));
  EXPECT_EQ(status.at("health").at("why"), "loading: 40 % of the model");
  EXPECT_FALSE(status.at("health").at("ready"));
  EXPECT_TRUE(status.at("model").is_null());
  EXPECT_TRUE(status.at("view").is_null());
}

// Quotes, markup, control characters, half a character: more than clients may send.
TEST(StatusJson, NamesOfClientsAreOnlyText) {
  const std::string hostile = "\"</script><img src=x onerror=alert(1)>\n\\ \xff\xc3";
  ServingView view;
  view.at = 1000;
  view.live.emplace_back();
  view.live[0].request_id = hostile;
  view.live[0].tenant = hostile;
  view.live[0].policy = hostile;
  view.waiting = view.live;
  const json status = json::parse(StatusJson({}, {}, &view, 251'000));
  const std::string expected = "\"</script><img src=x onerror=alert(1)>\n\\ \uFFFD\uFFFD";
  for (const char* list : {"live", "queue"}) {
    const json& one = status.at("view").at(list).at(0);
    EXPECT_EQ(one.at("request_id"), expected);
    EXPECT_EQ(one.at("tenant"), expected);
    EXPECT_EQ(one.at("policy"), expected);
  }
  EXPECT_EQ(status.at("view").at("age_ms"), 250);
}

// The page derives a policy's colour from its index in this list.
TEST(StatusJson, HasAllPoliciesInOrder) {
  const json empty = json::parse(StatusJson({}, {}, nullptr, 7));
  std::vector<std::string> names;
  for (const PolicyInfo& policy : ListPolicies()) names.push_back(policy.name);
  EXPECT_EQ(empty.at("policies"), json(names));
  ServingView view;
  view.live.emplace_back();
  view.live[0].policy = "echo";
  EXPECT_EQ(json::parse(StatusJson({}, {}, &view, 7)).at("policies"), json(names));
}

TEST(StatusJson, SaysInWhichStateARequestIs) {
  ServingView view;
  view.live.resize(4);
  view.live[0].phase = Phase::kReading;
  view.live[1].phase = Phase::kRunning;
  view.live[2].phase = Phase::kPreempted;
  view.live[3].phase = Phase::kSwapped;
  view.live[3].budget = 64;
  view.steps = {{.begin = 10, .end = 30, .work = {.rows = 3}, .predicted_us = 18.6},
                {.begin = 30, .end = 31}};  // an empty step
  const json status = json::parse(StatusJson({}, {}, &view, 0));
  std::vector<std::string> states;
  for (const json& one : status.at("view").at("live")) states.push_back(one.at("state"));
  EXPECT_THAT(states, testing::ElementsAre("prefilling", "running", "preempted", "swapped"));
  EXPECT_TRUE(status.at("view").at("live").at(0).at("budget").is_null());
  EXPECT_EQ(status.at("view").at("live").at(3).at("budget"), 64);
  EXPECT_EQ(status.at("view").at("steps"), json::parse("[[30, 20, 19, 3, 0]]"));
}

TEST(StatusPageTest, NeedsNothingFromElsewhere) {
  const HttpAnswer page = StatusPage().Page();
  EXPECT_EQ(page.content_type, "text/html; charset=utf-8");
  EXPECT_THAT(page.body, HasSubstr("Content-Security-Policy\" content=\"default-src 'none'"));
  // The only address is SVG's namespace.
  const std::string body =
      std::regex_replace(page.body, std::regex("http://www.w3.org/2000/svg"), "");
  EXPECT_THAT(body, Not(HasSubstr("http://")));
  EXPECT_THAT(body, Not(HasSubstr("https://")));
  for (const char* markup : {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write"})
    EXPECT_THAT(body, Not(HasSubstr(markup)));
  EXPECT_THAT(body, Not(HasSubstr("/*SCRIPTS*/")));
}

TEST(StatusPageTest, TimesWithoutAViewerAreNotShown) {
  TestServer server;
  StatusPage page;
  TimeUs now = 10'000'000;
  const auto view = [&] {
    const HttpAnswer answer = page.Status(server.service->Current(), {}, now);
    EXPECT_EQ(answer.content_type, "application/json");
    return json::parse(answer.body).at("view");
  };
  EXPECT_TRUE(view().is_null());
  ASSERT_TRUE(WaitFor([&] {
    now += 500'000;
    return view().is_object();
  }));
  now += 500'000;
  const json seen = view();
  EXPECT_TRUE(seen.is_object());
  EXPECT_EQ(seen.at("pool").at("free"), seen.at("pool").at("pages"));
  now += 60'000'000;
  EXPECT_TRUE(view().is_null());
}

}  // namespace
}  // namespace hydrant
