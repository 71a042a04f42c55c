// An engine without a model that checks every rule of engine/run/step/batch.h.
//
// It keeps block tables and lengths as the real engine does, and writes a stamp (sequence,
// position) into every slot of a data page. Reading a stamp of another sequence means that the page
// was also given to that sequence. State that a rule changes is rewritten at every token, all of
// its lines, with the id of its owner; a page holds entries or state, whichever was written last.
// Prefix blocks hold a hash of their tokens. The next token is a hash of the seed, the position,
// all tokens fed and the cached positions: any error in replay, order or eviction changes the
// stream. A broken rule is a test failure with its text.
#ifndef HYDRANT_TESTS_SCHEDULER_FAKE_ENGINE_H_
#define HYDRANT_TESTS_SCHEDULER_FAKE_ENGINE_H_

#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "engine/cache/kv_cache_manager.h"
#include "tests/scheduler/immediate_executor.h"

namespace hydrant {

EngineLimits SmallLimits();

class FakeEngine : public ImmediateExecutor {
 public:
  explicit FakeEngine(const EngineLimits& limits);

  const EngineLimits& limits() const override { return limits_; }

  // Overrides the hash: (seed, position) -> token. nullopt: use the hash.
  std::function<std::optional<TokenId>(uint64_t seed, int32_t position)> choose;
  absl::Status next_error;  // status of all later steps
  // A preempted sequence that prefills its prompt again, with the same compactions, must produce
  // the same tokens. REQUIRES: no two requests have both seed and prompt in common
  bool checks_replays = false;

  PrefixMemory prefix_memory() const override {
    return {.blocks = reinterpret_cast<char*>(prefix_.data()),
            .block_bytes = limits_.num_layers * sizeof(uint64_t)};
  }

  // Contents of the last step.
  struct Step {
    std::vector<TokenRun> decoded,
        parts;                         // of batch.Decoded() and batch.InArena(); their spans dangle
    std::vector<TokenId> tokens = {};  // of `decoded`
    std::vector<SampledRow> sampled;   // their spans dangle
    double prefill_token_layers = 0;
    size_t num_updates = 0;
  };
  const Step& last_step() const { return last_step_; }
  int64_t num_steps() const { return num_steps_; }
  int64_t num_appended() const { return num_appended_; }  // runs
  int64_t num_turns() const { return num_turns_; }        // that raised caps
  int64_t num_shrinks() const { return num_shrinks_; }
  int64_t num_forks() const { return num_forks_; }
  int64_t num_copies() const { return num_copies_; }                // of entries, within the pool
  int64_t num_state_copies() const { return num_state_copies_; }    // of state alone
  int64_t num_shared_tokens() const { return num_shared_tokens_; }  // of prompts
  // Copies an offloaded cache as if it were loaded from a store.
  void CopyOffloaded(const OffloadedCache& from, const OffloadedCache& to);

 protected:
  absl::Status RunStep(const Batch& batch, StepResult* result) override;

 private:
  struct Slot {
    CachePlan plan;
    int32_t shared_tokens = 0;
    int32_t unassigned_pages = 0;
    int64_t row_begin = -1;
    int32_t row_width = 0;
    std::vector<int32_t> lengths;  // [heads], set once the prompt is prefilled
    std::vector<int32_t> caps;     // [heads]
    int64_t fed = 0;               // tokens seen
    int64_t compact_at = -1;       // tokens seen when it was compacted last
    uint64_t shrinks = 0;          // hash of the compactions under pressure; the same on replay
    uint64_t history = 0;
    uint64_t owner = 0;               // unique id of the sequence
    uint64_t state = 0;               // contents of its entries' state
    std::vector<uint64_t> histories;  // [fed] after each token
    int layer = 0;                    // prefill cursor
    int token = 0;
    int arena_begin = -1;
    int first_token = 0;
    std::vector<int32_t> cached_blocks, new_blocks;
    std::vector<TokenId> prompt;
    std::vector<TokenId> run;   // tokens that are appended after the prompt
    TokenId latest = kNoToken;  // sampled
    bool IsReading() const { return arena_begin >= 0; }
  };

  void Apply(const SlotPlan& decision);
  void Apply(const SlotAppend& turn);
  void Apply(const SlotSetup& setup);
  void Apply(const SlotFork& fork);
  void Apply(const SlotCopies& list);
  void Apply(const TableRow& row);
  static void Apply(const SlotCommit& commit);
  void Apply(const SwapOut& swap);
  void Apply(const SwapIn& swap);
  void WriteTable(std::span<const TableUpdate> writes);
  CacheReport Compact(const SlotCompaction& compaction);
  void CheckSamples(const Batch& batch);
  static void Feed(Slot* slot, TokenId token);
  std::vector<int32_t> ShareOut(const Slot& slot, int32_t widest) const;
  void Decode(const TokenRun& run);
  bool Prefill(const TokenRun& run);
  void Sample(const Batch& batch, size_t run, bool ends, std::span<const SampledRow>* rows,
              StepResult* result);
  bool Read(const TokenRun& run, const std::vector<TokenId>& tokens);
  void CompressPrompt(Slot* slot);
  std::vector<int32_t> Pooled(std::span<const int32_t> keep, const Slot& slot) const;
  void CompactTurn(std::span<const int32_t> keep, Slot* slot);
  void MoveLastEntries(const Slot& slot, const std::vector<int32_t>& lengths);
  void BeginRun(const TokenRun& run);
  void AppendEntry(Slot* slot, int32_t position, TokenId token);
  void BeginPrompt(const TokenRun& run);
  void CheckPrefix(const TokenRun& run);
  static uint64_t HashOf(const TokenRun& run, int end);
  void AddTokens(const TokenRun& run, int begin, int end, std::vector<uint64_t>* contents) const;
  void AddSums(const TokenRun& run, int checkpoint, std::vector<uint64_t>* contents) const;
  std::vector<uint64_t> CachedContents(const TokenRun& run) const;
  std::vector<uint64_t> NewContents(const TokenRun& run) const;
  void LoadPrefix(const TokenRun& run, int layer);
  void SavePrefix(const TokenRun& run, int layer);
  void CheckArena(const Batch& batch);
  // NumHeads: heads in the budget group. AllHeads: with heads of window layers.
  int NumHeads() const { return limits_.BudgetHeads(); }
  int AllHeads() const { return limits_.num_layers * limits_.num_kv_heads; }
  void Compress(Slot* slot);
  void AssignPages(const Slot& slot, const std::vector<int32_t>& entries);
  CacheReport Report(const TokenRun& run) const;
  void WriteEntry(const Slot& slot, int head, int32_t entry, int32_t position);
  // Checks that all entries of the slot carry its stamps; returns a hash of their positions.
  uint64_t ReadEntries(const Slot& slot);
  KeptEntries KeptOf(const Slot& slot, int num_tokens);
  void WriteState(Slot* slot);
  PageIds PageOf(const Slot& slot, int head, int32_t entry);
  int64_t StampIndex(const Slot& slot, int head, int32_t entry) {
    return int64_t{PageOf(slot, head, entry).data} * limits_.block_size +
           entry % limits_.block_size;
  }
  // The first line of its state; later lines follow at intervals of block_size.
  int64_t StateIndex(const Slot& slot, int head, int32_t entry) {
    return int64_t{PageOf(slot, head, entry).state} * limits_.block_size +
           entry % limits_.block_size;
  }
  bool HasState(const Slot& slot, int head) const {
    return head < NumHeads() && slot.plan.state_lines > 0;
  }
  // Pages of the pool, some of which hold state, or of the host, with state beside each.
  struct Stamps {
    Stamps(int pages, int64_t lines, int a_page, int block_size)
        : data(static_cast<size_t>(pages) * block_size, 0),
          state(static_cast<size_t>(lines) * block_size, 0),
          holds_state(pages, false),
          lines_a_page(a_page) {}
    std::vector<uint64_t> data, state;  // [pages, block_size], [lines, block_size]
    std::vector<bool> holds_state;      // pool only: [pages]
    int lines_a_page;                   // between state ids
  };
  bool HasItsState(const Slot& slot, int head, int32_t entry);
  int32_t SlabOf(int64_t state_index) const;
  void CopyPage(const PageCopy& page, int state_lines, const Stamps& from, Stamps* to) const;
  TokenId Choose(const Slot& slot, const SampledRow& sampling);
  TokenId ChooseFromAll(const Slot& slot, const SamplingRow& sampling);
  static TokenLogprobs LogprobsOf(TokenId token, int64_t position);
  static void AddLogprobs(const SampledRow& sampling, TokenId token,
                          std::vector<TokenLogprobs>* to);

  EngineLimits limits_;
  std::vector<Slot> slots_;
  std::vector<PageIds> table_;
  Stamps stamps_;
  Stamps host_stamps_;
  std::vector<Slot> kept_;  // [max_offloaded_caches] the offloaded slots
  // [num_prefix_blocks, num_layers] a hash of the tokens with keys and values in the block, and of
  // all earlier tokens.
  mutable std::vector<uint64_t> prefix_;
  std::map<std::pair<uint64_t, uint64_t>, TokenId> drawn_;  // by seed, fed tokens, and compactions
  Step last_step_;
  int64_t num_steps_ = 0;
  int64_t num_appended_ = 0;
  int64_t num_turns_ = 0;
  int64_t num_shrinks_ = 0;
  int64_t num_forks_ = 0;
  int64_t num_copies_ = 0;
  int64_t num_state_copies_ = 0;
  uint64_t num_owners_ = 0;
  int64_t num_shared_tokens_ = 0;
};

}  // namespace hydrant

#endif  // HYDRANT_TESTS_SCHEDULER_FAKE_ENGINE_H_
