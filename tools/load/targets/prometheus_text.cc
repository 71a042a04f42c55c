#include "tools/load/targets/prometheus_text.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <sstream>

#include "absl/strings/str_cat.h"

namespace hydrant::load {
namespace {

// The end of a series: after the brace that closes its labels, or at the first space.
size_t EndOfSeries(std::string_view line) {
  bool quoted = false, labels = false;
  for (size_t i = 0; i < line.size(); ++i) {
    if (quoted) {
      if (line[i] == '\\')
        ++i;
      else if (line[i] == '"')
        quoted = false;
    } else if (line[i] == '"') {
      quoted = true;
    } else if (line[i] == '{') {
      labels = true;
    } else if (line[i] == '}') {
      return i + 1;
    } else if (!labels && (line[i] == ' ' || line[i] == '\t')) {
      return i;
    }
  }
  return std::string_view::npos;
}

std::string_view Trimmed(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\r";
  const size_t begin = text.find_first_not_of(kSpaces);
  if (begin == std::string_view::npos) return "";
  return text.substr(begin, text.find_last_not_of(kSpaces) - begin + 1);
}

bool IsSpaceOrEnd(char c) { return c == ' ' || c == '\t' || c == '\0'; }

}  // namespace

double PrometheusValues::Sum(std::string_view name, std::string_view label) const {
  double sum = std::numeric_limits<double>::quiet_NaN();
  for (auto it = values.lower_bound(std::string(name)); it != values.end(); ++it) {
    const std::string_view series = it->first;
    if (series.substr(0, name.size()) != name) break;
    const std::string_view labels = series.substr(name.size());
    if (!labels.empty() && labels.front() != '{') continue;  // a longer name
    if (labels.find(label) == std::string_view::npos) continue;
    sum = std::isnan(sum) ? it->second : sum + it->second;
  }
  return sum;
}

absl::StatusOr<PrometheusValues> ParsePrometheusText(std::string_view text) {
  PrometheusValues parsed;
  for (int number = 1; !text.empty(); ++number) {
    const size_t end = text.find('\n');
    const std::string line(Trimmed(text.substr(0, end)));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.empty()) continue;
    if (line.front() == '#') {
      std::istringstream words(line);
      std::string hash, keyword, name, type;
      if (words >> hash >> keyword >> name >> type && keyword == "TYPE") parsed.types[name] = type;
      continue;
    }
    const size_t name_ends = std::min(EndOfSeries(line), line.size());
    const char* const number_begins = line.c_str() + name_ends;
    char* number_ends = nullptr;
    const double value = std::strtod(number_begins, &number_ends);  // a timestamp may follow
    if (number_ends == number_begins || !IsSpaceOrEnd(*number_ends))
      return absl::InvalidArgumentError(absl::StrCat("line ", number, ": no number after a name"));
    parsed.values[line.substr(0, name_ends)] = value;
  }
  return parsed;
}

}  // namespace hydrant::load
