// Use and replacement of cache entries during decoding, as analysed by CO2 (Yamazaki and
// Venkataraman 2024, sections 3.2 and 3.3).
#ifndef HYDRANT_TOOLS_EVAL_ENTRY_CLASSES_H_
#define HYDRANT_TOOLS_EVAL_ENTRY_CLASSES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tools/eval/anatomy.h"
#include "tools/eval/attention_loss.h"

namespace hydrant::eval {

// For one layer: entries per head and step, on average. An entry is activated in a step if its
// weight with the full cache, the mean over the group, exceeds `gamma` times the layer's largest
// over all heads and steps.
struct EntryClasses {
  double activated_cached = 0;
  double activated_uncached = 0;
  double inactive_cached = 0;
  double threshold = 0;
};

// A plot of one head: a line per step with a character per entry: 'b' activated and cached, 'o'
// activated and not cached, 'g' inactive and cached, '.' neither.
struct HeadClasses {
  int layer = 0;
  int kv_head = 0;
  std::vector<std::string> steps;
};

// Steps are the queries after the context. `shown`: heads to plot; their steps are filled in.
std::vector<EntryClasses> ClassifyEntries(const Activations& activations, const HeldEntries& held,
                                          double gamma, ThreadPool* threads,
                                          std::vector<HeadClasses>* shown);

// The rank of each replaced entry among the score's candidates by position, oldest first: 0 to 1,
// where 1 is the entry that had just left the `fifo` newest. `moments`: positions held by a head
// before and after each token, ascending; steps that evict more than one entry are skipped.
std::vector<double> ReplacementIndices(const std::vector<std::vector<int32_t>>& moments, int fifo);

}  // namespace hydrant::eval

#endif  // HYDRANT_TOOLS_EVAL_ENTRY_CLASSES_H_
