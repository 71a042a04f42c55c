#include "tests/server/scrape.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <limits>
#include <regex>
#include <sstream>

namespace hydrant {

double Scrape::operator[](const std::string& name) const {
  const auto found = series.find(name);
  if (found != series.end()) return found->second;
  ADD_FAILURE() << "no series " << name;
  return std::numeric_limits<double>::quiet_NaN();
}

double Scrape::Sum(const std::string& family) const {
  double sum = 0.0;
  for (auto it = series.lower_bound(family); it != series.end(); ++it) {
    if (!it->first.starts_with(family)) break;
    if (it->first.size() == family.size() || it->first[family.size()] == '{') sum += it->second;
  }
  return sum;
}

Scrape ParseScrape(const std::string& text) {
  static const std::regex kHelp(R"(# HELP [a-z_:0-9]+ .+)");
  static const std::regex kType(R"(# TYPE ([a-z_:0-9]+) (gauge|counter|histogram))");
  static const std::regex kSample(
      R"re(([a-z_:0-9]+(?:\{[a-z_]+="[^"]*"(?:,[a-z_]+="[^"]*")*\})?) ([-+0-9.eInf]+))re");
  Scrape scrape;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::smatch match;
    if (std::regex_match(line, match, kType)) {
      EXPECT_TRUE(scrape.types.emplace(match[1], match[2]).second) << "twice: " << line;
    } else if (std::regex_match(line, match, kSample)) {
      const double value = std::strtod(match[2].str().c_str(), nullptr);
      EXPECT_TRUE(scrape.series.emplace(match[1], value).second) << "twice: " << line;
    } else {
      EXPECT_TRUE(std::regex_match(line, kHelp)) << "not of the format: " << line;
    }
  }
  return scrape;
}

}  // namespace hydrant
