// Host side of the open prefill attention for compute capability 9.0
// (kernels/cuda/sm90_attention.h): the runs that it supports, and its launch parameters.
// Without CUDA headers.
#ifndef HYDRANT_KERNELS_CUDA_SM90_PLAN_H_
#define HYDRANT_KERNELS_CUDA_SM90_PLAN_H_

#include <cstdint>

#include "kernels/ops/prefill_attention.h"

namespace hydrant::cuda {

inline constexpr int kSm90Tile = 128;         // queries, and keys, per tile
inline constexpr int kSm90LeastQueries = 64;  // with fewer, most of a tile is idle

// From this length a prompt gets a launch of its own, even in a batch.
inline constexpr int kSm90AloneQueries = 512;

// Whether the kernel supports a run: causal, bf16 from the arena to the output, no extra features.
constexpr bool Sm90Takes(const PrefillAttentionArgs& args) {
  const auto in_place = [](const void* data) {
    return data != nullptr && reinterpret_cast<uintptr_t>(data) % 16 == 0;
  };
  return (args.head_dim == 64 || args.head_dim == 128) && args.precision == DType::kBF16 &&
         args.q.dtype == DType::kBF16 && args.k.dtype == DType::kBF16 &&
         args.v.dtype == DType::kBF16 && args.out_dtype == DType::kBF16 &&
         args.num_queries >= kSm90LeastQueries && args.window == kNoWindow &&
         args.softcap == 0.0f && args.sink_logits == nullptr && args.prefix == nullptr &&
         args.end_key >= args.first_position + args.num_queries && args.scale > 0.0f &&
         args.kv_head_stride % 8 == 0 && in_place(args.q.data) && in_place(args.k.data) &&
         in_place(args.v.data) && in_place(args.out);
}

// A bf16 tensor for TMA; the first dimension is contiguous.
struct Sm90Tensor {
  void* data = nullptr;
  uint64_t dims[4] = {};     // head_dim, rows, heads, 1
  uint64_t strides[3] = {};  // bytes, of rows, heads and the whole: multiples of 16
  uint32_t box[4] = {};      // elements of a copy
};

// A divisor d in the kernel's form: n / d = (2 * n * mul >> 32) >> shr, for n < 2^31.
struct Sm90Divisor {
  uint32_t d = 1, shr = 0, mul = 0x80000000u;
};

constexpr Sm90Divisor Sm90DivisorOf(uint32_t d) {
  if (d <= 1) return {};
  uint32_t log = 1;  // the smallest with 2^log >= 2 d
  while ((uint64_t{1} << log) < 2 * uint64_t{d}) ++log;
  const uint64_t power = uint64_t{1} << (31 + log);
  return {d, log - 1, static_cast<uint32_t>((power + 2 * uint64_t{d} - 1) / (2 * uint64_t{d}))};
}

// The kernel's own struct layout.
struct Sm90Sizes {
  uint32_t batch = 1, q_heads = 0, k_heads = 0, v_heads = 0;
  uint32_t queries = 0, keys = 0, qk_dim = 0, v_dim = 0;
  uint16_t q_heads_a_k = 1, q_heads_a_v = 1, least_q_heads_a_kv = 1;
};

// The same for the outputs of maxima and sums, [1, heads, queries].
struct Sm90Rows {
  int64_t num_dims = 3;
  int64_t dims[12] = {};
  int64_t strides[12] = {};  // elements
};

struct Sm90Plan {
  Sm90Sizes sizes;
  int num_tiles = 0;
  Sm90Divisor tiles_of_batch, heads;  // tile t: head t % heads, from the last queries on
  Sm90Tensor q, k, v, out;
  Sm90Rows rows;
};

// REQUIRES: Sm90Takes(args). `wants_rows`: also write maxima and sums.
inline Sm90Plan Sm90PlanOf(const PrefillAttentionArgs& args, bool wants_rows) {
  const auto tensor = [&](const void* data, int rows, int heads, int64_t row_stride,
                          int64_t head_stride, uint32_t box_rows) {
    Sm90Tensor made;
    made.data = const_cast<void*>(data);
    made.dims[0] = args.head_dim;
    made.dims[1] = rows;
    made.dims[2] = heads;
    made.dims[3] = 1;
    made.strides[0] = row_stride * 2;
    made.strides[1] = head_stride * 2;
    made.strides[2] = static_cast<uint64_t>(rows) * made.strides[0];  // batch of one: unused
    made.box[0] = 64;
    made.box[1] = box_rows;
    made.box[2] = made.box[3] = 1;
    return made;
  };
  const int heads = args.num_heads, kv_heads = args.num_kv_heads;
  const int queries = args.num_queries, keys = args.first_position + queries, d = args.head_dim;
  const auto group = static_cast<uint16_t>(heads / kv_heads);
  const auto u32 = [](int value) { return static_cast<uint32_t>(value); };
  Sm90Plan plan;
  plan.sizes = {1,      u32(heads), u32(kv_heads), u32(kv_heads), u32(queries), u32(keys),
                u32(d), u32(d),     group,         group,         group};
  plan.num_tiles = (queries + kSm90Tile - 1) / kSm90Tile * heads;
  plan.tiles_of_batch = Sm90DivisorOf(plan.num_tiles);
  plan.heads = Sm90DivisorOf(heads);
  const int64_t q_row = int64_t{heads} * d;
  plan.q = tensor(args.q.data, queries, heads, q_row, d, kSm90Tile);
  plan.k = tensor(args.k.data, keys, kv_heads, d, args.kv_head_stride, kSm90Tile);
  plan.v = tensor(args.v.data, keys, kv_heads, d, args.kv_head_stride, kSm90Tile);
  plan.out = tensor(args.out, queries, heads, q_row, d, 16);
  plan.rows.dims[0] = 1;
  plan.rows.dims[1] = heads;
  plan.rows.dims[2] = wants_rows ? queries : 0;
  plan.rows.strides[0] = int64_t{heads} * queries;
  plan.rows.strides[1] = queries;
  plan.rows.strides[2] = 1;
  return plan;
}

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_SM90_PLAN_H_
