#include "tools/eval/results.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <sstream>
#include <string_view>

#include "absl/strings/str_cat.h"

namespace hydrant::eval {
namespace {

using Json = nlohmann::json;

constexpr char kFull[] = "full";
constexpr char kOracle[] = "oracle";
// Generated text may end within a character.
constexpr auto kReplace = Json::error_handler_t::replace;
// 95 % of a normal distribution lie within this many deviations.
constexpr double kDeviations = 1.96;

Json ToJson(const CaseResult& m) {
  return {{"task", m.task},
          {"case", m.number},
          {"question", m.question},
          {"arm", m.arm},
          {"budget", m.budget},
          {"nll", m.nll},
          {"agreement", m.agreement},
          {"divergence", m.divergence},
          {"retrieval", m.retrieval},
          {"found", m.found},
          {"depth", m.depth},
          {"text", m.text},
          {"entries", m.entries},
          {"retained_mass", m.retained_mass},
          {"kept", m.kept}};
}

// Copies a field of the line, or returns an error.
template <typename Value>
absl::Status Read(const Json& line, const char* field, Value* value) {
  if (!line.contains(field)) return absl::InvalidArgumentError(absl::StrCat(field, " is missing"));
  try {
    line.at(field).get_to(*value);
  } catch (const Json::exception&) {
    return absl::InvalidArgumentError(absl::StrCat(
        field, ": ", line.at(field).dump(-1, ' ', false, kReplace), " is not what belongs there"));
  }
  return absl::OkStatus();
}

absl::StatusOr<CaseResult> FromJson(const Json& line) {
  if (!line.is_object()) return absl::InvalidArgumentError("not a JSON object");
  CaseResult m;
  absl::Status status;
  status.Update(Read(line, "task", &m.task));
  status.Update(Read(line, "case", &m.number));
  status.Update(Read(line, "question", &m.question));
  status.Update(Read(line, "arm", &m.arm));
  status.Update(Read(line, "budget", &m.budget));
  status.Update(Read(line, "nll", &m.nll));
  status.Update(Read(line, "agreement", &m.agreement));
  status.Update(Read(line, "divergence", &m.divergence));
  status.Update(Read(line, "retrieval", &m.retrieval));
  status.Update(Read(line, "found", &m.found));
  status.Update(Read(line, "depth", &m.depth));
  status.Update(Read(line, "text", &m.text));
  status.Update(Read(line, "entries", &m.entries));
  status.Update(Read(line, "retained_mass", &m.retained_mass));
  status.Update(Read(line, "kept", &m.kept));
  if (!status.ok()) return status;
  return m;
}

// Marks the best arm of each task and budget with several arms. The oracle is excluded: it knows
// the continuation.
void MarkBest(std::vector<Summary>* summaries) {
  for (Summary& one : *summaries) {
    int others = 0, ahead = 0;
    for (const Summary& other : *summaries) {
      if (other.task != one.task || other.budget != one.budget || other.arm == one.arm ||
          other.arm.starts_with(kOracle))
        continue;
      ++others;
      ahead += other.Score() > one.Score();
    }
    one.best = others > 0 && ahead == 0 && !one.arm.starts_with(kOracle);
  }
}

// Means of cases whose questions are measured one by one: questions of one case depend on each
// other, cases do not.
class CaseMeans {
 public:
  void Add(int number, double value) {
    auto& [sum, count] = cases_[number];
    sum += value;
    ++count;
  }
  Estimate Over() const {
    std::vector<double> means;
    for (const auto& [number, of] : cases_) means.push_back(of.first / of.second);
    return EstimateOf(means);
  }

 private:
  std::map<int, std::pair<double, int>> cases_;
};

std::string WholeFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

constexpr std::array<const char*, 3> kPlaces = {"first third", "middle third", "last third"};

// "": the fact stands nowhere in particular.
std::string_view PlaceOf(double depth) {
  if (depth < 0) return "";
  return kPlaces.at(std::min<size_t>(kPlaces.size() - 1, static_cast<size_t>(3 * depth)));
}

// Drops an incomplete last line: the writer may have been killed.
std::string WholeLines(const std::string& text) {
  return text.substr(0, text.rfind('\n') + 1);  // npos + 1 is 0
}

}  // namespace

double Summary::KeptMean() const {
  return kept.empty()
             ? 0
             : std::accumulate(kept.begin(), kept.end(), 0.0) / static_cast<double>(kept.size());
}

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
  const std::string all = WholeFile(path), text = WholeLines(all), first = settings.dump();
  if (text.empty()) {
    if (!first.starts_with(all))
      return absl::FailedPreconditionError(absl::StrCat(
          path, " holds something else than results; choose another --out or take it away"));
    std::ofstream fresh(path);
    if (!(fresh << first << std::endl))
      return absl::PermissionDeniedError(absl::StrCat("cannot write ", path));
    return results;
  }
  int number = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const Json json = Json::parse(line, nullptr, false);
    if (++number == 1) {
      if (json == settings) continue;
      return absl::FailedPreconditionError(
          absl::StrCat(path, " was made with other settings: ", line,
                       "; choose another --out or take that one away"));
    }
    const absl::StatusOr<CaseResult> measured = FromJson(json);
    if (!measured.ok())
      return absl::InvalidArgumentError(
          absl::StrCat(path, ", line ", number, ": ", measured.status().message()));
    results.Insert(*measured);
  }
  std::error_code ignored;  // a read-only file can still be reported
  std::filesystem::resize_file(path, text.size(), ignored);
  return results;
}

Results::Key Results::KeyOf(const CaseResult& m) {
  return {m.task, m.number, m.question, m.arm, m.budget};
}

// False if it is present already.
bool Results::Insert(const CaseResult& m) {
  if (!index_.emplace(KeyOf(m), measured_.size()).second) return false;
  measured_.push_back(m);
  return true;
}

bool Results::Has(const std::string& task, int number, int question, const std::string& arm,
                  double budget) const {
  return index_.count({task, number, question, arm, budget}) > 0;
}

absl::Status Results::Add(const CaseResult& measured) {
  if (!Insert(measured)) return absl::OkStatus();
  std::ofstream file(path_, std::ios::app);
  file << ToJson(measured).dump(-1, ' ', false, kReplace) << std::endl;
  return file ? absl::OkStatus() : absl::DataLossError(absl::StrCat("cannot write ", path_));
}

const CaseResult* Results::Find(const Key& key) const {
  const auto at = index_.find(key);
  return at == index_.end() ? nullptr : &measured_[at->second];
}

// The full cache's result on the same question; null: not measured.
const CaseResult* Results::FullOf(const CaseResult& m) const {
  return Find({m.task, m.number, m.question, kFull, 1.0});
}

std::vector<Summary> Results::Summarize() const {
  return SummarizeBy([](const CaseResult& m) { return m.task; });
}

std::vector<Summary> Results::SummarizeByPlace() const {
  std::vector<Summary> summaries;
  for (const char* place : kPlaces) {  // in this order
    const std::vector<Summary> of_place = SummarizeBy([&](const CaseResult& m) {
      return PlaceOf(m.depth) == place ? std::string(place) : std::string();
    });
    summaries.insert(summaries.end(), of_place.begin(), of_place.end());
  }
  return summaries;
}

std::vector<Summary> Results::SummarizeBy(const NameOf& name_of) const {
  struct Values {
    CaseMeans lost, agreement, divergence, found, mass;
  };
  std::vector<Summary> summaries;
  std::vector<Values> values;
  for (const CaseResult& m : measured_) {
    const CaseResult* full = FullOf(m);
    if (m.arm == kFull || full == nullptr) continue;
    const std::string name = name_of(m);
    if (name.empty()) continue;
    auto same = std::find_if(summaries.begin(), summaries.end(), [&](const Summary& s) {
      return s.task == name && s.arm == m.arm && s.budget == m.budget;
    });
    if (same == summaries.end()) {
      summaries.push_back(
          {.task = name, .arm = m.arm, .budget = m.budget, .retrieval = m.retrieval});
      summaries.back().kept.assign(m.kept.size(), 0.0);
      values.emplace_back();
      same = summaries.end() - 1;
    }
    Values& of = values[same - summaries.begin()];
    of.lost.Add(m.number, m.nll - full->nll);
    of.agreement.Add(m.number, m.agreement);
    of.divergence.Add(m.number, m.divergence);
    of.mass.Add(m.number, m.retained_mass);
    if (full->found > 0) {
      of.found.Add(m.number, m.found / full->found);
      ++same->questions;
    }
    for (size_t i = 0; i < std::min(m.kept.size(), same->kept.size()); ++i)
      same->kept[i] += m.kept[i];
    ++same->rows;
  }
  for (size_t i = 0; i < summaries.size(); ++i) {
    Summary& summary = summaries[i];
    summary.lost = values[i].lost.Over();
    summary.agreement = values[i].agreement.Over();
    summary.divergence = values[i].divergence.Over();
    summary.found = values[i].found.Over();
    summary.retained_mass = values[i].mass.Over();
    for (double& entries : summary.kept) entries /= summary.rows;
  }
  MarkBest(&summaries);
  return summaries;
}

std::vector<Difference> Results::Compare(const std::vector<std::string>& against) const {
  std::vector<Difference> differences;
  for (const std::string& other : against) {
    for (const Summary& summary : Summarize()) {
      if (summary.arm == other) continue;
      Difference made = {summary.task, summary.arm, other, summary.budget, summary.retrieval};
      CaseMeans more;
      for (const CaseResult& m : measured_) {
        if (m.task != made.task || m.arm != made.arm || m.budget != made.budget) continue;
        const CaseResult* full = FullOf(m);
        const CaseResult* base = Find({m.task, m.number, m.question, other, m.budget});
        if (full == nullptr || base == nullptr) continue;
        if (!made.retrieval) more.Add(m.number, m.nll - base->nll);
        if (made.retrieval && full->found > 0)
          more.Add(m.number, (m.found - base->found) / full->found);
      }
      made.more = more.Over();
      if (made.more.count > 0) differences.push_back(made);
    }
  }
  return differences;
}

}  // namespace hydrant::eval
