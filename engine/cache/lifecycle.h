// How a cache lives: how many entries its heads hold after so many tokens, which pages that takes,
// and what the engine cuts when. The host counts by it without asking the device; where only the
// device knows how much a head keeps, a life answers with bounds until the engine has reported.
//
//                  prompt is read        prompt has been read      while decoding
//   CutAtPrompt    layer by layer: every head keeps its budget     grows to its cap, then one
//                                                                  entry leaves for each that comes
//   SharedInLayer  layer by layer: the heads of a layer share      the same, caps by report
//                  its budget and its pages
//   FromCandidates every head holds      heads share budgets over  the same, caps by report
//                  candidates            layers, or keep enough
//                                        attention
//   WholeUntil     nothing leaves                                  at n tokens it is cut once
//   DropsChunks    as CutAtPrompt                                  many entries leave at once
//   Shrunk                               (Shrink() made it of      every head is cut to a cap of
//                                        one of the first three)   its own
//
// A policy with a life of its own derives one in its own file (policies/subgen.cc does) and sets
// CachePlan::life. Lives are immutable: one object may serve many threads and requests. All that is
// not theirs, budgets above all, they take from the plan. Tokens are those of the sequence that
// have been seen, its prompt at least.
#ifndef HYDRANT_ENGINE_CACHE_LIFECYCLE_H_
#define HYDRANT_ENGINE_CACHE_LIFECYCLE_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "engine/cache/head_budget.h"
#include "kernels/ops/subgen.h"

namespace hydrant {

struct CachePlan;

inline constexpr int64_t kAnyLength = std::numeric_limits<int64_t>::max();

// What becomes of a layer of a prompt that has been read, before its entries are written.
struct LayerCut {
  int32_t keep = 0;  // entries a head keeps ...
  // ... on average, by where the best of the layer's entries are; the heads are then given their
  // pages from the layer's (kernels/ops/assign_pages.h). Else every head keeps as many.
  bool shared = false;
  // Not entries are kept but samples of them.
  const SubGenRule* samples = nullptr;
};

// What becomes of entries that lie in pages.
struct PageCut {
  std::vector<int32_t> keep;  // [num_layers] entries a head keeps, on average over those that share
  BudgetShare share;
  // [num_layers * KV heads] what each head keeps; empty: as keep and share say.
  std::vector<int32_t> keep_of_heads = {};
  // So many layers are cut, the first ones; the others are still to be read, and heads keep all
  // that a cut of more layers could leave them. 0: all are.
  int first_layers = 0;
  int32_t max_length = 0;  // no head holds more before
  // The heads' caps become what they keep and so much more; kNoCap: none; -1: they stay.
  int32_t growth = -1;
  // A head from then on: its pages past what it then holds go home. Where heads differ, one that
  // holds as much as any may; their reports follow. Unset: heads go on as before, their pages stay.
  std::optional<HeadSpan> then = {};
  // A head keeps more, up to most_for_mass entries or else all, until it retains that much of the
  // attention of the prompt's last queries. 0: it need not.
  float min_retained_mass = 0.0f;
  int32_t most_for_mass = kNoCap;
  // Not entries are kept but samples of them.
  const SubGenRule* samples = nullptr;

  bool OthersFollow() const { return first_layers > 0; }
  int NumLayers() const { return OthersFollow() ? first_layers : static_cast<int>(keep.size()); }
};

class Lifecycle {
 public:
  virtual ~Lifecycle() = default;

  // --- Counting.

  // A head of the layer, from admission on.
  virtual HeadSpan Opening(const CachePlan& plan, int layer) const;
  // That holds while no more tokens than this have been seen; then the heads are cut, or reported.
  virtual int64_t OpeningEnds(const CachePlan& plan) const;
  // What each head keeps of the prompt is the engine's to report (CacheReport::entries): until then
  // the sequence does not decode.
  virtual bool ReportsPrompt() const { return false; }
  // Heads may hold different numbers of entries which only reports tell.
  virtual bool HeadsDiffer(const CachePlan& /*plan*/) const { return ReportsPrompt(); }
  // Pages from which the engine gives the heads of each layer theirs when it has been read
  // (kernels/ops/assign_pages.h); 0: every head has its own.
  virtual int64_t UnassignedPages(const CachePlan& /*plan*/, int /*block_size*/) const { return 0; }
  // A bound of the entries that any head holds.
  virtual int32_t EntriesAfter(const CachePlan& plan, int64_t tokens) const;
  // About what a head holds on average, in the fullest layer: a device estimates its work by it.
  virtual int32_t MeanEntriesAfter(const CachePlan& plan, int64_t tokens) const;
  // The most that any head has held on the way there.
  virtual int32_t MostUntil(const CachePlan& plan, int64_t tokens) const;
  // No head keeps more of the prompt.
  virtual int32_t WidestKeep(const CachePlan& plan) const;
  // The most pages that all heads have held on the way there.
  virtual int64_t PagesUntil(const CachePlan& plan, int64_t tokens, int block_size) const;

  // --- Cutting.

  // Something leaves when the prompt has been read.
  virtual bool CutsPrompt(const CachePlan& plan) const;
  virtual LayerCut CutLayer(const CachePlan& plan, int layer) const;
  // When so many of the prompt's layers have been written, all of them at last.
  virtual std::optional<PageCut> CutPrompt(const CachePlan& /*plan*/, int /*layers*/) const {
    return std::nullopt;
  }
  // Whether the cache is cut when so many tokens have been seen, before the next one comes. Asked
  // at every step.
  virtual bool CutsAfter(const CachePlan& /*plan*/, int64_t /*tokens*/) const { return false; }
  // REQUIRES: CutsAfter(plan, tokens).
  virtual PageCut CutAfter(const CachePlan& /*plan*/, int64_t /*tokens*/) const { return {}; }
  // Such a cut comes although no head is at its cap: it does so without caps, too.
  virtual bool CutsWithoutCaps() const { return false; }
  // No cut is to come, nor is anything promised of what heads hold: it can be lowered (Shrink).
  virtual bool MayShrink() const { return false; }
  // The samples that entries are streamed into while decoding; null: none.
  virtual const SubGenRule* Samples() const { return nullptr; }
};

// The default: every head of a layer keeps the layer's budget of the prompt. A prompt within its
// budget keeps everything.
class CutAtPrompt final : public Lifecycle {
 public:
  bool MayShrink() const override { return true; }
};

// What the lives have in common that report.
class ReportedLife : public Lifecycle {
 public:
  HeadSpan Opening(const CachePlan& plan, int layer) const override;
  int64_t OpeningEnds(const CachePlan& plan) const override;
  bool ReportsPrompt() const override { return true; }
  int32_t EntriesAfter(const CachePlan& plan, int64_t tokens) const override;
  int32_t MeanEntriesAfter(const CachePlan& plan, int64_t tokens) const override;
  int32_t MostUntil(const CachePlan& plan, int64_t tokens) const override;
};

// plan.share says the scope kLayer.
class SharedInLayer final : public ReportedLife {
 public:
  int64_t UnassignedPages(const CachePlan& plan, int block_size) const override;
  int32_t WidestKeep(const CachePlan& plan) const override;
  int64_t PagesUntil(const CachePlan& plan, int64_t tokens, int block_size) const override;
  LayerCut CutLayer(const CachePlan& plan, int layer) const override;
  bool MayShrink() const override { return true; }
};

// Where one budget is shared over the model, heads are cut every few layers to what they may still
// be given, so that the candidates of these few are all that is held besides.
class FromCandidates final : public ReportedLife {
 public:
  // entries: that a head takes part with, if it has as many.
  explicit FromCandidates(int32_t entries) : entries_(entries) {}
  // All entries are candidates, and every head retains min_retained_mass in (0, 1], where
  // most_for_mass entries suffice for it.
  FromCandidates(float min_retained_mass, int32_t most_for_mass)
      : min_retained_mass_(min_retained_mass), most_for_mass_(most_for_mass) {}

  int64_t UnassignedPages(const CachePlan& plan, int block_size) const override;
  int32_t WidestKeep(const CachePlan& plan) const override;
  int64_t PagesUntil(const CachePlan& plan, int64_t tokens, int block_size) const override;
  LayerCut CutLayer(const CachePlan& plan, int layer) const override;
  std::optional<PageCut> CutPrompt(const CachePlan& plan, int layers) const override;
  bool MayShrink() const override { return min_retained_mass_ == 0.0f; }

 private:
  bool CutsOnTheWay(const CachePlan& plan) const;
  bool CutsAt(const CachePlan& plan, int layers) const;
  int64_t MostHeldBehind(const CachePlan& plan, int layers, int block_size) const;

  int32_t entries_ = kNoCap;
  float min_retained_mass_ = 0.0f;
  int32_t most_for_mass_ = kNoCap;
};

// The heads may share what is left, by plan.share. REQUIRES: every head's cap is the budget.
class WholeUntil : public Lifecycle {
 public:
  explicit WholeUntil(int32_t tokens) : tokens_(tokens) {}

  int32_t tokens() const { return tokens_; }

  HeadSpan Opening(const CachePlan&, int /*layer*/) const override { return {}; }
  int64_t OpeningEnds(const CachePlan&) const override { return tokens_; }
  bool HeadsDiffer(const CachePlan& plan) const override;
  int32_t EntriesAfter(const CachePlan& plan, int64_t tokens) const override;
  int32_t MeanEntriesAfter(const CachePlan& plan, int64_t tokens) const override;
  int32_t MostUntil(const CachePlan& plan, int64_t tokens) const override;
  int64_t PagesUntil(const CachePlan& plan, int64_t tokens, int block_size) const override;
  bool CutsPrompt(const CachePlan&) const override { return false; }
  LayerCut CutLayer(const CachePlan& plan, int layer) const override;
  bool CutsAfter(const CachePlan&, int64_t tokens) const override { return tokens == tokens_; }
  PageCut CutAfter(const CachePlan& plan, int64_t tokens) const override;
  bool CutsWithoutCaps() const override { return true; }

 private:
  int32_t tokens_;
};

class DropsChunks final : public Lifecycle {
 public:
  // drop: entries that leave at once before a token comes to a head at its cap.
  explicit DropsChunks(int32_t drop) : drop_(drop) {}

  int32_t drop() const { return drop_; }

  HeadSpan Opening(const CachePlan& plan, int layer) const override;
  bool CutsAfter(const CachePlan& plan, int64_t tokens) const override;
  PageCut CutAfter(const CachePlan& plan, int64_t tokens) const override;

 private:
  int32_t drop_;
};

// From a token on every head holds so many entries, whatever it held before. plan.cap is their
// average.
class Shrunk final : public Lifecycle {
 public:
  // keep: [num_layers * KV heads]. No head held more than `held` when so many tokens had been seen.
  Shrunk(int64_t tokens, int32_t held, std::vector<int32_t> keep);

  int64_t tokens() const { return tokens_; }

  HeadSpan Opening(const CachePlan& plan, int layer) const override;
  int32_t MeanEntriesAfter(const CachePlan& plan, int64_t tokens) const override;
  int64_t PagesUntil(const CachePlan& plan, int64_t tokens, int block_size) const override;
  bool CutsPrompt(const CachePlan&) const override { return false; }
  bool CutsAfter(const CachePlan&, int64_t tokens) const override { return tokens == tokens_; }
  PageCut CutAfter(const CachePlan& plan, int64_t tokens) const override;
  bool CutsWithoutCaps() const override { return true; }
  bool MayShrink() const override { return true; }

 private:
  int64_t tokens_;
  int32_t held_;
  std::vector<int32_t> keep_;
  int32_t widest_;  // of these
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_CACHE_LIFECYCLE_H_
