#include "tools/load/targets/prometheus_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

namespace hydrant::load {
namespace {

using testing::HasSubstr;

// With features of the format's description: escapes and braces in labels, timestamps, infinities.
TEST(PrometheusTextTest, NamesLabelsAndNumbers) {
  const auto parsed = ParsePrometheusText(
      "# HELP hydrant_pages What the pages hold.\n"
      "# TYPE hydrant_pages gauge\n"
      "hydrant_pages{state=\"free\"} 12\n"
      "hydrant_pages{state=\"used\",pool=\"a } \\\" b\"} 3.5e1\n"
      "# TYPE hydrant_pages_total counter\n"
      "hydrant_pages_total 47 1395066363000\n"
      "\n"
      "le_bucket{le=\"+Inf\"}\t+Inf\r\n"
      "nothing NaN\n");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->values.size(), 5u);
  EXPECT_EQ(parsed->values.at("hydrant_pages{state=\"used\",pool=\"a } \\\" b\"}"), 35);
  EXPECT_EQ(parsed->Sum("hydrant_pages"), 47);
  EXPECT_EQ(parsed->Sum("hydrant_pages", "state=\"free\""), 12);
  EXPECT_EQ(parsed->Sum("hydrant_pages_total"), 47);
  EXPECT_TRUE(std::isnan(parsed->Sum("hydrant_page")));
  EXPECT_TRUE(std::isnan(parsed->Sum("hydrant_pages", "state=\"lost\"")));
  EXPECT_TRUE(std::isinf(parsed->values.at("le_bucket{le=\"+Inf\"}")));
  EXPECT_EQ(parsed->types.at("hydrant_pages"), "gauge");
}

TEST(PrometheusTextTest, SaysWhichLineIsWrong) {
  for (const char* line : {"name", "name x", "name{a=\"b\"}", "name{a=\"b 3"}) {
    const auto parsed = ParsePrometheusText(std::string("fine 1\n") + line + "\n");
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr("line 2")) << line;
  }
}

}  // namespace
}  // namespace hydrant::load
