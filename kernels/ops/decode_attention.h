// One decode step of attention for every row of a batch, in one layer: stores the new token's key
// and value, attends, updates the scores and picks the next victim, in one pass over the pages.
// For each (row, KV head):
//
//   1. length < cap: the new entry is appended at index `length`, and length grows by one.
//      length == cap: it overwrites entry `victims[...]`. Its position is stored; its score, where
//      rule.ScoresEntries(), starts from 0; its log weights, where rule.weighted, are (0, 0).
//   2. out = softmax(logits) v over the live entries, the new one included, in fp32; logits =
//      scale * q k^T or, with a softcap, softcap * tanh(scale * q k^T / softcap) (Gemma 2, arXiv
//      2408.00118, section 2). Where rule.weighted, entries have log weights (wn, wd):
//
//        out = sum(exp(logit + wn) v) / sum(exp(logit + wd))
//
//      SubGen's estimator (arXiv 2402.06082): an entry may represent others in the numerator, the
//      denominator or both. Log weights are finite, or -infinity where the entry does not count.
//      Log weights of 0 give the same bits as unweighted attention. (The new entry counts, so the
//      denominator is never 0.) If the largest weight of the numerator is more than
//      exp(kMaxLogExcess) times the largest of the denominator, all weights of the numerator are
//      scaled down to that limit, so that out is finite. (A key may be a value sample and in no
//      cluster's sample.) A query head's sink logit adds exp(sink logit) to the denominator,
//      neither scaled nor capped, and nothing to the numerator (GPT-OSS, arXiv 2508.10925; `sinks`
//      in transformers' gpt_oss).
//
//      Rolling heads: the new entry has rank length - 1 (length: after the step), the ranks above
//      an overwritten entry decrease by one, and each key is rotated back by its distance, in
//      ranks, to the new entry; q and k are passed unrotated. (Rotating q by its rank and every
//      key by its own gives the same products.)
//   3. Where rule.scored: score = decay * score + gain * w (kernels/kv_pages.h); w is the entry's
//      share of the denominator, which includes the sink's share. by_position: the score is the
//      position, and none is written.
//   4. Where rule.scored and length == cap now: victims[...] = the victim for position + 1 (in
//      rolling heads for rank length), by the rule.
//
// With BackendOptions::batch_invariant the order of every reduction depends on the row's own data
// alone (entry order and length), never on the batch. The table already names the page of an
// appended entry. Rows name different slots.
#ifndef HYDRANT_KERNELS_OPS_DECODE_ATTENTION_H_
#define HYDRANT_KERNELS_OPS_DECODE_ATTENTION_H_

#include <cstdint>

#include "kernels/kv_pages.h"
#include "kernels/rotary.h"

namespace hydrant {

// The norm of rows of this size, exp(55) or 7e23, is finite in fp32,
// although their squares are not.
inline constexpr float kMaxLogExcess = 55.0f;

struct DecodeAttentionArgs {
  int num_rows = 0;
  const int32_t* slots = nullptr;      // [num_rows] sequence slot of each row; below 0: padding,
                                       // nothing is stored and its part of out is undefined
  const int32_t* positions = nullptr;  // [num_rows] position of the new token; unused if rolling
  const float* q = nullptr;  // [num_rows, num_heads, head_dim], rotated by RoPE unless rolling
  const float* k = nullptr;  // [num_rows, num_kv_heads, head_dim], the same
  const float* v = nullptr;  // [num_rows, num_kv_heads, head_dim]
  int layer = 0;
  int num_heads = 0;
  float scale = 1.0f;
  float softcap = 0.0f;                // logits stay within +-softcap; 0: no cap
  const float* sink_logits = nullptr;  // [num_heads], finite; null: none
  Rotary rotary = {};                  // for rolling rows: tables for every rank of a rolling head
  KvPages pages;
  SequenceTables tables;
  // Bounds for a device's work plan: the most entries of any head in the batch after the step, and
  // the most of any head in a row with a scored rule (0: there is no such row).
  int max_entries = 0;
  int max_scored_entries = 0;
  bool weighted = false;          // whether any row's rule may be weighted
  void* out = nullptr;            // [num_rows, num_heads, head_dim]
  DType out_dtype = DType::kF32;  // or the backend's choice (Backend::ActivationDType)
  // Work estimate for a device: about the mean number of entries per head in the batch; 0:
  // unknown, use max_entries. It affects the order of reductions only, and with
  // batch_invariant not even that.
  int mean_entries = 0;
};

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_OPS_DECODE_ATTENTION_H_
