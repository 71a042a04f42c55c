#include "kernels/cpu/eviction/predict_scores.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/eviction/predict_scores.cc"
#include "hwy/foreach_target.h"
// Must follow foreach_target.h.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace hydrant::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

float Product(const float* a, const float* b, int width) {
  const hn::ScalableTag<float> d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  // Independent sums hide the latency of an addition.
  auto sum0 = hn::Zero(d), sum1 = hn::Zero(d), sum2 = hn::Zero(d), sum3 = hn::Zero(d);
  int i = 0;
  for (; i + 4 * lanes <= width; i += 4 * lanes) {
    sum0 = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), sum0);
    sum1 = hn::MulAdd(hn::LoadU(d, a + i + lanes), hn::LoadU(d, b + i + lanes), sum1);
    sum2 = hn::MulAdd(hn::LoadU(d, a + i + 2 * lanes), hn::LoadU(d, b + i + 2 * lanes), sum2);
    sum3 = hn::MulAdd(hn::LoadU(d, a + i + 3 * lanes), hn::LoadU(d, b + i + 3 * lanes), sum3);
  }
  float tail = 0.0f;
  for (; i < width; ++i) tail += a[i] * b[i];
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3)))) + tail;
}

// Rows [begin, end).
void Predict(const PredictScoresArgs& args, int begin, int end) {
  for (int i = begin; i < end; ++i) {
    const float* x = args.x + int64_t{i} * args.width;
    const float squares = Product(x, x, args.width);
    const float of_rms =
        squares > 0.0f ? 1.0f / std::sqrt(squares / static_cast<float>(args.width)) : 0.0f;
    for (int h = 0; h < args.num_kv_heads; ++h) {
      const float product = Product(args.weights + int64_t{h} * args.width, x, args.width);
      const float log_score = args.biases[h] + product * of_rms;
      args.out[h * args.stride + i] = std::exp(std::clamp(log_score, -kMaxLogScore, kMaxLogScore));
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace hydrant::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hydrant::cpu {
namespace {
HWY_EXPORT(Predict);
constexpr int kRowsPerTask = 32;
}  // namespace

void PredictScores(const PredictScoresArgs& args, ThreadPool& threads) {
  threads.ParallelFor((args.num_rows + kRowsPerTask - 1) / kRowsPerTask, [&](int task, int) {
    const int begin = task * kRowsPerTask;
    HWY_DYNAMIC_DISPATCH(Predict)(args, begin, std::min(begin + kRowsPerTask, args.num_rows));
  });
}

}  // namespace hydrant::cpu
#endif  // HWY_ONCE
