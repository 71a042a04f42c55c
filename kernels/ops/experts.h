// The feed-forward of a mixture of experts (Outrageously Large Neural Networks, arXiv 1701.06538;
// Mixtral of Experts, arXiv 2401.04088, section 2.1): each row goes to the k experts with the
// highest logits, and receives the weighted sum of their outputs.
//
// A (row, choice) pair has a "place": places are numbered in the order of experts, and within an
// expert in the order of rows. So an expert's input and output are contiguous, and a product reads
// each expert's weights once for all its rows.
#ifndef HYDRANT_KERNELS_OPS_EXPERTS_H_
#define HYDRANT_KERNELS_OPS_EXPERTS_H_

#include <cstdint>

#include "kernels/dtype.h"
#include "kernels/weight.h"

namespace hydrant {

inline constexpr int kMaxExperts = 1024;
inline constexpr int kMaxChosenExperts = 32;
// The rows of each expert's weights are a multiple of this.
inline constexpr int kExpertRowStep = 16;

// Normalisation of the chosen experts' weights.
enum class ExpertWeights : uint8_t {
  kOfChosen,  // softmax over the chosen experts' logits; equals softmax over all, renormalised
  kOfAll,     // softmax over all experts' logits
};

// Experts are chosen by logit, highest first; on equal logits the lower number. NaN ranks above
// every number, and the weights of its row are NaN. A choice's result depends on its row alone.
struct RouteExpertsArgs {
  const float* logits = nullptr;  // [rows, experts]
  int rows = 0;                   // 0: only offsets are written
  int experts = 0;                // 1 to kMaxExperts
  int per_row = 0;                // k: 1 to experts, and to kMaxChosenExperts
  ExpertWeights kind = ExpertWeights::kOfChosen;
  int32_t* chosen = nullptr;  // [rows, k]: the experts of each row
  float* weights = nullptr;   // [rows, k]
  // [experts + 1]: expert e has places offsets[e] to offsets[e + 1] - 1
  int32_t* offsets = nullptr;
  int32_t* sources = nullptr;  // [rows * k]: the row at each place
  int32_t* places = nullptr;   // [rows, k]: the place of each choice
};

// y[p] = x[sources[p]] * W_e^T + bias[e] for every place p of every expert e; arithmetic as in
// Matmul. Experts without places are not read. With a batch-invariant backend a row of y depends on
// its own row of x alone.
struct ExpertMatmulArgs {
  const void* x = nullptr;           // [rows, cols]; without sources [places, cols]
  DType x_dtype = DType::kF32;       // kF32, or the backend's choice for this weight
  int rows = 0;                      // of x
  const int32_t* sources = nullptr;  // [places]; null: place p reads row p
  const int32_t* offsets = nullptr;  // [experts + 1], from RouteExperts
  int places = 0;                    // offsets[experts]; 0 does nothing
  int experts = 0;
  const Weight* weight = nullptr;  // [experts * n, cols]: W_e is rows e * n to (e + 1) * n - 1;
                                   // REQUIRES: n, and the rows of each packed part, are multiples
                                   // of kExpertRowStep
  float* y = nullptr;              // [places, n]
  const float* bias = nullptr;     // [experts, n], added last; null: none
};

// out[i] += sum over c of weights[i, c] * y[places[i, c]], c in ascending order.
struct CombineExpertsArgs {
  const float* y = nullptr;         // [rows * k, n]
  const float* weights = nullptr;   // [rows, k]
  const int32_t* places = nullptr;  // [rows, k]
  int rows = 0;                     // 0 does nothing
  int per_row = 0;                  // k
  int n = 0;
  float* out = nullptr;  // [rows, n]
};

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_OPS_EXPERTS_H_
