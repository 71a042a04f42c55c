// A grammar of which a test knows all: the id of a token leaves the same rest, divided by three, as
// the sum of those before, and after so many tokens there is an end.
#ifndef HYDRANT_TESTS_SCHEDULER_FAKE_GRAMMAR_H_
#define HYDRANT_TESTS_SCHEDULER_FAKE_GRAMMAR_H_

#include <algorithm>
#include <memory>
#include <numeric>
#include <span>

#include "engine/grammar/grammar_compiler.h"
#include "tests/scheduler/fake_tokenizer.h"

namespace hydrant {

class FakeGrammar final : public CompiledGrammar {
 public:
  explicit FakeGrammar(int tokens) : tokens_(tokens) {}
  std::unique_ptr<TokenConstraint> NewConstraint() const override {
    return std::make_unique<Constraint>(tokens_);
  }
  size_t MemoryBytes() const override { return sizeof(*this); }

  static bool MayFollow(TokenId token, std::span<const TokenId> before) {
    const TokenId sum = std::accumulate(before.begin(), before.end(), TokenId{0});
    return token < FakeTokenizer::kEog && token % 3 == sum % 3;
  }

 private:
  class Constraint final : public TokenConstraint {
   public:
    explicit Constraint(int tokens) : left_(tokens) {}
    NextTokens FillMask(std::span<uint32_t> words) override {
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
      sum_ += token;
      --left_;
      return true;
    }
    bool IsComplete() const override { return left_ == 0; }

   private:
    int left_;
    TokenId sum_ = 0;  // of the tokens so far
  };

  const int tokens_;
};

}  // namespace hydrant

#endif  // HYDRANT_TESTS_SCHEDULER_FAKE_GRAMMAR_H_
