// Checks at the start that the model bears rounding: of pages (--kv-cache-dtype int8, int4, fp8)
// and of weights that are quantised while they load (--dtype q8_0, q4_0, fp8). Some channels of
// some models are far larger than others, and rounding them can cost much.
//
// The loss is the mean Kullback-Leibler divergence of the next token's distributions over the
// check's text, from exact values to rounded ones.
#ifndef HYDRANT_SERVER_STARTUP_ROUNDING_CHECK_H_
#define HYDRANT_SERVER_STARTUP_ROUNDING_CHECK_H_

#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "kernels/weight.h"
#include "server/startup/daemon_options.h"
#include "server/startup/model_loader.h"
#include "server/startup/startup_requests.h"

namespace hydrant {

// The most that is served, in nats a token.
inline constexpr double kMostPageLoss = 0.05;
inline constexpr double kMostWeightLoss = 0.1;

struct RoundingLoss {
  double nats = 0.0;  // a token; not finite where logits are not
  int tokens = 0;     // measured
};

// The distributions of the next token after each token of the check's text but the last. Of a few
// tokens, or none, where max_model_len leaves no more.
using CheckReading = std::vector<TokenLogprobs>;

// Reads the text as a prompt.
absl::StatusOr<CheckReading> ReadCheckText(const StartupRequests& requests,
                                           const Tokenizer& tokenizer, int max_model_len);

// The same of the model with its weights as the files store them: loads it, and frees it again.
// `progress` as in LoadModel().
absl::StatusOr<CheckReading> ReadCheckTextWithStoredWeights(
    const DaemonOptions& options, const ModelLoader& load,
    const std::function<void(double)>& progress);

// Over the tokens of both readings.
RoundingLoss LossBetween(const CheckReading& exact, const CheckReading& rounded);

// Of pages: reads the text as a prompt, which attends before anything is rounded to pages, and then
// token by token, with keys and values from pages.
absl::StatusOr<RoundingLoss> MeasurePageLoss(const StartupRequests& requests,
                                             const Tokenizer& tokenizer, int max_model_len);

// Logs the loss of `flag` with `value`, such as "kv-cache-dtype", "int4". FailedPrecondition if it
// is more than `most`.
absl::Status JudgeLoss(const RoundingLoss& loss, double most, std::string_view flag,
                       std::string_view value);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_STARTUP_ROUNDING_CHECK_H_
