// How a cache does while tokens are generated, as CO2 looks at it (Yamazaki and Venkataraman 2024,
// sections 3.2 and 3.3): which entries are needed and which are held, and which are replaced.
#ifndef HYDRANT_TOOLS_EVAL_ENTRY_CLASSES_H_
#define HYDRANT_TOOLS_EVAL_ENTRY_CLASSES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tools/eval/anatomy.h"
#include "tools/eval/attention_loss.h"

namespace hydrant::eval {

// Of a layer: entries a head and step, on average. An entry is activated in a step where its weight
// with the full cache, the mean over the group, exceeds `gamma` times the layer's largest of all
// heads and steps.
struct EntryClasses {
  double activated_cached = 0;
  double activated_uncached = 0;
  double inactive_cached = 0;
  double threshold = 0;
};

// What is seen of one head: a line a step, in it a character an entry: 'b' activated and cached,
// 'o' activated and not cached, 'g' inactive and cached, '.' neither.
struct HeadClasses {
  int layer = 0;
  int kv_head = 0;
  std::vector<std::string> steps;
};

// Steps are the queries after the context. `shown`: heads whose steps are filled in.
std::vector<EntryClasses> ClassifyEntries(const Activations& activations, const HeldEntries& held,
                                          double gamma, ThreadPool* threads,
                                          std::vector<HeadClasses>* shown);

// The rank of each entry that was replaced among the entries that the score could choose from, by
// their positions, oldest first: 0 to 1, 1 the one that had just left the `fifo` newest. `moments`:
// positions of a head before and after each token, ascending; a step in which more than one leave
// is passed over.
std::vector<double> ReplacementIndices(const std::vector<std::vector<int32_t>>& moments, int fifo);

}  // namespace hydrant::eval

#endif  // HYDRANT_TOOLS_EVAL_ENTRY_CLASSES_H_
