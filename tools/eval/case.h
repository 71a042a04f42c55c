// A case of a task: a trial for every cache, and questions that judge the answers. Plain data.
#ifndef HYDRANT_TOOLS_EVAL_CASE_H_
#define HYDRANT_TOOLS_EVAL_CASE_H_

#include <string>
#include <vector>

#include "tools/eval/trial.h"

namespace hydrant::eval {

// How an answer is judged.
enum class Judge {
  kFound,     // the generated text holds all of `answers` and none of `wrong`
  kForeseen,  // by the nats of the given tokens
  kChoice,    // `choices` dialogues from `dialogue` on: is the first the likeliest?
};

struct Question {
  std::string task = {};  // that its result is listed under; empty: the case's
  Judge judge = Judge::kFound;
  int dialogue = 0, exchange = 0;  // the place of its answer
  std::vector<std::string> answers = {};
  std::vector<std::string> wrong = {};
  int choices = 0;
  double depth = -1;  // where the fact stands in the context, 0 to 1; -1: nowhere in particular
};

struct Case {
  int number = 0;
  Trial trial;
  std::vector<Question> questions;
};

// kFound: the share of the answers that `text` holds; 0 if it holds a wrong one.
double Found(const Question& question, const std::string& text);

// The share of the question that the arm answered rightly; kForeseen: 0.
double Score(const Question& question, const Outcome& outcome);

// A line of JSON a case, for other programs that answer the same: case, context, dialogues (each
// exchange with read, foreseen, follow, generate, stop, expected), questions (fields as above).
std::string CasesAsJson(const std::vector<Case>& cases);

}  // namespace hydrant::eval

#endif  // HYDRANT_TOOLS_EVAL_CASE_H_
