#include "eval/results.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace hydrant {
namespace {

using Json = nlohmann::json;

constexpr char kFull[] = "full";
// Of a normal distribution: 95 % lie within so many deviations.
constexpr double kDeviations = 1.96;

Json ToJson(const Measured& m) {
  return {{"task", m.task},
          {"case", m.number},
          {"arm", m.arm},
          {"budget", m.budget},
          {"nll", m.nll},
          {"agreement", m.agreement},
          {"divergence", m.divergence},
          {"found", m.found},
          {"text", m.text},
          {"entries", m.entries},
          {"retained_mass", m.retained_mass},
          {"kept", m.kept}};
}

std::optional<Measured> FromJson(const Json& line) {
  if (!line.is_object() || !line.contains("kept")) return std::nullopt;
  Measured m;
  m.task = line.at("task");
  m.number = line.at("case");
  m.arm = line.at("arm");
  m.budget = line.at("budget");
  m.nll = line.at("nll");
  m.agreement = line.at("agreement");
  m.divergence = line.at("divergence");
  m.found = line.at("found");
  m.text = line.at("text");
  m.entries = line.at("entries");
  m.retained_mass = line.at("retained_mass");
  m.kept = line.at("kept").get<std::vector<int32_t>>();
  return m;
}

}  // namespace

Estimate EstimateOf(const std::vector<double>& values) {
  Estimate estimate;
  estimate.count = static_cast<int>(values.size());
  if (values.empty()) return estimate;
  for (const double value : values) estimate.mean += value / static_cast<double>(values.size());
  double squares = 0;
  for (const double value : values) squares += std::pow(value - estimate.mean, 2);
  const auto n = static_cast<double>(values.size());
  if (values.size() > 1) estimate.half_width = kDeviations * std::sqrt(squares / (n - 1) / n);
  return estimate;
}

absl::StatusOr<Results> Results::Open(const std::string& path, const Json& settings) {
  Results results;
  results.path_ = path;
  std::ifstream file(path);
  std::string line;
  if (!file || !std::getline(file, line)) {
    std::ofstream fresh(path);
    if (!(fresh << settings.dump() << "\n"))
      return absl::PermissionDeniedError(absl::StrCat("cannot write ", path));
    return results;
  }
  if (Json::parse(line, nullptr, false) != settings) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " was made with other settings: ", line,
                     "; choose another --out or take that one away"));
  }
  bool ends_within_a_line = false;
  while (std::getline(file, line)) {
    ends_within_a_line = file.eof();
    // What an interrupted run has left unfinished is measured again.
    const std::optional<Measured> measured = FromJson(Json::parse(line, nullptr, false));
    if (!measured.has_value()) continue;
    results.index_[{measured->task, measured->number, measured->arm, measured->budget}] =
        results.measured_.size();
    results.measured_.push_back(*measured);
  }
  if (ends_within_a_line) std::ofstream(path, std::ios::app) << "\n";
  return results;
}

bool Results::Has(const std::string& task, int number, const std::string& arm,
                  double budget) const {
  return index_.count({task, number, arm, budget}) > 0;
}

absl::Status Results::Add(const Measured& measured) {
  if (!index_
           .emplace(Key{measured.task, measured.number, measured.arm, measured.budget},
                    measured_.size())
           .second)
    return absl::OkStatus();
  measured_.push_back(measured);
  std::ofstream file(path_, std::ios::app);
  // What was generated may end within a character.
  file << ToJson(measured).dump(-1, ' ', false, Json::error_handler_t::replace) << std::endl;
  return file ? absl::OkStatus() : absl::DataLossError(absl::StrCat("cannot write ", path_));
}

std::vector<Summary> Results::Summarize() const {
  struct Values {
    std::vector<double> lost, agreement, divergence, found, mass;
  };
  std::vector<Summary> summaries;
  std::vector<Values> values;
  for (const Measured& m : measured_) {
    const auto full = index_.find({m.task, m.number, kFull, 1.0});
    if (m.arm == kFull || full == index_.end()) continue;
    const Measured& base = measured_[full->second];
    auto same = std::find_if(summaries.begin(), summaries.end(), [&](const Summary& s) {
      return s.task == m.task && s.arm == m.arm && s.budget == m.budget;
    });
    if (same == summaries.end()) {
      summaries.push_back({.task = m.task, .arm = m.arm, .budget = m.budget});
      summaries.back().kept.assign(m.kept.size(), 0.0);
      values.emplace_back();
      same = summaries.end() - 1;
    }
    Values& of = values[same - summaries.begin()];
    of.lost.push_back(m.nll - base.nll);
    of.agreement.push_back(m.agreement);
    of.divergence.push_back(m.divergence);
    of.mass.push_back(m.retained_mass);
    if (!base.text.empty()) same->retrieval = true;
    if (base.found > 0) of.found.push_back(m.found / base.found);
    for (size_t i = 0; i < std::min(m.kept.size(), same->kept.size()); ++i)
      same->kept[i] += m.kept[i];
  }
  for (size_t i = 0; i < summaries.size(); ++i) {
    Summary& summary = summaries[i];
    summary.lost = EstimateOf(values[i].lost);
    summary.agreement = EstimateOf(values[i].agreement);
    summary.divergence = EstimateOf(values[i].divergence);
    summary.found = EstimateOf(values[i].found);
    summary.retained_mass = EstimateOf(values[i].mass);
    for (double& entries : summary.kept) entries /= summary.lost.count;
  }
  return summaries;
}

}  // namespace hydrant
