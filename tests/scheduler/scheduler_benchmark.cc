// CPU time between steps: Schedule + Apply + TakeEvents of 256 and 2048 decoding sequences in a
// model of 32 layers and 8 KV heads. `full`: each sequence takes 256 pages every 16th step.
// `local`: capped, the steady state without any allocation. `snapkv` and `ada-snapkv` append to a
// compressed prompt: as many pages as `full`; with a layer budget some heads take pages in nearly
// every step. `full_with_a_view`: a view is requested after each step. The model's part of a step
// is left out; the tokens are arbitrary.
#include <benchmark/benchmark.h>

#include <map>
#include <random>
#include <string>

#include "scheduler/request_check.h"
#include "scheduler/scheduler.h"
#include "scheduler/serving_view.h"
#include "tests/scheduler/fake_tokenizer.h"

namespace hydrant {
namespace {

EngineLimits LargeLimits(int sequences) {
  return {.num_layers = 32,
          .num_kv_heads = 8,
          .block_size = 16,
          .num_blocks = sequences * 256 * 60,
          .table_entries = int64_t{sequences} * 256 * 120,
          .max_num_seqs = sequences,
          .max_model_len = 1 << 20,
          .prefill_arena_tokens = 4 << 20};
}

// A stand-in for the engine: fixed tokens, and entries per head for ragged plans. Heads come in
// pairs; one gains the entries that the other loses.
class Model {
 public:
  void Answer(const Batch& batch, StepResult* result) {
    batch.ForEach<SlotSetup>([&](const SlotSetup& setup) { plans_[setup.slot] = setup.plan; });
    result->tokens.assign(batch.sampled.size(), 300);
    result->prompt_reports.assign(batch.InArena().size(), {});
    for (size_t i = 0; i < batch.InArena().size(); ++i) {
      const TokenRun& run = batch.InArena()[i];
      if (!run.Ends(32)) continue;
      const CachePlan& plan = plans_.at(run.slot);
      if (plan.retention->ReportsPrompt()) result->prompt_reports[i].entries = Entries(plan);
    }
  }

 private:
  std::vector<int32_t> Entries(const CachePlan& plan) {
    std::vector<int32_t> entries;
    for (int head = 0; head < 256; head += 2) {
      const auto shared = static_cast<int>(0.8 * (plan.budget - plan.Protected()));
      const int moved = static_cast<int>(random_() % (2 * shared + 1)) - shared;
      entries.push_back(plan.budget + moved);
      entries.push_back(plan.budget - moved);
    }
    return entries;
  }

  std::map<int, CachePlan> plans_;  // by slot
  std::mt19937 random_{7};
};

Request MakeRequest(int index, const std::string& policy) {
  Request request;
  request.cache.policy = policy;
  request.stopping.max_tokens = 600;
  // Pages of different sequences fill at different steps.
  index %= 256;
  request.prompt.assign(1 + index, 7);
  if (policy == "full") return request;
  request.cache.max_cache_tokens = 256;
  if (policy == "local") return request;
  request.prompt.assign(300 + index, 7);
  request.cache.max_cache_tokens = 128;
  return request;
}

void BM_Step(benchmark::State& state, const std::string& policy, bool with_viewer = false) {
  const FakeTokenizer tokenizer;
  const auto sequences = static_cast<int>(state.range(0));
  const EngineLimits limits = LargeLimits(sequences);
  Scheduler scheduler(limits, {.max_num_batched_tokens = 1 << 20}, &tokenizer);
  Model model;
  StepResult result;
  int64_t remaining = 0;
  TimeUs now = 0;
  RequestHandle handle = 0;
  for ([[maybe_unused]] auto _ : state) {
    if (remaining-- == 0) {
      state.PauseTiming();
      scheduler.FailAll(absl::CancelledError(), "CANCELLED", now);
      for (int i = 0; i < sequences; ++i) {
        scheduler.Add(
            ++handle,
            std::get<CheckedRequest>(CheckRequest(MakeRequest(i, policy), limits, tokenizer)), now);
      }
      remaining = 300;
      for (int i = 0; i < 280; ++i) {
        model.Answer(scheduler.Schedule(++now), &result);
        scheduler.Apply(result, now);
        scheduler.TakeEvents();
      }
      state.ResumeTiming();
    }
    const Batch& batch = scheduler.Schedule(++now);
    model.Answer(batch, &result);
    scheduler.Apply(result, now);
    benchmark::DoNotOptimize(scheduler.TakeEvents());
    if (with_viewer) benchmark::DoNotOptimize(scheduler.View(now));
  }
  if (scheduler.Stats().running != sequences) state.SkipWithError("not all sequences run");
}

void OfTheSteadyState(benchmark::internal::Benchmark* b) {
  b->Arg(256)->Iterations(3000)->Unit(benchmark::kMicrosecond);
}
void OfALargeBatch(benchmark::internal::Benchmark* b) {
  b->Arg(2048)->Iterations(600)->Unit(benchmark::kMicrosecond);
}
BENCHMARK_CAPTURE(BM_Step, full, "full")->Apply(OfTheSteadyState);
BENCHMARK_CAPTURE(BM_Step, full_with_a_view, "full", true)->Apply(OfTheSteadyState);
BENCHMARK_CAPTURE(BM_Step, local, "local")->Apply(OfTheSteadyState);
BENCHMARK_CAPTURE(BM_Step, snapkv, "snapkv")->Apply(OfTheSteadyState);
BENCHMARK_CAPTURE(BM_Step, ada_snapkv, "ada-snapkv")->Apply(OfTheSteadyState);
BENCHMARK_CAPTURE(BM_Step, full, "full")->Apply(OfALargeBatch);
BENCHMARK_CAPTURE(BM_Step, local, "local")->Apply(OfALargeBatch);
BENCHMARK_CAPTURE(BM_Step, snapkv, "snapkv")->Apply(OfALargeBatch);
BENCHMARK_CAPTURE(BM_Step, ada_snapkv, "ada-snapkv")->Apply(OfALargeBatch);

}  // namespace
}  // namespace hydrant
