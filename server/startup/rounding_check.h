// The check at the start that the model bears rounding: of pages (--kv-cache-dtype int8, int4, fp8)
// and of weights that are quantised while they load (--dtype q8_0, q4_0, fp8). Some channels of
// some models are far larger than others, and rounding them can cost much.
//
// A text is read as a prompt by the model without the rounding, which is loaded first and freed,
// and by the model as it is served; a prompt attends to keys and values as its pages hold them. The
// loss is the mean Kullback-Leibler divergence of the next token's distributions.
#ifndef HYDRANT_SERVER_STARTUP_ROUNDING_CHECK_H_
#define HYDRANT_SERVER_STARTUP_ROUNDING_CHECK_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "server/startup/daemon_options.h"
#include "server/startup/model_loader.h"
#include "server/startup/startup_requests.h"

namespace hydrant {

// The most that is served, in nats a token; together where both are rounded.
inline constexpr double kMostPageLoss = 0.05;
inline constexpr double kMostWeightLoss = 0.1;

// The rounding that is checked: by flags that are not forced.
struct CheckedRounding {
  bool weights = false;
  bool pages = false;

  bool Any() const { return weights || pages; }
  double MostLoss() const {
    return (weights ? kMostWeightLoss : 0.0) + (pages ? kMostPageLoss : 0.0);
  }
};
// Neither with drawn weights (--load-format dummy), whose answers mean nothing.
CheckedRounding CheckedRoundingOf(const DaemonOptions& options);

// "--dtype q4_0 and --kv-cache-dtype int4".
std::string FlagsOf(const CheckedRounding& checked, const DaemonOptions& options);

// The distributions of the next token after each token of the check's text but the last. Of a few
// tokens, or none, where max_model_len leaves no more.
using CheckReading = std::vector<TokenLogprobs>;

absl::StatusOr<CheckReading> ReadCheckText(const StartupRequests& requests,
                                           const Tokenizer& tokenizer, int max_model_len);

// The same by the model without the checked rounding: weights as the files store them, pages of
// fp32. Loads it, and frees it again. `progress` as in LoadModel().
absl::StatusOr<CheckReading> ReadCheckTextUnrounded(const DaemonOptions& options,
                                                    const CheckedRounding& checked,
                                                    const ModelLoader& load,
                                                    const std::function<void(double)>& progress);

struct RoundingLoss {
  double nats = 0.0;  // a token; not finite where logits are not
  int tokens = 0;     // measured
};
// Over the tokens of both readings.
RoundingLoss LossBetween(const CheckReading& exact, const CheckReading& rounded);

// Logs the loss. FailedPrecondition, naming the flags, if it is more than checked.MostLoss().
absl::Status JudgeLoss(const RoundingLoss& loss, const CheckedRounding& checked,
                       const DaemonOptions& options);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_STARTUP_ROUNDING_CHECK_H_
