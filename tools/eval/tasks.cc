#include "tools/eval/tasks.h"

#include <algorithm>
#include <utility>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "tools/eval/tasks/choices.h"
#include "tools/eval/tasks/code.h"
#include "tools/eval/tasks/continuations.h"
#include "tools/eval/tasks/conversation.h"
#include "tools/eval/tasks/facts.h"
#include "tools/eval/tasks/retrieval.h"
#include "tools/eval/tasks/ruler.h"

namespace hydrant::eval {
namespace {

struct Group {
  TaskInfo info;
  std::vector<Task> tasks;
};

const std::vector<Group>& Groups() {
  static const auto* groups = new std::vector<Group>{
      {{"continuations", "texts to foresee"}, ContinuationTasks()},
      {{"retrieval", "the templates of models/hydrant-retrieval.gguf"}, RetrievalTasks()},
      {{"ruler", "RULER's thirteen tasks"}, RulerTasks()},
      {{"fact", "facts in a text"}, FactTasks()},
      {{"conversation", "several turns"}, ConversationTasks()},
      {{"code", "a file of functions"}, CodeTasks()},
      {{"choices", "the likelier of two ends"}, ChoiceTasks()}};
  return *groups;
}

const Task* FindTask(const std::string& name) {
  for (const Group& group : Groups()) {
    for (const Task& task : group.tasks) {
      if (task.name == name) return &task;
    }
  }
  return nullptr;
}

bool IsOf(TaskOptions::Half half, int number) {
  if (half == TaskOptions::Half::kBoth) return true;
  return (number % 2 == 0) == (half == TaskOptions::Half::kTuned);
}

}  // namespace

const std::vector<TaskInfo>& ListTasks() {
  static const auto* infos = [] {
    auto* list = new std::vector<TaskInfo>;
    for (const Group& group : Groups()) {
      for (const Task& task : group.tasks) list->push_back({task.name, task.description});
    }
    for (const Group& group : Groups()) {
      std::vector<std::string> names;
      for (const Task& task : group.tasks) names.push_back(task.name);
      list->push_back(
          {group.info.name, fmt::format("{}: {}", group.info.description, fmt::join(names, ", "))});
    }
    return list;
  }();
  return *infos;
}

absl::StatusOr<std::vector<std::string>> TasksNamed(const std::string& name) {
  if (FindTask(name) != nullptr) return std::vector<std::string>{name};
  for (const Group& group : Groups()) {
    if (group.info.name != name) continue;
    std::vector<std::string> names;
    for (const Task& task : group.tasks) names.push_back(task.name);
    return names;
  }
  std::vector<std::string> names;
  for (const TaskInfo& info : ListTasks()) names.push_back(info.name);
  return absl::InvalidArgumentError(
      fmt::format("--tasks: '{}' is unknown; one of {}", name, fmt::join(names, ", ")));
}

absl::StatusOr<std::vector<Case>> MakeCases(const std::string& name, const TaskOptions& options,
                                            const std::vector<std::string>& texts,
                                            const PromptForm& form, const Tokenizer& tokenizer) {
  const Task* task = FindTask(name);
  if (task == nullptr) return TasksNamed(name).status();
  const Composer composer(&options, &texts, &form, &tokenizer);
  std::vector<Case> cases;
  for (int number = 0; number < options.cases; ++number) {
    if (!IsOf(options.half, number)) continue;
    Case made = task->make(composer, number);
    if (made.trial.context.empty()) {
      return absl::InvalidArgumentError(
          fmt::format("--text: too short for case {} of {} with {} tokens; give a longer one, or "
                      "fewer --cases or a shorter --length",
                      number, name, options.length));
    }
    for (Question& question : made.questions) {
      if (question.task.empty()) question.task = name;
    }
    cases.push_back(std::move(made));
  }
  return cases;
}

}  // namespace hydrant::eval
