// Scorings that are compared but not served: arms "idea-NAME" of hydrant-eval. Each changes the
// scores of a policy on the host, after a layer's prefill. CPU only.
#ifndef HYDRANT_TOOLS_EVAL_IDEAS_H_
#define HYDRANT_TOOLS_EVAL_IDEAS_H_

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/cache/prompt_scorer.h"
#include "engine/text/tokenizer/tokenizer.h"

namespace hydrant::eval {

enum class Idea : uint8_t {
  kMeanAttention,  // h2o by the mean over the queries that see the entry, not the sum
  kKeyDiff,    // unlike the mean key: minus the cosine of key and mean (after kvpress's KeyDiff)
  kRanks,      // echo by ranks within the head: of the sum, plus of the maximum
  kCentred,    // echo with each head's mean of the maxima subtracted from them
  kStructure,  // echo; white space and punctuation count a third (after kvpress's issue 288)
  kLayers,     // sums over heads and all layers so far (SpAtten, arXiv 2012.09852)
  kNoise,      // h2o with Gumbel noise on the logarithm of the sum (Keyformer, arXiv 2403.09054)
  kValues,     // the longest twentieth of the values are kept, the others by echo with some Gumbel
               // noise (after VaSE, arXiv 2606.03928)
  kQuestions,  // guessed questions and answers are read behind the context, not its repetition
};

struct IdeaInfo {
  Idea idea;
  std::string_view name;    // of the arm, after "idea-"
  std::string_view policy;  // gives the budget, the statistics and the decode rule
  std::string_view description;
};
std::span<const IdeaInfo> ListIdeas();
// The idea of arm "idea-NAME"; null: no such idea.
const IdeaInfo* FindIdea(std::string_view arm);

// `scorer`: of the idea's policy. `is_structure` [tokens of the context]: for kStructure.
std::shared_ptr<const PromptScorer> ChangedScorer(Idea idea,
                                                  std::shared_ptr<const PromptScorer> scorer,
                                                  std::vector<bool> is_structure);
// The text that kQuestions reads behind the context, as long as the context: each passage of it as a
// question for its second half, in random order.
std::vector<TokenId> GuessedQuestions(const std::vector<TokenId>& context,
                                      const Tokenizer& tokenizer);
// Whether each token is white space and punctuation alone.
std::vector<bool> StructureOf(const std::vector<TokenId>& tokens, const Tokenizer& tokenizer);

}  // namespace hydrant::eval

#endif  // HYDRANT_TOOLS_EVAL_IDEAS_H_
