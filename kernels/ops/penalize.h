// Penalises tokens that a sequence has already seen, before all other edits of its logits except
// biases and masks. For a token t that occurs c times in the sequence's output:
//   in prompt or output: logit = logit > 0 ? logit / repetition : logit * repetition
//     (CTRL, Keskar et al. 2019, section 4.1, with the usual correction for the sign)
//   then: logit -= frequency * c + presence * (c > 0)   (OpenAI's API)
// `seen` holds one number per (slot, token) on the device: the count in the output, up to
// kMaxCounted, and the flag kInPrompt.
#ifndef HYDRANT_KERNELS_OPS_PENALIZE_H_
#define HYDRANT_KERNELS_OPS_PENALIZE_H_

#include <cstddef>
#include <cstdint>

namespace hydrant {

struct Penalties {
  float repetition = 1.0f;  // > 0; 1: none
  float presence = 0.0f;
  float frequency = 0.0f;

  constexpr bool Any() const { return repetition != 1.0f || presence != 0.0f || frequency != 0.0f; }
};

inline constexpr uint16_t kInPrompt = 0x8000;
inline constexpr uint16_t kMaxCounted = 0x7fff;

struct SamplingRow;

struct PenalizeArgs {
  float* logits = nullptr;  // [num_rows, vocab], changed in place
  int num_rows = 0;
  int vocab = 0;
  const SamplingRow* rows = nullptr;  // [num_rows]; rows without penalties are skipped
  const int32_t* slots = nullptr;     // [num_rows] the row's sequence slot, all different
  const uint32_t* newest = nullptr;   // [num_rows] the output token since the last call, counted
                                      // here; UINT32_MAX: none
  uint16_t* seen = nullptr;           // [slots, vocab]
};

// `seen` of a token after `newest` is counted.
constexpr uint16_t SeenWith(uint16_t seen, bool is_newest) {
  return is_newest && (seen & kMaxCounted) < kMaxCounted ? static_cast<uint16_t>(seen + 1) : seen;
}

// In fp32 with separate multiplications and additions, so that every backend gives the same bits.
constexpr float PenalizedLogit(float logit, uint16_t seen, const Penalties& penalties) {
  if (seen == 0) return logit;
  const float repeated = logit > 0.0f ? logit / penalties.repetition : logit * penalties.repetition;
  const int count = seen & kMaxCounted;
  if (count == 0) return repeated;
  const float for_count = penalties.frequency * static_cast<float>(count);
  const float both = for_count + penalties.presence;
  return repeated - both;
}

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_OPS_PENALIZE_H_
