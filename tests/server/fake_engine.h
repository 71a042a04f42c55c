// An engine without a model, for tests of the gRPC server: every row's next token is a function of
// its position, or of its seed and position; steps can be held and counted, and the engine can
// fail. Pause(), Resume(), AllowSteps(), WaitUntilHeld() and Lose() are safe from any thread.
#ifndef HYDRANT_TESTS_SERVER_FAKE_ENGINE_H_
#define HYDRANT_TESTS_SERVER_FAKE_ENGINE_H_

#include <cmath>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <span>

#include "tests/scheduler/immediate_executor.h"

namespace hydrant {

class PausableEngine final : public ImmediateExecutor {
 public:
  explicit PausableEngine(const EngineLimits& limits) : limits_(limits) {}

  const EngineLimits& limits() const override { return limits_; }

  absl::Status RunStep(const Batch& batch, StepResult* result) override {
    {
      std::unique_lock lock(mutex_);
      held_ = true;
      changed_.notify_all();
      changed_.wait(lock, [this] { return !paused_ || allowed_ > 0; });
      held_ = false;
      if (paused_) --allowed_;
      if (!lost_.ok()) return lost_;
    }
    result->tokens.clear();
    result->logprobs.clear();
    result->kept_entries.clear();
    result->prompt_logprobs.clear();
    for (const SampledRow& row : batch.sampled) {
      if (row.kept_entries) result->kept_entries.push_back(EveryOtherEntry(row.position));
      result->tokens.push_back(Next(row.seed, row.position));
      if (row.logprobs) result->logprobs.push_back(LogprobsOf(result->tokens.back(), row.position));
    }
    result->prompt_reports.clear();
    for (const TokenRun& run : batch.InArena()) {
      CacheReport& report = result->prompt_reports.emplace_back();
      if (run.Ends(limits_.num_layers) && run.CompactsTurn())
        report.entries.assign(run.turn->keep.begin(), run.turn->keep.end());
    }
    result->embeddings.assign(batch.runs.size(), {1.0f});
    for (const TokenRun& run : batch.InArena()) {
      for (int i = run.part.token_begin; i < run.ScoredEnd(limits_.num_layers); ++i)
        result->prompt_logprobs.push_back(LogprobsOf(run.prompt.whole_prompt[i + 1], i + 1));
    }
    if (after_step) after_step();
    return absl::OkStatus();
  }

  void Pause() {
    const std::lock_guard lock(mutex_);
    paused_ = true;
    allowed_ = 0;
  }
  // While paused: allows this many more steps.
  void AllowSteps(int count) {
    {
      const std::lock_guard lock(mutex_);
      allowed_ += count;
    }
    changed_.notify_all();
  }
  // Waits until all allowed steps are done and the next one is held.
  void WaitUntilHeld() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return held_ && paused_ && allowed_ == 0; });
  }
  void Resume() {
    {
      const std::lock_guard lock(mutex_);
      paused_ = false;
      allowed_ = 0;
    }
    changed_.notify_all();
  }
  // Fails from the next step on.
  void Lose(absl::Status why) {
    const std::lock_guard lock(mutex_);
    lost_ = std::move(why);
  }

  // Set before the loop starts. `position`: of the new token.
  std::function<TokenId(int32_t position)> next_token = [](int32_t position) {
    return static_cast<TokenId>('a' + position % 26);
  };
  // As next_token, with the row's seed; used if set.
  std::function<TokenId(uint64_t seed, int32_t position)> next_token_of;
  std::function<void()> after_step;

  // Layer l and head h keep the entries of tokens whose number has the remainder of l + h by 2.
  KeptEntries EveryOtherEntry(int num_tokens) const {
    KeptEntries kept(limits_.num_layers, limits_.num_kv_heads, num_tokens);
    for (int layer = 0; layer < limits_.num_layers; ++layer) {
      for (int head = 0; head < limits_.num_kv_heads; ++head) {
        for (int32_t token = (layer + head) % 2; token < num_tokens; token += 2)
          kept.Add(layer, head, std::span(&token, 1));
      }
    }
    return kept;
  }

 private:
  // The logprob encodes the position; the top-ranked tokens are the first ids in descending order.
  static TokenLogprobs LogprobsOf(TokenId token, int32_t position) {
    TokenLogprobs logprobs = {.token = token, .logprob = -static_cast<float>(position), .rank = 3};
    for (int i = 0; i < kTopLogprobs; ++i) {
      logprobs.top_tokens[i] = i;
      logprobs.top_logprobs[i] = i == 1 ? -INFINITY : -0.5f * static_cast<float>(i);
    }
    return logprobs;
  }
  TokenId Next(uint64_t seed, int32_t position) const {
    return next_token_of ? next_token_of(seed, position) : next_token(position);
  }

  const EngineLimits limits_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  bool paused_ = false;
  bool held_ = false;  // Run() waits
  int allowed_ = 0;    // steps that may run while paused
  absl::Status lost_;
};

}  // namespace hydrant

#endif  // HYDRANT_TESTS_SERVER_FAKE_ENGINE_H_
