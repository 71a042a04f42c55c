// Checks at the start that the model bears pages of few bits (--kv-cache-dtype int8, int4 or fp8).
// Keys of some models have channels far larger than others, and rounding them can cost much.
//
// A text is read as a prompt, which attends before anything is rounded to pages, and then token by
// token, with keys and values from pages. The loss is the mean Kullback-Leibler divergence of the
// next token's distributions.
#ifndef HYDRANT_SERVER_STARTUP_CACHE_CHECK_H_
#define HYDRANT_SERVER_STARTUP_CACHE_CHECK_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "kernels/dtype.h"
#include "server/startup/startup_requests.h"

namespace hydrant {

inline constexpr double kMostCacheLoss = 0.05;  // nats

struct CacheLoss {
  double nats = 0.0;  // a token; not finite where logits are not
  int tokens = 0;
};

// Of a few tokens, or none, where max_model_len leaves no more.
absl::StatusOr<CacheLoss> MeasureCacheLoss(const StartupRequests& requests,
                                           const Tokenizer& tokenizer, int max_model_len);

// FailedPrecondition, naming the flag, where the loss exceeds kMostCacheLoss. forced: a warning in
// the log instead.
absl::Status JudgeCacheLoss(const CacheLoss& loss, DType pages, bool forced);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_STARTUP_CACHE_CHECK_H_
