// The inputs of a step's rows in device memory at fixed addresses, written by one copy a step.
// Decoded rows come first, padded for graphs; sampled rows are those of Batch::sampled.
#ifndef HYDRANT_ENGINE_RUN_STEP_ROWS_H_
#define HYDRANT_ENGINE_RUN_STEP_ROWS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "engine/run/pool/kv_state.h"
#include "engine/run/step/batch.h"
#include "kernels/backend.h"
#include "kernels/device_array.h"

namespace hydrant {

class StepRows {
 public:
  absl::Status Allocate(Backend& backend, int max_rows);

  // Sampled rows are padded to padded_rows as well, with greedy rows.
  // REQUIRES: padded_rows >= batch.NumDecoded(); neither decoded nor sampled rows exceed max_rows.
  void Write(Backend& backend, const Batch& batch, const KvState& kv, int padded_rows);

  // Decoded rows, [max_rows].
  TokenId* ids() const { return At<TokenId>(0); }  // kNoToken: the slot's last sampled token
  int32_t* positions() const { return At<int32_t>(1); }
  int32_t* slots() const { return At<int32_t>(2); }  // -1: padding
  // The positions by which RoPE rotates queries and keys. 0, no rotation, in rolling rows, whatever
  // the position in the stream.
  int32_t* rope_positions() const { return At<int32_t>(3); }
  // Sampled rows, [max_rows].
  int32_t* sampled_slots() const { return At<int32_t>(4); }  // -1: padding
  TokenId* newest() const { return At<TokenId>(5); }         // kNoToken
  // The slot whose newest token is sampled; -1: none (SampledRow::is_newest).
  int32_t* newest_slots() const { return At<int32_t>(6); }
  SamplingRow* sampling() const { return At<SamplingRow>(7); }

  int num_sampled() const { return num_sampled_; }
  bool any_penalties() const { return any_penalties_; }
  bool any_drawn() const { return any_drawn_; }  // of the sampled rows
  bool any_top_k() const { return any_top_k_; }
  bool any_top_p() const { return any_top_p_; }
  const std::vector<int>& rows_in_prompt() const { return rows_in_prompt_; }  // decoded rows

 private:
  template <typename T>
  T* At(int array) const {
    return reinterpret_cast<T*>(device_.data() + Offset(array));
  }
  // Seven arrays of four bytes an element, then the sampling rows.
  size_t Offset(int array) const { return static_cast<size_t>(array) * stride_; }
  template <typename T>
  T* Host(int array) {
    return reinterpret_cast<T*>(host_.data() + Offset(array));
  }
  void AddSampled(int slot, const SampledRow& sampled);

  size_t stride_ = 0;  // bytes from one array to the next
  int num_sampled_ = 0;
  bool any_penalties_ = false;
  bool any_drawn_ = false, any_top_k_ = false, any_top_p_ = false;
  std::vector<int> rows_in_prompt_;
  std::vector<uint8_t> host_;
  DeviceArray<uint8_t> device_;
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_RUN_STEP_ROWS_H_
