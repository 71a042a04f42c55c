#include "tools/eval/tasks/conversation.h"

#include <string>
#include <utility>

#include "tools/eval/tasks/facts.h"

namespace hydrant::eval {
namespace {

constexpr int kTurns = 4;
constexpr int kFactsATurn = 3;

// A text of options().length / kTurns tokens.
Ids TextOf(const Composer& composer, int number, int turn, const std::vector<Fact>& facts) {
  const int tokens = composer.Room() / kTurns;
  const Ids all = composer.Piece(composer.texts()[0], number, kTurns * tokens);
  if (all.empty()) return {};
  std::vector<Hidden> hidden;
  for (size_t i = 0; i < facts.size(); ++i)
    hidden.push_back({"\n" + facts[i].sentence + "\n",
                      (static_cast<double>(i) + 0.5) / static_cast<double>(facts.size())});
  return composer.HideIn(Ids(all.begin() + turn * tokens, all.begin() + (turn + 1) * tokens),
                         hidden);
}

// Adds an exchange to the only dialogue, and its question.
void Add(Exchange exchange, const Fact& fact, const char* task, Case* to) {
  Dialogue& dialogue = to->trial.dialogues.front();
  dialogue.push_back(std::move(exchange));
  to->questions.push_back(
      {.task = task, .exchange = static_cast<int>(dialogue.size()) - 1, .answers = {fact.answer}});
}

// The first text is compressed with its question, as the first message of a chat is. Of a turn's
// facts the first is asked for in the turn, the others at the end: one in the text's wording, one in
// another.
Case Conversation(const Composer& composer, int number) {
  std::mt19937_64 rng = composer.Rng(number);
  std::vector<std::vector<Fact>> facts;
  for (int turn = 0; turn < kTurns; ++turn) {
    facts.push_back(DrawFacts(&rng));
    facts.back().resize(kFactsATurn);
  }
  const Ids first = TextOf(composer, number, 0, facts[0]);
  Case made = composer.Begin(number, first, false);
  if (first.empty()) return made;
  composer.Add(composer.Ask(facts[0][0].exact, "", facts[0][0].answer, kAnswerTokens),
               {.task = "chat-now", .answers = {facts[0][0].answer}}, &made);
  for (int turn = 1; turn < kTurns; ++turn) {
    const Ids text = TextOf(composer, number, turn, facts[turn]);
    const Fact& asked = facts[turn][0];
    Add(composer.AskNext(text, asked.exact, asked.answer, kAnswerTokens), asked, "chat-now", &made);
  }
  for (int turn = 0; turn < kTurns; ++turn) {
    const Fact& exact = facts[turn][1];
    const Fact& other = facts[turn][2];
    const char* task = turn == 0 ? "chat-first" : "chat-earlier";
    Add(composer.AskNext({}, exact.exact, exact.answer, kAnswerTokens), exact, task, &made);
    Add(composer.AskNext({}, other.other, other.answer, kAnswerTokens), other, task, &made);
  }
  return made;
}

}  // namespace

std::vector<Task> ConversationTasks() {
  return {{"chat",
           "four turns with a text each: asked in the turn, and at the end about the first "
           "and the other texts",
           Conversation}};
}

}  // namespace hydrant::eval
