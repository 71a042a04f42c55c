// The reference implementation of every operation: plain loops, double accumulation, no threads.
// Contracts are in the headers of kernels/ops/. Stateless: any thread may call.
#ifndef HYDRANT_KERNELS_REFERENCE_OPS_H_
#define HYDRANT_KERNELS_REFERENCE_OPS_H_

#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "kernels/ops.h"
#include "kernels/weight.h"

namespace hydrant::reference {

// kFloat32 and kStored hold the dequantised values; kBFloat16 holds them rounded to bf16 (nearest
// even), and Matmul then rounds x too, as bf16 units do.
absl::StatusOr<std::unique_ptr<Weight>> PackWeight(std::span<const WeightPart> parts,
                                                   WeightDType dtype);

// REQUIRES: the weights of Matmul and Embed come from reference::PackWeight.
#define HYDRANT_DECLARE_OP(Op, Args) void Op(const Args& args);
HYDRANT_FOR_EACH_OP(HYDRANT_DECLARE_OP)
#undef HYDRANT_DECLARE_OP

}  // namespace hydrant::reference

#endif  // HYDRANT_KERNELS_REFERENCE_OPS_H_
