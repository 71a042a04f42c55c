#include "kernels/cpu/attention/decode_attention.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/cpu/attention/attention_scratch.h"
#include "kernels/cpu/attention/decode_attention_kernels.h"
#include "kernels/cpu/isa/isa.h"
#include "kernels/victim.h"

namespace hydrant::cpu {
namespace {

constexpr int kWholeHead = -1;
// A head is split over threads if it exceeds 1 / kTasksPerThread of a thread's share of the work.
constexpr int kTasksPerThread = 4;

// One unit of work: a part of a head that is split over threads, or a whole head.
struct DecodeTask {
  int head = 0;
  int part = kWholeHead;
};

// The work of one call; kept between calls to reuse its memory.
struct DecodePlan {
  DecodeArgs shape;
  std::vector<DecodeHead> heads;
  std::vector<DecodeTask> tasks;
  std::vector<DecodeTask> sorted;  // scratch of LongestFirst
  AttentionScratch scratch;        // for heads that are split over threads
};

DecodeArgs ShapeOf(const DecodeAttentionArgs& args) {
  DecodeArgs shape;
  shape.head_dim = args.pages.layout.head_dim;
  shape.group = args.num_heads / args.tables.num_kv_heads;
  shape.block_size = args.pages.layout.block_size;
  shape.dtype = args.pages.layout.dtype;
  shape.scale = args.scale;
  shape.softcap = args.softcap;
  shape.rotary = args.rotary;
  shape.keys = args.pages.keys;
  shape.values = args.pages.values;
  shape.positions = args.pages.positions;
  shape.scores = args.pages.scores;
  shape.log_weight_stride = args.pages.layout.LogWeightStride();
  return shape;
}

// Chooses the new entry's index and grows the head's length.
DecodeHead PlaceNewEntry(const DecodeAttentionArgs& args, int row, int kv_head, int group) {
  const SequenceTables& tables = args.tables;
  const int head_dim = args.pages.layout.head_dim;
  const int slot = args.slots[row];
  const size_t index = tables.HeadIndex(slot, args.layer, kv_head);
  const size_t kv_row = static_cast<size_t>(row) * tables.num_kv_heads + kv_head;
  const size_t q_row =
      static_cast<size_t>(row) * args.num_heads + static_cast<size_t>(kv_head) * group;
  DecodeHead head;
  head.q = args.q + q_row * head_dim;
  head.k = args.k + kv_row * head_dim;
  head.v = args.v + kv_row * head_dim;
  head.out = static_cast<float*>(args.out) + q_row * head_dim;
  if (args.sink_logits != nullptr) head.sinks = args.sink_logits + kv_head * group;
  head.blocks = tables.HeadBlocks(slot, args.layer, kv_head);
  head.rule = &tables.rules[slot];
  if (head.rule->weighted) head.log_weights = args.pages.log_weights;
  head.position = args.positions[row];
  const bool append = tables.lengths[index] < tables.caps[index];
  head.new_entry = append ? tables.lengths[index]++ : tables.victims[index];
  head.num_entries = tables.lengths[index];
  if (head.rule->rolling) {
    head.position = head.num_entries - 1;
    head.rank_above =
        append ? head.position
               : args.pages.positions[PageIndex(args.pages.layout, head.blocks, head.new_entry)];
  }
  if (head.rule->scored && head.num_entries == tables.caps[index])
    head.victim = &tables.victims[index];
  return head;
}

size_t ScratchFloats(const DecodeArgs& shape, const DecodeHead& head) {
  const size_t weights = head.log_weights == nullptr ? 1 : 2;  // each with its maximum
  const size_t per_query_head = weights * (kPartEntries + 1) + 1 + RoundUpDim(shape.head_dim);
  return static_cast<size_t>(NumParts(head.num_entries)) * shape.group * per_query_head;
}

void GiveScratch(const DecodeArgs& shape, float* scratch, DecodeHead* head) {
  const size_t rows = static_cast<size_t>(NumParts(head->num_entries)) * shape.group;
  head->weight_stride = static_cast<int64_t>(NumParts(head->num_entries)) * kPartEntries;
  head->weights = scratch;
  head->shares = scratch;
  if (head->log_weights != nullptr) head->shares += rows * kPartEntries;
  head->part_out = head->shares + rows * kPartEntries;
  head->part_max = head->part_out + rows * RoundUpDim(shape.head_dim);
  head->part_sum = head->part_max + rows;
  head->part_numerator_max = head->log_weights == nullptr ? head->part_max : head->part_sum + rows;
}

void PlaceNewEntries(const DecodeAttentionArgs& args, DecodePlan* plan) {
  plan->shape = ShapeOf(args);
  plan->heads.clear();
  for (int row = 0; row < args.num_rows; ++row) {
    if (args.slots[row] < 0) continue;
    for (int kv_head = 0; kv_head < args.tables.num_kv_heads; ++kv_head)
      plan->heads.push_back(PlaceNewEntry(args, row, kv_head, plan->shape.group));
  }
}

// Cuts the work into tasks. Results do not depend on the cut: the parts are the same.
void CutIntoTasks(int num_threads, DecodePlan* plan) {
  int64_t parts_in_all = 0;
  for (const DecodeHead& head : plan->heads) parts_in_all += NumParts(head.num_entries);
  plan->tasks.clear();
  size_t scratch_floats = 0;
  for (size_t i = 0; i < plan->heads.size(); ++i) {
    DecodeHead& head = plan->heads[i];
    const int parts = NumParts(head.num_entries);
    const int64_t tasks = static_cast<int64_t>(num_threads) * kTasksPerThread;
    const bool spread = num_threads > 1 && parts > 1 && parts * tasks > parts_in_all;
    head.parts_left = spread ? parts : 0;
    if (spread) scratch_floats += ScratchFloats(plan->shape, head);
    for (int part = 0; part < (spread ? parts : 1); ++part)
      plan->tasks.push_back({static_cast<int>(i), spread ? part : kWholeHead});
  }
  float* scratch = plan->scratch.Reserve(scratch_floats);
  for (DecodeHead& head : plan->heads) {
    if (head.parts_left == 0) continue;
    GiveScratch(plan->shape, scratch, &head);
    scratch += ScratchFloats(plan->shape, head);
  }
}

int EntriesOf(const DecodePlan& plan, const DecodeTask& task) {
  const int entries = plan.heads[task.head].num_entries;
  if (task.part == kWholeHead) return entries;
  return std::min(kPartEntries, entries - task.part * kPartEntries);
}

// Sorts tasks by length, longest first, in steps of a thirty-second of the longest: the last task
// of a thread is then short, so that threads finish together even if head lengths differ. (Steps
// rather than a full sort, because a batch may have thousands of tasks and one thread sorts them.)
// Returns false if all lengths are equal.
bool LongestFirst(DecodePlan* plan) {
  constexpr int kSteps = 32;
  int longest = 0, shortest = std::numeric_limits<int>::max();
  for (const DecodeTask& task : plan->tasks) {
    longest = std::max(longest, EntriesOf(*plan, task));
    shortest = std::min(shortest, EntriesOf(*plan, task));
  }
  if (longest <= shortest) return false;
  const auto step_of = [&](const DecodeTask& task) {
    return static_cast<int>(int64_t{longest - EntriesOf(*plan, task)} * kSteps / longest);
  };
  int begin[kSteps + 1] = {};  // start of each step's tasks
  for (const DecodeTask& task : plan->tasks) ++begin[step_of(task) + 1];
  for (int step = 0; step < kSteps; ++step) begin[step + 1] += begin[step];
  plan->sorted.resize(plan->tasks.size());
  for (const DecodeTask& task : plan->tasks) plan->sorted[begin[step_of(task)]++] = task;
  plan->tasks.swap(plan->sorted);
  return true;
}

// Deals the sorted tasks round-robin, so that each thread's range also starts with the longest.
void DealToThreads(int num_threads, DecodePlan* plan) {
  const size_t threads = num_threads;
  plan->sorted.clear();
  for (size_t thread = 0; thread < threads; ++thread) {
    for (size_t i = thread; i < plan->tasks.size(); i += threads)
      plan->sorted.push_back(plan->tasks[i]);
  }
  plan->tasks.swap(plan->sorted);
}

// The first part of the task.
DecodePart FirstPart(const DecodePlan& plan, size_t task) {
  if (task >= plan.tasks.size()) return {};
  return {&plan.heads[plan.tasks[task].head], std::max(plan.tasks[task].part, 0)};
}

void RunTask(const DecodeKernels& kernels, int index, DecodePlan* plan) {
  thread_local AttentionScratch thread_scratch;
  const DecodeTask& task = plan->tasks[index];
  const DecodePart next = FirstPart(*plan, size_t{1} + index);
  const DecodeArgs& shape = plan->shape;
  DecodeHead& head = plan->heads[task.head];
  const size_t part_floats = PartScratch(shape.group, shape.head_dim, head.rule->rolling);
  if (task.part != kWholeHead) {
    kernels.attend_part(shape, {&head, task.part}, next, thread_scratch.Reserve(part_floats));
    // The thread that finishes last sees the results of the others, and joins them.
    if (std::atomic_ref<int>(head.parts_left).fetch_sub(1, std::memory_order_acq_rel) == 1)
      kernels.join(shape, head);
    return;
  }
  float* scratch = thread_scratch.Reserve(part_floats + ScratchFloats(shape, head));
  GiveScratch(shape, scratch + part_floats, &head);
  const int parts = NumParts(head.num_entries);
  for (int part = 0; part < parts; ++part) {
    kernels.attend_part(shape, {&head, part}, part + 1 < parts ? DecodePart{&head, part + 1} : next,
                        scratch);
  }
  kernels.join(shape, head);
}

DecodeKernels ChosenKernels() {
  if constexpr (kIsX86) {
    if (DetectIsa() >= Isa::kAvx512) return DecodeKernelsAvx512();
  }
  return DecodeKernelsBase();
}

}  // namespace

void DecodeAttention(const DecodeAttentionArgs& args, ThreadPool& pool) {
  thread_local DecodePlan plan;
  const DecodeKernels kernels = ChosenKernels();
  PlaceNewEntries(args, &plan);
  CutIntoTasks(pool.num_threads(), &plan);
  if (pool.num_threads() > 1 && LongestFirst(&plan)) DealToThreads(pool.num_threads(), &plan);
  DecodePlan* work = &plan;  // the caller's plan: thread_local would name the worker's own
  pool.ParallelForRanges(static_cast<int>(plan.tasks.size()),
                         [&kernels, work](int task, int) { RunTask(kernels, task, work); });
}

}  // namespace hydrant::cpu
