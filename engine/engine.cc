#include "engine/engine.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/decode_shape.h"
#include "engine/kv_state.h"
#include "engine/llama_model.h"
#include "engine/memory_plan.h"
#include "engine/prefill.h"
#include "fmt/format.h"
#include "kernels/dequantize.h"

namespace hydrant {
namespace {

std::string_view WeightDTypeName(WeightDType dtype) {
  switch (dtype) {
    case WeightDType::kFloat32:
      return "float32";
    case WeightDType::kBFloat16:
      return "bfloat16";
    case WeightDType::kStored:
      return "stored";
  }
  return "?";
}

}  // namespace

struct Engine::Impl {
  EngineOptions options;
  EngineLimits limits;
  KvLayout layout;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<LlamaModel> model;
  std::unique_ptr<KvState> kv;
  std::unique_ptr<PrefillRunner> prefill;
  Activations act;  // rows: max(max_num_seqs, PrefillRunner::kMaxRows)

  // Decode and sampling, max_num_seqs rows each.
  DeviceArray<TokenId> ids, tokens;
  DeviceArray<int32_t> positions, slots;
  DeviceArray<float> hidden, k, v, logits;
  DeviceArray<SamplingRow> sampling;
  DeviceArray<int32_t> sampled_slots;
  DeviceArray<TokenId> newest;  // what each sampled row has put out since it was sampled last
  DeviceArray<uint16_t> seen;   // [max_num_seqs, vocab] (kernels/penalize.h)
  int logit_rows = 0;

  absl::Status Allocate();
  void Decode(const Batch& batch);
  DecodeShape ShapeOf(const std::vector<DecodeRow>& decode) const;
  void StageDecodeRows(const Batch& batch, int padded_rows);
  void EnqueueDecode(const DecodeShape& shape);
  int GatherFinalRows(const Batch& batch);
  void NotePrompts(const Batch& batch);
  void SampleRows(const Batch& batch, int rows);
  void PenalizeRows(const Batch& batch, int rows);
  void Distribute(const Batch& batch, const std::vector<TokenId>& sampled,
                  StepResult* result) const;
};

absl::Status Engine::Impl::Allocate() {
  const ModelConfig& config = model->config();
  const size_t rows = limits.max_num_seqs;
  absl::Status status =
      act.Allocate(*backend, config, std::max(limits.max_num_seqs, PrefillRunner::kMaxRows));
  const auto allocate = [&](auto& array, size_t count) {
    if (status.ok()) status = array.Allocate(*backend, count);
  };
  allocate(ids, rows);
  allocate(tokens, rows);
  allocate(positions, rows);
  allocate(slots, rows);
  allocate(hidden, rows * config.hidden_size);
  allocate(k, rows * config.KvDim());
  allocate(v, rows * config.KvDim());
  allocate(logits, rows * config.vocab_size);
  allocate(sampling, rows);
  allocate(sampled_slots, rows);
  allocate(newest, rows);
  allocate(seen, rows * config.vocab_size);
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
  absl::StatusOr<KvLayout> layout = PlanLayout(options, config);
  if (!layout.ok()) return layout.status();
  absl::StatusOr<EngineLimits> limits = PlanLimits(options, config);
  if (!limits.ok()) return limits.status();
  const std::optional<int64_t> asked_blocks = AskedBlocks(options, *layout);
  if (asked_blocks.has_value()) {
    if (absl::Status status = SetPool(*asked_blocks, &*layout, &*limits); !status.ok())
      return status;
  }

  absl::StatusOr<std::unique_ptr<Backend>> backend = CreateBackend(
      options.device,
      {.num_threads = options.num_threads, .batch_invariant = options.batch_invariant});
  if (!backend.ok()) return backend.status();
  impl->backend = *std::move(backend);
  absl::StatusOr<std::unique_ptr<LlamaModel>> model = LlamaModel::Create(
      impl->backend.get(), std::move(source), options.dtype, limits->max_model_len, progress);
  if (!model.ok()) return model.status();
  impl->model = *std::move(model);
  impl->limits = *limits;
  if (absl::Status status = impl->Allocate(); !status.ok()) return status;
  absl::StatusOr<std::unique_ptr<PrefillRunner>> prefill = PrefillRunner::Create(
      impl->backend.get(), impl->model.get(), &impl->act, limits->prefill_arena_tokens);
  if (!prefill.ok()) return prefill.status();
  impl->prefill = *std::move(prefill);

  // The pool comes last: it may take what all else has left.
  if (!asked_blocks.has_value()) {
    const absl::StatusOr<int64_t> blocks =
        AutomaticBlocks(options, *layout, *limits, impl->backend.get());
    if (!blocks.ok()) return blocks.status();
    if (absl::Status status = SetPool(*blocks, &*layout, &*limits); !status.ok()) return status;
  }
  impl->limits = *limits;
  impl->layout = *layout;
  absl::StatusOr<std::unique_ptr<KvState>> kv =
      KvState::Create(impl->backend.get(), *layout, *limits);
  if (!kv.ok()) return kv.status();
  impl->kv = *std::move(kv);
  return std::unique_ptr<Engine>(new Engine(std::move(impl)));
}

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() = default;

const EngineLimits& Engine::limits() const { return impl_->limits; }
const ModelConfig& Engine::config() const { return impl_->model->config(); }
const KvLayout& Engine::kv_layout() const { return impl_->layout; }
int64_t Engine::weight_bytes() const { return impl_->model->weight_bytes(); }

std::string Engine::Description() const {
  return fmt::format("{}; weights {}{}, KV cache {}", impl_->backend->Description(),
                     WeightDTypeName(impl_->options.dtype),
                     impl_->options.batch_invariant ? " (batch-invariant)" : "",
                     DTypeName(impl_->layout.dtype));
}

absl::Status Engine::Execute(const Batch& batch, StepResult* result) {
  Impl& impl = *impl_;
  impl.kv->Apply(batch);
  impl.NotePrompts(batch);
  impl.Decode(batch);
  impl.prefill->Run(batch.prefill, *impl.kv);
  const int rows = impl.GatherFinalRows(batch);
  std::vector<TokenId> sampled(rows);
  if (rows > 0) {
    impl.SampleRows(batch, rows);
    impl.tokens.Read(*impl.backend, 0, sampled);
  }
  if (absl::Status status = impl.backend->Synchronize(); !status.ok()) return status;
  impl.Distribute(batch, sampled, result);
  return absl::OkStatus();
}

DecodeShape Engine::Impl::ShapeOf(const std::vector<DecodeRow>& decode) const {
  DecodeShape shape;
  shape.rows = static_cast<int>(decode.size());
  for (const DecodeRow& row : decode) {
    const CachePlan& plan = kv->plan(row.slot);
    const int entries = std::min(row.position + 1, plan.cap);
    shape.max_entries = std::max(shape.max_entries, entries);
    if (plan.rule.scored) shape.max_scored_entries = std::max(shape.max_scored_entries, entries);
  }
  return backend->RecordsOperations() ? RoundedUp(shape, limits.max_num_seqs) : shape;
}

void Engine::Impl::StageDecodeRows(const Batch& batch, int padded_rows) {
  std::vector<TokenId> row_ids;
  std::vector<int32_t> row_positions, row_slots;
  for (const DecodeRow& row : batch.decode) {
    row_ids.push_back(row.token);
    row_positions.push_back(row.position);
    row_slots.push_back(row.slot);
  }
  row_ids.resize(padded_rows, 0);
  row_positions.resize(padded_rows, 0);
  row_slots.resize(padded_rows, -1);
  ids.Write(*backend, 0, row_ids);
  positions.Write(*backend, 0, row_positions);
  slots.Write(*backend, 0, row_slots);
}

void Engine::Impl::Decode(const Batch& batch) {
  if (batch.decode.empty()) return;
  const DecodeShape shape = ShapeOf(batch.decode);
  StageDecodeRows(batch, shape.rows);
  if (options.enforce_eager) {
    EnqueueDecode(shape);
  } else {
    backend->Repeat(shape.Key(), [&] { EnqueueDecode(shape); });
  }
}

// Nothing but `shape` tells one call from another: all else is at fixed addresses.
void Engine::Impl::EnqueueDecode(const DecodeShape& shape) {
  const ModelConfig& config = model->config();
  const int rows = shape.rows;
  model->Embed(ids.data(), rows, hidden.data());
  const KvDestination destination = {
      .k = k.data(), .v = v.data(), .row_stride = config.KvDim(), .head_stride = config.head_dim};
  for (int layer = 0; layer < config.num_layers; ++layer) {
    model->ProjectQkv(layer, hidden.data(), positions.data(), rows, act, destination);
    backend->DecodeAttention(
        {.num_rows = rows,
         .slots = slots.data(),
         .positions = positions.data(),
         .q = act.q.data(),
         .k = k.data(),
         .v = v.data(),
         .layer = layer,
         .num_heads = config.num_heads,
         .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config.head_dim))),
         .pages = kv->pages(),
         .tables = kv->tables(),
         .max_entries = shape.max_entries,
         .max_scored_entries = shape.max_scored_entries,
         .out = act.attended.data()});
    model->FinishLayer(layer, hidden.data(), rows, act);
  }
}

// Normed final rows, into act.normed: the decode rows, then the prompts that ended. Returns how
// many.
int Engine::Impl::GatherFinalRows(const Batch& batch) {
  const int hidden_size = model->config().hidden_size;
  int rows = static_cast<int>(batch.decode.size());
  if (rows > 0) model->FinalNorm(hidden.data(), rows, act.normed.data());
  for (const PrefillSlice& slice : batch.prefill) {
    if (!slice.EndsPrompt(limits.num_layers)) continue;
    model->FinalNorm(prefill->LastHidden(slice), 1,
                     act.normed.data() + static_cast<size_t>(rows) * hidden_size);
    ++rows;
  }
  logit_rows = rows;
  return rows;
}

// A prompt that begins is all that its sequence has seen, where that will matter.
void Engine::Impl::NotePrompts(const Batch& batch) {
  for (const PrefillSlice& slice : batch.prefill) {
    if (slice.layer_begin > 0 || slice.token_begin > 0 || !slice.sampling.penalties.Any()) continue;
    std::vector<uint16_t> prompt(model->config().vocab_size, 0);
    for (const TokenId token : slice.prompt) prompt[token] = kInPrompt;
    seen.Write(*backend, slice.slot * prompt.size(), prompt);
  }
}

void Engine::Impl::PenalizeRows(const Batch& batch, int rows) {
  std::vector<int32_t> row_slots;
  std::vector<TokenId> row_newest;
  bool any = false;
  for (const DecodeRow& row : batch.decode) {
    row_slots.push_back(row.slot);
    row_newest.push_back(row.token);
    any = any || row.sampling.penalties.Any();
  }
  for (const PrefillSlice& slice : batch.prefill) {
    if (!slice.EndsPrompt(limits.num_layers)) continue;
    row_slots.push_back(slice.slot);
    row_newest.push_back(kNoToken);
    any = any || slice.sampling.penalties.Any();
  }
  if (!any) return;
  sampled_slots.Write(*backend, 0, row_slots);
  newest.Write(*backend, 0, row_newest);
  backend->Penalize({.logits = logits.data(),
                     .num_rows = rows,
                     .vocab = model->config().vocab_size,
                     .rows = sampling.data(),
                     .slots = sampled_slots.data(),
                     .newest = newest.data(),
                     .seen = seen.data()});
}

void Engine::Impl::SampleRows(const Batch& batch, int rows) {
  std::vector<SamplingRow> params;
  for (const DecodeRow& row : batch.decode) params.push_back(row.sampling);
  for (const PrefillSlice& slice : batch.prefill) {
    if (slice.EndsPrompt(limits.num_layers)) params.push_back(slice.sampling);
  }
  sampling.Write(*backend, 0, params);
  model->Logits(act.normed.data(), rows, logits.data());
  PenalizeRows(batch, rows);
  backend->Sample({.logits = logits.data(),
                   .num_rows = rows,
                   .vocab = model->config().vocab_size,
                   .rows = sampling.data(),
                   .tokens = tokens.data()});
}

void Engine::Impl::Distribute(const Batch& batch, const std::vector<TokenId>& sampled,
                              StepResult* result) const {
  const size_t decoded = batch.decode.size();
  result->decode_tokens.assign(sampled.begin(), sampled.begin() + decoded);
  result->prefill_tokens.clear();
  size_t next = decoded;
  for (const PrefillSlice& slice : batch.prefill) {
    result->prefill_tokens.push_back(slice.EndsPrompt(limits.num_layers) ? sampled[next++]
                                                                         : kNoToken);
  }
}

Engine::HeadState Engine::ReadHead(int slot, int layer, int head) const {
  Backend& backend = *impl_->backend;
  const SequenceTables& tables = impl_->kv->tables();
  const KvPages& pages = impl_->kv->pages();
  const KvLayout& layout = pages.layout;
  const size_t index = tables.HeadIndex(slot, layer, head);
  int32_t length = 0, width = 0;
  int64_t begin = 0;
  HeadState state;
  backend.CopyToHost(&length, tables.lengths + index, sizeof(length));
  backend.CopyToHost(&state.victim, tables.victims + index, sizeof(state.victim));
  backend.CopyToHost(&width, tables.row_width + slot, sizeof(width));
  backend.CopyToHost(&begin, tables.row_begin + slot, sizeof(begin));
  const int64_t row = begin + static_cast<int64_t>(layer * tables.num_kv_heads + head) * width;
  state.positions.resize(length);
  state.scores.resize(length);
  state.keys.resize(static_cast<size_t>(length) * layout.head_dim);
  state.values.resize(state.keys.size());
  std::vector<uint8_t> bytes(BytesOf(layout.dtype, layout.head_dim));
  const auto read_vector = [&](const void* pool, size_t offset, float* out) {
    backend.CopyToHost(bytes.data(),
                       static_cast<const uint8_t*>(pool) + BytesOf(layout.dtype, offset),
                       bytes.size());
    DequantizeRow(layout.dtype, bytes.data(), layout.head_dim, out);
  };
  for (int entry = 0; entry < length; ++entry) {
    int32_t block = 0;
    backend.CopyToHost(&block, tables.blocks + row + entry / layout.block_size, sizeof(block));
    const size_t slot_index =
        static_cast<size_t>(block) * layout.block_size + entry % layout.block_size;
    backend.CopyToHost(&state.positions[entry], pages.positions + slot_index, sizeof(int32_t));
    backend.CopyToHost(&state.scores[entry], pages.scores + slot_index, sizeof(float));
    read_vector(pages.keys, slot_index * layout.head_dim,
                &state.keys[static_cast<size_t>(entry) * layout.head_dim]);
    read_vector(pages.values, slot_index * layout.head_dim,
                &state.values[static_cast<size_t>(entry) * layout.head_dim]);
  }
  return state;
}

std::vector<float> Engine::ReadLogits() const {
  std::vector<float> logits(static_cast<size_t>(impl_->logit_rows) * config().vocab_size);
  impl_->logits.Read(*impl_->backend, 0, logits);
  return logits;
}

}  // namespace hydrant
