// A grammar that admits one text, given as tokens: the model writes it, one decoding step a token,
// and reports the probabilities that it gives to the tokens.
#ifndef HYDRANT_SERVER_STARTUP_GIVEN_TEXT_H_
#define HYDRANT_SERVER_STARTUP_GIVEN_TEXT_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "engine/text/grammar/grammar_compiler.h"

namespace hydrant {

class GivenText final : public CompiledGrammar {
 public:
  explicit GivenText(std::vector<TokenId> tokens) : tokens_(std::move(tokens)) {}

  std::unique_ptr<TokenConstraint> NewConstraint() const override {
    return std::make_unique<Constraint>(tokens_);
  }
  size_t MemoryBytes() const override { return tokens_.size() * sizeof(TokenId); }

 private:
  class Constraint final : public TokenConstraint {
   public:
    explicit Constraint(std::vector<TokenId> tokens) : tokens_(std::move(tokens)) {}

    NextTokens FillMask(std::span<uint32_t> words) override {
      std::ranges::fill(words, 0u);
      if (IsComplete()) return NextTokens::kEnd;
      words[tokens_[next_] / 32] |= 1u << tokens_[next_] % 32;
      return NextTokens::kSome;
    }
    bool Accept(TokenId token) override {
      if (IsComplete() || token != tokens_[next_]) return false;
      ++next_;
      return true;
    }
    bool IsComplete() const override { return next_ == tokens_.size(); }

   private:
    const std::vector<TokenId> tokens_;
    size_t next_ = 0;
  };

  const std::vector<TokenId> tokens_;
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_STARTUP_GIVEN_TEXT_H_
