// Cosines and sines of rotary position embedding (RoFormer, arXiv 2104.09864, section 3.2.2), with
// the frequency scalings that models use. Computed in double, stored in fp32.
#ifndef HYDRANT_ENGINE_RUN_FORWARD_ROPE_TABLE_H_
#define HYDRANT_ENGINE_RUN_FORWARD_ROPE_TABLE_H_

#include <vector>

#include "engine/model/model_config.h"

namespace hydrant {

struct RopeTable {
  std::vector<float> cos;  // [num_positions, rotary_dim / 2]
  std::vector<float> sin;  // [num_positions, rotary_dim / 2]
};

// Rotation angle per position of each pair of elements: [rotary_dim / 2]. num_positions: the
// maximum number of positions of a sequence.
std::vector<double> RopeFrequencies(const Rope& rope, int rotary_dim, int num_positions);

// Without the rope's attention_factor, so that cos^2 + sin^2 = 1.
RopeTable MakeRopeTable(const Rope& rope, int rotary_dim, int num_positions);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_RUN_FORWARD_ROPE_TABLE_H_
