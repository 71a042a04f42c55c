// The usage that a request is told: entries and pages of its cache, and the times of its life.
#ifndef HYDRANT_SCHEDULER_SEQUENCE_USAGE_H_
#define HYDRANT_SCHEDULER_SEQUENCE_USAGE_H_

#include <cstdint>

#include "engine/cache/engine_limits.h"
#include "engine/run/step/batch.h"
#include "scheduler/sequence.h"

namespace hydrant {

// Entries of the heads that the plan governs; where all layers have a window, of these.
struct HeldEntries {
  int32_t most = 0;  // of the fullest head
  double mean = 0;
};
HeldEntries EntriesOf(const Sequence& sequence, const EngineLimits& limits);

// The prompt has been compressed, and the cache knows its lengths.
void RecordCompression(const CacheReport& report, const EngineLimits& limits, Sequence* sequence);
// A preempted sequence is admitted again, or ends.
void EndPreemption(TimeUs now, Sequence* sequence);
// Completes the usage of a sequence that ends.
void CloseUsage(const EngineLimits& limits, TimeUs now, Sequence* sequence);

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_SEQUENCE_USAGE_H_
