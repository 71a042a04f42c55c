// A grammar that tests can predict: an allowed token id equals, modulo three, the sum of the
// earlier ids; the text ends after a fixed number of tokens.
#ifndef HYDRANT_TESTS_SCHEDULER_FAKE_GRAMMAR_H_
#define HYDRANT_TESTS_SCHEDULER_FAKE_GRAMMAR_H_

#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>
#include <span>
#include <utility>

#include "engine/text/grammar/grammar_compiler.h"
#include "tests/scheduler/fake_tokenizer.h"

namespace hydrant {

class FakeGrammar final : public CompiledGrammar {
 public:
  // mask_steps: steps of each mask. before_mask: called before each mask but the first; may be
  // null. wrong_at: index, from 0, of a token that the mask allows but the grammar refuses;
  // negative: none.
  explicit FakeGrammar(int tokens, int64_t mask_steps = 0,
                       std::function<void()> before_mask = nullptr, int wrong_at = -1)
      : tokens_(tokens),
        mask_steps_(mask_steps),
        wrong_at_(wrong_at),
        before_mask_(std::move(before_mask)) {}
  std::unique_ptr<TokenConstraint> NewConstraint() const override {
    return std::make_unique<Constraint>(*this);
  }
  size_t MemoryBytes() const override { return sizeof(*this); }

  static bool MayFollow(TokenId token, std::span<const TokenId> before) {
    const TokenId sum = std::accumulate(before.begin(), before.end(), TokenId{0});
    return token < FakeTokenizer::kEog && token % 3 == sum % 3;
  }

 private:
  class Constraint final : public TokenConstraint {
   public:
    explicit Constraint(const FakeGrammar& grammar)
        : left_(grammar.tokens_),
          refuses_at_(grammar.tokens_ - grammar.wrong_at_),
          mask_steps_(grammar.mask_steps_),
          before_mask_(grammar.before_mask_) {}
    NextTokens FillMask(std::span<uint32_t> words) override {
      if (std::exchange(is_first_, false) == false && before_mask_ != nullptr) before_mask_();
      std::ranges::fill(words, 0u);
      if (left_ == 0) return NextTokens::kEnd;
      for (TokenId token = 0; token < FakeTokenizer::kVocab; ++token) {
        if (token < FakeTokenizer::kEog && token % 3 == sum_ % 3)
          words[token / 32] |= 1u << token % 32;
      }
      return NextTokens::kSome;
    }
    bool Accept(TokenId token) override {
      if (left_ == 0 || token >= FakeTokenizer::kEog || token % 3 != sum_ % 3) return false;
      if (left_ == refuses_at_) return false;
      sum_ += token;
      --left_;
      return true;
    }
    bool IsComplete() const override { return left_ == 0; }
    int64_t MaskSteps() const override { return mask_steps_; }

   private:
    int left_;
    const int refuses_at_;  // tokens left at the refusal
    const int64_t mask_steps_;
    const std::function<void()> before_mask_;
    bool is_first_ = true;
    TokenId sum_ = 0;  // of the tokens so far
  };

  const int tokens_;
  const int64_t mask_steps_;
  const int wrong_at_;
  const std::function<void()> before_mask_;
};

}  // namespace hydrant

#endif  // HYDRANT_TESTS_SCHEDULER_FAKE_GRAMMAR_H_
