#include "server/startup/cache_check.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/cache/kv_cache_dtype.h"
#include "kernels/status_macros.h"
#include "server/startup/given_text.h"

namespace hydrant {
namespace {

constexpr size_t kGivenTokens = 32;  // the first ones of kText; the others are measured
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

Request StartupRequest(std::vector<TokenId> prompt) {
  Request request;
  request.prompt = std::move(prompt);
  request.prefix_caching = false;
  request.publish_kv_events = false;
  request.sampling.temperature = 0;
  request.stopping.max_tokens = 1;
  return request;
}

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

}  // namespace

absl::StatusOr<CacheLoss> MeasureCacheLoss(const StartupRequests& requests,
                                           const Tokenizer& tokenizer, int max_model_len) {
  HYDRANT_ASSIGN_OR_RETURN(std::vector<TokenId> text, tokenizer.Encode(kText, {}));
  // A prompt is followed by one token.
  text.resize(std::min({text.size(), static_cast<size_t>(max_model_len) - 1, kMostTokens}));
  if (text.size() < 4) return CacheLoss{};
  const size_t given = std::min(kGivenTokens, text.size() / 2);
  std::vector<TokenId> measured(text.begin() + given, text.end());

  Request reads = StartupRequest(text);
  reads.sampling.prompt_logprobs = true;
  Request writes = StartupRequest({text.begin(), text.begin() + given});
  writes.sampling.logprobs = true;
  writes.stopping.max_tokens = static_cast<int64_t>(measured.size());
  writes.sampling.grammar = std::make_shared<GivenText>(std::move(measured));
  // One after the other: in a small pool two would compress each other (policy_under_pressure).
  HYDRANT_ASSIGN_OR_RETURN(const std::vector<StartupAnswer> reading,
                           requests.Run({std::move(reads)}));
  HYDRANT_ASSIGN_OR_RETURN(const std::vector<StartupAnswer> writing,
                           requests.Run({std::move(writes)}));
  const std::vector<TokenLogprobs>& read = reading[0].prompt_logprobs;  // from the second token on
  const std::vector<TokenLogprobs>& written = writing[0].logprobs;
  CacheLoss loss;
  // The first token that is written follows the prompt: nothing was read from pages.
  for (size_t i = 1; i < written.size(); ++i, ++loss.tokens)
    loss.nats += Divergence(read[given - 1 + i], written[i]);
  loss.nats /= std::max(loss.tokens, 1);
  return loss;
}

absl::Status JudgeCacheLoss(const CacheLoss& loss, DType pages, bool forced) {
  std::string name;
  for (const std::string& known : KvCacheDTypeNames()) {
    if (KvCacheDTypeOf(known) == pages) name = known;
  }
  const std::string measured = fmt::format(
      "--kv-cache-dtype {}: moves this model's distributions of the next token by {:.3f} nats "
      "(mean of {} tokens)",
      name, loss.nats, loss.tokens);
  if (loss.nats <= kMostCacheLoss) {
    spdlog::info("{}", measured);
    return absl::OkStatus();
  }
  const std::string much = fmt::format("{}, more than {}", measured, kMostCacheLoss);
  if (!forced) {
    return absl::FailedPreconditionError(
        fmt::format("{}: its answers would suffer; choose another type, such as auto, or give "
                    "--force-kv-cache-dtype",
                    much));
  }
  spdlog::warn("{}: its answers suffer; served because of --force-kv-cache-dtype", much);
  return absl::OkStatus();
}

}  // namespace hydrant
