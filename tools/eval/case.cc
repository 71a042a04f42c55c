#include "tools/eval/case.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace hydrant::eval {
namespace {

using Json = nlohmann::json;

const char* NameOf(Judge judge) {
  switch (judge) {
    case Judge::kFound:
      return "found";
    case Judge::kForeseen:
      return "foreseen";
    case Judge::kChoice:
      return "choice";
  }
  return "";
}

Json JsonOf(const Exchange& exchange) {
  return {{"read", exchange.read},     {"foreseen", exchange.foreseen},
          {"follow", exchange.follow}, {"generate", exchange.generate},
          {"stop", exchange.stop},     {"expected", exchange.expected}};
}

Json JsonOf(const Question& question) {
  return {{"task", question.task},         {"judge", NameOf(question.judge)},
          {"dialogue", question.dialogue}, {"exchange", question.exchange},
          {"answers", question.answers},   {"wrong", question.wrong},
          {"choices", question.choices},   {"depth", question.depth}};
}

}  // namespace

double Found(const Question& question, const std::string& text) {
  const auto holds = [&](const std::string& part) { return text.find(part) != std::string::npos; };
  if (std::any_of(question.wrong.begin(), question.wrong.end(), holds)) return 0;
  if (question.answers.empty()) return 0;
  const auto found = std::count_if(question.answers.begin(), question.answers.end(), holds);
  return static_cast<double>(found) / static_cast<double>(question.answers.size());
}

double Score(const Question& question, const Outcome& outcome) {
  const auto answer = [&](int dialogue) -> const Answer& {
    return outcome.answers.at(dialogue).at(question.exchange);
  };
  if (question.judge == Judge::kFound) return Found(question, answer(question.dialogue).text);
  if (question.judge == Judge::kForeseen) return 0;
  for (int other = 1; other < question.choices; ++other) {
    if (answer(question.dialogue + other).nll <= answer(question.dialogue).nll) return 0;
  }
  return 1;
}

std::string CasesAsJson(const std::vector<Case>& cases) {
  std::string lines;
  for (const Case& made : cases) {
    Json dialogues = Json::array(), questions = Json::array();
    for (const Dialogue& dialogue : made.trial.dialogues) {
      Json exchanges = Json::array();
      for (const Exchange& exchange : dialogue) exchanges.push_back(JsonOf(exchange));
      dialogues.push_back(std::move(exchanges));
    }
    for (const Question& question : made.questions) questions.push_back(JsonOf(question));
    const Json line = {{"case", made.number},
                       {"context", made.trial.context},
                       {"question_later", made.trial.question_later},
                       {"dialogues", std::move(dialogues)},
                       {"questions", std::move(questions)}};
    lines += line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  }
  return lines;
}

}  // namespace hydrant::eval
