// Runs the cases of hydrant-eval one after the other; skips results measured already. An error ends
// the program, as in the rest of the command line.
#ifndef HYDRANT_TOOLS_EVAL_RUN_CASES_H_
#define HYDRANT_TOOLS_EVAL_RUN_CASES_H_

#include <string>
#include <vector>

#include "tools/eval/command_line.h"
#include "tools/eval/kept_text.h"
#include "tools/eval/results.h"
#include "tools/eval/tasks.h"
#include "tools/eval/trial_runner.h"

namespace hydrant::eval {

// Interleaves the tasks, so that a partial run is a smaller version of the whole.
std::vector<Case> MakeAllCases(const Flags& flags, const std::vector<std::string>& texts,
                               const PromptForm& form, const Tokenizer& tokenizer);

// With a progress bar on stderr. `kept_text`: of the first case. False: interrupted.
bool RunCases(const Flags& flags, const std::vector<Case>& cases, const Tokenizer& tokenizer,
              TrialRunner* runner, Results* results, KeptText* kept_text);

}  // namespace hydrant::eval

#endif  // HYDRANT_TOOLS_EVAL_RUN_CASES_H_
