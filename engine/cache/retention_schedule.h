// The retention schedule of a cache: how many entries its heads hold after a number of tokens, how
// many pages that takes, and when the engine compacts it. The host counts by it without asking the
// device; where only the device knows how many entries a head keeps, the retention schedule gives
// upper bounds until the engine has reported.
//
//   CompactAtPrefill      Layer by layer, every head keeps its budget. While decoding it grows to
//                         its cap, then evicts one entry for each new one.
//   LayerSharedRetention  Layer by layer, the heads of a layer share its budget and its pages. Each
//                         has a reported cap.
//   CandidateRetention    Every head holds candidates during prefill; then heads share budgets over
//                         layers, or keep enough attention. Each has a reported cap.
//   DelayedCompaction     Every entry is kept until the cache is compacted once, at n tokens.
//   ChunkedEviction       As CompactAtPrefill, but many entries are evicted at once.
//   ShrunkRetention       Made by Shrink() from one of the first three: every head is compacted to
//                         a cap of its own.
//
// A policy with its own retention schedule derives one in its own file (as policies/subgen.cc) and
// sets CachePlan::retention. RetentionSchedules are immutable: one object may serve many threads
// and requests. They take everything specific to a request, such as budgets, from the plan.
// `tokens` counts the tokens of the sequence seen so far, at least its prompt.
#ifndef HYDRANT_ENGINE_CACHE_RETENTION_SCHEDULE_H_
#define HYDRANT_ENGINE_CACHE_RETENTION_SCHEDULE_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "engine/cache/head_budget.h"
#include "kernels/ops/subgen.h"

namespace hydrant {

struct CachePlan;

inline constexpr int64_t kAnyLength = std::numeric_limits<int64_t>::max();

// The compaction of a prefilled layer of the prompt, before its entries are written into pages.
struct LayerCompaction {
  int32_t keep = 0;  // entries a head keeps, on average if shared
  // The heads share the budget by their numbers of the layer's best entries, and the device assigns
  // their pages (kernels/ops/assign_pages.h).
  bool shared = false;
  // Not null: samples are kept instead of entries.
  const SubGenRule* samples = nullptr;
};

// The compaction of entries in pages.
struct PageCompaction {
  std::vector<int32_t> keep;  // [num_layers] entries a head keeps, on average over a shared budget
  BudgetShare share;
  // [num_layers * KV heads] entries each head keeps; empty: by keep and share.
  std::vector<int32_t> keep_of_heads = {};
  // Number of leading layers to compact. Later layers are not computed yet, so every entry that may
  // survive the final budget is kept. 0: all layers.
  int first_layers = 0;
  int32_t max_length = 0;  // upper bound of a head's entries before the compaction
  // A head's cap becomes its kept entries + growth; kNoCap: no cap; -1: caps stay.
  int32_t growth = -1;
  // A head's span after the compaction: its pages past it are freed. Where heads differ, the span
  // of the largest possible head; reports of each follow. Unset: spans and pages stay.
  std::optional<HeadSpan> then = {};
  // A head keeps more entries, up to max_for_mass, until it retains this share of the attention of
  // the prompt's last queries. 0: no minimum.
  float min_retained_mass = 0.0f;
  int32_t max_for_mass = kNoCap;
  // Not null: samples are kept instead of entries.
  const SubGenRule* samples = nullptr;

  bool IsPartial() const { return first_layers > 0; }
  int NumLayers() const { return IsPartial() ? first_layers : static_cast<int>(keep.size()); }
};

class RetentionSchedule {
 public:
  virtual ~RetentionSchedule() = default;

  // --- Counting.

  // The span of a head of the layer, from admission on.
  virtual HeadSpan InitialSpan(const CachePlan& plan, int layer) const;
  // The last number of tokens for which InitialSpan() holds; then the heads are compacted, or
  // reported.
  virtual int64_t InitialSpanEnd(const CachePlan& plan) const;
  // The engine reports how many entries of the prompt each head keeps (CacheReport::entries); the
  // sequence does not decode before.
  virtual bool ReportsPrompt() const { return false; }
  // Heads may hold different numbers of entries, known from reports only.
  virtual bool HeadsDiffer(const CachePlan& /*plan*/) const { return ReportsPrompt(); }
  // Pages that the engine assigns to the heads of each layer after its prefill
  // (kernels/ops/assign_pages.h); 0: every head has its own.
  virtual int64_t UnassignedPages(const CachePlan& /*plan*/, int /*block_size*/) const { return 0; }
  // An upper bound of the entries of any head.
  virtual int32_t EntriesAfter(const CachePlan& plan, int64_t tokens) const;
  // The approximate mean entries of a head in the fullest layer, to estimate the device's work.
  virtual int32_t MeanEntriesAfter(const CachePlan& plan, int64_t tokens) const;
  // The maximum entries of any head up to `tokens`.
  virtual int32_t PeakEntries(const CachePlan& plan, int64_t tokens) const;
  // An upper bound of the entries of the prompt that any head keeps.
  virtual int32_t MaxKeep(const CachePlan& plan) const;
  // The maximum pages of all heads together up to `tokens`.
  virtual int64_t PeakPages(const CachePlan& plan, int64_t tokens, int block_size) const;

  // --- Compaction.

  // Whether entries of the prompt are evicted at the end of its prefill.
  virtual bool CompactsPrompt(const CachePlan& plan) const;
  virtual LayerCompaction CompactLayer(const CachePlan& plan, int layer) const;
  // The compaction, if any, after the first `layers` layers of the prompt have been written, or
  // all.
  virtual std::optional<PageCompaction> PromptCompaction(const CachePlan& /*plan*/,
                                                         int /*layers*/) const {
    return std::nullopt;
  }
  // Whether the cache is compacted after `tokens` tokens, before the next one is appended. Called
  // at every step.
  virtual bool CompactsAfter(const CachePlan& /*plan*/, int64_t /*tokens*/) const { return false; }
  // REQUIRES: CompactsAfter(plan, tokens).
  virtual PageCompaction CompactionAfter(const CachePlan& /*plan*/, int64_t /*tokens*/) const {
    return {};
  }
  // Whether CompactionAfter() may be due while all heads are below their caps, or have none.
  virtual bool CompactsWithoutCaps() const { return false; }
  // Whether the cache can be shrunk (Shrink): no compaction is pending, no retained mass is
  // guaranteed.
  virtual bool CanShrink() const { return false; }
  // The samples that entries are streamed into while decoding; null: none.
  virtual const SubGenRule* Samples() const { return nullptr; }
};

// The default: every head of a layer keeps the layer's budget. A prompt within it is kept whole.
class CompactAtPrefill final : public RetentionSchedule {
 public:
  bool CanShrink() const override { return true; }
};

// Base of the retention schedules with reports.
class ReportedRetention : public RetentionSchedule {
 public:
  HeadSpan InitialSpan(const CachePlan& plan, int layer) const override;
  int64_t InitialSpanEnd(const CachePlan& plan) const override;
  bool ReportsPrompt() const override { return true; }
  int32_t EntriesAfter(const CachePlan& plan, int64_t tokens) const override;
  int32_t MeanEntriesAfter(const CachePlan& plan, int64_t tokens) const override;
  int32_t PeakEntries(const CachePlan& plan, int64_t tokens) const override;
};

// For a plan.share of scope kLayer.
class LayerSharedRetention final : public ReportedRetention {
 public:
  int64_t UnassignedPages(const CachePlan& plan, int block_size) const override;
  int32_t MaxKeep(const CachePlan& plan) const override;
  int64_t PeakPages(const CachePlan& plan, int64_t tokens, int block_size) const override;
  LayerCompaction CompactLayer(const CachePlan& plan, int layer) const override;
  bool CanShrink() const override { return true; }
};

// If all layers share one budget, heads are compacted every few layers to the most that they may
// keep in the end, so that only the candidates of these few layers are held in addition.
class CandidateRetention final : public ReportedRetention {
 public:
  // entries: candidates of a head; fewer if it has fewer.
  explicit CandidateRetention(int32_t entries) : entries_(entries) {}
  // All entries are candidates, and every head retains min_retained_mass in (0, 1], as far as
  // max_for_mass entries suffice.
  CandidateRetention(float min_retained_mass, int32_t max_for_mass)
      : min_retained_mass_(min_retained_mass), max_for_mass_(max_for_mass) {}

  int64_t UnassignedPages(const CachePlan& plan, int block_size) const override;
  int32_t MaxKeep(const CachePlan& plan) const override;
  int64_t PeakPages(const CachePlan& plan, int64_t tokens, int block_size) const override;
  LayerCompaction CompactLayer(const CachePlan& plan, int layer) const override;
  std::optional<PageCompaction> PromptCompaction(const CachePlan& plan, int layers) const override;
  bool CanShrink() const override { return min_retained_mass_ == 0.0f; }

 private:
  bool CompactsDuringPrefill(const CachePlan& plan) const;
  bool CompactsAt(const CachePlan& plan, int layers) const;
  int64_t MaxHeldAfterLayers(const CachePlan& plan, int layers, int block_size) const;

  int32_t entries_ = kNoCap;
  float min_retained_mass_ = 0.0f;
  int32_t max_for_mass_ = kNoCap;
};

// The compaction may share the budget over heads, by plan.share. REQUIRES: every head's cap is the
// budget.
class DelayedCompaction : public RetentionSchedule {
 public:
  explicit DelayedCompaction(int32_t tokens) : tokens_(tokens) {}

  int32_t tokens() const { return tokens_; }

  HeadSpan InitialSpan(const CachePlan&, int /*layer*/) const override { return {}; }
  int64_t InitialSpanEnd(const CachePlan&) const override { return tokens_; }
  bool HeadsDiffer(const CachePlan& plan) const override;
  int32_t EntriesAfter(const CachePlan& plan, int64_t tokens) const override;
  int32_t MeanEntriesAfter(const CachePlan& plan, int64_t tokens) const override;
  int32_t PeakEntries(const CachePlan& plan, int64_t tokens) const override;
  int64_t PeakPages(const CachePlan& plan, int64_t tokens, int block_size) const override;
  bool CompactsPrompt(const CachePlan&) const override { return false; }
  LayerCompaction CompactLayer(const CachePlan& plan, int layer) const override;
  bool CompactsAfter(const CachePlan&, int64_t tokens) const override { return tokens == tokens_; }
  PageCompaction CompactionAfter(const CachePlan& plan, int64_t tokens) const override;
  bool CompactsWithoutCaps() const override { return true; }

 private:
  int32_t tokens_;
};

class ChunkedEviction final : public RetentionSchedule {
 public:
  // drop: entries evicted at once before a token is appended to a head at its cap.
  explicit ChunkedEviction(int32_t drop) : drop_(drop) {}

  int32_t drop() const { return drop_; }

  HeadSpan InitialSpan(const CachePlan& plan, int layer) const override;
  bool CompactsAfter(const CachePlan& plan, int64_t tokens) const override;
  PageCompaction CompactionAfter(const CachePlan& plan, int64_t tokens) const override;

 private:
  int32_t drop_;
};

// After `tokens` tokens every head is compacted to a number of entries of its own, and stays at it.
// plan.cap is their average.
class ShrunkRetention final : public RetentionSchedule {
 public:
  // keep: [num_layers * KV heads] entries. held: upper bound of a head's entries before the
  // compaction.
  ShrunkRetention(int64_t tokens, int32_t held, std::vector<int32_t> keep);

  int64_t tokens() const { return tokens_; }

  HeadSpan InitialSpan(const CachePlan& plan, int layer) const override;
  int32_t MeanEntriesAfter(const CachePlan& plan, int64_t tokens) const override;
  int64_t PeakPages(const CachePlan& plan, int64_t tokens, int block_size) const override;
  bool CompactsPrompt(const CachePlan&) const override { return false; }
  bool CompactsAfter(const CachePlan&, int64_t tokens) const override { return tokens == tokens_; }
  PageCompaction CompactionAfter(const CachePlan& plan, int64_t tokens) const override;
  bool CompactsWithoutCaps() const override { return true; }
  bool CanShrink() const override { return true; }

 private:
  int64_t tokens_;
  int32_t held_;
  std::vector<int32_t> keep_;
  int32_t widest_;  // maximum of keep_
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_CACHE_RETENTION_SCHEDULE_H_
