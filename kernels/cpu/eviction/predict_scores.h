// PredictScores on the cpu (contract: kernels/ops/predict_scores.h).
#ifndef HYDRANT_KERNELS_CPU_EVICTION_PREDICT_SCORES_H_
#define HYDRANT_KERNELS_CPU_EVICTION_PREDICT_SCORES_H_

#include "kernels/ops/predict_scores.h"
#include "kernels/thread_pool.h"

namespace hydrant::cpu {

void PredictScores(const PredictScoresArgs& args, ThreadPool& threads);

}  // namespace hydrant::cpu

#endif  // HYDRANT_KERNELS_CPU_EVICTION_PREDICT_SCORES_H_
