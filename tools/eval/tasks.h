// Evaluation tasks: texts to foresee, facts to retrieve, choices, conversations. Every case follows
// from the task's name, its number and a seed.
#ifndef HYDRANT_TOOLS_EVAL_TASKS_H_
#define HYDRANT_TOOLS_EVAL_TASKS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/eval/case.h"
#include "tools/eval/prompt_form.h"
#include "tools/eval/tasks/composer.h"

namespace hydrant::eval {

struct TaskInfo {
  std::string name;
  std::string description;
};
// All tasks; then their groups, which stand for several of them.
const std::vector<TaskInfo>& ListTasks();
// The tasks of a group, or the task itself. InvalidArgument: unknown; names all.
absl::StatusOr<std::vector<std::string>> TasksNamed(const std::string& name);

// The cases of a task, of the asked half. `texts`: plain UTF-8; facts are hidden in the first.
// InvalidArgument if the task is unknown, or a text is too short for it.
absl::StatusOr<std::vector<Case>> MakeCases(const std::string& task, const TaskOptions& options,
                                            const std::vector<std::string>& texts,
                                            const PromptForm& form, const Tokenizer& tokenizer);

}  // namespace hydrant::eval

#endif  // HYDRANT_TOOLS_EVAL_TASKS_H_
