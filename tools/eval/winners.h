// The arm that is ahead at a budget, as a sentence for the top of a report.
#ifndef HYDRANT_TOOLS_EVAL_WINNERS_H_
#define HYDRANT_TOOLS_EVAL_WINNERS_H_

#include <string>
#include <vector>

#include "tools/eval/results.h"

namespace hydrant::eval {

// The best arm over all tasks with one measure; each task counts alike.
struct Winner {
  double budget = 1.0;
  bool retrieval = false;  // measured by `found`; else by `lost`
  std::string arm, next;   // next: the second best
  double score = 0;        // mean of Summary::found, or of Summary::lost
  double lead = 0;         // before `next`, paired: share found more, or nats lost less
  double half_width = 0;   // of the lead's 95 % interval

  bool IsClear() const { return lead > half_width; }
};

// By budget, retrieval first. Arms that lack a task or a budget of the others do not compete, nor do
// oracles. Empty where fewer than two arms compete.
std::vector<Winner> WinnersOf(const Results& results);

// "At 10 % of the cache auto finds 67 % of what the full cache finds, ..."
std::string Sentence(const Winner& winner);

}  // namespace hydrant::eval

#endif  // HYDRANT_TOOLS_EVAL_WINNERS_H_
