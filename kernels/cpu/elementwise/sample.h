// Sample on the cpu (contract: kernels/ops/sample.h): vectorised passes over the vocabulary, and
// selection instead of sorting. Same tokens as the reference for the same logits
// (kernels/ops/sample_weight.h).
#ifndef HYDRANT_KERNELS_CPU_ELEMENTWISE_SAMPLE_H_
#define HYDRANT_KERNELS_CPU_ELEMENTWISE_SAMPLE_H_

#include <cstdint>
#include <vector>

#include "kernels/ops/sample.h"
#include "kernels/thread_pool.h"

namespace hydrant::cpu {

inline constexpr int kNumLogitBins = 512;

// Rows run in parallel; each uses its thread's scratch, which is kept between calls.
class Sampler {
 public:
  void Sample(const SampleArgs& args, ThreadPool& threads);

  struct Candidate {
    uint64_t weight;
    float logit;
    uint32_t id;
  };
  struct Scratch {
    std::vector<uint64_t> weights;      // [vocab]
    std::vector<Candidate> candidates;  // candidates left so far, by ascending id
    std::vector<Candidate> selection;   // a copy for quickselect to reorder
    std::vector<float> highest;         // the top_k logits seen so far
    std::vector<uint16_t> bins;         // [vocab] bins of similar logits
  };

 private:
  std::vector<Scratch> scratch_;  // one per thread
};

}  // namespace hydrant::cpu

#endif  // HYDRANT_KERNELS_CPU_ELEMENTWISE_SAMPLE_H_
