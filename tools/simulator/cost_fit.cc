#include "tools/simulator/cost_fit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <iterator>

#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace hydrant::sim {
namespace {

constexpr size_t kTerms = 5;
constexpr size_t kFewestSteps = 20;
constexpr double kOutlier = 2.0;
constexpr int kPasses = 8;
using Terms = std::array<double, kTerms>;

Terms TermsOf(const StepWork& work) {
  return {1.0, work.rows, work.pages, work.prompt_tokens, work.prompt_pairs};
}

double TookUs(const StepTaken& step) { return static_cast<double>(step.end - step.begin); }

double Dot(const Terms& a, const Terms& b) {
  double sum = 0;
  for (size_t i = 0; i < kTerms; ++i) sum += a[i] * b[i];
  return sum;
}

// Least squares of the errors relative to the previous prediction. Relative to the measured time,
// steps with more variance would be fitted below their mean. Coefficients are non-negative, by
// coordinate descent on the normal equations.
Terms Solve(std::span<const StepTaken> steps, const Terms& before) {
  std::array<Terms, kTerms> products = {};
  Terms sums = {};
  for (const StepTaken& step : steps) {
    const double us = TookUs(step);
    const Terms terms = TermsOf(step.work);
    const double expected = Dot(before, terms) > 0 ? Dot(before, terms) : us;
    const double weight = 1.0 / std::max(1.0, us / expected / kOutlier) / (expected * expected);
    for (size_t i = 0; i < kTerms; ++i) {
      for (size_t j = 0; j < kTerms; ++j) products[i][j] += weight * terms[i] * terms[j];
      sums[i] += weight * terms[i] * us;
    }
  }
  constexpr int kMaxSweeps = 20000;
  constexpr double kStill = 1e-12;
  Terms solution = before;
  for (int sweep = 0; sweep < kMaxSweeps; ++sweep) {
    double moved = 0;
    for (size_t i = 0; i < kTerms; ++i) {
      if (products[i][i] <= 0) continue;
      const double rest = sums[i] - Dot(products[i], solution) + products[i][i] * solution[i];
      const double next = std::max(0.0, rest / products[i][i]);
      moved = std::max(moved, std::abs(next - solution[i]) / (solution[i] + 1e-9));
      solution[i] = next;
    }
    if (moved < kStill) break;
  }
  return solution;
}

CostModel ToModel(const Terms& terms) {
  return {.step_us = terms[0],
          .row_us = terms[1],
          .page_us = terms[2],
          .prompt_token_us = terms[3],
          .prompt_pair_us = terms[4]};
}

// Whether the line is a step; fills in `step`.
absl::StatusOr<bool> ParseLine(const nlohmann::json& event, StepTaken* step) {
  if (event.value("ph", "") != "X") return false;
  const auto args = event.find("args");
  if (args == event.end() || !args->is_object()) return absl::InvalidArgumentError("args: missing");
  const auto number = [](const nlohmann::json& from, const char* field) {
    const auto found = from.find(field);
    return found != from.end() && found->is_number() ? found->get<double>() : std::nan("");
  };
  const auto begin = static_cast<int64_t>(number(event, "ts"));
  const double us = number(event, "dur");
  step->work = {.rows = number(*args, "decoding"),
                .pages = number(*args, "pages"),
                .prompt_tokens = number(*args, "prompt_tokens"),
                .prompt_pairs = number(*args, "prompt_pairs")};
  const Terms terms = TermsOf(step->work);
  if (!std::isfinite(us) || !std::isfinite(Dot(terms, terms))) {
    return absl::InvalidArgumentError(
        "a step needs dur, and decoding, pages, prompt_tokens and prompt_pairs in args");
  }
  step->begin = begin;
  step->end = begin + static_cast<int64_t>(us);
  return us > 0;
}

}  // namespace

absl::StatusOr<std::vector<StepTaken>> ParseStepTrace(std::string_view text,
                                                      const std::string& name) {
  std::vector<StepTaken> steps;
  for (int number = 1; !text.empty(); ++number) {
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
    while (!line.empty() && (line.front() == '[' || line.front() == ' ')) line.remove_prefix(1);
    while (!line.empty() && (line.back() == ',' || line.back() == '\r')) line.remove_suffix(1);
    if (line.empty() || line == "]") continue;
    const nlohmann::json event = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!event.is_object()) {
      if (text.empty()) break;  // the file ends in a partial line
      return absl::InvalidArgumentError(fmt::format("{}, line {}: no JSON object", name, number));
    }
    StepTaken step;
    const absl::StatusOr<bool> is_step = ParseLine(event, &step);
    if (!is_step.ok()) {
      return absl::InvalidArgumentError(
          fmt::format("{}, line {}: {}", name, number, std::string(is_step.status().message())));
    }
    if (*is_step) steps.push_back(step);
  }
  return steps;
}

absl::StatusOr<std::vector<StepTaken>> ReadStepTrace(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(fmt::format("{}: cannot be opened", path));
  return ParseStepTrace(std::string(std::istreambuf_iterator<char>(file), {}), path);
}

absl::StatusOr<CostFit> FitCostModel(std::span<const StepTaken> steps) {
  if (steps.size() < kFewestSteps) {
    return absl::InvalidArgumentError(
        fmt::format("{} steps are too few to fit by: at least {}", steps.size(), kFewestSteps));
  }
  Terms terms = {};
  for (int pass = 0; pass < kPasses; ++pass) terms = Solve(steps, terms);
  double taken = 0, predicted = 0;
  for (const StepTaken& step : steps) {
    taken += TookUs(step);
    predicted += Dot(terms, TermsOf(step.work));
  }
  for (double& term : terms) term *= taken / predicted;
  CostFit fit{.model = ToModel(terms), .num_steps = steps.size()};
  // The noise of a step is relative to the model's, scaled by its length.
  double squares = 0, shares = 0;
  fit.model.noise = 1;
  for (const StepTaken& step : steps) {
    const double us = fit.model.Predict(step.work), ratio = us / TookUs(step);
    fit.relative_error += std::abs(ratio - 1) / static_cast<double>(steps.size());
    squares += std::log(ratio) * std::log(ratio);
    shares += fit.model.NoiseOf(us) * fit.model.NoiseOf(us);
  }
  fit.model.noise = std::sqrt(squares / shares);
  fit.model.source = fmt::format("fitted to {} steps, off by {:.1f} % on average", steps.size(),
                                 100 * fit.relative_error);
  return fit;
}

}  // namespace hydrant::sim
