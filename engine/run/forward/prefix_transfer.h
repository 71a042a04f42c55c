// Copies between the prefill arena and prefix blocks (engine/cache/prefix_layout.h), a layer at a
// time: keys and values, and queries for an echo. The prompt compressor copies sums. Owns the
// blocks' ids on the device; borrows the rest.
#ifndef HYDRANT_ENGINE_RUN_FORWARD_PREFIX_TRANSFER_H_
#define HYDRANT_ENGINE_RUN_FORWARD_PREFIX_TRANSFER_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/cache/prefix_layout.h"
#include "engine/run/pool/kv_state.h"
#include "engine/run/step/batch.h"
#include "kernels/backend.h"
#include "kernels/device_array.h"

namespace hydrant {

// Rows of a prompt's tokens from its first token on: the row of a head and token lies at
// x + head * head_stride + token * row_stride.
struct TokenRows {
  MutableArenaRows x = nullptr;
  int64_t head_stride = 0;
  int64_t row_stride = 0;
};

class PrefixTransfer {
 public:
  absl::Status Allocate(Backend* backend, const EngineLimits& limits);

  // Copies block ids to the device; called before the first layer of a run that begins layers.
  void Begin(const TokenRun& run, const KvState& kv);
  // Loads keys and values of the cached tokens.
  void LoadKv(int layer, const TokenRun& run, const TokenRows& k, const TokenRows& v,
              const KvState& kv);
  // Saves keys and values of the other tokens, after all have run through the layer.
  void SaveKv(int layer, const TokenRun& run, const TokenRows& k, const TokenRows& v,
              const KvState& kv);
  // Copies `num_heads` query heads before RoPE, of tokens [begin, end), cached or not; `q` begins
  // at token `begin`. Tokens of an incomplete last block are left out.
  // REQUIRES: begin is a multiple of kPrefixBlockTokens
  void LoadQueries(int layer, const TokenRun& run, int begin, int end, int num_heads,
                   const TokenRows& q, const KvState& kv);
  void SaveQueries(int layer, const TokenRun& run, int begin, int end, int num_heads,
                   const TokenRows& q, const KvState& kv);

 private:
  // Numbers of token blocks: the first ones are cached, the next ones are new.
  struct Blocks {
    int parts = 1;    // PrefixLayout::parts
    int total = 0;    // whole blocks of the prompt, in each part
    int cached = 0;   // cached blocks, in each part
    int new_ids = 0;  // ids of new blocks, in all parts together
    // New blocks in a part.
    int NewOf(int part) const { return new_ids > part ? (new_ids - part - 1) / parts + 1 : 0; }
  };
  Blocks BlocksOf(const TokenRun& run, const KvState& kv) const;
  // Device ids of a part, from the prompt's first block on.
  int32_t* IdsOf(const TokenRun& run, const Blocks& blocks, int part) const;
  PrefixBlocksArgs ArgsOf(int layer, const TokenRun& run, const Blocks& blocks, int part,
                          int first_block, const KvState& kv) const;
  template <typename Move>
  void ForQueries(int layer, const TokenRun& run, int begin, int end, int num_heads,
                  const TokenRows& q, const KvState& kv, const Move& move) const;

  Backend* backend_ = nullptr;
  EngineLimits limits_;
  // [arena / kPrefixBlockTokens, 1 + query blocks]: a prompt's ids begin at its place in the arena;
  // the ids of a part are contiguous.
  DeviceArray<int32_t> ids_;
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_RUN_FORWARD_PREFIX_TRANSFER_H_
