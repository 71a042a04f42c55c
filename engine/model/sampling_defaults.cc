#include "engine/model/sampling_defaults.h"

#include <filesystem>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/model/config_json.h"
#include "engine/model/gguf.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

constexpr uintmax_t kMaxConfigBytes = 1 << 20;
constexpr char kFile[] = "generation_config.json";

// Finds a number by name; nullopt if the file does not have it.
using Find = std::function<absl::StatusOr<std::optional<double>>(const char* name)>;

Find InJson(const nlohmann::json& config) {
  return [&config](const char* name) -> absl::StatusOr<std::optional<double>> {
    const auto found = config.find(name);
    if (found == config.end() || found->is_null()) return std::nullopt;
    if (!found->is_number())
      return absl::InvalidArgumentError(absl::StrCat(kFile, ": ", name, ": is no number"));
    return found->get<double>();
  };
}

Find InGguf(const GgufFile& file) {
  return [&file](const char* name) -> absl::StatusOr<std::optional<double>> {
    const std::string key = absl::StrCat("general.sampling.", name);
    absl::StatusOr<double> number = file.GetFloat(key);
    if (absl::IsNotFound(number.status())) return std::nullopt;
    if (number.ok()) return *number;
    HYDRANT_ASSIGN_OR_RETURN(const int64_t whole, file.GetInt(key));
    return static_cast<double>(whole);
  };
}

struct Names {
  const char *temperature, *top_p, *top_k, *min_p, *repetition_penalty;
};

absl::StatusOr<SamplingDefaults> Read(const Names& names, const Find& find) {
  SamplingDefaults defaults;
  HYDRANT_ASSIGN_OR_RETURN(defaults.temperature, find(names.temperature));
  HYDRANT_ASSIGN_OR_RETURN(defaults.top_p, find(names.top_p));
  HYDRANT_ASSIGN_OR_RETURN(defaults.min_p, find(names.min_p));
  HYDRANT_ASSIGN_OR_RETURN(defaults.repetition_penalty, find(names.repetition_penalty));
  HYDRANT_ASSIGN_OR_RETURN(const std::optional<double> top_k, find(names.top_k));
  if (!top_k.has_value()) return defaults;
  if (!(*top_k >= -1 && *top_k <= std::numeric_limits<int32_t>::max()))
    return absl::InvalidArgumentError(absl::StrCat(names.top_k, ": ", *top_k, " is no count"));
  defaults.top_k = static_cast<int32_t>(*top_k);
  return defaults;
}

}  // namespace

absl::StatusOr<SamplingDefaults> ReadSamplingDefaults(const ModelSource& source) {
  if (source.gguf() != nullptr)
    return Read({"temp", "top_p", "top_k", "min_p", "penalty_repeat"}, InGguf(*source.gguf()));
  HYDRANT_ASSIGN_OR_RETURN(
      const nlohmann::json config,
      ReadConfigJson(std::filesystem::path(source.folder()) / kFile, kMaxConfigBytes));
  return Read({"temperature", "top_p", "top_k", "min_p", "repetition_penalty"}, InJson(config));
}

}  // namespace hydrant
