// Builds the parts of cases: pieces of the user's texts with sentences hidden in them, and questions
// in the model's own form.
#ifndef HYDRANT_TOOLS_EVAL_TASKS_COMPOSER_H_
#define HYDRANT_TOOLS_EVAL_TASKS_COMPOSER_H_

#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/tokenizer/tokenizer.h"
#include "tools/eval/case.h"
#include "tools/eval/prompt_form.h"

namespace hydrant::eval {

struct TaskOptions {
  int cases = 8;
  int length = 512;  // tokens of the context
  int given = 100;   // for perplexity: tokens after it
  uint64_t seed = 1;
  enum class Half { kBoth, kTuned, kHeldOut } half = Half::kBoth;  // even case numbers, or odd ones
};

using Ids = std::vector<TokenId>;

// A sentence in a context, at a depth from 0 (its beginning) to 1.
struct Hidden {
  std::string sentence;
  double depth = 0;
};

class Composer {
 public:
  // Borrows all. texts: plain UTF-8; facts are hidden in the first.
  Composer(const TaskOptions* options, const std::vector<std::string>* texts,
           const PromptForm* form, const Tokenizer* tokenizer);

  const TaskOptions& options() const { return *options_; }
  const std::vector<std::string>& texts() const { return *texts_; }
  // Numbers of a case, the same whatever the model.
  std::mt19937_64 Rng(int number) const { return std::mt19937_64(options_->seed * 1000 + number); }

  // Plain text, without special tokens.
  Ids Encode(std::string_view text) const;

  // Piece `number` of the text, cut into one evenly spaced piece per case, starting at a line; empty
  // if the text is too short.
  Ids Piece(const std::string& text, int number, int tokens) const;
  // `tokens` tokens of the first text with the sentences in them; empty if the text is too short.
  Ids Hide(int number, int tokens, const std::vector<Hidden>& hidden) const;
  // The haystack with the sentences in it, cut to make room for them.
  Ids HideIn(const Ids& haystack, const std::vector<Hidden>& hidden) const;
  // The text, repeated to `tokens` tokens.
  Ids Repeat(std::string_view text, int tokens) const;

  // The model's BOS, if its tokenizer adds one to texts.
  Ids Bos() const;
  // A case whose context is the text, behind the form's opening. No dialogues and questions yet.
  // question_later: they come after the compression.
  Case Begin(int number, const Ids& text, bool question_later = true) const;
  // The same without the form.
  Case BeginPlain(int number, const Ids& text, bool question_later) const;
  // Tokens of a text that fills a context of options().length behind the form's opening.
  int Room() const;

  // A question behind what came before. cue: the beginning of its answer, given to the model.
  // generate: of tokens, at most; more where the expected answer needs more.
  Exchange Ask(std::string_view question, std::string_view cue, std::string_view expected,
               int generate) const;
  // The same as another turn, after an answer. text: before the question, may be empty.
  Exchange AskNext(const Ids& text, std::string_view question, std::string_view expected,
                   int generate) const;
  // Adds a dialogue of one exchange to the case, and the question that judges it. The exchange's
  // tokens are appended to the context instead, where the question does not come later.
  void Add(Exchange exchange, Question question, Case* to) const;

 private:
  Ids OfForm(std::string_view text) const;
  Ids Opening() const;
  static Case BeginWith(Ids opening, int number, const Ids& text, bool question_later);
  Exchange Answering(Ids read, std::string_view cue, std::string_view expected, int generate) const;

  const TaskOptions* options_;
  const std::vector<std::string>* texts_;
  const PromptForm* form_;
  const Tokenizer* tokenizer_;
};

// Makes case `number`; with an empty context if a text is too short.
using MakeCase = Case (*)(const Composer&, int number);

struct Task {
  std::string name;
  std::string description;
  MakeCase make;
};

}  // namespace hydrant::eval

#endif  // HYDRANT_TOOLS_EVAL_TASKS_COMPOSER_H_
