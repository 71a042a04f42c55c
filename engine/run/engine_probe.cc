#include "engine/run/engine_probe.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "engine/run/forward/forward.h"
#include "engine/run/forward/transformer.h"
#include "engine/run/pool/kv_state.h"
#include "kernels/entry_state.h"
#include "kernels/page_row.h"

namespace hydrant {

namespace {

// Keys as the model computed them.
void Unscale(const KeyScaling& scaling, int num_kv_heads, int head, HeadState* state) {
  if (scaling.factors.empty() || state->positions.empty()) return;
  const size_t dim = state->keys.size() / state->positions.size();
  const size_t first = scaling.factors.size() - (num_kv_heads - head) * dim;
  for (size_t i = 0; i < state->keys.size(); ++i) {
    if (!scaling.offsets.empty()) state->keys[i] += scaling.offsets[head * dim + i % dim];
    state->keys[i] /= scaling.factors[first + i % dim];
  }
}

}  // namespace

EngineProbe::Rows EngineProbe::RowsOf(int slot, int layer, int head) const {
  const GroupLayer at = parts_.kv->At(layer);
  const SequenceTables& tables = at.group.tables();
  const size_t index = tables.HeadIndex(slot, at.layer, head);
  int32_t width = 0;
  int64_t begin = 0;
  Rows rows;
  parts_.backend->CopyToHost(&rows.length, tables.lengths + index, sizeof(rows.length));
  parts_.backend->CopyToHost(&rows.victim, tables.victims + index, sizeof(rows.victim));
  parts_.backend->CopyToHost(&width, tables.row_width + slot, sizeof(width));
  parts_.backend->CopyToHost(&begin, tables.row_begin + slot, sizeof(begin));
  const int64_t row = begin + static_cast<int64_t>(at.layer * tables.num_kv_heads + head) * width;
  rows.blocks.resize(PagesOf(rows.length, parts_.kv->pages().layout.block_size));
  parts_.backend->CopyToHost(rows.blocks.data(), tables.blocks + row,
                             rows.blocks.size() * sizeof(PageIds));
  return rows;
}

HeadState EngineProbe::ReadHead(int slot, int layer, int head) const {
  Backend& backend = *parts_.backend;
  const KvPages pages = parts_.kv->At(layer).group.PagesOf(slot);
  const KvLayout& layout = pages.layout;
  const Rows rows = RowsOf(slot, layer, head);
  const auto length = static_cast<size_t>(rows.length), dim = static_cast<size_t>(layout.head_dim);
  HeadState state;
  state.victim = rows.victim;
  state.positions.resize(length);
  state.scores.resize(length);
  state.log_weights.resize(2 * length);
  state.keys.resize(length * dim);
  state.values.resize(length * dim);
  std::vector<uint8_t> bytes(BytesOf(layout.dtype, dim));
  const auto read_vector = [&](const void* pool, size_t index, float* out) {
    backend.CopyToHost(bytes.data(),
                       static_cast<const uint8_t*>(pool) + BytesOf(layout.dtype, index * dim),
                       bytes.size());
    LoadPageRow(layout.dtype, bytes.data(), 0, layout.head_dim, out);
  };
  for (int entry = 0; entry < rows.length; ++entry) {
    const PageIds* blocks = rows.blocks.data();
    const size_t index = PageIndex(layout, blocks, entry);
    backend.CopyToHost(&state.positions[entry], pages.positions + index, sizeof(int32_t));
    if (pages.scores != nullptr)
      backend.CopyToHost(&state.scores[entry], pages.scores + StateIndex(layout, blocks, entry),
                         sizeof(float));
    if (pages.log_weights != nullptr)
      backend.CopyToHost(&state.log_weights[2 * entry], PairOf(pages, blocks, entry),
                         2 * sizeof(float));
    read_vector(pages.keys, index, &state.keys[entry * dim]);
    read_vector(pages.values, index, &state.values[entry * dim]);
  }
  Unscale(parts_.model->KeyScalingAt(layer), parts_.num_kv_heads, head, &state);
  return state;
}

std::vector<int32_t> EngineProbe::ReadPositions(int slot, int layer, int head) const {
  const KvPages& pages = parts_.kv->pages();
  const int block_size = pages.layout.block_size;
  const Rows rows = RowsOf(slot, layer, head);
  std::vector<int32_t> positions(rows.length);
  for (size_t page = 0; page < rows.blocks.size(); ++page) {
    const int first = static_cast<int>(page) * block_size;
    parts_.backend->CopyToHost(&positions[first],
                               pages.positions + int64_t{rows.blocks[page].data} * block_size,
                               std::min(block_size, rows.length - first) * sizeof(int32_t));
  }
  return positions;
}

KeptEntries EngineProbe::ReadKeptEntries(int slot, int num_tokens) const {
  KeptEntries kept(parts_.num_layers, parts_.num_kv_heads, num_tokens);
  for (int layer = 0; layer < parts_.num_layers; ++layer) {
    for (int head = 0; head < parts_.num_kv_heads; ++head)
      kept.Add(layer, head, ReadPositions(slot, layer, head));
  }
  return kept;
}

std::vector<int32_t> EngineProbe::ReadLengths(int slot) const {
  const size_t heads = parts_.num_kv_heads;
  std::vector<int32_t> lengths(parts_.num_layers * heads);
  for (int layer = 0; layer < parts_.num_layers; ++layer) {
    const GroupLayer at = parts_.kv->At(layer);
    const SequenceTables& tables = at.group.tables();
    parts_.backend->CopyToHost(lengths.data() + layer * heads,
                               tables.lengths + tables.HeadIndex(slot, at.layer, 0),
                               heads * sizeof(int32_t));
  }
  return lengths;
}

std::vector<float> EngineProbe::ReadScores(int slot, int layer, int head, int tokens,
                                           float missing) const {
  const KvPages pages = parts_.kv->At(layer).group.PagesOf(slot);
  const KvLayout& layout = pages.layout;
  const Rows rows = RowsOf(slot, layer, head);
  std::vector<float> scores(tokens, missing), of_page(layout.block_size);
  std::vector<int32_t> positions(layout.block_size);
  for (int first = 0; first < rows.length; first += layout.block_size) {
    const PageIds* blocks = rows.blocks.data();
    const int count = std::min(layout.block_size, rows.length - first);
    parts_.backend->CopyToHost(positions.data(), pages.positions + PageIndex(layout, blocks, first),
                               count * sizeof(int32_t));
    parts_.backend->CopyToHost(of_page.data(), pages.scores + StateIndex(layout, blocks, first),
                               count * sizeof(float));
    for (int i = 0; i < count; ++i) {
      if (positions[i] < tokens) scores[positions[i]] = of_page[i];
    }
  }
  return scores;
}

void EngineProbe::ObserveLayers(LayerObserver observer) const {
  parts_.forward->SetObserver(std::move(observer));
}

std::vector<float> EngineProbe::ReadLogits() const {
  std::vector<float> logits(parts_.num_logits);
  parts_.backend->CopyToHost(logits.data(), parts_.logits, logits.size() * sizeof(float));
  return logits;
}

}  // namespace hydrant
