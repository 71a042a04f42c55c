#include "tools/eval/tasks/continuations.h"

#include <utility>

namespace hydrant::eval {
namespace {

Case Perplexity(const Composer& composer, int number) {
  const TaskOptions& options = composer.options();
  const std::string& text = composer.texts()[number % composer.texts().size()];
  const int context = options.length - static_cast<int>(composer.Bos().size());
  const Ids piece = composer.Piece(text, number, context + options.given);
  if (piece.empty()) return {};
  Case made = composer.BeginPlain(number, Ids(piece.begin(), piece.begin() + context), false);
  composer.Add({.foreseen = Ids(piece.begin() + context, piece.end())},
               {.task = "perplexity", .judge = Judge::kForeseen}, &made);
  return made;
}

Case Summary(const Composer& composer, int number) {
  constexpr int kTokens = 64;
  const std::string& text = composer.texts()[number % composer.texts().size()];
  Case made = composer.Begin(number, composer.Piece(text, number, composer.Room()));
  if (made.trial.context.empty()) return made;
  Exchange exchange = composer.Ask("Summarize the text in three sentences.", "", "", 0);
  exchange.follow = kTokens;
  composer.Add(std::move(exchange), {.task = "summary", .judge = Judge::kForeseen}, &made);
  return made;
}

}  // namespace

std::vector<Task> ContinuationTasks() {
  return {{"perplexity", "how well the tokens after a long prompt are foreseen", Perplexity},
          {"summary", "how well the full cache's own summary of a text is foreseen", Summary}};
}

}  // namespace hydrant::eval
