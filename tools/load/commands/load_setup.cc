#include "tools/load/commands/load_setup.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <limits>
#include <utility>

#include "fmt/format.h"
#include "tools/load/run/arrivals.h"
#include "tools/load/run/trace.h"
#include "tools/load/targets/mix.h"

namespace hydrant::load {
namespace {

std::string Today() {
  const std::time_t now = std::time(nullptr);
  char text[32];
  std::strftime(text, sizeof text, "%Y%m%d-%H%M%S", std::localtime(&now));
  return text;
}

}  // namespace

double BurstinessOf(const LoadFlags& flags) {
  if (flags.burstiness == "inf") return std::numeric_limits<double>::infinity();
  char* end = nullptr;
  const double shape = std::strtod(flags.burstiness.c_str(), &end);
  if (*end != '\0' || !(shape > 0.0 && shape <= 1e6))
    Fail(kExitUsage,
         fmt::format("burstiness: '{}' is outside (0, 1e6], and not inf", flags.burstiness));
  return shape;
}

void CompleteFlags(LoadFlags* flags) {
  flags->target.mix = ValueOr(kExitUsage, ParseMix(flags->mix));
  flags->workload.arm_weights.clear();
  for (const MixedArm& arm : flags->target.mix) flags->workload.arm_weights.push_back(arm.weight);
  if (!flags->trace_file.empty())
    flags->workload.trace = ValueOr(kExitUsage, ReadTrace(flags->trace_file));
}

bool IsHttp(const LoadFlags& flags) {
  const auto is_http = [](const std::string& address) {
    return address.starts_with("http://") || address.starts_with("https://");
  };
  const std::vector<std::string>& all = flags.target.addresses;
  const auto http = std::count_if(all.begin(), all.end(), is_http);
  if (http != 0 && http != static_cast<std::ptrdiff_t>(all.size()))
    Fail(kExitUsage, "address: some begin with http:// and some do not; one kind to a run");
  return http != 0;
}

std::unique_ptr<ServerTarget> OpenTarget(const LoadFlags& flags) {
  const auto opened = [](auto target) {
    const bool away = target.status().code() == absl::StatusCode::kUnavailable;
    return ValueOr(away ? kExitNoServer : kExitUsage, std::move(target));
  };
  if (!IsHttp(flags)) return opened(HydrantTarget::Create(flags.target));
  if (flags.target.mix.size() != 1 || flags.target.mix[0].name != "full")
    Fail(kExitUsage, "mix: a server with OpenAI's API knows no cache policies");
  OpenAiTargetOptions options = flags.openai;
  options.addresses = flags.target.addresses;
  options.sampling = flags.target.sampling;
  options.ignore_eos = flags.target.ignore_eos;
  options.wait_seconds = flags.target.wait_seconds;
  if (const char* key = std::getenv("OPENAI_API_KEY")) options.api_key = key;
  return opened(OpenAiTarget::Create(std::move(options)));
}

Workload MakeWorkload(const LoadFlags& flags, ServerTarget* target) {
  WorkloadOptions options = flags.workload;
  options.vocab_size = target->info().vocab_size;
  if (!flags.text_file.empty())
    options.text = ValueOr(kExitNoServer, target->Tokenize(ReadFile(flags.text_file)));
  return ValueOr(kExitUsage, Workload::Create(std::move(options)));
}

std::function<double(int64_t)> IntendedTimes(const LoadFlags& flags) {
  if (!flags.workload.trace.empty()) {
    return
        [&flags](int64_t index) { return flags.workload.trace[index].at / flags.trace_rate_scale; };
  }
  RateProfile profile = ValueOr(kExitUsage, RateProfile::Parse(flags.request_rate));
  if (profile.IsUnlimited()) {
    if (flags.max_concurrency > 0) return nullptr;
    return [](int64_t) { return 0.0; };
  }
  auto arrivals =
      std::make_shared<Arrivals>(std::move(profile), BurstinessOf(flags), flags.workload.seed);
  return [arrivals](int64_t) { return arrivals->Next(); };
}

RunDescription DescribeRun(const LoadFlags& flags, const TargetInfo& info,
                           std::map<std::string, std::string> given) {
  RunDescription run;
  run.backend = info.backend;
  run.model = info.model;
  run.label = flags.label;
  run.date = Today();
  run.request_rate = flags.workload.trace.empty() ? flags.request_rate : "trace";
  run.burstiness = std::isinf(BurstinessOf(flags)) ? 0.0 : BurstinessOf(flags);
  run.max_concurrency = flags.max_concurrency;
  for (const MixedArm& arm : flags.target.mix) run.arms.push_back(arm.name);
  run.metadata = std::move(given);
  run.metadata["server_version"] = info.server_version;
  return run;
}

}  // namespace hydrant::load
