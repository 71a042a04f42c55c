// Conversations of four turns, each with a text and a question about it; then questions about the
// texts of earlier turns.
#ifndef HYDRANT_TOOLS_EVAL_TASKS_CONVERSATION_H_
#define HYDRANT_TOOLS_EVAL_TASKS_CONVERSATION_H_

#include <vector>

#include "tools/eval/tasks/composer.h"

namespace hydrant::eval {

std::vector<Task> ConversationTasks();

}  // namespace hydrant::eval

#endif  // HYDRANT_TOOLS_EVAL_TASKS_CONVERSATION_H_
