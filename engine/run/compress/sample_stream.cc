#include "engine/run/compress/sample_stream.h"

#include <span>

namespace hydrant {

absl::Status SampleStream::Allocate(Backend* backend, const EngineLimits& limits) {
  backend_ = backend;
  num_layers_ = limits.BudgetLayers();
  return rules_.Allocate(*backend, limits.max_num_seqs);
}

void SampleStream::SetUp(const CacheUpdates& updates) {
  updates.ForEach<SlotSetup>([&](const SlotSetup& setup) {
    const SubGenRule* rule = setup.plan.retention->Samples();
    if (rule != nullptr) rules_.Write(*backend_, setup.slot, std::span(rule, 1));
  });
}

void SampleStream::BuildLayer(const SubGenRule& rule, const PromptLayer& layer, const KvState& kv) {
  backend_->SubGenBuild({.k = layer.kv.k,
                         .v = layer.kv.v,
                         .kv_head_stride = layer.kv.head_stride,
                         .n = layer.n,
                         .rule = rule,
                         .slot = layer.slot,
                         .layer = layer.layer,
                         .pages = kv.pages(),
                         .tables = kv.tables()});
}

void SampleStream::BuildPages(const SubGenRule& rule, int slot, int32_t tokens, const KvState& kv) {
  for (int layer = 0; layer < num_layers_; ++layer) {
    backend_->SubGenBuild({.n = tokens,
                           .rule = rule,
                           .slot = slot,
                           .layer = layer,
                           .pages = kv.pages(),
                           .tables = kv.tables()});
  }
}

void SampleStream::Insert(int num_rows, const int32_t* slots, const int32_t* positions, int layer,
                          const KvState& kv) {
  backend_->SubGenInsert({.num_rows = num_rows,
                          .slots = slots,
                          .positions = positions,
                          .rules = rules_.data(),
                          .layer = layer,
                          .pages = kv.pages(),
                          .tables = kv.tables()});
}

}  // namespace hydrant
