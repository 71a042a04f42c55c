#include "engine/run/logprob_rows.h"

#include <algorithm>

namespace hydrant {
namespace {

constexpr int kRowsHeld = 32;  // rows of logits in memory at a time

}  // namespace

absl::Status LogprobRows::Allocate(Backend* backend, const Transformer* model, int vocab,
                                   int max_rows, int max_prompt_tokens) {
  backend_ = backend;
  model_ = model;
  vocab_ = vocab;
  absl::Status status;
  const auto allocate = [&](auto& array, size_t count) {
    if (status.ok()) status = array.Allocate(*backend, count);
  };
  allocate(logits_, static_cast<size_t>(kRowsHeld) * model->config().vocab_size);
  allocate(tokens_, kRowsHeld);
  allocate(out_, static_cast<size_t>(max_rows) + max_prompt_tokens);
  return status;
}

void LogprobRows::Begin(const Batch& batch) {
  wanted_.clear();
  num_of_prompts_ = 0;
  for (size_t i = 0; i < batch.sampled.size(); ++i)
    if (batch.sampled[i].logprobs) wanted_.push_back(static_cast<int32_t>(i));
}

void LogprobRows::ScorePrompt(const TokenRun& run, const float* hidden, const Activations& act) {
  const ModelConfig& config = model_->config();
  const int end = run.ScoredEnd(config.num_layers);
  for (int begin = run.part.token_begin; begin < end; begin += kRowsHeld) {
    const int rows = std::min(kRowsHeld, end - begin);
    model_->FinalNorm(hidden + static_cast<size_t>(begin) * config.hidden_size, rows, 0, act);
    model_->Logits(act, rows, logits_.data());
    tokens_.Write(*backend_, 0, run.prompt.whole_prompt.subspan(begin + 1, rows));
    backend_->Logprobs({.logits = logits_.data(),
                        .num_rows = rows,
                        .vocab = vocab_,
                        .row_stride = config.vocab_size,
                        .tokens = tokens_.data(),
                        .out = out_.data() + num_drawn() + num_of_prompts_});
    num_of_prompts_ += rows;
  }
}

LogprobRows::Part LogprobRows::PartOf(int begin, int end) const {
  const auto first = std::ranges::lower_bound(wanted_, begin);
  const auto last = std::ranges::lower_bound(wanted_, end);
  return {static_cast<int>(first - wanted_.begin()), static_cast<int>(last - first)};
}

int LogprobRows::EndOfGroup(int begin, int num_rows) const {
  const Part part = PartOf(begin, num_rows);
  return part.count <= kRowsHeld ? num_rows : wanted_[part.first + kRowsHeld];
}

void LogprobRows::Save(int begin, int end, const float* logits) {
  const size_t width = model_->config().vocab_size;
  const Part part = PartOf(begin, end);
  for (int i = 0; i < part.count; ++i) {
    backend_->CopyOnDevice(logits_.data() + i * width, logits + wanted_[part.first + i] * width,
                           width * sizeof(float));
  }
}

void LogprobRows::Score(int begin, int end, const TokenId* tokens) {
  const Part part = PartOf(begin, end);
  for (int i = 0; i < part.count; ++i)
    backend_->CopyOnDevice(tokens_.data() + i, tokens + wanted_[part.first + i], sizeof(TokenId));
  backend_->Logprobs({.logits = logits_.data(),
                      .num_rows = part.count,
                      .vocab = vocab_,
                      .row_stride = model_->config().vocab_size,
                      .tokens = tokens_.data(),
                      .out = out_.data() + part.first});
}

}  // namespace hydrant
