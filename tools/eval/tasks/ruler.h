// The thirteen tasks of RULER (arXiv 2404.06654, section 3) with texts of our own: needles in a
// haystack, variable tracking, common and frequent words, questions over passages.
#ifndef HYDRANT_TOOLS_EVAL_TASKS_RULER_H_
#define HYDRANT_TOOLS_EVAL_TASKS_RULER_H_

#include <vector>

#include "tools/eval/tasks/composer.h"

namespace hydrant::eval {

std::vector<Task> RulerTasks();

}  // namespace hydrant::eval

#endif  // HYDRANT_TOOLS_EVAL_TASKS_RULER_H_
