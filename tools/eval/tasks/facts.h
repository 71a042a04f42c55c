// Facts of seven kinds hidden in a text, and asked for afterwards: in the text's wording and in
// another one; two facts that have to be joined; a fact that is corrected later in the text.
#ifndef HYDRANT_TOOLS_EVAL_TASKS_FACTS_H_
#define HYDRANT_TOOLS_EVAL_TASKS_FACTS_H_

#include <random>
#include <string>
#include <vector>

#include "tools/eval/tasks/composer.h"

namespace hydrant::eval {

// Tokens for an answer: a word or a few, often in a sentence.
inline constexpr int kAnswerTokens = 24;

struct Fact {
  std::string sentence;
  std::string exact;  // a question in the sentence's words
  std::string other;  // and in others
  std::string answer;
};

// One fact of each kind (name, place, colour, time, object, identifier, number), in random order,
// about different things.
std::vector<Fact> DrawFacts(std::mt19937_64* rng);

std::vector<Task> FactTasks();

}  // namespace hydrant::eval

#endif  // HYDRANT_TOOLS_EVAL_TASKS_FACTS_H_
