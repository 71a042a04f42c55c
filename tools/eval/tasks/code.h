// A file of small Python functions: one of them is to be mended, one to be explained. Code that a
// model writes is compared as text and never run.
#ifndef HYDRANT_TOOLS_EVAL_TASKS_CODE_H_
#define HYDRANT_TOOLS_EVAL_TASKS_CODE_H_

#include <vector>

#include "tools/eval/tasks/composer.h"

namespace hydrant::eval {

std::vector<Task> CodeTasks();

}  // namespace hydrant::eval

#endif  // HYDRANT_TOOLS_EVAL_TASKS_CODE_H_
