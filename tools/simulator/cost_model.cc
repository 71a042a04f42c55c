#include "tools/simulator/cost_model.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <utility>

#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace hydrant::sim {
namespace {

// One day; larger values are mistakes.
constexpr double kMaxUs = 86400e6;
constexpr double kMaxNoise = 2.0;

struct Field {
  const char* name;
  double CostModel::*value;
  double most;
};
constexpr Field kFields[] = {{"step_us", &CostModel::step_us, kMaxUs},
                             {"row_us", &CostModel::row_us, kMaxUs},
                             {"page_us", &CostModel::page_us, kMaxUs},
                             {"prompt_token_us", &CostModel::prompt_token_us, kMaxUs},
                             {"prompt_pair_us", &CostModel::prompt_pair_us, kMaxUs},
                             {"noise", &CostModel::noise, kMaxNoise}};

absl::Status SetField(const nlohmann::json& value, const std::string& key, const std::string& name,
                      CostModel* model) {
  const auto* field = std::find_if(std::begin(kFields), std::end(kFields),
                                   [&](const Field& one) { return key == one.name; });
  if (field == std::end(kFields))
    return absl::InvalidArgumentError(fmt::format("{}: {}: there is no such field", name, key));
  if (!value.is_number())
    return absl::InvalidArgumentError(fmt::format("{}: {}: no number", name, key));
  const auto number = value.get<double>();
  if (!(number >= 0 && number <= field->most)) {
    return absl::InvalidArgumentError(
        fmt::format("{}: {}: {} is outside [0, {}]", name, key, number, field->most));
  }
  model->*field->value = number;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<CostModel> ParseCostModel(std::string_view text, const std::string& name) {
  const nlohmann::json fields = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!fields.is_object())
    return absl::InvalidArgumentError(fmt::format("{}: no JSON object", name));
  CostModel model;
  for (const auto& [key, value] : fields.items()) {
    if (key == "source") {
      model.source = value.is_string() ? value.get<std::string>() : value.dump();
      continue;
    }
    const absl::Status status = SetField(value, key, name, &model);
    if (!status.ok()) return status;
  }
  if (model.step_us + model.row_us + model.prompt_token_us <= 0)
    return absl::InvalidArgumentError(fmt::format("{}: steps would take no time", name));
  return model;
}

absl::StatusOr<CostModel> ReadCostModel(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(fmt::format("{}: cannot be opened", path));
  return ParseCostModel(std::string(std::istreambuf_iterator<char>(file), {}), path);
}

std::string ToJson(const CostModel& model) {
  nlohmann::ordered_json fields;
  for (const Field& field : kFields) fields[field.name] = model.*field.value;
  fields["source"] = model.source;
  return fields.dump(2) + "\n";
}

CostModel DefaultCostModel() {
  return {
      .step_us = 7500,
      .row_us = 1500,
      .page_us = 0.42,
      .prompt_token_us = 790,
      .prompt_pair_us = 0.26,
      .source =
          "SmolLM2-135M Q4_1, 2 threads of a Xeon, from the table of docs/results/performance.md"};
}

}  // namespace hydrant::sim
