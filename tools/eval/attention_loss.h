// The effect of eviction on attention's output: the L1 distance of y, after W_O, with and without
// the evicted entries, and the bound of Ada-KV (arXiv 2407.11550, section 3.2, equation 8 and
// theorem 3.1), for the queries of the full cache:
//
//   |y - y'|_1 <= 2 C sum_h (1 - F_h)      F_h the weight of query head h on retained entries
//
// C is the largest row norm, |v_j W_O^h|_1, of any entry j and query head h of the layer that the
// query can see; V is that of h's KV head. Also the bound with each head's own C_h, which the proof
// shows before it takes the maximum.
#ifndef HYDRANT_TOOLS_EVAL_ATTENTION_LOSS_H_
#define HYDRANT_TOOLS_EVAL_ATTENTION_LOSS_H_

#include <cstdint>
#include <vector>

#include "tools/eval/anatomy.h"

namespace hydrant::eval {

// The entries retained by each head (Outcome::held), and the number of tokens in the context.
struct HeldEntries {
  const std::vector<std::vector<std::vector<int32_t>>>* moments = nullptr;
  int context = 0;
  // held[j] = 1 if `head` (layer * KV heads + KV head) holds key j when `query` attends; the
  // context's own queries attend to the compacted context. `held` has room for query + 1.
  void Mark(int head, int query, std::span<uint8_t> held) const;
};

struct AttentionLoss {
  double loss = 0;       // mean over the queries
  double bound = 0;      // of theorem 3.1
  double own_bound = 0;  // with each head's own C_h
  double norm = 0;       // |y|_1
  double worst = 0;      // the largest loss / bound of a query
};

// [arms][layers], over the queries from `first_query` on.
std::vector<std::vector<AttentionLoss>> AttentionLosses(const Activations& activations,
                                                        int first_query,
                                                        const std::vector<HeldEntries>& arms,
                                                        PlainForward* forward);

// One head of one query: out [head_dim] = y' - y before W_O, and the evicted weight, 1 - F.
// `attended`: y before W_O. If all entries are evicted, y' is 0.
double EvictionDifference(std::span<const double> weights, std::span<const uint8_t> held,
                          const float* values, const float* attended, int head_dim, float* out);

}  // namespace hydrant::eval

#endif  // HYDRANT_TOOLS_EVAL_ATTENTION_LOSS_H_
