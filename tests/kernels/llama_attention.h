// Attention inputs with Llama-3.1-8B's heads, for the timing programs device_probe.cc and
// device_benchmark.cc. `memory` makes them on the device:
//   T* Allocate<T>(count), T* Upload(const std::vector<T>&), and random numbers in fp32 and bf16,
//   float* Floats(count), uint16_t* Halves(count)
#ifndef HYDRANT_TESTS_KERNELS_LLAMA_ATTENTION_H_
#define HYDRANT_TESTS_KERNELS_LLAMA_ATTENTION_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/ops/decode_attention.h"
#include "kernels/ops/prefill_attention.h"

namespace hydrant {

inline constexpr int kHeads = 32, kKvHeads = 8, kHeadDim = 128, kBlockSize = 16;

// The number of layers that hold `bytes` of keys and values, at most 16: cycling through them
// leaves nothing cached.
inline int LayersOf(double bytes, int rows, int length) {
  const double layer = 4.0 * rows * kKvHeads * length * kHeadDim;
  return std::clamp(static_cast<int>(bytes / layer), 1, 16);
}

// `rows` sequences of `length` entries per head in randomly placed pages, every head at its cap, so
// that steps repeat. The rows' rules are not set.
template <typename Memory>
DecodeAttentionArgs MakeDecode(Memory& memory, int rows, int length, int layers) {
  const int width = (length + kBlockSize - 1) / kBlockSize, heads = rows * kKvHeads * layers;
  const size_t slots = static_cast<size_t>(heads) * width * kBlockSize;
  DecodeAttentionArgs args;
  args.pages.layout = {DType::kBF16, kHeadDim, kBlockSize, heads * width};
  args.pages.keys = memory.Halves(slots * kHeadDim);
  args.pages.values = memory.Halves(slots * kHeadDim);
  args.pages.scores = memory.template Allocate<float>(slots);
  std::vector<PageIds> blocks;
  blocks.reserve(static_cast<size_t>(heads) * width);
  for (int i = 0; i < heads * width; ++i) blocks.push_back({i, i});
  std::shuffle(blocks.begin(), blocks.end(), std::mt19937(7));
  std::vector<int32_t> positions(slots);
  for (size_t at = 0; at < slots; ++at)
    positions[static_cast<size_t>(blocks[at / kBlockSize].data) * kBlockSize + at % kBlockSize] =
        static_cast<int32_t>(at % (static_cast<size_t>(width) * kBlockSize));
  args.pages.positions = memory.Upload(positions);
  std::vector<int64_t> row_begin(rows);
  for (int row = 0; row < rows; ++row)
    row_begin[row] = static_cast<int64_t>(row) * layers * kKvHeads * width;
  std::vector<int32_t> slot_ids(rows);
  std::iota(slot_ids.begin(), slot_ids.end(), 0);
  args.tables = {.num_layers = layers,
                 .num_kv_heads = kKvHeads,
                 .blocks = memory.Upload(blocks),
                 .row_begin = memory.Upload(row_begin),
                 .row_width = memory.Upload(std::vector<int32_t>(rows, width)),
                 .caps = memory.Upload(std::vector<int32_t>(heads, length)),
                 .lengths = memory.Upload(std::vector<int32_t>(heads, length)),
                 .victims = memory.Upload(std::vector<int32_t>(heads, length / 2))};
  args.num_rows = rows;
  args.slots = memory.Upload(slot_ids);
  args.positions = memory.Upload(std::vector<int32_t>(rows, length));
  args.q = memory.Floats(static_cast<size_t>(rows) * kHeads * kHeadDim);
  args.k = memory.Floats(static_cast<size_t>(rows) * kKvHeads * kHeadDim);
  args.v = memory.Floats(static_cast<size_t>(rows) * kKvHeads * kHeadDim);
  args.num_heads = kHeads;
  args.scale = 1.0f / std::sqrt(static_cast<float>(kHeadDim));
  args.max_entries = length;
  args.out = memory.template Allocate<float>(static_cast<size_t>(rows) * kHeads * kHeadDim);
  return args;
}

// A prompt of n tokens, its rows in bf16 or fp32, as in the engine's arena.
template <typename Memory>
PrefillAttentionArgs MakePrompt(Memory& memory, int n, bool halves) {
  PrefillAttentionArgs args;
  const auto rows = [&](int heads) -> ArenaRows {
    const size_t count = static_cast<size_t>(n) * heads * kHeadDim;
    if (halves) return {memory.Halves(count), DType::kBF16};
    return memory.Floats(count);
  };
  args.q = rows(kHeads);
  args.k = rows(kKvHeads);
  args.v = rows(kKvHeads);
  args.kv_head_stride = static_cast<int64_t>(n) * kHeadDim;
  args.num_queries = n;
  args.num_heads = kHeads;
  args.num_kv_heads = kKvHeads;
  args.head_dim = kHeadDim;
  args.scale = 1.0f / std::sqrt(static_cast<float>(kHeadDim));
  args.out = memory.template Allocate<float>(static_cast<size_t>(n) * kHeads * kHeadDim);
  args.out_dtype = halves ? DType::kBF16 : DType::kF32;
  args.precision = DType::kBF16;
  return args;
}

}  // namespace hydrant

#endif  // HYDRANT_TESTS_KERNELS_LLAMA_ATTENTION_H_
