// Facts in a text or a list, in the templates that models/hydrant-retrieval.gguf was trained on;
// each with the question compressed with the text, or coming afterwards ("-unseen").
#ifndef HYDRANT_TOOLS_EVAL_TASKS_RETRIEVAL_H_
#define HYDRANT_TOOLS_EVAL_TASKS_RETRIEVAL_H_

#include <vector>

#include "tools/eval/tasks/composer.h"

namespace hydrant::eval {

std::vector<Task> RetrievalTasks();

}  // namespace hydrant::eval

#endif  // HYDRANT_TOOLS_EVAL_TASKS_RETRIEVAL_H_
