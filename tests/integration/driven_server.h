// A scheduler over a real engine, driven step by step, so that tests can read cache contents
// between steps.
#ifndef HYDRANT_TESTS_INTEGRATION_DRIVEN_SERVER_H_
#define HYDRANT_TESTS_INTEGRATION_DRIVEN_SERVER_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "engine/run/engine.h"
#include "engine/run/engine_probe.h"
#include "scheduler/context_file.h"
#include "scheduler/invariants.h"
#include "scheduler/request_check.h"
#include "scheduler/scheduler.h"
#include "tests/engine/run/random_model.h"
#include "tests/scheduler/fake_tokenizer.h"

namespace hydrant {

// Test parameter: a family of models, and the dtype of the pool.
struct Family {
  const char* name;
  DType kv_dtype;
  int head_dim = 16;

  std::string Label() const {
    const bool is_plain = kv_dtype == DType::kF32 || Is16Bits(kv_dtype);
    return is_plain ? name : name + ("_" + std::string(DTypeName(kv_dtype)));
  }
};

// Names a test of a device and a family, for INSTANTIATE_TEST_SUITE_P.
inline std::string NameOfDeviceAndFamily(
    const testing::TestParamInfo<std::tuple<std::string, Family>>& info) {
  return std::get<0>(info.param) + "_" + std::get<1>(info.param).Label();
}

// cpu and cuda with all given families; the reference, which is slow, with the first.
inline auto DevicesWith(const std::vector<Family>& families) {
  std::vector<std::tuple<std::string, Family>> cases = {{"reference", families[0]}};
  for (const char* device : {"cpu", "cuda"})
    for (const Family& family : families) cases.emplace_back(device, family);
  return testing::ValuesIn(cases);
}

// Families with different caches: position encodings, layers with a window, quantized pages.
inline auto DevicesAndFamilies() {
  return DevicesWith({{"llama", DType::kF16},
                      {"llama", DType::kQ8_0, 32},
                      {"opt", DType::kBF16},
                      {"gemma3_text", DType::kF16}});
}

// A pool of 4,000 pages; equal runs give equal bits.
inline EngineOptions InvariantOptions(const std::string& device, DType kv_dtype) {
  EngineOptions options;
  options.device = device;
  options.num_threads = 2;
  options.batch_invariant = true;
  options.dtype = WeightDType::kFloat32;
  options.kv_cache_dtype = kv_dtype;
  options.num_blocks_override = 4000;
  options.max_num_seqs = 8;
  return options;
}

// For policy learned; auto then predicts scores, too.
inline EngineOptions WithPredictor(EngineOptions options, const ModelSource& model) {
  options.score_predictor = MakeRandomPredictor(model.config());
  return options;
}

inline std::vector<TokenId> RandomTokens(int count, int vocab, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<TokenId> tokens(count);
  for (TokenId& token : tokens) token = static_cast<TokenId>(random() % vocab);
  return tokens;
}

// The output of a request, and its cache contents at the end of the prompt.
struct Answer {
  std::vector<TokenId> tokens;
  std::vector<float> embedding;
  std::vector<std::vector<int32_t>> positions;  // [heads]
  std::vector<std::vector<float>> scores;       // of heads with scores
  std::string context;
  Usage usage;
};

// A scheduler over an engine, driven step by step.
class Server {
 public:
  Server(const std::shared_ptr<const ModelSource>& model, const EngineOptions& options) {
    auto engine = Engine::Create(model, WithPredictor(options, *model), nullptr);
    EXPECT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
    scheduler_ = std::make_unique<Scheduler>(engine_->limits(), SchedulerOptions(), &tokenizer_);
  }

  RequestHandle Add(Request request) {
    if (request.from == nullptr) {
      if (const auto failed = scheduler_->contexts().Resolve(&request)) {
        ADD_FAILURE() << failed->status;
        return 0;
      }
    }
    const std::optional<Failed> failed = TryAdd(std::move(request));
    if (failed.has_value()) ADD_FAILURE() << failed->status;
    return failed.has_value() ? 0 : last_;
  }
  // Runs a resolved request; false: it was rejected.
  bool TryRun(Request request) {
    if (TryAdd(std::move(request)).has_value()) return false;
    RunToEnd();
    return true;
  }
  void RunToEnd() {
    while (!scheduler_->Empty() && !testing::Test::HasFatalFailure()) Step();
  }
  Answer Run(Request request) {
    const RequestHandle handle = Add(std::move(request));
    RunToEnd();
    return answers_[handle];
  }
  const Answer& operator[](RequestHandle handle) { return answers_[handle]; }
  ServingStats Stats() const { return scheduler_->Stats(); }
  const ContextDirectory& contexts() const { return scheduler_->contexts(); }
  // Saves an offloaded cache as a file, and loads one.
  std::string Save(const ContextId& id) {
    const ContextTable::Lease lease = scheduler_->context_table().Acquire(id);
    if (lease.context == nullptr) return "";
    std::string bytes =
        EncodeContext(*lease.context, *lease.offloaded, engine_->offload_memory(), Home());
    scheduler_->context_table().Release(lease);
    return bytes;
  }
  absl::Status Load(const std::string& bytes) {
    const absl::StatusOr<ContextFile> file = DecodeContext(bytes, Home());
    if (!file.ok()) return file.status();
    OffloadedCache offloaded = scheduler_->context_table().Reserve(file->spans, file->pages);
    if (offloaded.IsEmpty()) return absl::ResourceExhaustedError("no room");
    WriteContext(*file, offloaded, engine_->offload_memory());
    scheduler_->context_table().Add(file->context, std::move(offloaded));
    return absl::OkStatus();
  }
  ContextHome Home() const {
    return {.model = {7},
            .layout = engine_->kv_layout(),
            .limits = engine_->limits(),
            .vocab_size = std::min(tokenizer_.VocabSize(),
                                   static_cast<TokenId>(engine_->config().vocab_size))};
  }
  // Cache contents of the slot that last decoded alone.
  Answer LastCache() const {
    Answer cache;
    ReadCache(last_slot_, &cache);
    return cache;
  }

  // Cache contents of the slot that ended its prompt last.
  Answer LastReadCache() const {
    Answer cache;
    ReadCache(last_read_slot_, &cache);
    return cache;
  }

  bool Empty() const { return scheduler_->Empty(); }
  void Cancel(RequestHandle handle) {
    cancelled_.insert(handle);
    scheduler_->Cancel(handle, absl::CancelledError("by the test"));
  }
  void Step();

 private:
  std::optional<Failed> TryAdd(Request request) {
    auto checked = CheckRequest(std::move(request), engine_->limits(), tokenizer_);
    if (const auto* failed = std::get_if<Failed>(&checked)) return *failed;
    auto& good = std::get<CheckedRequest>(checked);
    scored_ = good.plan.resolve_at == ResolveAt::kResolved && good.plan.rule.scored;
    scheduler_->Add(++last_, std::move(good), ++now_);
    return std::nullopt;
  }
  void ReadCache(int slot, Answer* answer) const {
    const EngineLimits& limits = engine_->limits();
    for (int layer = 0; layer < limits.num_layers; ++layer) {
      for (int head = 0; head < limits.num_kv_heads; ++head) {
        HeadState state = EngineProbe(*engine_).ReadHead(slot, layer, head);
        answer->positions.push_back(std::move(state.positions));
        const bool windowed =
            limits.WindowLayers() > 0 && engine_->config().KindOf(layer).window > 0;
        if (scored_ && !windowed) answer->scores.push_back(std::move(state.scores));
      }
    }
  }

  FakeTokenizer tokenizer_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Scheduler> scheduler_;
  std::map<RequestHandle, Answer> answers_;
  std::set<RequestHandle> cancelled_;
  RequestHandle last_ = 0;
  int last_slot_ = 0, last_read_slot_ = 0;
  bool scored_ = false;  // the last request's pages hold scores
  TimeUs now_ = 0;
};

inline void Server::Step() {
  const Batch& batch = scheduler_->Schedule(++now_);
  std::vector<int> read;  // slots that end their prompts in this step
  for (const TokenRun& run : batch.InArena()) {
    if (run.Ends(engine_->limits().num_layers)) read.push_back(run.slot);
  }
  if (!read.empty()) last_read_slot_ = read.back();
  if (batch.NumDecoded() == 1) last_slot_ = batch.runs[0].slot;
  StepResult result;
  const absl::Status status = engine_->Execute(batch, &result);
  ASSERT_TRUE(status.ok()) << status;
  scheduler_->Apply(result, now_);
  ASSERT_TRUE(CheckInvariants(scheduler_->State()).ok()) << CheckInvariants(scheduler_->State());
  for (Event& event : scheduler_->TakeEvents()) {
    Answer& answer = answers_[event.handle];
    if (const auto* delta = std::get_if<Delta>(&event.what)) {
      if (answer.tokens.empty() && read.size() == 1) ReadCache(read[0], &answer);
      if (delta->token_id.has_value()) answer.tokens.push_back(*delta->token_id);
    } else if (auto* finished = std::get_if<Finished>(&event.what)) {
      answer.usage = finished->usage;
      if (finished->context != nullptr) answer.context = finished->context->id.handle;
      answer.embedding = std::move(finished->embedding);
    } else if (const auto* failed = std::get_if<Failed>(&event.what)) {
      EXPECT_TRUE(cancelled_.contains(event.handle)) << failed->status;
    }
  }
}

}  // namespace hydrant

#endif  // HYDRANT_TESTS_INTEGRATION_DRIVEN_SERVER_H_
