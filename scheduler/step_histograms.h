// Distributions of steps since the start. The serving loop writes, any thread reads: all members
// are lock-free atomics, so a reader delays no step.
#ifndef HYDRANT_SCHEDULER_STEP_HISTOGRAMS_H_
#define HYDRANT_SCHEDULER_STEP_HISTOGRAMS_H_

#include "scheduler/histogram.h"

namespace hydrant {

struct StepHistograms {
  Histogram step_seconds{0.0005, 0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075,
                         0.1,    0.15,  0.2,   0.3,   0.5,  1,     2.5,  5,    10,   30};
  Histogram batch_sequences{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096};
  // Prompt tokens count when all layers have read them: a step that takes one through a part of the
  // layers counts that part.
  Histogram batch_tokens{1,   2,   4,    8,    16,   32,   64,    128,
                         256, 512, 1024, 2048, 4096, 8192, 16384, 32768};
};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_STEP_HISTOGRAMS_H_
