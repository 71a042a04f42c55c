// Matmul and Embed of the cpu backend.
//
// Layout. Weights are cut into panels of sixteen rows once, at load. The panels' inner order suits
// every instruction set, so one packed form serves all of them and any number of rows. Only
// activations are copied at run time.
//
// Arithmetic, by WeightDType:
//   kFloat32   fp32 multiply-add, one running sum per output over the columns in order.
//   kBFloat16  weights rounded to bf16. With AVX-512 BF16 or AMX the activations are rounded to
//              bf16 too (a relative error of 2^-8 each), with fp32 sums; otherwise the activations
//              stay fp32.
//   kStored    block formats: activations become 16-bit integers with one scale for 32 values (an
//              error of at most 1.6e-5 of the largest of the 32), the products with the stored
//              integers are summed exactly over a block, and the blocks' sums are scaled and added
//              in fp32, in order. Every instruction set performs the same operations: results are
//              equal bit by bit on AVX2, AVX-512 VNNI, AMX and NEON.
//              With 4 rows of x or more, without batch_invariant, on x86: activations become 8-bit
//              integers, with an error of at most 0.4 % of the largest of the 32.
//              With VNNI, without AMX, from 96 rows on, that error is at most 0.8 %: a block's
//              scale is its row's times a power of two. Weights in formats with a minimum, or with
//              a scale per 16 values, are rounded to 8 bits too, with an error of at most 0.4 % of
//              the largest of the 32; panel by panel, in scratch.
//              With AMX, 24 rows of x or more, without batch_invariant: activations and weights are
//              rounded to bf16 instead (2^-8 of activations; 1.31 * 2^-8 of weights, which are
//              truncated after a compensating factor); the weights panel by panel, in scratch.
//              f32, f16, bf16 and f8_e4m3 as stored dtypes: as kFloat32, widened in registers.
//   kQ8_0, kQ4_0   as kStored, after KeptDType().
//
// With batch_invariant an output's bits depend on its own row of x alone, for any m and number of
// threads. Without it they also change at the numbers of rows named above.
//
// A Weight is immutable after PackWeight. One thread at a time calls Matmul and
// Embed with the same pool.
#ifndef HYDRANT_KERNELS_CPU_MATMUL_MATMUL_H_
#define HYDRANT_KERNELS_CPU_MATMUL_MATMUL_H_

#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "kernels/ops/matmul.h"
#include "kernels/thread_pool.h"
#include "kernels/weight.h"

namespace hydrant::cpu {

// The bytes of the parts are copied: they need not outlive the call. InvalidArgument: no parts,
// unequal cols, sizes below 1, cols that are not a whole number of blocks, a value that is not
// finite. ResourceExhausted: no memory.
absl::StatusOr<std::unique_ptr<Weight>> PackWeight(std::span<const WeightPart> parts,
                                                   WeightDType dtype, bool batch_invariant,
                                                   ThreadPool& pool);

// REQUIRES: args.weight was made by PackWeight, x and y do not overlap.
void Matmul(const MatmulArgs& args, bool batch_invariant, ThreadPool& pool);

// REQUIRES: ids below table.rows(). Exact: the dequantised value, or that value
// rounded to bf16 with kBFloat16.
void Embed(const EmbedArgs& args, ThreadPool& pool);

}  // namespace hydrant::cpu

#endif  // HYDRANT_KERNELS_CPU_MATMUL_MATMUL_H_
