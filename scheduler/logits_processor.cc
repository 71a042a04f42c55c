#include "scheduler/logits_processor.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/text/grammar/grammar_compiler.h"
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
                            processor->grammar_ == nullptr;
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
  grammar_ = std::make_shared<NextMask>(sampling.grammar->NewConstraint(),
                                        MaskWords(static_cast<int>(vocab_)));
}

bool LogitsProcessor::Edit(int64_t num_output, std::span<const TokenId> output, SampledRow* row) {
  num_output_ = num_output;
  output_ = output;
  row->biases = biases_;
  row->mask = allowed_;
  const bool may_end = ends_.empty() || num_output >= min_tokens_;
  if (may_end && bad_words_.empty() && grammar_ == nullptr) return false;
  mask_ = allowed_;
  if (mask_.empty()) {
    mask_.assign(MaskWords(static_cast<int>(vocab_)), ~0u);
    if (vocab_ % 32 != 0) mask_.back() = (1u << vocab_ % 32) - 1;
  }
  row->mask = mask_;
  if (grammar_ != nullptr) return true;
  Restrict();
  return false;
}

void LogitsProcessor::Make() {
  grammar_->Make();
  next_ = grammar_->next();
  if (next_ == NextTokens::kSome || next_ == NextTokens::kEnd) {
    for (size_t i = 0; i < mask_.size(); ++i) mask_[i] &= grammar_->words()[i];
  } else if (next_ != NextTokens::kAny) {
    std::ranges::fill(mask_, 0u);
  }
  Restrict();
}

// Removes end tokens before min_tokens, and bad words, from the mask.
void LogitsProcessor::Restrict() {
  if (num_output_ < min_tokens_) {
    for (const TokenId token : ends_) Forbid(token, &mask_);
  }
  for (const std::vector<TokenId>& word : bad_words_) {
    const size_t before = word.size() - 1;
    if (output_.size() >= before &&
        std::equal(word.begin(), word.end() - 1, output_.end() - static_cast<ptrdiff_t>(before)))
      Forbid(word.back(), &mask_);
  }
}

absl::Status LogitsProcessor::CheckSomeTokenAllowed(int64_t position) const {
  if (next_ == NextTokens::kTooCostly) {
    return absl::InvalidArgumentError(
        absl::StrCat("structured_output: is so ambiguous that what may follow at position ",
                     position, " takes more steps to find than are allowed; make it simpler"));
  }
  if (grammar_ != nullptr && grammar_->was_wrong()) {
    return absl::InternalError(absl::StrCat(
        "structured_output: the token before position ", position,
        " does not fit, though the grammar's mask allowed it; please report the grammar"));
  }
  const bool none =
      !mask_.empty() && std::ranges::all_of(mask_, [](uint32_t word) { return word == 0; });
  if (!none) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "sampling: no token may follow at position ", position,
      " by the request's structured_output, allowed_token_ids, bad_words and min_tokens"));
}

void LogitsProcessor::Accept(TokenId token) {
  if (grammar_ != nullptr) grammar_->Accept(token);
}

}  // namespace hydrant
