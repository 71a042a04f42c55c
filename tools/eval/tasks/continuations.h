// Texts to foresee: the user's own, and answers of the full cache.
#ifndef HYDRANT_TOOLS_EVAL_TASKS_CONTINUATIONS_H_
#define HYDRANT_TOOLS_EVAL_TASKS_CONTINUATIONS_H_

#include <vector>

#include "tools/eval/tasks/composer.h"

namespace hydrant::eval {

std::vector<Task> ContinuationTasks();

}  // namespace hydrant::eval

#endif  // HYDRANT_TOOLS_EVAL_TASKS_CONTINUATIONS_H_
