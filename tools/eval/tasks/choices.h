// Choices by likelihood, behind solved examples: the effect of a cause (in the form of COPA) and the
// way to a goal (in the form of PIQA). The items are the project's own.
#ifndef HYDRANT_TOOLS_EVAL_TASKS_CHOICES_H_
#define HYDRANT_TOOLS_EVAL_TASKS_CHOICES_H_

#include <vector>

#include "tools/eval/tasks/composer.h"

namespace hydrant::eval {

std::vector<Task> ChoiceTasks();

}  // namespace hydrant::eval

#endif  // HYDRANT_TOOLS_EVAL_TASKS_CHOICES_H_
