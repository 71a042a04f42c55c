// Several blocks per row, each for a part of its logits; the row's last block to finish joins their
// results. The first launch finds the highest logits, and thereby the tokens of greedy rows. Each
// later launch advances every row by one step: eleven bits of a top_k or top_p cut
// (sample_search.cuh), and finally the draw. Sums are of integers (kernels/ops/sample_weight.h), so
// the order of blocks and threads does not matter.
#include <algorithm>
#include <cfloat>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/radix.cuh"
#include "kernels/cuda/row_parts.cuh"
#include "kernels/cuda/sample_search.cuh"
#include "kernels/ops/sample_weight.h"
#include "kernels/random.h"

namespace hydrant::cuda {
namespace {

constexpr int kThreads = kRowThreads, kWarps = kRowWarps;
constexpr int kMaxTiles = (1 << 17) / kRowTile;  // per part: see PartialBins
constexpr int kMaxParts = kThreads;

using Sum = SampleSum;

struct Highest {
  float logit;
  uint32_t id;
  int any_finite;
};

// A part's input to the draw: the weights above the cut, and the number equal to it.
struct DrawPart {
  Sum above;
  int equals;
};

// Scratch, [num_rows] each.
struct SampleWork {
  SampleArgs args;
  int parts;  // per row
  int tiles_per_part;
  SampleRowState* rows;
  Sum* bins;         // [num_rows, kSearchBins], zero between launches
  Highest* highest;  // [num_rows, parts]
  DrawPart* draws;   // [num_rows, parts]
  unsigned* parts_done;
};

__device__ inline float LogitOfKey(uint32_t key) {
  return __uint_as_float((key & 0x80000000u) != 0 ? key & 0x7FFFFFFFu : ~key);
}

__device__ inline Sum Weight(const SampleRowState& row, float logit) {
  return SampleWeight((static_cast<double>(logit) - row.highest) * row.inverse_temperature);
}

__device__ RowPart PartOf(const SampleWork& work, int part) {
  return RowPart(work.args.Row(static_cast<int>(blockIdx.x)), work.args.vocab, work.tiles_per_part,
                 part, PartStarts::kAligned);
}

// ---- The first launch --------------------------------------------------------------------------

__device__ Highest Higher(const Highest& a, const Highest& b) {
  const bool second = b.logit > a.logit || (b.logit == a.logit && b.id < a.id);
  return {second ? b.logit : a.logit, second ? b.id : a.id, a.any_finite | b.any_finite};
}

__device__ Highest HighestOfBlock(Highest mine, Highest* shared) {
  for (int mask = kWarpSize / 2; mask > 0; mask /= 2) {
    mine = Higher(mine, {__shfl_xor_sync(kAllLanes, mine.logit, mask),
                         __shfl_xor_sync(kAllLanes, mine.id, mask),
                         __shfl_xor_sync(kAllLanes, mine.any_finite, mask)});
  }
  const int thread = static_cast<int>(threadIdx.x);
  if (thread % kWarpSize == 0) shared[thread / kWarpSize] = mine;
  __syncthreads();
  for (int warp = 0; warp < kWarps; ++warp) mine = Higher(mine, shared[warp]);
  __syncthreads();
  return mine;
}

// Starts the next phase that the row needs, first or after a search.
__device__ void BeginPhase(const SampleArgs& args, const SamplingRow& asked, SamplePhase after,
                           SampleRowState* row) {
  row->pass = 0;
  row->prefix = 0;
  if (after == SamplePhase::kTopK && asked.top_k > 0 && asked.top_k < args.vocab) {
    row->phase = SamplePhase::kTopK;
    row->left = static_cast<Sum>(asked.top_k);
    return;
  }
  row->cut.least_weight = asked.min_p > 0.0f ? MinPWeight(asked.min_p) : 0;
  row->phase =
      after != SamplePhase::kDraw && asked.top_p < 1.0f ? SamplePhase::kTopP : SamplePhase::kDraw;
}

__device__ void StartRow(const SampleWork& work, const Highest& highest) {
  const int row = static_cast<int>(blockIdx.x);
  const SamplingRow asked = work.args.rows[row];
  SampleRowState* state = &work.rows[row];
  if (!highest.any_finite || asked.temperature <= 0.0f) {
    work.args.tokens[row] = highest.any_finite ? highest.id : UINT32_MAX;
    state->phase = SamplePhase::kDone;
    return;
  }
  state->highest = highest.logit;
  state->inverse_temperature = 1.0 / static_cast<double>(asked.temperature);
  // Excludes -infinity: the lowest candidate key is above its key.
  state->cut = {OrderedKey(-FLT_MAX) - 1, 0, 0};
  BeginPhase(work.args, asked, SamplePhase::kTopK, state);
}

__global__ void __launch_bounds__(kThreads) SampleHighestKernel(SampleWork work) {
  WaitForPredecessor();
  __shared__ Highest shared[kWarps];
  const int thread = static_cast<int>(threadIdx.x), part = static_cast<int>(blockIdx.y);
  Highest mine = {-INFINITY, 0, 0};
  PartOf(work, part).ForEach([&](int id, float raw) {
    const float logit = CandidateLogit(raw);
    mine.any_finite |= raw >= -FLT_MAX && raw <= FLT_MAX ? 1 : 0;
    if (logit > mine.logit) mine = {logit, static_cast<uint32_t>(id), mine.any_finite};
  });
  mine = HighestOfBlock(mine, shared);
  Highest* of_row = work.highest + static_cast<size_t>(blockIdx.x) * work.parts;
  if (thread == 0) of_row[part] = mine;
  if (!IsLastOfRow(work.parts_done)) return;
  Sum* bins = work.bins + static_cast<size_t>(blockIdx.x) * kSearchBins;
  for (int i = thread; i < kSearchBins; i += kThreads) bins[i] = 0;
  if (thread < work.parts) {
    mine.logit = __ldcg(&of_row[thread].logit);
    mine.id = __ldcg(&of_row[thread].id);
    mine.any_finite = __ldcg(&of_row[thread].any_finite);
  }
  mine = HighestOfBlock(mine, shared);
  if (thread == 0) StartRow(work, mine);
}

// ---- Later launches ----------------------------------------------------------------------------

class SampleStep {
 public:
  union Shared {
    PartialBins bins;
    struct {
      Sum sums[kWarps];
      int numbers[kWarps];
      DrawPart parts[kMaxParts];
      Sum left;
      int part, equals_before;
    } join;
  };

  __device__ SampleStep(const SampleWork& work, Shared* shared)
      : work_(work),
        row_index_(static_cast<int>(blockIdx.x)),
        row_(work.rows[row_index_]),
        asked_(work.args.rows[row_index_]),
        bins_(work.bins + static_cast<size_t>(row_index_) * kSearchBins),
        shared_(*shared),
        thread_(static_cast<int>(threadIdx.x)) {}

  __device__ void Run() {
    const RowPart part = PartOf(work_, static_cast<int>(blockIdx.y));
    switch (row_.phase) {
      case SamplePhase::kTopK:
      case SamplePhase::kTopP:
        AddToBins(part);
        if (IsLastOfRow(work_.parts_done)) JoinSearch();
        return;
      case SamplePhase::kDraw:
        SumDrawPart(part);
        if (IsLastOfRow(work_.parts_done)) Draw();
        return;
      case SamplePhase::kDone:
        return;
    }
  }

 private:
  __device__ void AddToBins(const RowPart& part) {
    shared_.bins.Clear();
    const bool counts = row_.phase == SamplePhase::kTopK;
    part.ForEach([&](int, float raw) {
      const float logit = CandidateLogit(raw);
      const uint32_t key = OrderedKey(logit);
      if (key <= row_.cut.key || !IsUnderPrefix(key, row_)) return;
      const Sum weight = counts ? 1 : Weight(row_, logit);
      if (weight > 0 && weight >= row_.cut.least_weight)
        shared_.bins.Add(SearchDigit(key, row_.pass), weight);
    });
    shared_.bins.AddTo(bins_);
  }

  // All threads have the same number of bins; the first thread has the highest digits.
  static constexpr int kBinsPerThread = kSearchBins / kThreads;
  __device__ int BinOf(int i) const { return kSearchBins - 1 - (thread_ * kBinsPerThread + i); }

  __device__ void JoinSearch() {
    Sum own[kBinsPerThread], mine = 0, total = 0;
#pragma unroll
    for (int i = 0; i < kBinsPerThread; ++i) {
      own[i] = __ldcg(&bins_[BinOf(i)]) + OfCut(BinOf(i));
      bins_[BinOf(i)] = 0;
      mine += own[i];
    }
    Sum before = SumBefore<kWarps>(mine, shared_.join.sums, &total);
    SampleRowState next = row_;
    if (row_.pass == 0 && row_.phase == SamplePhase::kTopK && row_.left >= total) {
      // top_k does not limit the candidates.
      BeginPhase(work_.args, asked_, SamplePhase::kTopP, &next);
      if (thread_ == 0) work_.rows[row_index_] = next;
      return;
    }
    if (row_.pass == 0 && row_.phase == SamplePhase::kTopP)
      next.left = TopPWeight(asked_.top_p, total);
    if (next.left <= before || next.left > before + mine) return;
    // In the one thread that reaches the need: the index of its bin.
    int reached = -1;
#pragma unroll
    for (int i = 0; i < kBinsPerThread; ++i) {
      if (reached >= 0) continue;
      if (next.left <= before + own[i]) reached = i;
      if (reached < 0) before += own[i];
    }
    next.left -= before;
    next.prefix |= static_cast<uint32_t>(BinOf(reached)) << SearchShift(row_.pass);
    if (++next.pass == kSearchPasses) EndSearch(&next);
    work_.rows[row_index_] = next;
  }

  // Weight of the candidates at the previous cut, in one sum.
  __device__ Sum OfCut(int bin) const {
    if (row_.phase != SamplePhase::kTopP || row_.cut.quota == 0) return 0;
    if (!IsUnderPrefix(row_.cut.key, row_) || SearchDigit(row_.cut.key, row_.pass) != bin) return 0;
    const Sum weight = Weight(row_, LogitOfKey(row_.cut.key));
    return weight >= row_.cut.least_weight ? weight * static_cast<Sum>(row_.cut.quota) : 0;
  }

  __device__ void EndSearch(SampleRowState* next) const {
    next->cut.key = next->prefix;
    if (row_.phase == SamplePhase::kTopK) {
      next->cut.quota = static_cast<int>(next->left);
      return BeginPhase(work_.args, asked_, SamplePhase::kTopP, next);
    }
    const Sum each = Weight(row_, LogitOfKey(next->cut.key));
    next->cut.quota = static_cast<int>((next->left + each - 1) / each);
    BeginPhase(work_.args, asked_, SamplePhase::kDraw, next);
  }

  __device__ void SumDrawPart(const RowPart& part) {
    DrawPart mine = {0, 0};
    part.ForEach([&](int, float raw) {
      const float logit = CandidateLogit(raw);
      const uint32_t key = OrderedKey(logit);
      if (key > row_.cut.key) mine.above += WeightIfKept(logit);
      mine.equals += key == row_.cut.key ? 1 : 0;
    });
    DrawPart total = {};
    SumBefore<kWarps>(mine.above, shared_.join.sums, &total.above);
    SumBefore<kWarps>(mine.equals, shared_.join.numbers, &total.equals);
    if (thread_ == 0) DrawsOfRow()[blockIdx.y] = total;
  }
  __device__ DrawPart* DrawsOfRow() const {
    return work_.draws + static_cast<size_t>(row_index_) * work_.parts;
  }
  __device__ Sum WeightIfKept(float logit) const {
    const Sum weight = Weight(row_, logit);
    return weight >= row_.cut.least_weight ? weight : 0;
  }

  // Finds the part that contains the target, then the id.
  __device__ void Draw() {
    if (thread_ < work_.parts) {
      shared_.join.parts[thread_].above = __ldcg(&DrawsOfRow()[thread_].above);
      shared_.join.parts[thread_].equals = __ldcg(&DrawsOfRow()[thread_].equals);
    }
    __syncthreads();
    if (thread_ == 0) {
      FindPart();
      work_.rows[row_index_].phase = SamplePhase::kDone;
    }
    __syncthreads();
    FindId(PartOf(work_, shared_.join.part), shared_.join.left, shared_.join.equals_before);
  }

  __device__ void FindPart() {
    // The weight of one candidate at the cut; 0 if the cut is at -infinity.
    const Sum at_cut = row_.cut.quota > 0 ? WeightIfKept(LogitOfKey(row_.cut.key)) : 0;
    const auto of_part = [&](const DrawPart& part, int equals_before) {
      const int kept = min(max(row_.cut.quota - equals_before, 0), part.equals);
      return part.above + at_cut * static_cast<Sum>(kept);
    };
    Sum total = 0;
    for (int i = 0, equals = 0; i < work_.parts; equals += shared_.join.parts[i++].equals)
      total += of_part(shared_.join.parts[i], equals);
    Sum left = RandomBelow(RandomBits(asked_.seed, asked_.position), total);
    int equals = 0, i = 0;
    for (; i + 1 < work_.parts; equals += shared_.join.parts[i++].equals) {
      const Sum sum = of_part(shared_.join.parts[i], equals);
      if (left < sum) break;
      left -= sum;
    }
    shared_.join.part = i;
    shared_.join.equals_before = equals;
    shared_.join.left = left;
  }

  __device__ void FindId(const RowPart& part, Sum left, int equals_before_part) {
    const RowPart::Run run = part.RunOfThread();
    int equals = 0, all_equals = 0;
    for (int id = run.begin; id < run.end; ++id) equals += OrderedKey(part[id]) == row_.cut.key;
    const int equals_before =
        equals_before_part + SumBefore<kWarps>(equals, shared_.join.numbers, &all_equals);
    Sum mine = 0, total = 0;
    Walk(part, run, equals_before, [&](int, Sum weight) {
      mine += weight;
      return true;
    });
    const Sum before = SumBefore<kWarps>(mine, shared_.join.sums, &total);
    if (left < before || left >= before + mine) return;
    left -= before;
    Walk(part, run, equals_before, [&](int id, Sum weight) {
      if (left < weight) {
        work_.args.tokens[row_index_] = static_cast<uint32_t>(id);
        return false;
      }
      left -= weight;
      return true;
    });
  }

  // Visits a run's candidates in order until visit(id, weight) returns false.
  template <typename Visit>
  __device__ void Walk(const RowPart& part, RowPart::Run run, int equals_before,
                       Visit visit) const {
    for (int id = run.begin; id < run.end; ++id) {
      const float logit = part[id];
      const uint32_t key = OrderedKey(logit);
      if (key < row_.cut.key || (key == row_.cut.key && equals_before++ >= row_.cut.quota))
        continue;
      if (!visit(id, WeightIfKept(logit))) return;
    }
  }

  const SampleWork& work_;
  const int row_index_;
  const SampleRowState row_;
  const SamplingRow asked_;
  Sum* const bins_;
  Shared& shared_;
  const int thread_;
};

// Four blocks per multiprocessor: no registers spill.
__global__ void __launch_bounds__(kThreads, 4) SampleStepKernel(SampleWork work) {
  WaitForPredecessor();
  __shared__ SampleStep::Shared shared;
  SampleStep(work, &shared).Run();
}

// ---- On the host -------------------------------------------------------------------------------

// Parts are just small enough to fill the device several times. REQUIRES: vocab <=
// 2^19 (sample_weight.h)
void ChooseParts(const Context& context, SampleWork* work) {
  constexpr int kBlocksPerSm = 8;
  const int tiles = RowTiles(work->args.vocab);
  const int64_t rounds = CeilDiv(static_cast<int64_t>(tiles) * work->args.num_rows,
                                 std::max(context.num_sms, 1) * kBlocksPerSm);
  const int least = CeilDiv(tiles, kMaxParts);
  work->tiles_per_part = static_cast<int>(std::clamp<int64_t>(rounds, least, kMaxTiles));
  work->parts = CeilDiv(tiles, work->tiles_per_part);
}

}  // namespace

cudaError_t Sample(const Context& context, const SampleArgs& args) {
  if (args.num_rows == 0) return cudaSuccess;
  SampleWork work = {};
  work.args = args;
  ChooseParts(context, &work);
  const size_t rows = args.num_rows, parts = rows * work.parts;
  ScratchLayout layout;
  const size_t states = layout.Add<SampleRowState>(rows);
  const size_t bins = layout.Add<Sum>(rows * kSearchBins);
  const size_t highest = layout.Add<Highest>(parts);
  const size_t draws = layout.Add<DrawPart>(parts);
  void* scratch = nullptr;
  cudaError_t error = context.scratch->Get(layout.bytes(), &scratch);
  if (error == cudaSuccess) error = context.counters->Get(rows, context.stream, &work.parts_done);
  if (error != cudaSuccess) return error;
  work.rows = At<SampleRowState>(scratch, states);
  work.bins = At<Sum>(scratch, bins);
  work.highest = At<Highest>(scratch, highest);
  work.draws = At<DrawPart>(scratch, draws);
  const dim3 grid(args.num_rows, work.parts);
  error = LaunchOverlapped(SampleHighestKernel, grid, dim3(kThreads), 0, context.stream, work);
  const int searches = (args.any_top_k ? 1 : 0) + (args.any_top_p ? 1 : 0);
  const int steps = args.any_drawn ? kSearchPasses * searches + 1 : 0;
  for (int step = 0; step < steps && error == cudaSuccess; ++step)
    error = LaunchOverlapped(SampleStepKernel, grid, dim3(kThreads), 0, context.stream, work);
  return error;
}

}  // namespace hydrant::cuda
