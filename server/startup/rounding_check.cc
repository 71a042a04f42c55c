#include "server/startup/rounding_check.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/cache/kv_cache_dtype.h"
#include "engine/run/weight_dtype_names.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

constexpr size_t kMostTokens = 192;

// Code, a heading and prose.
constexpr std::string_view kText =
    "#include <map>\n#include <string>\n\n// Counts how often each word occurs.\n"
    "std::map<std::string, int> CountWords(const std::vector<std::string>& words) {\n"
    "  std::map<std::string, int> counts;\n  for (const std::string& word : words) {\n"
    "    if (word.empty()) continue;\n    ++counts[word];\n  }\n  return counts;\n}\n\n"
    " = The lighthouse = \n\nThe lighthouse had stood on the northern cape for more than a hundred "
    "years before anyone thought of measuring the height of its tower. When the surveyor came in "
    "the spring of 1904, he found that the keeper had kept a diary of every storm and every ship. "
    "On the ninth of November 1881, for example, the keeper wrote that a schooner with three "
    "masts, the Margaret Hale, had lost her rudder two miles to the west, and that the boat from "
    "the village had taken off eleven people.";

// The Kullback-Leibler divergence of `q` from `p`, over the tokens that are most likely in `p`, and
// the rest as one. A token that `q` does not name counts as likely as the last one that it names.
double Divergence(const TokenLogprobs& p, const TokenLogprobs& q) {
  double nats = 0.0, p_rest = 1.0, q_rest = 1.0;
  for (size_t i = 0; i < p.top_tokens.size() && p.top_tokens[i] != UINT32_MAX; ++i) {
    const auto* const at = std::find(q.top_tokens.begin(), q.top_tokens.end(), p.top_tokens[i]);
    const double p_log = p.top_logprobs[i];
    if (std::exp(p_log) == 0.0) continue;
    const double q_log = at != q.top_tokens.end() ? q.top_logprobs[at - q.top_tokens.begin()]
                                                  : q.top_logprobs.back();
    nats += std::exp(p_log) * (p_log - q_log);
    p_rest -= std::exp(p_log);
    q_rest -= std::exp(q_log);
  }
  constexpr double kLeast = 1e-6;
  if (p_rest > kLeast) nats += p_rest * std::log(p_rest / std::max(q_rest, kLeast));
  return nats;
}

// One sequence, and no memory but its pages. The length stays: RoPE may depend on it.
DaemonOptions WithoutRounding(DaemonOptions options, const CheckedRounding& checked) {
  if (checked.weights) options.engine.dtype = WeightDType::kStored;
  if (checked.pages) options.engine.kv_cache_dtype = DType::kF32;
  options.engine.max_num_seqs = 1;
  options.engine.kv_cache_memory_bytes = 0;
  options.engine.num_blocks_override.reset();
  options.engine.swap_directory.clear();
  options.prefix_cache_memory_bytes = options.context_memory_bytes = options.swap_space_bytes = 0;
  options.default_cache = {};
  options.listen_as.clear();
  options.generation_config = false;
  return options;
}

// One of `weights` and `pages`, or both joined.
std::string JoinedOf(const CheckedRounding& checked, const std::string& weights,
                     const std::string& pages) {
  if (!checked.pages) return weights;
  return checked.weights ? weights + " and " + pages : pages;
}

}  // namespace

CheckedRounding CheckedRoundingOf(const DaemonOptions& options) {
  if (options.load_format == LoadFormat::kDummy) return {};
  const std::optional<WeightDType>& weights = options.engine.dtype;
  const std::optional<DType>& pages = options.engine.kv_cache_dtype;
  return {.weights = weights && Quantises(*weights) && !options.force_dtype,
          .pages =
              pages && *pages != DType::kF32 && !Is16Bits(*pages) && !options.force_kv_cache_dtype};
}

std::string FlagsOf(const CheckedRounding& checked, const DaemonOptions& options) {
  return JoinedOf(checked,
                  fmt::format("--dtype {}", NameOf(options.engine.dtype.value_or(WeightDType{}))),
                  fmt::format("--kv-cache-dtype {}",
                              NameOfKvCacheDType(options.engine.kv_cache_dtype.value_or(DType{}))));
}

absl::StatusOr<CheckReading> ReadCheckText(const StartupRequests& requests,
                                           const Tokenizer& tokenizer, int max_model_len) {
  HYDRANT_ASSIGN_OR_RETURN(std::vector<TokenId> text, tokenizer.Encode(kText, {}));
  // A prompt is followed by one token.
  text.resize(std::min({text.size(), static_cast<size_t>(max_model_len) - 1, kMostTokens}));
  if (text.size() < 2) return CheckReading{};
  Request request;
  request.prompt = std::move(text);
  request.prefix_caching = false;
  request.publish_kv_events = false;
  request.sampling.temperature = 0;
  request.sampling.prompt_logprobs = true;
  request.stopping.max_tokens = 1;
  HYDRANT_ASSIGN_OR_RETURN(std::vector<StartupAnswer> answers, requests.Run({std::move(request)}));
  return std::move(answers[0].prompt_logprobs);
}

absl::StatusOr<CheckReading> ReadCheckTextUnrounded(const DaemonOptions& options,
                                                    const CheckedRounding& checked,
                                                    const ModelLoader& load,
                                                    const std::function<void(double)>& progress) {
  const DaemonOptions unrounded = WithoutRounding(options, checked);
  HYDRANT_ASSIGN_OR_RETURN(const std::unique_ptr<LoadedModel> model, load(unrounded, progress));
  EventRouter router(std::chrono::milliseconds(0));
  HYDRANT_ASSIGN_OR_RETURN(const std::unique_ptr<ServingLoop> loop,
                           ServingLoop::Start(model->engine.get(), model->tokenizer.get(),
                                              unrounded.scheduler, &router));
  RequestHandle handle = 0;
  const StartupRequests requests(loop.get(), &router, [&] { return ++handle; });
  auto reading = ReadCheckText(requests, *model->tokenizer, model->served.limits.max_model_len);
  loop->Stop();
  return reading;
}

RoundingLoss LossBetween(const CheckReading& exact, const CheckReading& rounded) {
  RoundingLoss loss;
  for (size_t i = 0; i < std::min(exact.size(), rounded.size()); ++i, ++loss.tokens)
    loss.nats += Divergence(exact[i], rounded[i]);
  loss.nats /= std::max(loss.tokens, 1);
  return loss;
}

absl::Status JudgeLoss(const RoundingLoss& loss, const CheckedRounding& checked,
                       const DaemonOptions& options) {
  const std::string measured = fmt::format(
      "{}: moves this model's distributions of the next token by {:.3f} nats (mean of {} tokens)",
      FlagsOf(checked, options), loss.nats, loss.tokens);
  if (loss.nats <= checked.MostLoss()) {
    spdlog::info("{}", measured);
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(fmt::format(
      "{}, more than {}: its answers would suffer; choose another type, such as auto, "
      "or give {} to serve without this check",
      measured, checked.MostLoss(), JoinedOf(checked, "--force-dtype", "--force-kv-cache-dtype")));
}

}  // namespace hydrant
