// Evaluation tasks: texts to predict, and facts to retrieve. Every case follows from the task's
// name, its number and a seed.
#ifndef HYDRANT_TOOLS_EVAL_TASKS_H_
#define HYDRANT_TOOLS_EVAL_TASKS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/eval/laboratory.h"

namespace hydrant::eval {

struct Case {
  std::string task;
  int number = 0;
  Trial trial;
  std::vector<std::string> answers;  // expected in the output; empty: a text to predict
};

// Share of the answers found in `text`.
double Found(const Case& asked, const std::string& text);

struct TaskInfo {
  std::string name;
  std::string description;
};
const std::vector<TaskInfo>& ListTasks();

struct TaskOptions {
  int cases = 8;
  int length = 512;  // tokens of the context
  int given = 100;   // for perplexity: tokens after it
  uint64_t seed = 1;
};

// The cases of a task. `texts`: plain UTF-8; facts are hidden in the first. InvalidArgument if the
// task is unknown, or a text is too short for it.
absl::StatusOr<std::vector<Case>> MakeCases(const std::string& task, const TaskOptions& options,
                                            const std::vector<std::string>& texts,
                                            const Laboratory& laboratory);

// One JSON line per case, for other programs: task, case (its number), tokens, context, generate,
// expected, answers, as above.
std::string CasesAsJson(const std::vector<Case>& cases);

}  // namespace hydrant::eval

#endif  // HYDRANT_TOOLS_EVAL_TASKS_H_
