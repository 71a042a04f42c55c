#include "engine/run/engine.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/run/engine_probe.h"
#include "engine/run/engine_sizing.h"
#include "engine/run/forward/forward.h"
#include "engine/run/forward/pooler.h"
#include "engine/run/forward/transformer.h"
#include "engine/run/logit_edits.h"
#include "engine/run/logprob_rows.h"
#include "engine/run/mask_thread.h"
#include "engine/run/pool/kv_state.h"
#include "engine/run/step/graph_shape.h"
#include "engine/run/step_results.h"
#include "engine/run/step_rows.h"
#include "engine/run/weight_dtype_names.h"
#include "fmt/format.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

// A GPU's matrix products reach full speed from here on; a CPU's do with the default, and its rows
// stay in cache.
constexpr int kDevicePrefillRows = 2048;

}  // namespace

struct Engine::Impl {
  EngineOptions options;
  EngineLimits limits;
  KvLayout layout;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Transformer> model;
  std::unique_ptr<KvState> kv;
  std::unique_ptr<Forward> forward;
  Activations act;  // rows: max(limits.MaxSampledRows(), prefill_rows)

  // Sampling, limits.MaxSampledRows() rows each.
  StepRows rows;
  DeviceArray<TokenId> tokens;       // of the sampled rows
  DeviceArray<TokenId> last_tokens;  // [slots] (kernels/ops/last_tokens.h)
  DeviceArray<float> logits;
  DeviceArray<uint16_t> seen;  // [slots, vocab] (kernels/ops/penalize.h)
  MaskThread masks;
  LogitEdits edits;
  LogprobRows logprobs;
  Pooler pooler;
  std::vector<const float*> embeddings;  // of the step's runs
  StepResults results;
  std::vector<StepResults::Report> reports;  // of the step's prompts and compactions

  absl::Status Allocate();
  void Decode(const GraphShape& shape);
  GraphShape ShapeOf(std::span<const TokenRun> decoded) const;
  bool PlansDecode() const;
  GraphShape WithoutBounds(GraphShape shape) const;
  static GraphShape Greedy(GraphShape shape);
  absl::Status RecordSteps();
  void EnqueueDecode(const GraphShape& shape);
  void GatherFinalRows(const Batch& batch);
  void PoolPrompts(const Batch& batch);
  void Compact(const SlotCompaction& compaction);
  StepResults::Report ReportPrompt(int slot) const;
  EngineParts Parts() const;
  std::vector<KeptEntries> ReadKeptEntries(const Batch& batch) const;
  void PushResults(const Batch& batch);
  void MarkSeenTokens(const Batch& batch);
  void MarkSeenTokens(int slot, std::span<const TokenId> prompt,
                      std::span<const TokenId> output = {});
  bool SamplesHere(const Batch& batch, int padded_rows) const;
  uint8_t SamplingOfRows() const;
  void SampleRows(const Batch& batch);
  void Draw(int begin, int end, uint8_t sampling);
  void StoreTokens(int num_rows);
  void DrawRows(int begin, int end);
  void ScorePrompts(const Batch& batch);
  int SampledVocab() const { return options.sampled_vocab.value_or(model->config().vocab_size); }
};

absl::Status Engine::Impl::Allocate() {
  const ModelConfig& config = model->config();
  const int rows = limits.MaxSampledRows();
  absl::Status status =
      act.Allocate(*backend, config, backend->ActivationDType(model->weight_dtype()),
                   std::max(rows, limits.prefill_rows));
  const auto allocate = [&](auto& array, size_t count) {
    if (status.ok()) status = array.Allocate(*backend, count);
  };
  allocate(tokens, rows);
  allocate(last_tokens, limits.max_num_seqs);
  allocate(logits, static_cast<size_t>(rows) * config.vocab_size);
  allocate(seen, static_cast<size_t>(limits.max_num_seqs) * config.vocab_size);
  if (status.ok()) status = this->rows.Allocate(*backend, rows);
  if (status.ok()) status = edits.Allocate(backend.get(), rows, config.vocab_size);
  if (status.ok()) {
    status = logprobs.Allocate(backend.get(), model.get(), SampledVocab(), rows,
                               limits.prefill_arena_tokens);
  }
  if (status.ok()) {
    status = pooler.Allocate(backend.get(), model.get(), limits.max_num_seqs);
  }
  if (status.ok()) {
    status = results.Allocate(backend.get(), limits, config.hidden_size);
  }
  return status;
}

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(
    std::shared_ptr<const ModelSource> source, const EngineOptions& options,
    const std::function<void(double)>& progress) {
  const ModelConfig& config = source->config();
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  if (options.num_threads < 1 || options.num_threads > 1024) {
    return absl::InvalidArgumentError(
        fmt::format("threads: {} is outside [1, 1024]", options.num_threads));
  }
  if (const int ids = options.sampled_vocab.value_or(config.vocab_size);
      ids < 1 || ids > config.vocab_size) {
    return absl::InvalidArgumentError(fmt::format(
        "sampled_vocab: {} is outside [1, {}], the model's vocabulary", ids, config.vocab_size));
  }
  HYDRANT_ASSIGN_OR_RETURN(KvLayout layout, PlanLayout(options, config));
  HYDRANT_ASSIGN_OR_RETURN(EngineLimits limits, PlanLimits(options, config));
  limits.page_bytes = static_cast<int64_t>(layout.PageBytes());
  HYDRANT_RETURN_IF_ERROR(PlanHostMemory(options, layout, &limits));
  const std::optional<int64_t> requested_blocks = RequestedBlocks(options, layout);
  if (requested_blocks.has_value()) {
    HYDRANT_RETURN_IF_ERROR(SetPool(options, *requested_blocks, &layout, &limits));
  }

  HYDRANT_ASSIGN_OR_RETURN(
      impl->backend, CreateBackend(options.device, {.num_threads = options.num_threads,
                                                    .batch_invariant = options.batch_invariant}));
  if (requested_blocks.has_value()) {
    HYDRANT_RETURN_IF_ERROR(CheckPoolFits(options, layout, limits, impl->backend.get()));
  }
  if (impl->backend->IsAsynchronous()) limits.prefill_rows = kDevicePrefillRows;
  const bool runs_ahead = options.async_scheduling.value_or(impl->backend->IsAsynchronous());
  limits.max_steps_in_flight = runs_ahead ? StepResults::kMaxInFlight : 1;
  HYDRANT_ASSIGN_OR_RETURN(impl->model, Transformer::Create(impl->backend.get(), std::move(source),
                                                            DefaultedDType(options), layout.dtype,
                                                            limits.max_model_len, progress));
  limits.centred_keys = impl->model->CentresKeys();
  impl->limits = limits;
  HYDRANT_RETURN_IF_ERROR(impl->Allocate());
  HYDRANT_ASSIGN_OR_RETURN(
      impl->forward, Forward::Create(impl->backend.get(), impl->model.get(), &impl->act, limits,
                                     layout.dtype, options.score_predictor.get()));

  // The pool comes last: it may take all memory that is left.
  if (!requested_blocks.has_value()) {
    HYDRANT_ASSIGN_OR_RETURN(const int64_t blocks,
                             AutomaticBlocks(options, layout, limits, impl->backend.get()));
    HYDRANT_RETURN_IF_ERROR(SetPool(options, blocks, &layout, &limits));
  }
  impl->limits = limits;
  impl->layout = layout;
  HYDRANT_ASSIGN_OR_RETURN(
      impl->kv, KvState::Create(impl->backend.get(), GroupsOfLayers(config, limits), layout, limits,
                                options.swap_directory));
  HYDRANT_RETURN_IF_ERROR(impl->results.AllocateRows(limits.block_size, limits.table_entries));
  HYDRANT_RETURN_IF_ERROR(impl->RecordSteps());
  return std::unique_ptr<Engine>(new Engine(std::move(impl)));
}

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() = default;

const EngineLimits& Engine::limits() const { return impl_->limits; }
OffloadMemory Engine::offload_memory() const { return impl_->kv->offload_memory(); }
PrefixMemory Engine::prefix_memory() const {
  const PrefixBlocks& blocks = impl_->kv->prefix();
  return {.blocks = static_cast<char*>(blocks.memory), .block_bytes = blocks.BlockBytes()};
}
const ModelConfig& Engine::config() const { return impl_->model->config(); }
const KvLayout& Engine::kv_layout() const { return impl_->layout; }

EngineMemory Engine::memory() const {
  EngineMemory memory;
  memory.weights = impl_->model->weight_bytes();
  memory.kv_pool =
      int64_t{impl_->layout.num_blocks} * static_cast<int64_t>(impl_->layout.PageBytes());
  memory.workspace = static_cast<int64_t>(impl_->backend->allocated_bytes()) - memory.kv_pool;
  memory.prefix_cache =
      static_cast<int64_t>(impl_->kv->prefix().BlockBytes()) * impl_->limits.num_prefix_blocks;
  memory.offloaded_caches =
      impl_->limits.NumContextPages() * static_cast<int64_t>(impl_->layout.BytesWithState());
  memory.swap_space =
      impl_->limits.num_swap_pages * static_cast<int64_t>(impl_->layout.BytesWithState());
  memory.pinned_host = impl_->backend->IsAsynchronous();
  return memory;
}

std::string Engine::Description() const {
  return fmt::format("{}; weights {}{}, KV cache {}", impl_->backend->Description(),
                     NameOf(DefaultedDType(impl_->options)),
                     impl_->options.batch_invariant ? " (batch-invariant)" : "",
                     DTypeName(impl_->layout.dtype));
}

void Engine::Enqueue(const Batch& batch) {
  Impl& impl = *impl_;
  AttentionMixer& attention = impl.forward->attention();
  const std::span<const TokenRun> decoded = batch.Decoded();
  attention.page_compactor().samples().SetUp(batch);
  impl.kv->Apply(
      batch, [&](const SlotCompaction& compaction) { impl.Compact(compaction); },
      [&](const SlotCommit& commit) { impl.forward->CommitHeld(commit, *impl.kv); });
  GraphShape shape = impl.ShapeOf(decoded);
  impl.rows.Write(*impl.backend, batch, *impl.kv, shape.rows);
  if (impl.SamplesHere(batch, shape.rows)) shape.sampling = impl.SamplingOfRows();
  impl.masks.Start(batch.masks);
  impl.logprobs.Begin(batch);
  impl.MarkSeenTokens(batch);
  if (!decoded.empty()) impl.Decode(shape);
  impl.forward->Read(batch.InArena(), *impl.kv);
  impl.ScorePrompts(batch);
  const bool drawn = shape.sampling != GraphShape::kNotHere;
  if (!drawn) impl.GatherFinalRows(batch);
  impl.PoolPrompts(batch);
  impl.masks.Wait();
  impl.edits.Write(batch);
  if (!drawn && impl.rows.num_sampled() > 0) impl.SampleRows(batch);
  impl.PushResults(batch);
}

absl::Status Engine::Collect(StepResult* result) { return impl_->results.Pop(result); }

void Engine::Impl::Compact(const SlotCompaction& compaction) {
  if (compaction.plan.has_value()) kv->SetPlan(compaction.slot, *compaction.plan);
  const CachePlan& plan = kv->plan(compaction.slot);
  forward->attention().page_compactor().Compact(
      plan, plan.retention->CompactionAfter(plan, compaction.tokens), compaction.slot,
      compaction.tokens, *kv);
}

StepResults::Report Engine::Impl::ReportPrompt(int slot) const {
  StepResults::Report report;
  const CachePlan& plan = kv->plan(slot);
  const PromptCompressor& compressor = forward->attention().compressor();
  report.num_observations = plan.scorer->NumObservations(plan);
  if (report.num_observations > 0) report.observations = compressor.observations(slot);
  // Samples stand for several tokens: their retained mass is undefined.
  if (!plan.Compresses() || plan.rule.weighted) return report;
  report.retained_mass = compressor.retained_mass(slot);
  if (!plan.retention->ReportsPrompt()) return report;
  report.entries = kv->budget().lengths(slot);
  if (plan.retention->UnassignedPages(plan, limits.block_size) > 0) {
    report.rows = kv->tables().blocks + kv->row(slot).row_begin;
    report.row_width = kv->row(slot).row_width;
  }
  return report;
}

std::vector<KeptEntries> Engine::Impl::ReadKeptEntries(const Batch& batch) const {
  std::vector<KeptEntries> kept;
  for (const SampledRow& row : batch.sampled) {
    if (row.kept_entries)
      kept.push_back(EngineProbe(Parts()).ReadKeptEntries(batch.runs[row.run].slot, row.position));
  }
  return kept;
}

void Engine::Impl::PushResults(const Batch& batch) {
  reports.clear();
  for (const TokenRun& run : batch.InArena()) {
    const bool ends = run.Ends(limits.num_layers);
    for (const int slot : run.Slots()) {
      reports.push_back(ends && run.BuildsCache() ? ReportPrompt(slot) : StepResults::Report());
      if (ends && run.CompactsTurn()) reports.back().entries = kv->budget().lengths(slot);
    }
  }
  // The lengths are copied after the step's rows: a head that was compacted to its cap keeps its
  // length.
  batch.ForEach<SlotCompaction>([&](const SlotCompaction& compaction) {
    StepResults::Report& report = reports.emplace_back();
    const CachePlan& plan = kv->plan(compaction.slot);
    if (plan.retention->HeadsDiffer(plan)) report.entries = kv->budget().lengths(compaction.slot);
  });
  results.Push(batch,
               {.tokens = tokens.data(),
                .logprobs = logprobs.results(),
                .num_logprobs = logprobs.num_drawn(),
                .num_prompt_logprobs = logprobs.num_of_prompts(),
                .reports = reports,
                .embeddings = embeddings},
               ReadKeptEntries(batch));
}

GraphShape Engine::Impl::ShapeOf(std::span<const TokenRun> decoded) const {
  GraphShape shape;
  shape.rows = static_cast<int>(decoded.size());
  int64_t entries_of_rows = 0;  // of an average head, summed over rows
  for (const TokenRun& run : decoded) {
    const CachePlan& plan = kv->plan(run.slot);
    const int64_t tokens = int64_t{run.first_position} + 1;
    const int entries = plan.EntriesAfter(tokens);
    entries_of_rows += plan.MeanEntriesAfter(tokens);
    shape.max_entries = std::max(shape.max_entries, entries);
    shape.weighted = shape.weighted || plan.rule.weighted;
    shape.revised = shape.revised || plan.rule.revision != Revision::kNone;
    shape.predicted = shape.predicted || plan.rule.predicted;
    if (plan.rule.scored) shape.max_scored_entries = std::max(shape.max_scored_entries, entries);
    shape.max_in_window =
        std::max(shape.max_in_window, static_cast<int>(std::min<int64_t>(tokens, limits.Window())));
  }
  if (shape.rows > 0) shape.mean_entries = static_cast<int>(entries_of_rows / shape.rows);
  if (PlansDecode()) shape = WithoutBounds(shape);
  return backend->SupportsGraphs() ? RoundedUp(shape, limits.max_num_seqs) : shape;
}

bool Engine::Impl::PlansDecode() const {
  const ModelConfig& config = model->config();
  return backend->PlansDecode(layout, config.num_heads / config.num_kv_heads);
}

// The shape of a step with work planned on the device. max_scored_entries stays: work space is
// allocated by it.
GraphShape Engine::Impl::WithoutBounds(GraphShape shape) const {
  shape.max_entries = shape.mean_entries = 0;
  shape.max_in_window = limits.Window();
  return shape;
}

// Records graphs of steps without scored rows at start, so that no request waits for a recording.
// Largest first, so that the work space does not grow later. All rows are padding.
absl::Status Engine::Impl::RecordSteps() {
  if (options.enforce_eager || !backend->SupportsGraphs() || !PlansDecode())
    return absl::OkStatus();
  const Batch none;
  for (int num_rows = limits.max_num_seqs, recorded = 0; num_rows > 0; --num_rows) {
    const GraphShape shape = RoundedUp(WithoutBounds({.rows = num_rows}), limits.max_num_seqs);
    if (shape.rows == recorded) continue;
    recorded = shape.rows;
    rows.Write(*backend, none, *kv, shape.rows);
    for (int i = 0; i < 2; ++i) Decode(shape);  // the first call of a shape is not recorded
    if (!model->FusesLogits(shape.rows)) continue;
    for (int i = 0; i < 2; ++i) Decode(Greedy(shape));
  }
  return backend->Synchronize();
}

GraphShape Engine::Impl::Greedy(GraphShape shape) {
  shape.sampling = GraphShape::kGreedy;
  return shape;
}

// Whether sampling is part of the recorded step: all sampled rows are decoded rows, their logits
// are neither edited nor reported, and the product of the logits is fused.
bool Engine::Impl::SamplesHere(const Batch& batch, int padded_rows) const {
  if (batch.sampled.empty() || batch.sampled.size() != batch.NumDecoded() || rows.any_penalties() ||
      !batch.masks.empty() || !model->FusesLogits(padded_rows))
    return false;
  return std::ranges::all_of(batch.sampled, [](const SampledRow& row) {
    return row.mask.empty() && row.biases.empty() && !row.logprobs;
  });
}

uint8_t Engine::Impl::SamplingOfRows() const {
  return GraphShape::kGreedy | (rows.any_drawn() ? GraphShape::kDraws : 0) |
         (rows.any_top_k() ? GraphShape::kTopK : 0) | (rows.any_top_p() ? GraphShape::kTopP : 0);
}

void Engine::Impl::Decode(const GraphShape& shape) {
  if (options.enforce_eager) {
    EnqueueDecode(shape);
  } else {
    backend->RunGraph(shape.Key(), [&] { EnqueueDecode(shape); });
  }
}

// Its operations depend on `shape` alone: all other inputs are at fixed addresses.
void Engine::Impl::EnqueueDecode(const GraphShape& shape) {
  backend->ReadLastTokens({.tokens = rows.ids(),
                           .slots = rows.slots(),
                           .num_rows = shape.rows,
                           .last_tokens = last_tokens.data()});
  forward->Decode({.ids = rows.ids(),
                   .slots = rows.slots(),
                   .positions = rows.positions(),
                   .rope_positions = rows.rope_positions(),
                   .shape = shape},
                  *kv);
  if (shape.sampling == GraphShape::kNotHere) return;
  model->FinalNorm(forward->DecodedHidden(), shape.rows, 0, act);
  model->Logits(act, shape.rows, logits.data());
  Draw(0, shape.rows, shape.sampling);
  StoreTokens(shape.rows);
}

// Writes the final norm of all sampled rows to act.normed.
void Engine::Impl::GatherFinalRows(const Batch& batch) {
  const auto decoded = static_cast<int>(batch.NumDecoded());
  if (decoded > 0) model->FinalNorm(forward->DecodedHidden(), decoded, 0, act);
  for (int row = decoded; row < rows.num_sampled(); ++row) {
    const SampledRow& sampled = batch.sampled[row];
    const TokenRun& run = batch.runs[sampled.run];
    const int64_t token = sampled.position - 1 - run.first_position;
    model->FinalNorm(forward->Hidden(run) + token * model->config().hidden_size, 1, row, act);
  }
}

void Engine::Impl::PoolPrompts(const Batch& batch) {
  embeddings.clear();
  for (size_t i = batch.NumDecoded(); i < batch.runs.size(); ++i) {
    const TokenRun& run = batch.runs[i];
    if (run.prompt.pooling == EmbeddingPooling::kNone || !run.Ends(limits.num_layers)) continue;
    const int index = static_cast<int>(i);
    pooler.Pool(run.prompt.pooling, forward->Hidden(run), run.NumTokens(), index);
    embeddings.resize(batch.runs.size(), nullptr);
    embeddings[i] = pooler.embedding(index);
  }
}

// Sets the tokens that penalties count, when a prompt begins or a sequence is forked or swapped in.
void Engine::Impl::MarkSeenTokens(const Batch& batch) {
  batch.ForEach<SwapIn>([&](const SwapIn& swap) {
    if (!swap.prompt.empty()) MarkSeenTokens(swap.slot, swap.prompt, swap.output);
  });
  batch.ForEach<SlotFork>([&](const SlotFork& fork) {
    if (!fork.prompt.empty()) MarkSeenTokens(fork.slot, fork.prompt);
  });
  for (const TokenRun& run : batch.InArena()) {
    const bool begins = run.part.layer_begin == 0 && run.BeginsLayer() && run.BuildsCache();
    if (begins && run.prompt.penalties) MarkSeenTokens(run.slot, run.prompt.whole_prompt);
  }
}

void Engine::Impl::MarkSeenTokens(int slot, std::span<const TokenId> prompt,
                                  std::span<const TokenId> output) {
  std::vector<uint16_t> counts(model->config().vocab_size, 0);
  for (const TokenId token : output) {
    if (counts[token] < kMaxCounted) ++counts[token];
  }
  for (const TokenId token : prompt) counts[token] |= kInPrompt;
  seen.Write(*backend, slot * counts.size(), counts);
}

void Engine::Impl::ScorePrompts(const Batch& batch) {
  for (const TokenRun& run : batch.InArena())
    if (run.prompt.logprobs) logprobs.ScorePrompt(run, forward->Hidden(run), act);
}

void Engine::Impl::SampleRows(const Batch& batch) {
  model->Logits(act, rows.num_sampled(), logits.data());
  // A decoded token is its sequence's newest output token; a prompt that ended has none.
  if (rows.any_penalties()) {
    backend->CopyOnDevice(rows.newest(), rows.ids(), batch.NumDecoded() * sizeof(TokenId));
    for (const int row : rows.rows_in_prompt())
      backend->CopyToDevice(rows.newest() + row, &kNoToken, sizeof(TokenId));
  }
  for (int begin = 0; begin < rows.num_sampled();) {
    const int end = logprobs.EndOfGroup(begin, rows.num_sampled());
    DrawRows(begin, end);
    begin = end;
  }
  StoreTokens(rows.num_sampled());
}

void Engine::Impl::StoreTokens(int num_rows) {
  backend->StoreLastTokens({.tokens = tokens.data(),
                            .slots = rows.newest_slots(),
                            .num_rows = num_rows,
                            .last_tokens = last_tokens.data()});
}

void Engine::Impl::DrawRows(int begin, int end) {
  const int vocab = model->config().vocab_size;
  float* first = logits.data() + static_cast<size_t>(begin) * vocab;
  logprobs.Save(begin, end, logits.data());
  edits.Apply(begin, end, logits.data());
  if (rows.any_penalties()) {
    backend->Penalize({.logits = first,
                       .num_rows = end - begin,
                       .vocab = vocab,
                       .rows = rows.sampling() + begin,
                       .slots = rows.sampled_slots() + begin,
                       .newest = rows.newest() + begin,
                       .seen = seen.data()});
  }
  Draw(begin, end, SamplingOfRows());
  logprobs.Score(begin, end, tokens.data());
}

// Samples the tokens of rows [begin, end) from their logits.
void Engine::Impl::Draw(int begin, int end, uint8_t sampling) {
  const int vocab = model->config().vocab_size;
  backend->Sample({.logits = logits.data() + static_cast<size_t>(begin) * vocab,
                   .num_rows = end - begin,
                   .vocab = SampledVocab(),
                   .row_stride = vocab,
                   .rows = rows.sampling() + begin,
                   .tokens = tokens.data() + begin,
                   .any_drawn = (sampling & GraphShape::kDraws) != 0,
                   .any_top_k = (sampling & GraphShape::kTopK) != 0,
                   .any_top_p = (sampling & GraphShape::kTopP) != 0});
}

EngineParts Engine::Impl::Parts() const {
  return {.backend = backend.get(),
          .kv = kv.get(),
          .model = model.get(),
          .num_layers = limits.num_layers,
          .num_kv_heads = limits.num_kv_heads,
          .forward = forward.get(),
          .logits = logits.data(),
          .num_logits = static_cast<size_t>(rows.num_sampled()) * model->config().vocab_size};
}

EngineParts Engine::Parts() const { return impl_->Parts(); }

}  // namespace hydrant
