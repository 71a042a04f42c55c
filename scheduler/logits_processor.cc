#include "scheduler/logits_processor.h"

#include <algorithm>

#include "engine/grammar/grammar_compiler.h"
#include "kernels/ops/edit_logits.h"

namespace hydrant {
namespace {

void Allow(TokenId token, std::vector<uint32_t>* mask) { (*mask)[token / 32] |= 1u << token % 32; }
void Forbid(TokenId token, std::vector<uint32_t>* mask) {
  (*mask)[token / 32] &= ~(1u << token % 32);
}

}  // namespace

std::unique_ptr<LogitsProcessor> LogitsProcessor::Create(const SamplingParams& sampling,
                                                         const StoppingParams& stopping,
                                                         const Tokenizer& tokenizer) {
  std::unique_ptr<LogitsProcessor> processor(new LogitsProcessor(sampling, stopping, tokenizer));
  const bool says_nothing = processor->biases_.empty() && processor->allowed_.empty() &&
                            processor->bad_words_.empty() && processor->ends_.empty() &&
                            processor->constraint_ == nullptr;
  return says_nothing ? nullptr : std::move(processor);
}

LogitsProcessor::LogitsProcessor(const SamplingParams& sampling, const StoppingParams& stopping,
                                 const Tokenizer& tokenizer)
    : vocab_(tokenizer.VocabSize()),
      bad_words_(sampling.bad_words),
      min_tokens_(stopping.min_tokens) {
  for (const auto& [token, bias] : sampling.logit_bias)
    biases_.push_back({token, static_cast<float>(bias)});
  if (!sampling.allowed_token_ids.empty()) {
    allowed_.resize(MaskWords(static_cast<int>(vocab_)));
    for (const TokenId token : sampling.allowed_token_ids) Allow(token, &allowed_);
  }
  for (const std::vector<TokenId>& word : bad_words_)
    longest_bad_word_ = std::max(longest_bad_word_, word.size());
  if (min_tokens_ > 0) {
    ends_ = stopping.stop_token_ids;
    if (!stopping.ignore_eos)
      ends_.insert(ends_.end(), tokenizer.eog_ids().begin(), tokenizer.eog_ids().end());
  }
  if (sampling.grammar == nullptr) return;
  constraint_ = sampling.grammar->NewConstraint();
  next_words_.resize(MaskWords(static_cast<int>(vocab_)));
  next_ = constraint_->FillMask(next_words_);
}

void LogitsProcessor::Edit(int64_t num_output, std::span<const TokenId> output, SampledRow* row) {
  row->biases = biases_;
  row->mask = allowed_;
  none_may_follow_ = false;
  const bool may_end = ends_.empty() || num_output >= min_tokens_;
  if (may_end && bad_words_.empty() && next_ == NextTokens::kAny) return;
  mask_ = allowed_;
  if (mask_.empty()) {
    mask_.assign(MaskWords(static_cast<int>(vocab_)), ~0u);
    if (vocab_ % 32 != 0) mask_.back() = (1u << vocab_ % 32) - 1;
  }
  if (next_ != NextTokens::kAny) {
    for (size_t i = 0; i < mask_.size(); ++i) mask_[i] &= next_words_[i];
  }
  if (!may_end) {
    for (const TokenId token : ends_) Forbid(token, &mask_);
  }
  for (const std::vector<TokenId>& word : bad_words_) {
    const size_t before = word.size() - 1;
    if (output.size() >= before && std::equal(word.begin(), word.end() - 1, output.end() - before))
      Forbid(word.back(), &mask_);
  }
  row->mask = mask_;
  none_may_follow_ = std::ranges::all_of(mask_, [](uint32_t word) { return word == 0; });
}

NextTokens LogitsProcessor::Accept(TokenId token) {
  if (constraint_ == nullptr) return NextTokens::kAny;
  next_ = constraint_->Accept(token) ? constraint_->FillMask(next_words_) : NextTokens::kNone;
  return next_;
}

}  // namespace hydrant
