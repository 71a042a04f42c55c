#include "engine/text/grammar/xgrammar_constraint.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "engine/text/grammar/json_white_space.h"
#include "engine/text/grammar/xgrammar_guard.h"

namespace hydrant {
namespace {

class XgrammarConstraint final : public TokenConstraint {
 public:
  XgrammarConstraint(xgrammar::GrammarMatcher matcher, std::shared_ptr<const ConstraintParts> parts)
      : matcher_(std::move(matcher)),
        parts_(std::move(parts)),
        shape_(*parts_->shape),
        accept_steps_left_(parts_->limits.accept_steps) {}

  NextTokens FillMask(std::span<uint32_t> words) override {
    if (has_ended_) {
      std::ranges::fill(words, 0);
      return NextTokens::kEnd;
    }
    if (!has_begun_ && parts_->first.has_value()) {
      std::ranges::copy(parts_->first->words, words.begin());
      mask_steps_ = parts_->first->steps;
      return parts_->first->next;
    }
    const absl::Status status =
        is_too_costly_ ? absl::ResourceExhaustedError("")
                       : CallXgrammar(
                             parts_->limits.mask_steps, [&] { FillWords(words); }, &mask_steps_);
    if (!status.ok()) {
      is_too_costly_ = true;
      std::ranges::fill(words, 0);
      return NextTokens::kTooCostly;
    }
    return Judge(words);
  }

  int64_t MaskSteps() const override { return mask_steps_; }

  bool Accept(TokenId token) override {
    if (has_ended_ || is_too_costly_) return false;
    if (!HasBit(shape_.text_words, token)) return AcceptEnd(token);
    if (after_ != nullptr && HasBit(after_->breaks, token)) return false;
    if (!MayBeSpace() && HasBit(shape_.space_words, token)) return false;
    bool accepted = false;
    int64_t steps = 0;
    accept_steps_left_ += parts_->limits.mean_accept_steps;
    const absl::Status status = CallXgrammar(
        std::min(parts_->limits.accept_steps, accept_steps_left_),
        [&] { accepted = matcher_.AcceptToken(static_cast<int32_t>(token)); }, &steps);
    accept_steps_left_ -= steps;
    if (status.ok()) {
      if (accepted) Add(token);
      return accepted;
    }
    is_too_costly_ = true;
    return false;
  }

  bool IsComplete() const override { return !is_too_costly_ && matcher_.IsCompleted(); }

 private:
  static bool HasBit(const std::vector<uint32_t>& words, TokenId token) {
    return token / 32 < words.size() && (words[token / 32] >> (token % 32) & 1) != 0;
  }

  void Add(TokenId token) {
    has_begun_ = true;
    after_ = LeadOf(token);
    if (parts_->max_whitespace.has_value())
      white_space_.Push(shape_.tokenizer.GetDecodedVocab()[token]);
  }

  // Whether max_whitespace allows another white space character here; the grammar may still forbid
  // it.
  bool MayBeSpace() const {
    return !parts_->max_whitespace.has_value() || white_space_.length() == 0 ||
           white_space_.length() < *parts_->max_whitespace;
  }

  // The lead byte at the token's end; null: none.
  const MaskShape::AfterLead* LeadOf(TokenId token) const {
    for (const MaskShape::AfterLead& lead : shape_.after_leads) {
      if (HasBit(lead.ends_in, token)) return &lead;
    }
    return nullptr;
  }

  bool AcceptEnd(TokenId token) {
    if (!HasBit(shape_.eog_words, token) || !IsComplete()) return false;
    has_ended_ = true;
    return true;
  }

  void FillWords(std::span<uint32_t> words) {
    int64_t shape = static_cast<int64_t>(words.size());
    DLTensor tensor{};
    tensor.data = words.data();
    tensor.device = {kDLCPU, 0};
    tensor.ndim = 1;
    tensor.dtype = {kDLInt, 32, 1};
    tensor.shape = &shape;
    // If all tokens are allowed, the library may not have written the words.
    if (!matcher_.FillNextTokenBitmask(&tensor)) std::ranges::fill(words, ~uint32_t{0});
  }

  // Reduces the library's mask to tokens with text, plus end-of-generation ids if the text is
  // complete.
  NextTokens Judge(std::span<uint32_t> words) const {
    const bool is_complete = IsComplete();
    const bool may_be_space = MayBeSpace();
    uint32_t any = 0;
    bool all = true;
    for (size_t i = 0; i < words.size(); ++i) {
      uint32_t text = words[i] & shape_.text_words[i];
      if (after_ != nullptr) text &= ~after_->breaks[i];
      if (!may_be_space) text &= ~shape_.space_words[i];
      any |= text;
      words[i] = is_complete ? text | shape_.eog_words[i] : text;
      all = all && words[i] == ~uint32_t{0};
    }
    if (any == 0) return is_complete ? NextTokens::kEnd : NextTokens::kNone;
    return all ? NextTokens::kAny : NextTokens::kSome;
  }

  xgrammar::GrammarMatcher matcher_;
  const std::shared_ptr<const ConstraintParts> parts_;
  const MaskShape& shape_;
  int64_t accept_steps_left_;
  int64_t mask_steps_ = 0;
  JsonWhiteSpace white_space_;                   // counts only if max_whitespace is set
  const MaskShape::AfterLead* after_ = nullptr;  // the lead byte at the end of the text so far
  bool has_begun_ = false;                       // a token was accepted
  bool has_ended_ = false;                       // an end of generation was accepted
  bool is_too_costly_ = false;                   // matcher_ must no longer be used
};

}  // namespace

std::unique_ptr<TokenConstraint> MakeXgrammarConstraint(
    std::shared_ptr<const ConstraintParts> parts) {
  std::optional<xgrammar::GrammarMatcher> matcher;
  const absl::Status status = CallXgrammar(parts->limits.accept_steps, [&] {
    matcher.emplace(parts->grammar, std::nullopt, /*terminate_without_stop_token=*/false,
                    /*max_rollback_tokens=*/0);
  });
  if (!status.ok()) return nullptr;
  return std::make_unique<XgrammarConstraint>(*std::move(matcher), std::move(parts));
}

}  // namespace hydrant
