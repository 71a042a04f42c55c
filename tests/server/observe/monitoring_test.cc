// The dashboard and the alert rules compared with a live scrape, and checked by Prometheus'
// own tool.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>

#include "server/auth/tenants.h"
#include "tests/server/scrape.h"
#include "tests/server/test_certificates.h"
#include "tests/server/test_server.h"
#include "tests/server/token_entry.h"
#include "tests/subprocess.h"

namespace hydrant {
namespace {

constexpr char kDashboard[] = "deploy/grafana/hydrant-dashboard.json";
constexpr char kAlerts[] = "deploy/prometheus/alerts.yml";

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::string text(std::istreambuf_iterator<char>(file), {});
  EXPECT_FALSE(text.empty()) << path;
  return text;
}

// All strings with this key, at any depth.
void Collect(const nlohmann::json& json, const std::string& key, std::vector<std::string>* found) {
  if (json.is_object() && json.contains(key) && json.at(key).is_string())
    found->push_back(json.at(key));
  if (!json.is_structured()) return;
  for (const auto& child : json) Collect(child, key, found);
}

std::vector<std::string> DashboardExpressions() {
  std::vector<std::string> expressions;
  Collect(nlohmann::json::parse(ReadFile(kDashboard)), "expr", &expressions);
  return expressions;
}

using SeriesByName = std::map<std::string, std::vector<std::string>>;
SeriesByName LiveSeries() {
  const TemporaryFolder folder;
  const auto tenants =
      Tenants::Load(folder.Write("tokens.yaml", "tokens:\n" + EntryOf("acme", "secret")));
  EXPECT_TRUE(tenants.ok()) << tenants.status();
  TestServerOptions options;
  options.tenants = tenants->get();
  TestServer server(options);
  grpc::ClientContext context;
  context.AddMetadata("authorization", "Bearer secret");
  EXPECT_TRUE(RunToEnd(server.stub(), TextRequest("x", 3), &context).status.ok());
  SeriesByName by_name;
  for (const auto& [series, value] : ParseScrape(server.MetricsText()).series)
    by_name[series.substr(0, series.find('{'))].push_back(series);
  return by_name;
}

// Label matchers of series in the scrape: the values must exist.
void ExpectValues(const std::vector<std::string>& series, const std::string& matchers) {
  static const std::regex kMatcher(R"re((\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)")re");
  for (std::sregex_iterator it(matchers.begin(), matchers.end(), kMatcher), end; it != end; ++it) {
    const std::string label = (*it)[1], pattern = (*it)[2];
    if (label == "job" || label == "instance") continue;  // Prometheus adds these
    std::istringstream values(pattern);
    for (std::string value; std::getline(values, value, '|');) {
      const std::string pair = label + "=\"" + value + "\"";
      EXPECT_TRUE(std::any_of(series.begin(), series.end(),
                              [&](const std::string& one) { return one.find(pair) != one.npos; }))
          << pair << " in " << matchers;
    }
  }
}

// Returns the number of names.
int ExpectNamesAreLive(const std::string& text, const SeriesByName& live) {
  static const std::regex kName(R"((?:hydrant_|vllm:|process_)[a-z_:0-9]+)");
  static const std::regex kSelector(R"(^\s*\{([^}]*)\})");
  int names = 0;
  for (std::sregex_iterator it(text.begin(), text.end(), kName), end; it != end; ++it) {
    ++names;
    const std::string name = it->str();
    // Text about a histogram names the family.
    const auto found = live.contains(name) ? live.find(name) : live.find(name + "_count");
    if (found == live.end()) {
      ADD_FAILURE() << name << " is in no scrape";
      continue;
    }
    std::smatch selector;
    const std::string after = it->suffix();
    if (std::regex_search(after, selector, kSelector)) ExpectValues(found->second, selector[1]);
  }
  return names;
}

TEST(Monitoring, EveryMetricOfDashboardAndAlertsIsInAScrape) {
  const SeriesByName live = LiveSeries();
  const std::vector<std::string> expressions = DashboardExpressions();
  EXPECT_GT(expressions.size(), 40u);
  for (const std::string& expression : expressions) {
    SCOPED_TRACE(expression);
    EXPECT_GT(ExpectNamesAreLive(expression, live), 0);
  }
  EXPECT_GT(ExpectNamesAreLive(ReadFile(kAlerts), live), 20);
}

// Hydrant's own metrics.
TEST(Monitoring, EveryMetricIsOnTheDashboard) {
  std::string shown;
  for (const std::string& expression : DashboardExpressions()) shown += expression + "\n";
  std::set<std::string> families;
  for (const auto& [name, series] : LiveSeries()) {
    if (!name.starts_with("hydrant_")) continue;
    families.insert(std::regex_replace(name, std::regex("_(bucket|sum|count)$"), ""));
  }
  EXPECT_GT(families.size(), 50u);
  for (const std::string& family : families) {
    EXPECT_TRUE(std::regex_search(shown, std::regex("\\b" + family + "(_bucket)?\\b"))) << family;
  }
}

TEST(Monitoring, TheDashboardsPanelsDoNotOverlap) {
  const nlohmann::json dashboard = nlohmann::json::parse(ReadFile(kDashboard));
  std::set<int> ids;
  std::set<std::pair<int, int>> cells;
  for (const nlohmann::json& panel : dashboard.at("panels")) {
    EXPECT_TRUE(ids.insert(panel.at("id").get<int>()).second) << panel.at("title");
    const nlohmann::json& place = panel.at("gridPos");
    for (int x = place.at("x"); x < place.at("x").get<int>() + place.at("w").get<int>(); ++x) {
      EXPECT_LT(x, 24) << panel.at("title");
      for (int y = place.at("y"); y < place.at("y").get<int>() + place.at("h").get<int>(); ++y)
        EXPECT_TRUE(cells.insert({x, y}).second) << panel.at("title");
    }
  }
}

class Promtool : public testing::Test {
 protected:
  void SetUp() override {
    std::istringstream folders(std::string(std::getenv("PATH")) + ":.cache/bin");
    for (std::string folder; path_.empty() && std::getline(folders, folder, ':');) {
      if (access((folder + "/promtool").c_str(), X_OK) == 0) path_ = folder + "/promtool";
    }
    if (path_.empty()) GTEST_SKIP() << "no promtool: scripts/fetch-program promtool brings it";
  }
  void ExpectSuccess(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), path_);
    Subprocess process(arguments);
    EXPECT_EQ(process.Wait(), 0) << process.out() << process.err();
  }

  std::string path_;
};

TEST_F(Promtool, TakesTheRules) { ExpectSuccess({"check", "rules", kAlerts}); }

TEST_F(Promtool, SeesAlertsFireWhereTheyShould) {
  ExpectSuccess({"test", "rules", "tests/server/observe/alerts_test.yml"});
}

// As recording rules, with values for Grafana's variables.
TEST_F(Promtool, TakesTheDashboardsExpressions) {
  nlohmann::json rules;
  for (std::string expression : DashboardExpressions()) {
    expression = std::regex_replace(expression, std::regex(R"(\$__rate_interval)"), "1m");
    expression = std::regex_replace(expression, std::regex(R"(\$(job|instance))"), ".*");
    EXPECT_EQ(expression.find('$'), expression.npos) << expression;
    rules.push_back({{"record", "panel:" + std::to_string(rules.size())}, {"expr", expression}});
  }
  const nlohmann::json groups = {{"groups", {{{"name", "dashboard"}, {"rules", rules}}}}};
  // JSON is YAML.
  const std::string path = testing::TempDir() + "/dashboard_" + std::to_string(getpid()) + ".yml";
  std::ofstream(path) << groups;
  ExpectSuccess({"check", "rules", path});
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace hydrant
