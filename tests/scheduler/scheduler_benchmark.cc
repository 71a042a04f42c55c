// CPU time between steps: Schedule + Apply + TakeEvents of 256 decoding sequences in a model of 32
// layers and 8 KV heads. Arg 0: `full`, each sequence takes 256 pages every 16th step. Arg 1:
// capped, the steady state without any allocation. The model's part of a step is left out; the
// tokens are arbitrary.
#include <benchmark/benchmark.h>

#include "scheduler/request_check.h"
#include "scheduler/scheduler.h"
#include "tests/scheduler/fake_tokenizer.h"

namespace hydrant {
namespace {

constexpr int kSequences = 256;

EngineLimits LargeLimits() {
  return {.num_layers = 32,
          .num_kv_heads = 8,
          .block_size = 16,
          .num_blocks = 256 * 256 * 60,
          .table_entries = int64_t{256} * 256 * 120,
          .max_num_seqs = kSequences,
          .max_model_len = 1 << 20,
          .prefill_arena_tokens = 1 << 20};
}

void Answer(const Batch& batch, StepResult* result) {
  result->decode_tokens.assign(batch.decode.size(), 300);
  result->prefill_tokens.assign(batch.prefill.size(), kNoToken);
  result->prompt_reports.assign(batch.prefill.size(), {});
  for (size_t i = 0; i < batch.prefill.size(); ++i) {
    if (batch.prefill[i].EndsPrompt(32)) result->prefill_tokens[i] = 300;
  }
}

void BM_Step(benchmark::State& state) {
  const FakeTokenizer tokenizer;
  const EngineLimits limits = LargeLimits();
  Scheduler scheduler(limits, {.max_num_batched_tokens = 1 << 20}, &tokenizer);
  StepResult result;
  int64_t remaining = 0;
  TimeUs now = 0;
  RequestHandle handle = 0;
  for ([[maybe_unused]] auto _ : state) {
    if (remaining-- == 0) {  // prompts of 1 to 256 tokens, so that pages fill at different steps
      state.PauseTiming();
      scheduler.FailAll(absl::CancelledError(), "CANCELLED", now);
      for (int i = 0; i < kSequences; ++i) {
        Request request;
        request.prompt.assign(1 + i, 7);
        request.stopping.max_tokens = 600;
        if (state.range(0) == 1) {
          request.cache.policy = "local";
          request.cache.max_cache_tokens = 256;
        }
        scheduler.Add(++handle, std::get<CheckedRequest>(CheckRequest(request, limits, tokenizer)),
                      now);
      }
      remaining = 300;
      for (int i = 0; i < 280; ++i) {
        Answer(scheduler.Schedule(++now), &result);
        scheduler.Apply(result, now);
      }
      scheduler.TakeEvents();
      state.ResumeTiming();
    }
    const Batch& batch = scheduler.Schedule(++now);
    Answer(batch, &result);
    scheduler.Apply(result, now);
    benchmark::DoNotOptimize(scheduler.TakeEvents());
  }
  if (scheduler.Stats().running != kSequences) state.SkipWithError("not all sequences run");
}
BENCHMARK(BM_Step)->Arg(0)->Arg(1)->Iterations(3000)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace hydrant
